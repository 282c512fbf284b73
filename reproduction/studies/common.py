"""What all studies share: options, settings, where to compute, and how a record is written."""

from __future__ import annotations

import contextlib
import json
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.integrate import trapezoid

from carvyfl.core.archives import write_npz
from carvyfl.core.environment import commit, environment
from carvyfl.core.errors import CarvyError
from carvyfl.core.files import write_text
from carvyfl.core.progress import Report, quiet
from carvyfl.core.schema import read
from carvyfl.data.datasets import cache_folder
from carvyfl.learning.backends import Backend, make_backend
from carvyfl.learning.store import GroupStore
from carvyfl.pipeline import Compute, compute_features
from carvyfl.runs.config import RunConfig, updated, without_former
from carvyfl.settings import RunSettings
from reproduction.experiment import Experiment, method_of_the_paper

OPTIONS: Mapping[str, tuple[type, str]] = {
    "dataset": (str, ""),
    "samples": (int, "per client"),
    "clients": (int, "how many; by default the preset's"),
    "rounds": (int, "of training; by default the preset's"),
    "data-dir": (str, "where the data sets are"),
    "engine": (str, "auto, loop or batched"),
    "precision": (str, "of training; by default the engine's"),
    "workers": (int, "worker processes; by default one per core"),
    "store": (Path, "trained groups are kept there: an interrupted study goes on where it stopped"),
    "commit": (str, "noted in the results where git cannot tell it"),
    "out": (Path, "the folder of the results"),
    "preset": (str, ""),
    "groups": (int, "G"),
    "inputs": (int, "use the first test inputs only"),
    "seed": (int, ""),
    "seeds": (int, "the seeds, or how many"),
    "draws": (int, "of groups"),
    "most": (int, "largest m"),
    "tried": (int, "compositions that are tried by chance, the worst by margins"),
    "m": (int, "numbers of malicious clients"),
    "attacks": (str, ""),
    "timed": (int, "rounds"),
    "precisions": (str, "beside fp32"),
    "methods": (str, "groupings"),
    "partition": (str, "how data are split over clients"),
    "parameters": (str, "of the partition, NAME=VALUE"),
    "features": (str, "the fixed feature map"),
    "embeddings": (Path, "of the one data set, which examples/frozen_network.py --synthetic wrote"),
    "model": (str, "that is trained; by default the preset's"),
    "validation-share": (float, "of the training set, that is set aside"),
    "ridge": (float, "λ of the heads"),
    "partitions": (str, "the names of the splits"),
    "learner": (str, "scaffold or one-shot"),
    "types": (str, "the profile method; by default the learner's"),
    "epsilon": (float, "of the profiles private-shares"),
    "sweep": (int, "other numbers of groups"),
    "together": (int, "partitions that are trained together"),
    "epsilons": (float, "claims that are audited"),
    "trials": (int, "messages with the canary, and as many without it"),
    "picture": (Path, "where the picture is written"),
    "label": (str, "appended to the names of the files"),
}
"""Option → its type and what it is; a study gives the default."""

EVERYWHERE: Mapping[str, Any] = {
    "dataset": "embedded",
    "samples": 100,
    "engine": "auto",
    **dict.fromkeys(["clients", "rounds", "data-dir", "precision", "workers", "store", "commit"]),
}
"""The options that a study which trains has, and their defaults; ``store`` is the cache."""

GIVEN = (
    *("samples", "clients", "data_dir", "partition", "validation_share"),
    *("types", "epsilon", "model", "features", "ridge"),
)
"""Options that are settings of a run by the same name."""

LEVEL = 60
"""Percent: the largest m at which CA(m) is at least this is noted."""


def add_options(parser: ArgumentParser, defaults: Mapping[str, Any]) -> None:
    """Add options; one whose default is a tuple takes several values."""
    for name, default in defaults.items():
        kind, about = OPTIONS[name]
        several = "+" if isinstance(default, tuple) else None
        text = about if default is None else f"{about} (default: %(default)s)".lstrip()
        parser.add_argument(f"--{name}", type=kind, default=default, nargs=several, help=text)


def settings(args: Namespace, preset_name: str = "default", **changes: Any) -> RunConfig:
    """Return the settings of a run: a preset, the options, and what the study changes."""
    start = method_of_the_paper(preset_name, changes.pop("dataset", args.dataset))
    return with_options(start, args, **changes)


def with_options(start: RunConfig, args: Namespace, **changes: Any) -> RunConfig:
    """Return settings with those that are options of the study, and with what it changes."""
    layer = {name: value for name in GIVEN if (value := getattr(args, name, None)) is not None}
    if args.rounds is not None:
        layer["training"] = {"rounds": args.rounds}
    return updated(start, layer, changes)


def computing(args: Namespace, precision: str | None = None) -> Compute:
    """Return where and how to compute; ``precision`` goes before the option's."""
    engine = make_backend(args.engine, workers=args.workers, precision=precision or args.precision)
    return Compute(engine, GroupStore(args.store or cache_folder() / "groups"), timed)


def on_heads(config: RunConfig, compute: Compute) -> Experiment:
    """Return a federation whose features are computed and kept.

    It keeps no trained group: a head is found faster than a file is written.
    """
    experiment = Experiment(config, replace(compute, store=None))
    compute_features(experiment.setup, compute, experiment.prepared.dataset.test.inputs)
    return experiment


@contextlib.contextmanager
def timed(title: str) -> Iterator[Report]:
    """Print what was done and the seconds it took."""
    started = time.monotonic()
    yield quiet
    print(f"  {title}: {time.monotonic() - started:.0f} s", flush=True)


def provenance(args: Namespace, engine: Backend | None = None) -> dict[str, Any]:
    """Return how a record begins: the commit and the environment."""
    return {"commit": args.commit or commit(), "environment": environment(engine)}


def write_record(path: Path, record: dict[str, Any]) -> None:
    """Write a record as JSON."""
    write_text(path, json.dumps(record, indent=1) + "\n")


def area_below_100(curve: npt.ArrayLike) -> float:
    """Return the area of 100 − ASR over m = 0, 1, …, in percent × clients."""
    return float(trapezoid(100 - np.asarray(curve, dtype=np.float64)))


def largest_m(ca: Sequence[float]) -> int:
    """Return the largest m at which :data:`LEVEL` % are certified, -1 if not even m = 0."""
    return sum(percent >= LEVEL for percent in ca) - 1


# Parts of the end-to-end study.


def run_part(
    measure: Callable[[Experiment, Namespace], dict[str, Any]],
    args: Namespace,
    *,
    with_votes: bool = False,
) -> None:
    """Write what a function measures, unless that was done before; take votes that were kept."""
    path, kept = _file(args, measure.__name__, "json"), _file(args, "votes", "npz")
    if _is_done(path):
        return
    experiment, record = _experiment(args)
    if with_votes and kept.exists():
        record["votes"] = _load_votes(experiment, kept)
    write_record(path, record | measure(experiment, args))


def keep_votes(train: Callable[[Experiment, Namespace], None], args: Namespace) -> None:
    """Train groups and keep their votes, and what they came from, unless that was done before."""
    path = _file(args, "votes", "npz")
    if _is_done(path):
        return
    experiment, about = _experiment(args)
    train(experiment, args)
    known = sorted(experiment.ballots)
    names = np.array([" ".join(map(str, members)) for members in known])
    cast = experiment.cast(known).astype(np.int8)
    write_npz(path, {"members": names, "votes": cast, "about": np.array(json.dumps(about))})


def _experiment(args: Namespace) -> tuple[Experiment, dict[str, Any]]:
    """Return the federation of the options, and how a record of it begins."""
    config = settings(args, args.preset, seed=args.seed)
    experiment = Experiment(config, computing(args), args.inputs)
    inputs = len(experiment.prepared.dataset.test)
    about = {"config": config.to_dict(), "test_inputs": inputs}
    return experiment, provenance(args, experiment.compute.engine) | about


def _load_votes(experiment: Experiment, path: Path) -> dict[str, Any]:
    """Take votes that were kept, and return what they came from."""
    with np.load(path) as kept:
        about: dict[str, Any] = json.loads(str(kept["about"]))
        same_inputs = kept["votes"].shape[1] == len(experiment.prepared.dataset.test)
        own, here = (  # where data lie changes no result; settings that came later are defaults
            replace(read(RunSettings, without_former(config, str(path)), str(path)), data_dir=None)
            for config in (about["config"], experiment.config.to_dict())
        )
        if own != here or not same_inputs:
            raise CarvyError(f"{path} holds votes of other settings; move it away")
        for name, cast in zip(kept["members"].tolist(), kept["votes"], strict=True):
            experiment.ballots[tuple(map(int, name.split()))] = cast
    return about


def _file(args: Namespace, part: str, suffix: str) -> Path:
    out: Path = args.out
    return out / f"{part}-{args.dataset}-{args.samples}.{suffix}"


def _is_done(path: Path) -> bool:
    if path.exists():
        print(f"{path} is there already; delete it to run this part again")
    return path.exists()
