"""One-shot training of groups: every member's sums, then the head in closed form.

What a member sends is computed from its own data; malicious members replace theirs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from carvyfl.core.checks import positive
from carvyfl.core.errors import CarvyError
from carvyfl.core.registry import NamedFields
from carvyfl.data.clients import Inputs, Samples
from carvyfl.learning.job import GroupJob, GroupResult
from carvyfl.learning.learners import RIDGE
from carvyfl.learning.models import Shape, flat_weights
from carvyfl.learning.one_shot.features import Features, Function, features_for
from carvyfl.learning.one_shot.head import head
from carvyfl.learning.one_shot.sums import Sums, add, fault, sums_of

REMEMBERED = 2**30  # Bytes of sums that are held while groupings of the same clients are trained
CLOSED_FORM = "closed-form"  # Why a group's training ended: there were no rounds


class OneShotModel(nn.Module):
    """A linear head on fixed features; its parameters are those of the head."""

    arithmetic = 1  # raised whenever the same sums give another head: stored ones then do not count

    def __init__(self, features: Features, num_classes: int, ridge: float) -> None:
        super().__init__()
        self.features = features
        self.ridge = ridge
        self.head = zero_head(features.width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of inputs."""
        logits: Tensor = self.head(self.features(x))
        return logits

    def scores_of(self, inputs: Inputs, device: str | None) -> Callable[[Tensor, slice], Tensor]:
        """Return the map from flat weights, (G, P), and a slice of the inputs to logits."""
        return head_scores(self.head, torch.from_numpy(self.features.of(inputs, device)), device)


def zero_head(width: int, num_classes: int) -> nn.Linear:
    """Return a linear head of zeros."""
    head = nn.Linear(width, num_classes)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return head


def head_scores(
    head: nn.Linear, rows: Tensor, device: str | None
) -> Callable[[Tensor, slice], Tensor]:
    """Return the map from the flat weights of heads, (G, P), and a slice of rows to logits."""
    features, (classes, width) = rows.to(device or "cpu"), head.weight.shape
    if features.is_cuda:  # a stacked net may have set it otherwise
        torch.backends.cuda.matmul.allow_tf32 = False

    def scores(weights: Tensor, part: slice) -> Tensor:
        inputs, weights = features[part], weights.to(features.device)
        matrix = weights[:, : classes * width].reshape(-1, width)
        logits = inputs @ matrix.T + weights[:, classes * width :].reshape(-1)
        return logits.reshape(len(inputs), len(weights), classes).transpose(0, 1)

    return scores


def one_shot_model(
    features: str | nn.Module | Function,
    shape: Shape,
    num_classes: int,
    ridge: float = RIDGE,
    projection: int | None = None,
) -> OneShotModel:
    """Build the one-shot model for inputs of a shape; see :func:`.features.features_for`."""
    ridge = positive(ridge, "ridge")
    return OneShotModel(features_for(features, shape, projection), num_classes, ridge)


def as_one_shot(module: nn.Module) -> OneShotModel:
    """Return a model whose learner is ``one-shot`` as what it is."""
    assert isinstance(module, OneShotModel)
    return module


@dataclass(frozen=True)
class SumsView(NamedFields):
    """What the malicious members of a group know: they collude and see everything.

    ``own`` are the sums of the data they hold, poisoned or not, in the order of ``members``.
    """

    own: tuple[Sums, ...]
    benign: tuple[Sums, ...]
    members: tuple[int, ...]
    num_classes: int
    ridge: float
    seed: int


@runtime_checkable
class ForgesSums(Protocol):
    """An attack that sends other sums than those of the data its clients hold."""

    def forge_sums(self, view: SumsView) -> Sequence[Sums]:
        """Return what each of them sends, in the order of ``view.members``."""


def train_one_shot(
    jobs: Sequence[GroupJob], device: str | None = None
) -> Iterator[tuple[int, GroupResult]]:
    """Train groups one after another and yield (position, result); features on ``device``."""
    known: dict[int, Sums] = {}  # by the identity of the samples, which the jobs hold alive
    for position, job in enumerate(jobs):
        members = []
        for client in job.clients:
            sums = known.get(id(client.train)) or client_sums(job, client.train, device)
            if len(known) * sums.second.nbytes < REMEMBERED:
                known[id(client.train)] = sums
            members.append(sums)
        yield position, train_group(job, members)


def client_sums(job: GroupJob, samples: Samples, device: str | None = None) -> Sums:
    """Return the sums of the data that a member holds."""
    module = as_one_shot(job.module)
    rows = module.features.of(samples.inputs, device)
    return sums_of(rows, samples.labels, module.head.out_features)


def train_group(job: GroupJob, sums: Sequence[Sums]) -> GroupResult:
    """Return the head of a group whose members hold data with these sums."""
    module = as_one_shot(job.module)
    sent = dict(zip(job.members, sums, strict=True))
    sent |= _forged(job, module, sent)
    return head_from(module, sent.items())


def head_from(module: OneShotModel, sent: Iterable[tuple[int, Sums]]) -> GroupResult:
    """Return the head of members' sums, by number, in their order; read once, maybe from a file."""
    classes, width = module.head.out_features, module.head.in_features
    set_aside: dict[int, str] = {}

    def usable() -> Iterator[Sums]:
        for client, sums in sent:
            why = fault(sums, width, classes)
            if why is None:
                yield sums
            else:
                set_aside[client] = why

    used = usable()
    if (first := next(used, None)) is None:
        return GroupResult(flat_weights(module), (), "empty", set_aside)
    trained_head = head(add(itertools.chain([first], used)), module.ridge)
    flat = np.concatenate([part.ravel() for part in trained_head])
    with np.errstate(over="ignore"):
        trained = torch.from_numpy(flat.astype(np.float32))
    stopped = CLOSED_FORM if bool(torch.isfinite(trained).all()) else "diverged"
    return GroupResult(trained, (), stopped, set_aside)


def _forged(job: GroupJob, module: OneShotModel, sent: dict[int, Sums]) -> dict[int, Sums]:
    if not (job.malicious and isinstance(job.attack, ForgesSums)):
        return {}
    view = SumsView(
        own=tuple(sent[number] for number in job.malicious),
        benign=tuple(sums for number, sums in sent.items() if number not in job.malicious),
        members=job.malicious,
        num_classes=module.head.out_features,
        ridge=module.ridge,
        seed=job.seed,
    )
    forged = list(job.attack.forge_sums(view))
    if len(forged) != len(job.malicious):
        raise CarvyError(
            f"attack '{job.attack.name}': forge_sums returned {len(forged)} sums for "
            f"{len(job.malicious)} attackers; return one for each"
        )
    return dict(zip(job.malicious, forged, strict=True))
