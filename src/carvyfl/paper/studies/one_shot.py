"""One-shot learning: certified accuracy of closed-form heads, with the CNN's beside it.

For every data set, size and seed, the groupings of the options are certified. The curve of `slots`
is the reading *honest only*, too; `all honest` counts Δ ≥ 4m of the same votes. (In the recorded
results random slots go by the name of `carvy`, which drew them at that time if G was set.) A data
set's file is written after every size. λ was chosen on seeds 21 to 23, which are not reported.
"""

from __future__ import annotations

import json
import time
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from carvyfl.core.errors import CarvyError
from carvyfl.core.schema import plain
from carvyfl.groups.methods import GROUPINGS
from carvyfl.paper.studies.common import computing, provenance, settings, write_record
from carvyfl.pipeline import (
    Compute,
    cast_votes,
    compute_features,
    form_all,
    gather_models,
    plan_training,
    train,
)
from carvyfl.runs.config import RunConfig
from carvyfl.runs.execute import prepare
from carvyfl.voting.certificate import Certificate, certify
from carvyfl.voting.spread import mean_sd

LEVEL = 60
"""Percent: the largest m at which CA(m) is at least this is noted."""


def run(args: Namespace) -> None:
    """Measure every data set, size and seed, and write a file for each data set."""
    compute = computing(args)
    for dataset in args.dataset:
        name = f"{Path(dataset).stem}{args.label and f'-{args.label}'}"
        path = args.out / f"{name}.json"
        record = provenance(args, compute.engine) | {"seeds": list(_seeds(args)), "sizes": {}}
        if path.exists():  # go on with the sizes that are missing
            kept = json.loads(path.read_text())
            if kept["commit"] != record["commit"]:  # a file names one commit for all its sizes
                raise CarvyError(f"{path} was begun at commit {kept['commit']}; move it away")
            record["sizes"] = kept["sizes"]
        for samples in args.samples:
            if str(samples) in record["sizes"]:
                continue
            started = time.monotonic()
            curves: dict[str, list[Any]] = {}
            for seed in _seeds(args):
                config = _config(args, dataset, samples, seed)
                for reading, certificate in measure(config, compute).items():
                    curves.setdefault(reading, []).append(certificate)
            record["config"] = plain(replace(config, data_dir=None))  # that changes nothing
            found: dict[str, Any] = {key: summary(own) for key, own in curves.items()}
            found["seconds"] = round(time.monotonic() - started, 1)
            record["sizes"][str(samples)] = found
            write_record(path, record)
            for reading, own in found.items():
                print(f"{name} {samples} {reading}: {_line(own)}", flush=True)


def _seeds(args: Namespace) -> range | tuple[int, ...]:
    """Return the seeds of the options: these, or so many."""
    return range(args.seeds[0]) if len(args.seeds) == 1 else tuple(args.seeds)


def _config(args: Namespace, dataset: str, samples: int, seed: int) -> RunConfig:
    options = dict(text.split("=") for text in args.parameters)
    return settings(
        replace_samples(args, samples),
        "one-shot",
        dataset=dataset,
        seed=seed,
        methods=tuple(args.methods),
        groups=args.groups,
        baseline_groups=args.groups,
        partition=args.partition,
        partition_options={key: float(value) for key, value in options.items()},
        validation_share=args.validation_share,
        features=args.features,
        ridge=args.ridge,
    )


def replace_samples(args: Namespace, samples: int) -> Namespace:
    """Return the options with one size in the place of several."""
    return Namespace(**{**vars(args), "samples": samples})


def measure(config: RunConfig, compute: Compute) -> dict[str, Certificate]:
    """Return the certificate of every method, and of `slots` in the reading all honest, too."""
    prepared = prepare(config)
    setup, test = prepared.setup, prepared.dataset.test
    compute_features(setup, compute, test.inputs)
    unkept = replace(compute, store=None)  # a head is found faster than a file is written
    groupings = form_all(config.methods, config.grouping, setup, unkept).groupings
    jobs = {method: plan_training(setup, own) for method, own in groupings.items()}
    found = {}
    for method, results in train(jobs, unkept).items():
        votes = cast_votes(gather_models(setup, results), test.inputs, unkept)
        certificate = certify(votes, test.labels, groupings[method].basis)
        found[method] = certificate
        strict = certificate.under("all_honest")
        if strict is not None and GROUPINGS[method].needs_profiles:
            found[f"{method}, all honest"] = strict
    return found


def summary(certificates: list[Certificate]) -> dict[str, Any]:
    """Return CA(m), its area and the largest m at 60 %, for every seed."""
    curves = [certificate.ca().tolist() for certificate in certificates]
    return {
        "auc": [certificate.auc() for certificate in certificates],
        "ca": curves,
        "largest_m": [sum(ca >= LEVEL for ca in curve) - 1 for curve in curves],
    }


def _line(found: Mapping[str, Any] | float) -> str:
    if isinstance(found, float):
        return f"{found} s"
    clean = [curve[0] for curve in found["ca"]]
    return (
        f"AUC {mean_sd(found['auc'], 1)}, CA(0) {mean_sd(clean, 1)}, "
        f"{LEVEL} % up to m = {mean_sd(found['largest_m'], 1)}"
    )
