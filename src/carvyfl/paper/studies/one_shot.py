"""One-shot learning: closed-form heads, with the CNN's records beside them."""

from __future__ import annotations

import json
import time
from argparse import Namespace
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from carvyfl.core.errors import CarvyError
from carvyfl.core.files import write_text
from carvyfl.core.schema import plain
from carvyfl.groups.methods import GROUPINGS
from carvyfl.paper import records
from carvyfl.paper.experiment import Experiment
from carvyfl.paper.markdown import markdown
from carvyfl.paper.published import DATASETS
from carvyfl.paper.studies.common import computing, provenance, settings, write_record
from carvyfl.pipeline import Compute, compute_features, form_all, plan_training, train
from carvyfl.plots.draw import draw, save
from carvyfl.plots.figure import Curve, Panel
from carvyfl.plots.style import CA, M, Style, method_style
from carvyfl.runs.config import RunConfig
from carvyfl.voting.certificate import Certificate
from carvyfl.voting.spread import Spread, mean_sd

if TYPE_CHECKING:
    import pandas as pd

Trials = Mapping[tuple[str, int, str], "pd.DataFrame"]
"""The CNN's trials by data set, samples and method."""

LEVEL = 60
"""Percent: the largest m at which CA(m) is at least this is noted."""
GIVEN = ("groups", "partition", "validation_share", "features", "ridge")
"""Options that are settings of a run."""
DRAWN, SIZES = ("carvy", "flcert"), ("50", "500")
"""The groupings and the samples per client of the figure."""


def one_shot(args: Namespace) -> None:
    """One-shot learning: certified accuracy of closed-form heads, with the CNN's beside it.

    For every data set, size and seed, the groupings of the options are certified. The curve of
    `slots` is the reading *honest only*, too; `all honest` counts Δ ≥ 4m of the same votes. (In the
    recorded results random slots go by the name of `carvy`, which drew them at that time if G was
    set.) A data set's file is written after every size. λ was chosen on seeds 21 to 23, which are
    not reported.
    """
    compute = computing(args)
    seeds = range(args.seeds[0]) if len(args.seeds) == 1 else args.seeds
    parameters = {key: float(value) for key, value in (p.split("=") for p in args.parameters)}
    of_all = {name: getattr(args, name) for name in GIVEN}
    of_all |= {"methods": tuple(args.methods), "baseline_groups": args.groups}
    of_all["partition_options"] = parameters
    for dataset in args.dataset:
        name = f"{Path(dataset).stem}{args.label and f'-{args.label}'}"
        path = args.out / f"{name}.json"
        record = provenance(args, compute.engine) | {"seeds": list(seeds), "sizes": {}}
        if path.exists():  # go on with the sizes that are missing
            kept = json.loads(path.read_text())
            if kept["commit"] != record["commit"]:  # a file names one commit for all its sizes
                raise CarvyError(f"{path} was begun at commit {kept['commit']}; move it away")
            record["sizes"] = kept["sizes"]
        for samples in args.samples:
            if str(samples) in record["sizes"]:
                continue
            started = time.monotonic()
            certified: dict[str, list[Certificate]] = {}
            for seed in seeds:
                of_size = Namespace(**{**vars(args), "samples": samples})
                config = settings(of_size, "one-shot", dataset=dataset, seed=seed, **of_all)
                for reading, certificate in _measure(config, compute).items():
                    certified.setdefault(reading, []).append(certificate)
            record["config"] = plain(replace(config, data_dir=None))  # that changes nothing
            found: dict[str, Any] = {key: _summary(own) for key, own in certified.items()}
            for reading, own in found.items():
                print(f"{name} {samples} {reading}: {_line(own)}", flush=True)
            found["seconds"] = round(time.monotonic() - started, 1)
            print(f"{name} {samples} seconds: {found['seconds']} s", flush=True)
            record["sizes"][str(samples)] = found
            write_record(path, record)


def _measure(config: RunConfig, compute: Compute) -> dict[str, Certificate]:
    """Return the certificate of every method, and of `slots` in the reading all honest, too."""
    unkept = replace(compute, store=None)  # a head is found faster than a file is written
    experiment = Experiment(config, unkept)
    setup = experiment.setup
    compute_features(setup, compute, experiment.prepared.dataset.test.inputs)
    groupings = form_all(config.methods, config.grouping, setup, unkept).groupings
    jobs = {method: plan_training(setup, own) for method, own in groupings.items()}
    found = {}
    for method, results in train(jobs, unkept).items():
        basis = groupings[method].basis
        found[method] = experiment.certify(results, basis)
        if "all_honest" in basis.readings and GROUPINGS[method].needs_profiles:
            found[f"{method}, all honest"] = found[method].under("all_honest")
    return found


def _summary(certificates: list[Certificate]) -> dict[str, Any]:
    """Return CA(m), its area and the largest m at 60 %, for every seed."""
    curves = [certificate.ca().tolist() for certificate in certificates]
    return {
        "auc": [certificate.auc() for certificate in certificates],
        "ca": curves,
        "largest_m": [sum(ca >= LEVEL for ca in curve) - 1 for curve in curves],
    }


def _line(found: Mapping[str, Any]) -> str:
    clean = [curve[0] for curve in found["ca"]]
    return (
        f"AUC {mean_sd(found['auc'], 1)}, CA(0) {mean_sd(clean, 1)}, "
        f"{LEVEL} % up to m = {mean_sd(found['largest_m'], 1)}"
    )


def one_shot_figures(args: Namespace) -> None:
    """One-shot learning: draw and tabulate what was measured, the CNN's records beside it.

    Writes a table for every file of a folder, and the figure of those that have a CNN's curves:
    those of the preset `default`, in default.jsonl one folder up.
    """
    from carvyfl.paper.summaries import frame, own_groups  # pandas, of the extra `paper`

    folder: Path = args.out
    files = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    if not files:
        raise CarvyError(f"{folder} holds no results; run 'one-shot' first")
    trials = own_groups(frame(records.load(folder.parent / "default.jsonl")))
    cnn: Any = dict(iter(trials.groupby(["dataset", "samples", "method"])))
    panels = []
    for name, record in files.items():
        write_text(folder / f"{name}.md", table(name, record["sizes"], cnn))
        for samples, found in record["sizes"].items():
            if name in DATASETS and samples in SIZES:
                curves = []
                for method in DRAWN:
                    style, key = method_style(method), (name, int(samples), method)
                    curves.append(_curve(f"{style.label}, one-shot", found[method]["ca"], style))
                    if key in cnn:
                        own = cnn[key]["ca"]
                        curves.append(_curve(f"{style.label}, CNN", own, style.dotted()))
                title = f"{DATASETS[name]}, {samples} samples per client"
                panels.append(Panel(title, M, CA, curves))
    if panels:
        save(draw(panels, columns=2), folder / "ca.svg")


def _curve(name: str, trials: Iterable[Sequence[float]], style: Style) -> Curve:
    """Return the mean over the seeds, with a band of one standard deviation."""
    found = Spread.of(trials)
    mean = found.mean.tolist()
    low, high = map(np.ndarray.tolist, found.band or (found.mean, found.mean))
    return Curve(name, range(len(mean)), mean, low, high, style)


def table(name: str, sizes: Mapping[str, Any], cnn: Trials) -> str:
    """Return a line for every size and grouping: the CNN's area, and what the heads reach."""
    rows = []
    for samples, found in sizes.items():
        for method, own in found.items():
            if method == "seconds":
                continue
            key = name, int(samples), method
            rows.append(
                [
                    samples,
                    method,
                    mean_sd(cnn[key]["auc"].to_numpy(), 1) if key in cnn else "",
                    mean_sd(own["auc"], 1),
                    mean_sd([curve[0] for curve in own["ca"]], 1),
                    mean_sd(own["largest_m"], 1) if min(own["largest_m"]) >= 0 else "none",
                ]
            )
    head = ["samples", "groups", "AUC, CNN", "AUC, one-shot", "CA(0), %", f"largest m at {LEVEL} %"]
    return markdown(head, rows)
