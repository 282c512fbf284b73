"""What all studies share: options, settings, where to compute, and how a record is written."""

from __future__ import annotations

import contextlib
import json
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.integrate import trapezoid

from carvyfl.core.environment import commit, environment
from carvyfl.core.files import write_text
from carvyfl.data.datasets import cache_folder
from carvyfl.groups.grouping import Grouping
from carvyfl.learning.engines import make_engine
from carvyfl.learning.job import Engine, GroupResult
from carvyfl.learning.planner import Progress, quiet
from carvyfl.learning.store import GroupStore
from carvyfl.pipeline import Compute, cast_votes, find_profiles, form_methods, gather_models
from carvyfl.runs.config import RunConfig, preset, updated
from carvyfl.runs.execute import Prepared, prepare
from carvyfl.voting.certificate import Certificate, certify


def add_options(
    parser: ArgumentParser,
    *,
    out: str,
    dataset: str | Sequence[str] = "embedded",
    samples: int | Sequence[int] = 100,
    precision: str | None = None,
) -> None:
    """Add the options that every study has.

    Parameters
    ----------
    parser
        The study's own.
    out
        The default of the folder that the results go to.
    dataset, samples
        Their defaults; a study that has several takes several.
    precision
        Its default; None is the engine's own.
    """
    clients = parser.add_argument_group("clients")
    several = None if isinstance(dataset, str) else "+"
    clients.add_argument("--dataset", default=dataset, nargs=several)
    several = None if isinstance(samples, int) else "+"
    clients.add_argument("--samples", type=int, default=samples, nargs=several, help="per client")
    clients.add_argument("--clients", type=int, help="default: the preset's")
    clients.add_argument("--rounds", type=int, help="of training; default: the preset's")
    clients.add_argument("--data-dir", help="where the data sets are")
    computing = parser.add_argument_group("computing")
    computing.add_argument("--engine", default="auto", help="auto, loop or batched")
    computing.add_argument("--precision", default=precision, help="default: %(default)s")
    computing.add_argument("--workers", type=int, help="worker processes; default: one per core")
    computing.add_argument(
        "--store",
        type=Path,
        default=cache_folder() / "groups",
        help="where trained groups are kept: an interrupted study goes on where it stopped",
    )
    computing.add_argument("--commit", help="noted in the results where git cannot tell it")
    computing.add_argument("--out", type=Path, default=Path(out), help="default: %(default)s")


def settings(args: Namespace, preset_name: str = "default", **changes: Any) -> RunConfig:
    """Return the settings of a run: a preset, the options, and what the study changes.

    Parameters
    ----------
    args
        The options of :func:`add_options`.
    preset_name
        What to start from.
    changes
        Fields of :class:`~carvyfl.runs.config.RunConfig`, over the options.
    """
    given = {"samples": args.samples, "clients": args.clients, "data_dir": args.data_dir}
    layer: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if args.rounds is not None:
        layer["training"] = {"rounds": args.rounds}
    start = preset(preset_name, changes.pop("dataset", args.dataset))
    return updated(start, layer, changes)


def computing(args: Namespace, precision: str | None = None) -> Compute:
    """Return where and how to compute; ``precision`` goes before the option's."""
    engine = make_engine(args.engine, workers=args.workers, precision=precision or args.precision)
    return Compute(engine, args.workers, GroupStore(args.store), printed)


@contextlib.contextmanager
def printed(title: str) -> Iterator[Progress]:
    """Print what was done and the seconds it took."""
    started = time.monotonic()
    yield quiet
    print(f"  {title}: {time.monotonic() - started:.0f} s", flush=True)


def form_carvy(config: RunConfig, compute: Compute) -> tuple[Prepared, Grouping]:
    """Run Steps 1 and 2 of CARVY-FL."""
    prepared = prepare(config)
    profiles = find_profiles(prepared.setup, config.grouping, compute)
    formed = form_methods(["carvy"], config.grouping, prepared.setup, profiles)
    return prepared, formed["carvy"]


def certify_groups(
    prepared: Prepared, results: Sequence[GroupResult], compute: Compute
) -> Certificate:
    """Have trained groups vote on the test set."""
    test = prepared.dataset.test
    votes = cast_votes(gather_models(prepared.setup, results), test.inputs, compute)
    return certify(votes, test.labels)


def provenance(args: Namespace, engine: Engine | None = None) -> dict[str, Any]:
    """Return what a record says of its origin: the commit and the environment."""
    return {"commit": args.commit or commit(), "environment": environment(engine)}


def write_record(path: Path, record: dict[str, Any]) -> None:
    """Write a record as JSON."""
    write_text(path, json.dumps(record, indent=1) + "\n")


def area_below_100(curve: npt.ArrayLike) -> float:
    """Return the area of 100 − ASR over m = 0, 1, …, in percent × clients."""
    return float(trapezoid(100 - np.asarray(curve, dtype=np.float64)))


def mean_sd(values: Sequence[float], digits: int) -> str:
    """Write a mean and its standard deviation; none for a single value."""
    mean = f"{np.mean(values):.{digits}f}"
    return mean if len(values) < 2 else f"{mean} ± {np.std(values, ddof=1):.{digits}f}"


def markdown_table(head: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [f"| {' | '.join(line)} |\n" for line in (head, *body)]
    return "".join([lines[0], "|---" * len(head) + "|\n", *lines[1:]])
