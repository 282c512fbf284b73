"""What benchmarks share: two cores, a fresh process for each size, and what is noted of both."""

from __future__ import annotations

import datetime
import json
import os
import resource
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

from carvyfl.core.environment import commit, environment

CORES = 2
T = TypeVar("T")


def peak_gigabytes() -> float:
    """Return the most memory this process has held, in GB (10**9 bytes)."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9


def alone(measure: Callable[..., T], *arguments: Any) -> T:
    """Call a function on two cores, in a process of its own: its peak is not that of one before."""
    with ProcessPoolExecutor(1, get_context("spawn"), _pin) as fresh:
        return fresh.submit(measure, *arguments).result()


def _pin() -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[:CORES]))


def begun(benchmark: str) -> dict[str, Any]:
    """Return how the figures of a benchmark begin: hardware, versions, commit and date."""
    return {
        "benchmark": benchmark,
        "environment": environment() | {"cores": min(CORES, os.cpu_count() or 1)},
        "commit": commit(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def write(path: Path | None, figures: dict[str, Any]) -> None:
    """Write figures as JSON, if there is a path."""
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(figures, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
