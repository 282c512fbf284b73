"""One-shot learning: closed-form heads, with the CNN's records beside them."""

from __future__ import annotations

import json
import time
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from carvyfl.core.errors import CarvyError
from carvyfl.core.schema import plain
from carvyfl.groups.methods import GROUPINGS
from carvyfl.pipeline import Compute, form_all, plan_training, train
from carvyfl.runs.config import RunConfig
from carvyfl.voting.certificate import Certificate
from carvyfl.voting.spread import mean_sd
from reproduction.studies.common import (
    LEVEL,
    computing,
    largest_m,
    on_heads,
    provenance,
    settings,
    write_record,
)

if TYPE_CHECKING:
    pass


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
    of_all = {"methods": tuple(args.methods), "partition_options": parameters}
    of_all |= {"groups": args.groups, "baseline_groups": args.groups}
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
                own = {"dataset": dataset, "samples": samples, "seed": seed}
                config = settings(args, "one-shot", **own, **of_all)
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
    experiment = on_heads(config, compute)
    setup, unkept = experiment.setup, experiment.compute
    groupings = form_all(config.methods, config, setup, unkept).groupings
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
        "largest_m": list(map(largest_m, curves)),
    }


def _line(found: Mapping[str, Any]) -> str:
    clean = [curve[0] for curve in found["ca"]]
    return (
        f"AUC {mean_sd(found['auc'], 1)}, CA(0) {mean_sd(clean, 1)}, "
        f"{LEVEL} % up to m = {mean_sd(found['largest_m'], 1)}"
    )
