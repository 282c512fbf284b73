"""Time one federated task in CARVY-FL's loop engine and in other frameworks, on this CPU.

``python benchmarks/peers/run.py`` makes an environment for every peer under
``build/bench``, times all contenders in turn and writes
``results/bench/peers-cpu.json`` and a table. ``--clients 10 --samples 50`` is a
quick trial; ``--only`` names contenders.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import datetime
import io
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import threading
import time
import tokenize
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from carvyfl.core.environment import commit, processor
from carvyfl.data.datasets import load
from carvyfl.data.partitions import build_federation

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BUILD = ROOT / "build" / "bench"
LIMIT_SECONDS = 600
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")


@dataclass(frozen=True)
class Contender:
    """One way of solving the task: the user code in ``script``, a file beside this one.

    ``uses`` and ``notes`` tell a reader how it uses the cores, and what to know of its figures.
    It runs in the environment of ``peer`` (None is the project's own), with arguments to Python
    (``launcher``) before the script. If it ``starts_workers`` in its first round, one long round
    would not do. ``sizes`` are the samples per client it is timed with.
    """

    name: str
    script: str
    algorithm: str
    uses: str
    peer: str | None = None
    environment: dict[str, str] = field(default_factory=dict)
    launcher: tuple[str, ...] = ()
    starts_workers: bool = False
    sizes: tuple[int, ...] = (50, 500)
    notes: str = ""


def threads(number: int) -> dict[str, str]:
    """Return the environment that gives torch so many threads.

    They wait without spinning: spinning ones take several times as long as soon as
    anything else runs on their cores.
    """
    return {
        "OMP_NUM_THREADS": str(number),
        "MKL_NUM_THREADS": str(number),
        "OMP_WAIT_POLICY": "PASSIVE",
    }


NATURAL = "The paper's shape: groups of 5, trained independently; one group per worker at a time."
ONE_GROUP = "The loop engine is parallel over groups, so one group of all clients uses one core."
SERIAL = "Its standalone pipeline is one process; torch is given both cores as threads."
CONTENDERS = (
    Contender(
        "plain-1-core",
        "plain.py",
        "fedavg",
        "1 process, 1 thread",
        environment=threads(1),
        notes="The reference of all ratios.",
    ),
    Contender(
        "plain-2-threads",
        "plain.py",
        "fedavg",
        "1 process, 2 threads",
        environment=threads(2),
        sizes=(50,),
    ),
    Contender(
        "carvyfl-20x5",
        "carvyfl_.py",
        "scaffold",
        "2 workers, 1 thread each",
        environment={"PEERS_GROUP": "5"},
        starts_workers=True,
        notes=NATURAL,
    ),
    Contender(
        "carvyfl-20x5-fedavg",
        "carvyfl_.py",
        "fedavg",
        "2 workers, 1 thread each",
        environment={"PEERS_GROUP": "5"},
        starts_workers=True,
        sizes=(50,),
        notes=NATURAL,
    ),
    Contender(
        "carvyfl-1x100",
        "carvyfl_.py",
        "scaffold",
        "1 worker, 1 thread",
        environment={"PEERS_GROUP": "0"},
        notes=ONE_GROUP,
    ),
    Contender(
        "pfl",
        "pfl_.py",
        "scaffold",
        "2 processes, 1 thread each",
        peer="pfl",
        environment=threads(1),
        launcher=TORCHRUN,
        notes="Its batches come in the same order in every round.",
    ),
    Contender(
        "flower",
        "flower_.py",
        "fedavg",
        "2 Ray actors, 1 thread each",
        peer="flower",
        starts_workers=True,
        notes="Its package has no SCAFFOLD strategy.",
    ),
    Contender(
        "fedlab",
        "fedlab_.py",
        "scaffold",
        "1 process, 2 threads",
        peer="fedlab",
        environment=threads(2),
        notes=SERIAL,
    ),
)
NOT_RUN = {
    "pfllib": "PFLlib is a source repository, not an installable package: "
    "no distribution of that name exists."
}
PACKAGES = {"pfl": ("pfl",), "flower": ("flwr", "ray"), "fedlab": ("fedlab",)}


def environment_of(peer: str) -> tuple[Path, str]:
    """Make a peer's environment unless it is there, and return its Python and what went wrong."""
    requirements = HERE / f"requirements-{peer}.txt"
    folder = BUILD / peer
    python, stamp = folder / "bin" / "python", folder / "installed.txt"
    if stamp.exists() and stamp.read_text() == requirements.read_text():
        return python, ""
    print(f"installing {peer} …", flush=True)
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    done = subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "--requirement", requirements],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        return python, (errors or ["pip failed"])[-1]
    stamp.write_text(requirements.read_text())
    return python, ""


def export(clients: int, samples: int) -> Path:
    """Write the clients' data for everybody: class-disjoint embedded Fashion-MNIST."""
    federation = build_federation(
        load("embedded"),
        "class-disjoint",
        num_clients=clients,
        samples=samples,
        seed=0,
        validation=0,
    )
    path = BUILD / f"clients-{clients}x{samples}.npz"
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(
        path,
        inputs=np.stack([client.train.inputs for client in federation.clients]),
        labels=np.stack([client.train.labels for client in federation.clients]),
        mean=federation.mean,
        std=federation.std,
    )
    return path


def family(token: str) -> list[Path]:
    """Return the /proc folders of all processes that carry a token in their environment.

    Ray detaches its workers from their parent, so that a tree of parents would miss them.
    """
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if token.encode() in (folder / "environ").read_bytes():
                    found.append(folder)
            except OSError:  # somebody else's, or gone
                continue
    return found


def memory_mb(token: str) -> float:
    """Return the proportional set size of all processes with the token, in MB (10**6 bytes)."""
    total = 0
    for folder in family(token):
        try:
            lines = (folder / "smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total * 1024 / 1e6


def measure(contender: Contender, python: Path, data: Path, rounds: int) -> dict[str, Any]:
    """Run a contender once and return its rounds, loss, memory and the load before it."""
    token = f"PEERS_TOKEN={uuid.uuid4()}"
    environment = {
        **os.environ,
        **contender.environment,
        "PEERS_DATA": str(data),
        "PEERS_ROUNDS": str(rounds),
        "PEERS_ALGORITHM": contender.algorithm,
        "PEERS_TOKEN": token.partition("=")[2],
        "FLWR_TELEMETRY_ENABLED": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    load_before = os.getloadavg()[0]
    peak, finished = [0.0], threading.Event()

    def watch() -> None:
        while not finished.wait(0.5):
            peak[0] = max(peak[0], memory_mb(token))

    watcher = threading.Thread(target=watch, daemon=True)
    start = time.perf_counter()
    process = subprocess.Popen(
        [python, *contender.launcher, HERE / contender.script],
        env=environment,
        cwd=BUILD,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    watcher.start()
    try:
        out, err = process.communicate(timeout=LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        out, err = "", f"stopped after {LIMIT_SECONDS} seconds"
    finally:
        finished.set()
        watcher.join()
        for folder in family(token):  # what a framework left behind, and nothing else
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(folder.name), signal.SIGKILL)
    result = {"load_before": load_before, "wall_seconds": time.perf_counter() - start}
    reports = [line for line in out.splitlines() if line.startswith('{"seconds"')]
    if not reports:
        lines = [line for line in err.splitlines() if line.strip()]
        return {**result, "failed": lines[-1] if lines else "no report"}
    return {**result, **json.loads(reports[-1]), "peak_memory_mb": peak[0]}


def lines_of_code(path: Path) -> int:
    """Count the lines that hold code: no blanks, comments or docstrings."""
    source = path.read_text()
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                docstrings.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    blank = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in blank and token.type != tokenize.ENDMARKER:
            code.update(range(token.start[0], token.end[0] + 1))
    return len(code - docstrings)


def summary(runs: list[dict[str, Any]], steps: int, plain: float | None) -> dict[str, Any]:
    """Boil the runs of a contender down to its figures; a first round counts only if alone."""
    good = [run for run in runs if "seconds" in run]
    if not good:
        return {"failed": runs[-1]["failed"]}
    rounds = [seconds for run in good for seconds in run["seconds"][1:] or run["seconds"]]
    median = statistics.median(rounds)
    return {
        "seconds_per_round": round(median, 3),
        "rounds_timed": [round(seconds, 3) for seconds in rounds],
        "first_rounds": [round(run["seconds"][0], 3) for run in good],
        "us_per_client_step": round(median / steps * 1e6),
        "times_plain_loop_speed": None if plain is None else round(plain / median, 3),
        "peak_memory_mb": round(max(run["peak_memory_mb"] for run in good)),
        "final_loss": round(good[-1]["loss"], 4),
        "load_before": [round(run["load_before"], 2) for run in good],
        "wall_seconds": [round(run["wall_seconds"], 1) for run in good],
        "failures": [run["failed"] for run in runs if "failed" in run],
    }


def versions(pythons: dict[str, Path]) -> dict[str, str]:
    """Return the versions of what was measured."""
    asked = dict.fromkeys(("torch", "numpy", "carvyfl"), Path(sys.executable))
    asked |= {package: python for peer, python in pythons.items() for package in PACKAGES[peer]}
    say = "import sys, importlib.metadata as m; print(m.version(sys.argv[1]))"
    found = {"python": platform.python_version()}
    for package, python in asked.items():
        done = subprocess.run([python, "-c", say, package], capture_output=True, text=True)
        found[package] = done.stdout.strip() or "unknown"
    return found


def hardware() -> dict[str, Any]:
    """Return the CPU's name, the cores and the memory."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {"cpu": processor(), "cores": os.cpu_count(), "memory_gb": round(memory / 1e9, 1)}


def table(results: dict[str, Any]) -> str:
    """Return the results as Markdown."""
    rows = [
        "| samples | contender | algorithm | cores used as | s / round | µs / client-step "
        "| × plain | peak MB | lines |",
        "|---:|---|---|---|---:|---:|---:|---:|---:|",
    ]
    for size, contenders in results["samples_per_client"].items():
        for name, row in contenders.items():
            about = results["contenders"][name]
            head = f"| {size} | {name} | {about['algorithm']} | {about['uses']} |"
            if "failed" in row:
                rows.append(f"{head} failed: {row['failed']} | | | | |")
                continue
            speed = row["times_plain_loop_speed"]
            rows.append(
                f"{head} {row['seconds_per_round']:.2f} | {row['us_per_client_step']:,} "
                f"| {'–' if speed is None else format(speed, '.2f')} | {row['peak_memory_mb']:,} "
                f"| {about['lines_of_user_code']} |"
            )
    return "\n".join(rows)


def main() -> None:
    """Measure everything asked for and write it down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=100, help="a multiple of 5")
    parser.add_argument("--samples", type=int, nargs="+", default=[50, 500])
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these contenders only")
    parser.add_argument("--repeats", type=int, default=2, help="passes over the smallest size")
    parser.add_argument("--rounds", type=int, default=2, help="2 or more; the first is dropped")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "bench" / "peers-cpu.json")
    options = parser.parse_args()

    chosen = [c for c in CONTENDERS if not options.only or c.name in options.only]
    pythons, not_run = {}, dict(NOT_RUN)
    for peer in sorted({c.peer for c in chosen if c.peer}):
        python, problem = environment_of(peer)
        if problem:
            not_run[peer] = problem
        else:
            pythons[peer] = python
    chosen = [c for c in chosen if c.peer is None or c.peer in pythons]

    source = commit() or "unknown"
    results: dict[str, Any] = {
        "benchmark": "peers-cpu",
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": source.removesuffix("-dirty"),
        "uncommitted_changes_in_src": source.endswith("-dirty"),
        "hardware": hardware(),
        # Much above 0: others were computing too, and the figures are worth little.
        "load_before_first_run": round(os.getloadavg()[0], 2),
        "versions": versions(pythons),
        "task": {
            "data": "embedded Fashion-MNIST subset, class-disjoint",
            "clients": options.clients,
            "model": "compact-cnn",
            "batch": 16,
            "local_epochs": 1,
            "lr": 0.01,
            "precision": "fp32",
            "clients_per_round": "all",
            "evaluation": "none inside the timed rounds",
            "rounds": "the first is left out where a run has more than one",
        },
        "contenders": {
            c.name: {
                "algorithm": c.algorithm,
                "uses": c.uses,
                "lines_of_user_code": lines_of_code(HERE / c.script),
                "notes": c.notes,
            }
            for c in chosen
        },
        "not_run": not_run,
        "samples_per_client": {},
    }
    smallest = min(options.samples)
    for samples in options.samples:
        data = export(options.clients, samples)
        here = [c for c in chosen if samples in c.sizes or samples == smallest]
        runs: dict[str, list[dict[str, Any]]] = {c.name: [] for c in here}
        # In turn, so that what else the machine does hits all alike.
        for _ in range(options.repeats if samples == smallest else 1):
            for contender in here:
                python = pythons[contender.peer] if contender.peer else Path(sys.executable)
                long_alone = samples > smallest and not contender.starts_workers
                run = measure(contender, python, data, 1 if long_alone else options.rounds)
                runs[contender.name].append(run)
                print(samples, contender.name, json.dumps(run), flush=True)
        steps = options.clients * -(-samples // 16)
        reference = summary(runs.get("plain-1-core", [{"failed": ""}]), steps, None)
        plain = reference.get("seconds_per_round")
        results["samples_per_client"][str(samples)] = {
            name: summary(done, steps, plain) for name, done in runs.items()
        }
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n")
    print(table(results))


if __name__ == "__main__":
    main()
