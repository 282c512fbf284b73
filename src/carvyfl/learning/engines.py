"""The engines by name."""

from __future__ import annotations

from collections.abc import Callable

import torch

from carvyfl.core.errors import CarvyError
from carvyfl.core.registry import pick
from carvyfl.learning.job import Engine
from carvyfl.learning.scaffold.batched.engine import BatchedEngine
from carvyfl.learning.scaffold.batched.net import PRECISIONS
from carvyfl.learning.scaffold.loop.engine import LoopEngine
from carvyfl.learning.scaffold.ray import RayEngine


def _loop(workers: int | None, precision: str | None) -> Engine:
    if precision not in (None, "fp32", "bf16"):
        raise CarvyError(f"engine 'loop' computes in fp32 or bf16, not {precision}")
    return LoopEngine(workers, precision or "fp32")


def _batched(workers: int | None, precision: str | None) -> Engine:
    return BatchedEngine() if precision is None else BatchedEngine(precision=precision)


def _auto(workers: int | None, precision: str | None) -> Engine:
    return (_batched if torch.cuda.is_available() else _loop)(workers, precision)


ENGINES: dict[str, Callable[[int | None, str | None], Engine]] = {
    "auto": _auto,
    "loop": _loop,
    "batched": _batched,
}
"""What trains groups: ``loop`` on CPU cores, ``batched`` on a GPU, ``auto`` on what there is."""


def make_engine(
    name: str = "auto", *, workers: int | None = None, precision: str | None = None
) -> Engine:
    """Return an engine.

    Parameters
    ----------
    workers
        Worker processes of ``loop``; None is one per core.
    precision
        ``fp32``, ``tf32`` or ``bf16``; None is the engine's default (``loop``:
        fp32, ``batched``: bf16, whose certified accuracy cannot be told from fp32's).
    """
    if precision is not None:
        pick(PRECISIONS, precision, "precision")
    return pick(ENGINES, name, "engine")(workers, precision)


def cluster_engine(address: str, name: str = "auto", precision: str | None = None) -> Engine:
    """Return the engine that trains on the Ray cluster at an address.

    Parameters
    ----------
    name, precision
        What was asked for beside it: only what a cluster has, which trains as ``loop`` in
        fp32, is accepted.
    """
    if name not in ("auto", "loop") or precision not in (None, "fp32"):
        raise CarvyError("a cluster trains with engine loop in fp32; drop `engine` and `precision`")
    return RayEngine(address)
