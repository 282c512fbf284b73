"""MNIST with 50 samples per client, the `paper` preset, beside what the paper prints.

Trains every method for every seed, with X-means' types and with the true ones, and tabulates
CA(0) and the largest m with CA over 80, 60, 40 and 20 %. The runs are those of `carvy run`, and
go on where they stopped when started again.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

import numpy as np

from carvyfl.core.files import write_text
from carvyfl.paper.published import LEVELS, paper
from carvyfl.paper.studies.common import (
    add_options,
    computing,
    markdown_table,
    mean_sd,
    provenance,
    settings,
    write_record,
)
from carvyfl.runs.execute import execute
from carvyfl.runs.record import MethodResult
from carvyfl.voting.certificate import Certificate

Trials = dict[str, list[dict[str, Any]]]
"""Method → what was measured, seed by seed."""

NAMES = {
    "carvy": "CARVY-FL, types by X-means (as published)",
    "carvy, true types": "CARVY-FL, true types",
    "flcert": "FLCert",
    "cluster": "FLCert+clustering",
    "single": "single global model",
}


def options(parser: ArgumentParser) -> None:
    """Add the options of this study."""
    add_options(parser, out="results/fidelity", dataset="mnist", samples=50, precision="fp32")
    parser.add_argument("--work", type=Path, default=Path("runs/fidelity"), help="run folders")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="default: 0 1 2")


def run(args: Namespace) -> None:
    """Train, tabulate and write."""
    compute = computing(args)
    trials: Trials = {method: [] for method in NAMES}
    for seed in args.seeds:
        base = settings(args, "paper", seed=seed)
        true_types = settings(args, "paper", seed=seed, types="oracle", methods=("carvy",))
        for label, folder, config in (
            ("", f"seed-{seed}", base),
            (", true types", f"seed-{seed}-true-types", true_types),
        ):
            finished = execute(config, args.work / folder, compute)
            for method, entry in finished.record().methods.items():
                found = measure(finished.certificate(method), entry)
                trials[method + label].append(found)
                print(f"seed {seed} {method}{label}: CA(0) {found['ca0']:.1f}", flush=True)
    text = table(trials)
    print(text, end="")
    stem = f"{args.dataset}-{args.samples}"
    record = provenance(args, compute.engine) | {"seeds": args.seeds, "trials": trials}
    write_record(args.out / f"{stem}.json", record)
    write_text(args.out / f"{stem}.md", text)


def measure(certificate: Certificate, entry: MethodResult) -> dict[str, Any]:
    """Return what is tabulated of one run; the largest m over a level is -1 if CA(0) is not.

    Parameters
    ----------
    certificate, entry
        Of one method, and its part of the run's record.
    """
    ca = certificate.ca().tolist()
    levels = {str(level): certificate.largest_m(level) for level in LEVELS}
    return {
        "num_groups": entry.num_groups,
        "rounds": float(np.mean(entry.rounds)),
        "ca": ca,
        "ca0": ca[0],
        "auc": certificate.auc(),
        **{level: -1 if m is None else m for level, m in levels.items()},
    }


def table(trials: Trials) -> str:
    """Return the results beside the paper's: mean ± standard deviation over seeds."""
    levels = " / ".join(map(str, LEVELS))
    head = ("method", "groups", "rounds", "CA(0)", "paper", f"m over {levels} %", "paper", "AUC")
    return markdown_table(
        head, (_line(method, name, trials[method]) for method, name in NAMES.items())
    )


def _line(method: str, name: str, runs: list[dict[str, Any]]) -> list[str]:
    printed, method = paper()["ca_mnist_50"], method.partition(",")[0]
    over = printed["largest_m_with_ca_over"]
    return [
        name,
        ", ".join(str(run["num_groups"]) for run in runs),
        f"{np.mean([run['rounds'] for run in runs]):.0f}",
        mean_sd([run["ca0"] for run in runs], 1),
        str(printed["ca0"].get(method, "–")),
        " / ".join(f"{np.mean([run[str(level)] for run in runs]):.1f}" for level in LEVELS),
        " / ".join(str(over[str(level)].get(method, "–")) for level in LEVELS),
        mean_sd([run["auc"] for run in runs], 0),
    ]
