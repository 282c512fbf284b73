"""Time the phases of one run from within: when each began, on which thread, and how long it took.

Run with ``python -m benchmarks.run_phases --out FILE run --dataset mnist --samples 500``: what
follows the file is the command after ``carvy``. All modules are imported first.
"""

from __future__ import annotations

import argparse
import atexit
import functools
import importlib
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.machine import begun, write

STARTED = time.perf_counter()
PHASES = {
    "carvyfl.runs.execute": ("prepare", "run", "train", "vote", "certify", "save"),
    "carvyfl.pipeline": (
        *("form_all", "find_profiles", "choose_groups", "form_methods"),
        *("gather_models", "cast_votes"),
    ),
    "carvyfl.learning.store": ("job_keys",),
    "carvyfl.learning.store:StoreWriter": ("__exit__",),
    "carvyfl.learning.scaffold.batched.training:Training": ("__init__", "round"),
    "carvyfl.voting.group_models:GroupModels": ("save",),
}
"""The functions that are timed, by the module or class that has them."""


def main() -> None:
    """Wrap the phases, then call the command line; the figures are written when it ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    spans: list[dict[str, Any]] = []
    for name, phases in PHASES.items():
        module, _, kind = name.partition(":")
        owner = importlib.import_module(module)
        owner = getattr(owner, kind) if kind else owner
        for phase in phases:
            label = f"{kind}.{phase}" if kind else phase
            setattr(owner, phase, timed(getattr(owner, phase), label, spans))
    from carvyfl.cli import main as carvy

    figures = begun("phases of a run") | {"command": ["carvy", *options.command]}
    figures |= {"imported_after": passed(STARTED)}
    figures["environment"]["cores"] = len(os.sched_getaffinity(0))
    atexit.register(
        lambda: write(options.out, figures | {"seconds": passed(STARTED), "spans": spans})
    )
    sys.argv = ["carvy", *options.command]
    carvy()


def timed(phase: Callable[..., Any], label: str, spans: list[dict[str, Any]]) -> Callable[..., Any]:
    """Return a function that also notes when it was called and how long it took."""

    @functools.wraps(phase)
    def call(*arguments: Any, **options: Any) -> Any:
        start = time.perf_counter()
        try:
            return phase(*arguments, **options)
        finally:
            thread = threading.current_thread().name
            begin = round(start - STARTED, 2)
            spans.append({"phase": label, "at": begin, "seconds": passed(start), "thread": thread})

    return call


def passed(start: float) -> float:
    """Return the seconds since a moment."""
    return round(time.perf_counter() - start, 2)


if __name__ == "__main__":
    main()
