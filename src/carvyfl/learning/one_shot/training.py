"""One-shot training of groups: every member's sums, then the head in closed form.

A group's head is a function of its members' sums and of λ, so a group is trained alone here as
everywhere. What a member sends is computed from its own data; malicious members replace theirs.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch

from carvyfl.core.errors import CarvyError
from carvyfl.core.registry import NamedFields
from carvyfl.data.clients import Samples
from carvyfl.learning.job import GroupJob, GroupResult
from carvyfl.learning.models.weights import flat_weights
from carvyfl.learning.one_shot.head import head
from carvyfl.learning.one_shot.model import OneShotModel
from carvyfl.learning.one_shot.sums import Sums, add, fault, sums_of

KEPT = 2**30
"""Bytes of sums that are kept while groupings of the same clients are trained."""

CLOSED_FORM = "closed-form"
"""Why a group's training ended: there were no rounds."""


@dataclass(frozen=True)
class SumsView(NamedFields):
    """What the malicious members of a group know: they collude and see everything.

    ``own`` are the sums of the data they hold, poisoned or not, in the order of their numbers in
    ``members``; ``benign`` what the honest members send; ``ridge`` is λ of the head.
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
    """Train groups of one-shot models and yield (position, result) one after another.

    ``device`` is ``cuda`` to compute features there.
    """
    kept: dict[int, Sums] = {}  # by the identity of the samples, which the jobs keep alive
    for position, job in enumerate(jobs):
        sums = []
        for client in job.clients:
            own = kept.get(id(client.train)) or client_sums(job, client.train, device)
            if len(kept) * own.second.nbytes < KEPT:
                kept[id(client.train)] = own
            sums.append(own)
        yield position, train_group(job, sums)


def client_sums(job: GroupJob, samples: Samples, device: str | None = None) -> Sums:
    """Return the sums of the data that a member holds."""
    module = job.module
    assert isinstance(module, OneShotModel)
    rows = module.features.of(samples.inputs, device)
    return sums_of(rows, samples.labels, module.head.out_features)


def train_group(job: GroupJob, sums: Sequence[Sums]) -> GroupResult:
    """Return the head of a group whose members hold data with these sums."""
    module = job.module
    assert isinstance(module, OneShotModel)
    sent = dict(zip(job.members, sums, strict=True))
    sent |= _forged(job, module, sent)
    return head_from(module, sent.items())


def head_from(module: OneShotModel, sent: Iterable[tuple[int, Sums]]) -> GroupResult:
    """Return the head that a group's messages give.

    ``sent`` has every member's number and the sums it sent, in the order of the members; they are
    read once, and none is kept, so that they may come from a file.
    """
    classes, width = module.head.out_features, module.head.in_features
    set_aside: dict[int, str] = {}

    def usable() -> Iterator[Sums]:
        for number, own in sent:
            why = fault(own, width, classes)
            if why is None:
                yield own
            else:
                set_aside[number] = why

    used = usable()
    first = next(used, None)
    if first is None:
        return GroupResult(flat_weights(module), (), "empty", set_aside)
    weights, biases = head(add(itertools.chain([first], used)), module.ridge)
    flat = np.concatenate([weights.ravel(), biases])
    with np.errstate(over="ignore"):
        found = torch.from_numpy(flat.astype(np.float32))
    stopped = CLOSED_FORM if bool(torch.isfinite(found).all()) else "diverged"
    return GroupResult(found, (), stopped, set_aside)


def _forged(job: GroupJob, module: OneShotModel, sent: dict[int, Sums]) -> dict[int, Sums]:
    """Return what the malicious members send in the place of their sums."""
    if not (job.malicious and isinstance(job.attack, ForgesSums)):
        return {}
    view = SumsView(
        own=tuple(sent[number] for number in job.malicious),
        benign=tuple(own for number, own in sent.items() if number not in job.malicious),
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
