"""MNIST with 50 samples per client, the `paper` preset, beside what the paper prints.

Trains every method for every seed, with X-means' types and with the true ones, and tabulates
CA(0) and the largest m with CA over 80, 60, 40 and 20 %. The runs are those of `carvy run`, and
go on where they stopped when started again.
"""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import numpy as np

from carvyfl.core.files import write_text
from carvyfl.paper.markdown import markdown
from carvyfl.paper.published import LEVELS, paper
from carvyfl.paper.studies.common import computing, provenance, settings, write_record
from carvyfl.runs.execute import execute
from carvyfl.voting.spread import mean_sd

Trials = dict[str, list[dict[str, Any]]]
"""Method → what was measured, seed by seed."""

NAMES = {
    "carvy": "CARVY-FL, types by X-means (as published)",
    "carvy, true types": "CARVY-FL, true types",
    "flcert": "FLCert",
    "cluster": "FLCert+clustering",
    "single": "single global model",
}


def run(args: Namespace) -> None:
    """Train, tabulate and write; the largest m over a level is -1 if not even CA(0) is."""
    compute = computing(args)
    trials: Trials = {method: [] for method in NAMES}
    variants: dict[str, dict[str, Any]] = {
        "": {},
        ", true types": {"types": "oracle", "methods": ("carvy",)},
    }
    for seed in args.seeds:
        for label, changes in variants.items():
            config = settings(args, "paper", seed=seed, **changes)
            folder = args.work / f"seed-{seed}{label.replace(', ', '-').replace(' ', '-')}"
            finished = execute(config, folder, compute)
            for method, entry in finished.record().methods.items():
                certificate = finished.certificate(method)
                ca = certificate.ca().tolist()
                over = {str(level): certificate.largest_m(level) for level in LEVELS}
                trials[method + label].append(
                    {
                        "num_groups": entry.num_groups,
                        "rounds": float(np.mean(entry.rounds)),
                        "ca": ca,
                        "ca0": ca[0],
                        "auc": certificate.auc(),
                        **{level: -1 if m is None else m for level, m in over.items()},
                    }
                )
                print(f"seed {seed} {method}{label}: CA(0) {ca[0]:.1f}", flush=True)
    text = table(trials)
    print(text, end="")
    stem = f"{args.dataset}-{args.samples}"
    record = provenance(args, compute.engine) | {"seeds": args.seeds, "trials": trials}
    write_record(args.out / f"{stem}.json", record)
    write_text(args.out / f"{stem}.md", text)


def table(trials: Trials) -> str:
    """Return the results beside the paper's: mean ± standard deviation over seeds."""
    levels = " / ".join(map(str, LEVELS))
    head = ("method", "groups", "rounds", "CA(0)", "paper", f"m over {levels} %", "paper", "AUC")
    return markdown(head, [_line(method, trials[method]) for method in NAMES])


def _line(name: str, runs: list[dict[str, Any]]) -> list[str]:
    printed, method = paper()["ca_mnist_50"], name.partition(",")[0]
    over = printed["largest_m_with_ca_over"]
    found = {key: [run[key] for run in runs] for key in runs[0]}
    return [
        NAMES[name],
        ", ".join(map(str, found["num_groups"])),
        f"{np.mean(found['rounds']):.0f}",
        mean_sd(found["ca0"], 1),
        str(printed["ca0"].get(method, "–")),
        " / ".join(f"{np.mean(found[str(level)]):.1f}" for level in LEVELS),
        " / ".join(str(over[str(level)].get(method, "–")) for level in LEVELS),
        mean_sd(found["auc"], 0),
    ]
