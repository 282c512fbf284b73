"""A group's training job as a value, its state between rounds, and its result.

A job holds everything that its result depends on, and its key is a hash of that: so a stored
result can stand for the training.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.utils.serialization  # joblib pickles tensors on a thread, which must import nothing
from torch import Tensor, nn

from carvyfl.core.fingerprint import fingerprint, source_of
from carvyfl.data.clients import Client, Federation
from carvyfl.learning.models import flat_weights
from carvyfl.learning.private.message import Messages
from carvyfl.learning.recipe import UNUSABLE, Recipe, stale_rounds
from carvyfl.learning.scaffold.adversary import Attack
from carvyfl.learning.scaffold.aggregation import AGGREGATION_RULES

OnRounds = Callable[[int, int], None]  # Called with (position of a job, rounds made), now and then
# Raised whenever training gives other numbers for the same job: old results no longer count
ARITHMETIC = 7


@dataclass(frozen=True)
class GroupJob:
    """Everything a group's model is a function of (docs/concepts/isolation.md).

    Attributes
    ----------
    members
        Whole numbers that name the clients, ascending: a client's randomness is derived from its
        own. In a simulation they are the clients' numbers.
    module
        The model; its present weights are w⁰.
    attack, malicious
        How the malicious members behave, and their client numbers; none in a
        benign group. What they train on is in ``clients``.
    messages
        What the members sent beforehand, where the learner has one message for all steps.
    """

    members: tuple[int, ...]
    clients: tuple[Client, ...]
    module: nn.Module
    recipe: Recipe
    seed: int
    mean: float
    std: float
    attack: Attack | None = None
    malicious: tuple[int, ...] = ()
    messages: Messages | None = None

    def key(self, precision: str = "fp32") -> str:
        """Return the name under which the result is stored: a hash of all it depends on."""
        return job_keys([self], precision)[0]

    def attack_of(self, client: int) -> Attack | None:
        """Return the attack of a malicious member, None for an honest one."""
        return self.attack if client in self.malicious else None

    @property
    def steps_per_round(self) -> int:
        """Client-steps (mini-batches) in one round, the unit of progress."""
        return sum(-(-len(client.train) // self.recipe.batch_size) for client in self.clients)


def group_job(
    federation: Federation,
    members: Iterable[int],
    module: nn.Module,
    recipe: Recipe,
    seed: int,
    messages: Messages | None = None,
) -> GroupJob:
    """Describe the training of one group of clients; ``messages`` are those of all clients."""
    numbers = tuple(sorted(int(number) for number in members))
    clients = tuple(federation.clients[number] for number in numbers)
    scale = federation.mean, federation.std
    sent = None if messages is None else messages.of_clients(np.array(numbers, dtype=np.int64))
    return GroupJob(numbers, clients, module, recipe, seed, *scale, messages=sent)


def job_keys(jobs: Sequence[GroupJob], precision: str = "fp32") -> list[str]:
    """Return the names under which the results of jobs are stored: hashes of all they depend on.

    What jobs share, a module, a recipe, a client, is described once.
    """
    modules = {id(job.module): job.module for job in jobs}
    described = {
        key: (fingerprint(module), _digest(flat_weights(module).numpy()))
        for key, module in modules.items()
    }
    recipes = {job.recipe: _recipe_part(job.recipe) for job in jobs}
    clients = {id(client): client for job in jobs for client in job.clients}
    data = {
        key: _digest(*(a for part in (c.train, c.validation) for a in (part.inputs, part.labels)))
        for key, c in clients.items()
    }
    keys = []
    for job in jobs:
        head = {
            "arithmetic": ARITHMETIC,
            "precision": precision,
            "seed": job.seed,
            "normalise": [job.mean, job.std],
            "module": described[id(job.module)],
            "members": job.members,
            "clients": [data[id(client)] for client in job.clients],
            **recipes[job.recipe],
        }
        if job.attack is not None:
            source = source_of(type(job.attack))
            head["attack"] = [job.attack.name, source, job.attack.value(), job.malicious]
        if job.messages is not None:
            head["messages"] = job.messages.digest
        text = json.dumps(head, sort_keys=True).encode()
        keys.append(hashlib.blake2b(text, digest_size=20).hexdigest())
    return keys


def _digest(*arrays: npt.NDArray[Any]) -> str:
    digest = hashlib.blake2b(digest_size=20)
    for array in arrays:
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def _recipe_part(recipe: Recipe) -> dict[str, Any]:
    """Return what a key says of a recipe: its settings, and the source of a robust rule."""
    rule = AGGREGATION_RULES[recipe.aggregation]
    source = {"rule": source_of(rule.combine)} if rule.robust else {}
    return {"recipe": asdict(recipe), **source}


@dataclass(frozen=True)
class GroupState:
    """A group between two rounds: all that its further training depends on beside the job.

    ``weights`` and ``server`` are w_g and c_g, float32 of shape (P,); ``controls`` the c_i of the
    members not set aside, in member order, shape (n, P).
    """

    weights: Tensor
    server: Tensor
    controls: Tensor
    accuracy: tuple[float, ...] = ()
    set_aside: dict[int, str] = field(default_factory=dict)

    @classmethod
    def initial(cls, job: GroupJob) -> GroupState:
        """Return the state before the first round (Algorithm 3, lines 1-6)."""
        weights = flat_weights(job.module)
        zero = torch.zeros_like(weights)
        return cls(weights, zero, zero.repeat(len(job.members), 1))

    @property
    def rounds(self) -> int:
        """The number of rounds made."""
        return len(self.accuracy)

    def active(self, members: Iterable[int]) -> list[int]:
        """Return the members not set aside, in their order: whose ``controls`` are here."""
        return [number for number in members if number not in self.set_aside]

    def stopped(self, recipe: Recipe) -> str | None:
        """Say why training ends here (see :class:`GroupResult`), or None if it goes on."""
        finite = bool(torch.isfinite(self.weights).all())
        return stopped(len(self.controls) > 0, finite, self.accuracy, recipe)


@dataclass(frozen=True)
class Checkpoints:
    """Where the states of unfinished jobs are, by position; seconds between two savings of one."""

    load: Callable[[int], GroupState | None]
    save: Callable[[int, GroupState], None]
    every: float = 60.0


def stopped(members: bool, finite: bool, accuracy: Sequence[float], recipe: Recipe) -> str | None:
    """Say why a group's training ends (see :class:`GroupResult`), or None if it goes on."""
    if not members:
        return "empty"
    if not finite:
        return "diverged"
    if recipe.patience is not None and stale_rounds(accuracy, recipe) >= recipe.patience:
        return "patience"
    return "rounds" if len(accuracy) >= recipe.rounds else None


def validates(rounds: int, recipe: Recipe) -> bool:
    """Whether models are validated after so many rounds: all for patience, else every tenth."""
    return recipe.patience is not None or rounds % 10 == 0 or rounds == recipe.rounds


@dataclass(frozen=True)
class GroupResult:
    """A trained group.

    Attributes
    ----------
    weights
        w_g, float32 of shape (P,): the last model, not the best.
    accuracy
        A_g^r, the mean validation accuracy (0…1) after every round made; NaN where it was not
        measured (:func:`validates`).
    stopped
        Why training ended: ``rounds`` (all made), ``patience`` (early stop), ``deadline`` (the
        operator's, in a real federation), ``closed-form`` (one-shot: there are no rounds), or a
        reason of :data:`UNUSABLE`, with which a group casts no vote: ``diverged`` (the model is
        no longer finite), ``empty`` (every member was set aside), ``untrained`` (no round was
        made when the deadline passed).
    set_aside
        Members whose updates could not be used, with the reason.
    """

    weights: Tensor
    accuracy: tuple[float, ...]
    stopped: str
    set_aside: dict[int, str] = field(default_factory=dict)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out of a copy the models of other groups that share memory with this one."""
        return {**self.__dict__, "weights": self.weights.clone()}

    @property
    def rounds(self) -> int:
        """The number of rounds made."""
        return len(self.accuracy)

    def __repr__(self) -> str:
        reached = f", validation accuracy {self.accuracy[-1]:.2f}" if self.accuracy else ""
        aside = f", {len(self.set_aside)} members set aside" if self.set_aside else ""
        rounds = "1 round" if self.rounds == 1 else f"{self.rounds} rounds"
        return (
            f"GroupResult({len(self.weights):,} weights, {rounds}, "
            f"stopped: {self.stopped}{reached}{aside})"
        )

    @property
    def votes(self) -> bool:
        """Whether the model may vote: an unusable one abstains instead of voting class 0."""
        return self.stopped not in UNUSABLE and bool(torch.isfinite(self.weights).all())
