"""Time one federated task in CARVY-FL's batched engine and in other frameworks, on a GPU.

``python benchmarks/peers/gpu.py`` times every peer that this environment has, each in a
process of its own, and writes ``results/bench/peers-gpu.json`` and a table. A peer that is
missing or fails is a line with the reason. ``--clients 4 --samples 32 --device cpu`` is a quick
trial.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gpu_task import BATCH, LR, Task

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
MARK = "RESULT "


@dataclass(frozen=True)
class Peer:
    """One way of solving the task.

    Attributes
    ----------
    label
        Its name for the reader.
    package
        The distribution whose version counts.
    module, variant
        The file beside this one that times it, and what that is asked for.
    algorithm, precision
        ``FedAvg`` or ``SCAFFOLD``; ``fp32`` or ``bf16``.
    notes
        What a reader must know to judge its figures.
    """

    label: str
    package: str
    module: str
    variant: str
    algorithm: str
    precision: str
    notes: str = ""


GROUPS = "Groups of 5 clients with a model each; dropout, control variates, aggregation included."
PLAIN = "One client after another, data on the device, no DataLoader."
VMAP = "Stacked weights; the fastest of several numbers of clients at a time."
PFL = "One process: two of them cannot share a GPU. Batches in the same order every round."
FEDJAX = (
    "Its backend for one device takes clients in turn; batches come from host memory, and the "
    "last one is filled up to 16. jax.tree_map, which it needs, is put back into JAX."
)
PEERS = {
    "carvyfl-bf16": Peer(
        "CARVY-FL, batched", "carvyfl", "gpu_torch", "carvyfl", "SCAFFOLD", "bf16", GROUPS
    ),
    "carvyfl-fp32": Peer(
        "CARVY-FL, batched", "carvyfl", "gpu_torch", "carvyfl", "SCAFFOLD", "fp32", GROUPS
    ),
    "plain-fp32": Peer("plain loop", "torch", "gpu_torch", "plain", "FedAvg", "fp32", PLAIN),
    "plain-bf16": Peer("plain loop", "torch", "gpu_torch", "plain", "FedAvg", "bf16", PLAIN),
    "vmap-fp32": Peer("torch.func.vmap", "torch", "gpu_torch", "vmap", "FedAvg", "fp32", VMAP),
    "vmap-bf16": Peer("torch.func.vmap", "torch", "gpu_torch", "vmap", "FedAvg", "bf16", VMAP),
    "pfl-fp32": Peer("pfl", "pfl", "gpu_pfl", "fedavg", "FedAvg", "fp32", PFL),
    "pfl-scaffold-fp32": Peer("pfl", "pfl", "gpu_pfl", "scaffold", "SCAFFOLD", "fp32", PFL),
    "fedjax-fp32": Peer("FedJAX", "fedjax", "gpu_jax", "fedjax", "FedAvg", "fp32", FEDJAX),
    "jax-fp32": Peer("plain JAX, vmap", "jax", "gpu_jax", "vmap", "FedAvg", "fp32", VMAP),
    "jax-bf16": Peer("plain JAX, vmap", "jax", "gpu_jax", "vmap", "FedAvg", "bf16", VMAP),
    "vmap-compiled-bf16": Peer(
        "torch.compile of vmap", "torch", "gpu_torch", "vmap-compiled", "FedAvg", "bf16", VMAP
    ),
    "vmap-compiled-fp32": Peer(
        "torch.compile of vmap", "torch", "gpu_torch", "vmap-compiled", "FedAvg", "fp32", VMAP
    ),
}
NOT_RUN = {
    "flower": "Flower's simulation (flwr 1.41 and 1.42) has one backend, Ray, and imports it "
    "whatever backend is named; Ray's wheel, 74 MB, could not be carried to this machine."
}


def worker(name: str, options: argparse.Namespace) -> None:
    """Time a peer with every number of clients and print the results."""
    peer, used = PEERS[name], 0.0
    for number, clients in enumerate(options.clients):
        share = (options.seconds - used) / (len(options.clients) - number)
        task = Task(
            clients, options.samples, options.device, peer.precision, share, options.weights
        )
        start = time.perf_counter()
        try:
            found = importlib.import_module(peer.module).measure(peer.variant, task)
            used += min(share, time.perf_counter() - start)
        except Exception as error:  # one line of the table
            traceback.print_exc()
            found = {"failed": f"{type(error).__name__}: {error}".strip().splitlines()[0]}
        print(MARK + json.dumps({"clients": clients, **found}), flush=True)


def run(name: str, options: argparse.Namespace, weights: Path, limit: float) -> dict[str, Any]:
    """Time a peer in a process of its own and return its results by number of clients."""
    command = [sys.executable, __file__, "--worker", name, "--weights", str(weights)]
    for option in ("samples", "device", "seconds"):
        command += [f"--{option}", str(getattr(options, option))]
    command += ["--clients", *map(str, options.clients)]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(
            command,
            env={**os.environ, "PYTHONPATH": path},
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
        try:
            process.wait(timeout=limit)
            missing = f"ended with code {process.returncode}"
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            missing = f"stopped after {limit:.0f} s"
        out.seek(0)
        err.seek(0)
        lines = [line for line in out if line.startswith(MARK)]
        errors = err.read()
    results = [json.loads(line.removeprefix(MARK)) for line in lines]
    found: dict[str, Any] = {str(clients): {"failed": missing} for clients in options.clients}
    found |= {str(entry.pop("clients")): entry for entry in results}
    if any("failed" in entry for entry in found.values()):
        print(errors[-2000:], file=sys.stderr)
    return found


def version_of(package: str) -> str | None:
    """Return the version of a distribution, None if it is not here."""
    if package == "carvyfl":
        return str(importlib.import_module("carvyfl.core.version").__version__)
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def save_weights(path: Path) -> None:
    """Write the initial weights for the peers without PyTorch."""
    weights = importlib.import_module("gpu_torch").initial_weights()
    np.savez(path, **{name: weight.numpy() for name, weight in weights.items()})


def header(options: argparse.Namespace) -> dict[str, Any]:
    """Return what was measured, where, and with what."""
    about = importlib.import_module("carvyfl.core.environment")
    packages = sorted({peer.package for peer in PEERS.values()} | {"triton", "jaxlib"})
    return {
        "benchmark": "peers-gpu",
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": options.commit or about.commit(),
        "environment": about.environment(),
        "versions": {package: version_of(package) for package in packages},
        "task": {
            "data": "random images 1×28×28, 10 classes",
            "clients": options.clients,
            "samples_per_client": options.samples,
            "model": "compact-cnn",
            "batch": BATCH,
            "local_epochs": 1,
            "optimiser": f"SGD, {LR}",
            "clients_per_round": "all",
            "evaluation": "none inside the timed rounds",
            "precision": "fp32: TF32 is off; bf16: products in bfloat16, weights in float32",
            "device": options.device,
            "seconds_per_peer": options.seconds,
            "timing": "wall-clock of a whole round with the device synchronised, after a first "
            "one, median of up to 3; what does not fit the seconds is timed in part: fewer "
            "clients or fewer steps, see clients_timed and steps_timed",
        },
        "peers": {},
        "not_run": dict(NOT_RUN),
    }


def measure_all(options: argparse.Namespace) -> dict[str, Any]:
    """Time all peers asked for, and write the results after each."""
    results, start = header(options), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        weights = Path(folder) / "weights.npz"
        save_weights(weights)
        for name in options.only or PEERS:
            left = options.total - (time.perf_counter() - start)
            one(results, name, options, weights, left)
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n")
    return results


def one(
    results: dict[str, Any], name: str, options: argparse.Namespace, weights: Path, left: float
) -> None:
    """Time a peer and add it to the results, or why it was not run."""
    peer, start = PEERS[name], time.perf_counter()
    version = version_of(peer.package)
    if version is None:
        results["not_run"][name] = f"{peer.package} is not installed"
    elif left < 10:
        results["not_run"][name] = f"the {options.total:.0f} s for all peers were over"
    else:
        found = run(name, options, weights, min(options.timeout, left))
        reasons = [entry.get("failed") for entry in found.values()]
        if all(reasons):
            results["not_run"][name] = reasons[0]
        else:
            took = round(time.perf_counter() - start, 1)
            about = {"version": version, **asdict(peer), "wall_seconds": took}
            results["peers"][name] = {**about, "clients": found}
    said = results["not_run"].get(name) or results["peers"][name]["clients"]
    print(f"{name} ({time.perf_counter() - start:.0f} s): {json.dumps(said)}", flush=True)


def table(results: dict[str, Any]) -> str:
    """Return the results as Markdown."""
    sizes = [str(clients) for clients in results["task"]["clients"]]
    heads = [f"µs, {int(size):,} clients" for size in sizes]
    rows = [
        f"| peer | version | algorithm | precision | {' | '.join(heads)} | peak GiB |",
        f"|---|---|---|---|{'---:|' * (len(sizes) + 1)}",
    ]
    for peer in results["peers"].values():
        cells = [cell(peer["clients"][size]) for size in sizes]
        peaks = [peer["clients"][size].get("peak_gib") for size in sizes]
        known = [peak for peak in peaks if peak is not None]
        rows.append(
            f"| {peer['label']} | {peer['version']} | {peer['algorithm']} | {peer['precision']} "
            f"| {' | '.join(cells)} | {f'{max(known):.1f}' if known else '–'} |"
        )
    rows += ["", "µs per client-step; * a part of a round was timed.", ""]
    rows += [f"not run: {name}: {reason}" for name, reason in results["not_run"].items()]
    return "\n".join(rows)


def cell(entry: dict[str, Any]) -> str:
    """Return a figure for the table."""
    if "failed" in entry:
        return f"failed: {entry['failed']}"
    figure, star = entry["us_per_client_step"], "" if entry["seconds_per_round"] else "*"
    return f"{figure:,.1f}{star}" if figure < 100 else f"{figure:,.0f}{star}"


def main() -> None:
    """Measure everything asked for and write it down."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--clients", type=int, nargs="+", default=[100, 1000])
    add("--samples", type=int, default=500)
    add("--device", choices=("cuda", "cpu"), default="cuda")
    add("--only", nargs="+", metavar="NAME", choices=PEERS, help="these peers only")
    add("--seconds", type=float, default=25, help="for the timing of a peer, roughly")
    add("--timeout", type=float, default=120, help="for a peer with its start, in seconds")
    add("--total", type=float, default=520, help="for all peers, in seconds")
    add("--commit", help="what was measured, where git cannot say it")
    add("--out", type=Path, default=ROOT / "results" / "bench" / "peers-gpu.json")
    add("--worker", choices=PEERS, help=argparse.SUPPRESS)
    add("--weights", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options.worker, options)
    else:
        print(table(measure_all(options)))


if __name__ == "__main__":
    main()
