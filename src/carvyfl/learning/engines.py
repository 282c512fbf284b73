"""The engines by name."""

from __future__ import annotations

import torch

from carvyfl.core.errors import CarvyError
from carvyfl.core.registry import pick
from carvyfl.learning.job import Engine
from carvyfl.learning.scaffold.batched.engine import BatchedEngine
from carvyfl.learning.scaffold.batched.net import PRECISIONS
from carvyfl.learning.scaffold.loop.engine import LoopEngine
from carvyfl.learning.scaffold.ray import RayEngine

ENGINES = {
    "auto": "a GPU if there is one, else CPU cores",
    "loop": "CPU cores",
    "batched": "the GPUs of this machine",
}


def make_engine(
    name: str = "auto", *, workers: int | None = None, precision: str | None = None
) -> Engine:
    """Return an engine.

    Parameters
    ----------
    precision
        ``fp32``, ``tf32`` or ``bf16``; None is the engine's default (``loop``:
        fp32, ``batched``: bf16, whose certified accuracy cannot be told from fp32's).
    """
    pick(ENGINES, name, "engine")
    if precision is not None:
        pick(PRECISIONS, precision, "precision")
    if name == "batched" or (name == "auto" and torch.cuda.is_available()):
        return BatchedEngine(precision=precision or "bf16")
    if precision == "tf32":
        raise CarvyError("engine 'loop' computes in fp32 or bf16, not tf32")
    return LoopEngine(workers, precision or "fp32")


def cluster_engine(address: str, name: str = "auto", precision: str | None = None) -> Engine:
    """Return the engine that trains on the Ray cluster at an address.

    A cluster trains on its cores, as ``loop`` in fp32, unless ``name`` is ``batched``: then on
    its GPUs.
    """
    pick(ENGINES, name, "engine")
    if name == "batched":
        if precision is not None:
            pick(PRECISIONS, precision, "precision")
        return RayEngine(address, precision or "bf16", stacked_on="cuda")
    if precision not in (None, "fp32"):
        raise CarvyError(
            "a cluster's cores compute in fp32; drop `precision`, or set `engine` to batched"
        )
    return RayEngine(address)
