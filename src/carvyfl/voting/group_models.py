"""The group models together: the ensemble that votes (Step 4, Algorithm 5)."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from carvyfl.core.archives import write_tensors
from carvyfl.core.errors import CarvyError
from carvyfl.core.progress import Report, quiet
from carvyfl.data.clients import Inputs
from carvyfl.learning.backends import Backend, Cores
from carvyfl.learning.job import GroupResult
from carvyfl.learning.learners import learner_of
from carvyfl.learning.recipe import UNUSABLE
from carvyfl.learning.scaffold.batched.device import fitting_parts, load_kernels
from carvyfl.learning.scaffold.batched.net import StackedNet
from carvyfl.learning.scaffold.client import FlatNet, one_thread, prepared
from carvyfl.voting.votes import NO_VOTE, Votes, argmax_ballots, votes

MODELS_AT_ONCE, AT_ONCE = 32, 256
"""Models and inputs in one step on a device: some 3 GB of activations of the compact CNN. Where
much memory is free it is up to four times as many models, and the device less idle."""
MOST_HELD = 2**30
"""Bytes of inputs on a device at most."""
TOO_LARGE = (
    f"the device's memory does not hold one model's step on {AT_ONCE} inputs; use engine loop, or "
    "a smaller model"
)
ABOUT, ABSTAIN, CHECKSUM = "about", "abstaining groups", "checksum"  # in the file's metadata


@dataclass(frozen=True)
class GroupModels:
    """G trained models of one architecture, that of ``module``, whose weights are not used.

    ``weights`` are float32 of shape (G, P), a row per group; ``casts`` is bool of shape (G,), False
    for a group whose model is unusable: it casts no vote. ``mean`` and ``std`` normalise inputs.
    """

    module: nn.Module
    weights: Tensor
    casts: npt.NDArray[np.bool_]
    num_classes: int
    mean: float = 0.0
    std: float = 1.0

    @classmethod
    def of(
        cls,
        module: nn.Module,
        results: Sequence[GroupResult],
        *,
        num_classes: int,
        mean: float,
        std: float,
    ) -> GroupModels:
        """Gather the results of training, one a group."""
        weights = torch.stack([result.weights for result in results])
        # As GroupResult.votes has it, in less time: a NaN is both ends of its row.
        finite = torch.stack(torch.aminmax(weights, dim=1)).isfinite().all(dim=0)
        trained = np.array([result.stopped not in UNUSABLE for result in results])
        return cls(module, weights, trained & finite.numpy(), num_classes, mean, std)

    def __len__(self) -> int:
        return len(self.weights)

    def votes(
        self, inputs: Inputs, engine: Backend | None = None, progress: Report = quiet
    ) -> Votes:
        """Return what every group votes on every input (Eq. 3), by default on all cores."""
        progress(0, len(self))
        engine = engine or Cores()
        scores = learner_of(self.module).scores(self.module, inputs, engine.device)
        if scores is None:
            models: Any = self.weights.numpy()
            work = _Ballots(self.module, inputs, self.mean, self.std)
            ballots = np.stack(engine.map(work, models, progress))
        else:
            at_once = max(1, 2**24 // (len(self) * self.num_classes))  # inputs: 64 MiB of logits
            parts = [slice(i, i + at_once) for i in range(0, len(inputs), at_once)]
            cast = [argmax_ballots(scores(self.weights, part)) for part in parts]
            ballots = torch.cat(cast, dim=1).cpu().numpy()
            progress(len(self), len(self))
        ballots[~self.casts] = NO_VOTE
        return votes(ballots, self.num_classes)

    def save(self, path: Path, about: dict[str, Any]) -> None:
        """Write all models as one safetensors file: a tensor (G, *parameter.shape) a parameter.

        ``about`` is JSON under one name of the file's metadata, since several are written in any
        order: equal models are equal files.
        """
        parameters = dict(self.module.named_parameters())
        sizes = [parameter.numel() for parameter in parameters.values()]
        pieces = zip(parameters.items(), torch.split(self.weights, sizes, dim=1), strict=True)
        tensors = {name: piece.view(len(self), *each.shape) for (name, each), piece in pieces}
        abstain = np.flatnonzero(~self.casts).tolist()
        about = {**about, ABSTAIN: abstain, CHECKSUM: _checksum(self.weights)}
        write_tensors(path, tensors, {ABOUT: json.dumps(about)})

    @classmethod
    def load(
        cls, path: Path, module: nn.Module, *, num_classes: int, mean: float, std: float
    ) -> GroupModels:
        """Read models written by :meth:`save` for the same architecture."""
        try:
            with safe_open(path, framework="pt") as file:
                pieces = [file.get_tensor(name) for name, _ in module.named_parameters()]
                about = json.loads((file.metadata() or {})[ABOUT])
                checksum = about[CHECKSUM]
            casts = np.ones(len(pieces[0]), dtype=bool)
            casts[about[ABSTAIN]] = False
        except (SafetensorError, OSError, LookupError, ValueError, TypeError) as error:
            raise CarvyError(f"cannot read the models in {path}: {error}") from error
        shapes = [(len(casts), *parameter.shape) for parameter in module.parameters()]
        if [tuple(piece.shape) for piece in pieces] != shapes:
            raise CarvyError(f"the models in {path} are of another architecture")
        weights = torch.cat([piece.flatten(1) for piece in pieces], dim=1)
        if checksum != _checksum(weights):
            raise CarvyError(f"the models in {path} are damaged: their checksum does not match")
        return cls(module, weights, casts, num_classes, mean, std)


def _checksum(weights: Tensor) -> str:
    return hashlib.blake2b(weights.contiguous().numpy().data, digest_size=16).hexdigest()


def _padded(inputs: Inputs) -> Inputs:
    """Append zeros up to whole steps, or a power of two: kernels are compiled for a step's size."""
    count = len(inputs)
    wanted = -(-count // AT_ONCE) * AT_ONCE if count > AT_ONCE else 1 << (count - 1).bit_length()
    padded: Inputs = np.zeros((wanted, *inputs.shape[1:]), dtype=inputs.dtype)
    padded[:count] = inputs
    return padded


@dataclass(frozen=True)
class _Ballots:
    """What models vote on inputs, by their weights, (P,): shape (n,) each."""

    module: nn.Module
    inputs: Inputs
    mean: float
    std: float

    def __call__(self, weights: npt.NDArray[np.float32]) -> npt.NDArray[np.integer[Any]]:
        """Return the votes of one model."""
        with one_thread():
            net = FlatNet(self.module)
            net.load(torch.tensor(weights))
            # A slice at a time: prepared inputs take four times the room of stored ones.
            parts = (self.inputs[i : i + 512] for i in range(0, len(self.inputs), 512))
            logits = [net.logits(prepared(part, self.mean, self.std)) for part in parts]
            ballots: npt.NDArray[np.integer[Any]] = argmax_ballots(torch.cat(logits)).numpy()
        return ballots

    def together(
        self, rows: Any, device: torch.device, progress: Report
    ) -> list[npt.NDArray[np.integer[Any]]]:
        """Return the votes of stacked models, by their weights (G, P), several at a time.

        Votes stay on the device until all are cast: a copy would wait for every step. When memory
        runs out there are half as many models at a time from then on.
        """
        net, inputs = StackedNet(self.module, device, "fp32", to_vote=True), self.inputs
        scale = torch.tensor([[self.mean, self.std]], device=device)
        weights = torch.from_numpy(rows)
        held = max(1, MOST_HELD // (AT_ONCE * inputs[:1].nbytes)) * AT_ONCE
        free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 0
        at_once = max(MODELS_AT_ONCE, min(4 * MODELS_AT_ONCE, free >> 29))  # two a GiB
        columns = []

        def ballots(slab: Tensor, groups: slice) -> Tensor:
            models = net.views(weights[groups].to(device))
            count = len(weights[groups])
            scales = scale.expand(count, 2)
            parts = (part.expand(count, *part.shape) for part in torch.split(slab, AT_ONCE))
            return torch.cat([argmax_ballots(net.logits(models, p, scales)) for p in parts], dim=1)

        def narrow(width: int) -> None:
            nonlocal at_once
            at_once = width

        for first in range(0, len(inputs), held):
            slab = torch.from_numpy(_padded(inputs[first : first + held])).to(device)
            if first == 0 and device.type == "cuda":  # of two models: one would have other strides
                load_kernels([functools.partial(ballots, slab[:AT_ONCE], slice(2))])
            done, cast = min(first + held, len(inputs)), []
            work = functools.partial(ballots, slab)
            for part in fitting_parts(len(rows), at_once, work, narrow, TOO_LARGE):
                cast.append(part)
                progress(sum(map(len, cast)) * done // len(inputs), len(rows))
            columns.append(torch.cat(cast))
        return list(torch.cat(columns, dim=1)[:, : len(inputs)].cpu().numpy())
