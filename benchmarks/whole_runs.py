"""Time whole runs on a GPU, from the prompt to the result, as a user waits for them.

Run with ``python -m benchmarks.whole_runs --out results/bench/h200-runs.json``; it needs MNIST
(``carvy data get mnist``). Every run has a new group store. The first one also has a new cache of
compiled kernels, which those after it share. ``--only NAME …`` picks runs.

Half of a run is Python's, and how fast that is may differ by half between machines, and from minute
to minute: with every run stands how long a process took right before it that only imports PyTorch.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.machine import begun, write

RUN = "run --dataset mnist --samples 500 --methods carvy"
MANY = "run --dataset mnist --clients {} --samples 20 --groups {} --rounds {} --methods carvy"
RUNS = {
    "first": RUN,
    "second": RUN,
    "repeated": RUN,  # the same folder and store: nothing is left to do
    "10,000 clients, 2,000 groups, 20 rounds": MANY.format(10_000, 2_000, 20),
    "10,000 clients, 1,000 groups, 5 rounds": MANY.format(10_000, 1_000, 5),
    "100,000 clients, 10,000 groups, 5 rounds": MANY.format(100_000, 10_000, 5),
}


def main() -> None:
    """Time the runs one after another; what is finished is written at once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", nargs="*", choices=RUNS, default=list(RUNS))
    parser.add_argument("--limit", type=float, default=400.0, help="seconds a run may take")
    options = parser.parse_args()
    figures: dict[str, Any] = {**begun("whole runs"), "run_seconds": {}, "runs": {}}
    figures["environment"]["cores"] = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:
        for name in options.only:
            figures["runs"][name] = timed(RUNS[name], name, Path(folder), options.limit)
            figures["run_seconds"][name] = figures["runs"][name]["seconds"]
            write(options.out, figures)
            print(f"{name}: {figures['runs'][name]}", flush=True)


def timed(command: str, name: str, folder: Path, limit: float) -> dict[str, Any]:
    """Run a command and return its seconds, None if it failed, and its peak memory."""
    place = "second" if name == "repeated" else name
    where = ["--out", str(folder / f"run {place}"), "--store", str(folder / f"store {place}")]
    kernels = {"TRITON_CACHE_DIR": str(folder / "kernels")}
    program = "import sys; from carvyfl.cli import main; sys.argv[0] = 'carvy'; main()"
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    alone = time.perf_counter() - started
    with tempfile.TemporaryFile("w+") as said:
        started = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-c", program, *command.split(), *where],
            env={**os.environ, **kernels},
            stdout=subprocess.DEVNULL,
            stderr=said,
        )
        stop = threading.Timer(limit, process.kill)
        stop.start()
        _, status, usage = os.wait4(process.pid, 0)  # which alone tells the memory of one child
        taken = time.perf_counter() - started
        stop.cancel()
        said.seek(0)
        code = os.waitstatus_to_exitcode(status)
        failure = f"{said.read()[-500:]} (exit code {code})" if code else None
    return {
        "command": f"carvy {command}",
        "seconds": None if failure else round(taken, 1),
        "failure": failure,
        "peak_gb": round(usage.ru_maxrss * 1024 / 1e9, 2),
        "import_torch_seconds": round(alone, 2),
    }


if __name__ == "__main__":
    main()
