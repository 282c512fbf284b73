"""The private learner's model, its clients' messages, and the training of groups from them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from carvyfl.core.environment import usable_cores
from carvyfl.core.errors import CarvyError
from carvyfl.core.progress import Phase, Report, quiet, silent
from carvyfl.core.randomness import generator
from carvyfl.core.registry import NamedFields
from carvyfl.data.clients import Federation, Inputs, Samples
from carvyfl.learning.job import GroupJob, GroupResult
from carvyfl.learning.learners import UNSCALED
from carvyfl.learning.models import Shape, flat_weights
from carvyfl.learning.one_shot.features import Features, features_for, one_by_one
from carvyfl.learning.one_shot.training import CLOSED_FORM, head_scores, zero_head
from carvyfl.learning.private.head import head, trial
from carvyfl.learning.private.map import Map, stored_map
from carvyfl.learning.private.message import Messages, message
from carvyfl.learning.scaffold.adversary import Attack
from carvyfl.learning.scaffold.client import prepared
from carvyfl.privacy.class_sums import noise_for_sums
from carvyfl.privacy.noise import Sampler, check_budget, simulated_noise
from carvyfl.privacy.statement import guarantee

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Floats32 = npt.NDArray[np.float32]
Units32 = npt.NDArray[np.int32]
DIGESTED_AT_ONCE = 1024
TRIED = 5_000
"""Made-up vectors that numbers of groups are compared on."""


class PrivateModel(nn.Module):
    """A linear head on the vectors of a map; its parameters are those of the head.

    Features are computed one input at a time: in a batch one sample could change the last bits of
    another one's, and the sensitivity of a message would be larger than proved.
    """

    arithmetic = 1  # raised whenever the same messages give another head

    def __init__(
        self, features: Features, private_map: Map, num_classes: int, epsilon: float, delta: float
    ) -> None:
        super().__init__()
        self.features, self.map = one_by_one(features), private_map
        self.noise = noise_for_sums(epsilon, delta)
        self.head = zero_head(private_map.width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of inputs."""
        logits: Tensor = self.head(self._vectors(self.features(x).numpy(force=True)).to(x.device))
        return logits

    def scores_of(self, inputs: Inputs, device: str | None) -> Callable[[Tensor, slice], Tensor]:
        """Return the map from flat weights, (G, P), and a slice of the inputs to logits."""
        return head_scores(self.head, self._vectors(self.features.of(inputs)), device)

    def read_messages(self, path: Path, clients: int) -> Messages:
        """Read messages of so many clients that were made for this model."""
        return Messages.load(path, clients, self.head.out_features, self.map.width, self.noise)

    @property
    def about(self) -> dict[str, Any]:
        """What a record says of the privacy of messages for this model."""
        return {
            "epsilon": self.noise.epsilon,
            "delta": self.noise.delta,
            "map": self.map.digest,
            "made_of": self.map.origin,
            "message_bytes": 4 * self.head.out_features * (self.map.width + 1),
            "guarantee": guarantee(self.noise.epsilon, self.noise.delta),
        }

    def _vectors(self, rows: npt.NDArray[Any]) -> Tensor:
        return torch.from_numpy(self.map.vectors(rows).astype(np.float32))


def private_model(
    settings: Any, shape: Shape, num_classes: int, public: Inputs | None, phase: Phase = silent
) -> PrivateModel:
    """Build the model of these settings, with the map that ``public`` inputs give, or none."""
    check_budget(settings.epsilon, settings.delta)
    features = one_by_one(features_for(settings.features, shape))
    private_map = stored_map(features, shape, num_classes, public, phase)
    return PrivateModel(features, private_map, num_classes, settings.epsilon, settings.delta)


def check_clients(federation: Federation, delta: float, public: Inputs | None) -> None:
    """Refuse a δ that may give a sample away, and public inputs that clients hold."""
    most = max(len(client.train) for client in federation.clients)
    if delta * most >= 1:
        raise CarvyError(
            f"`delta` {delta:g} must be below one over the {most:,} samples of a client: at that "
            "chance a message may give a sample away"
        )
    known = set() if public is None else set(_digests(public))
    for number, client in enumerate(federation.clients if known else ()):
        for part in (client.train, client.validation):
            if not known.isdisjoint(_digests(part.inputs)):
                raise CarvyError(
                    f"`public` holds inputs of client {number}, which are not public: the map "
                    "would give them away without noise; leave them out"
                )


def _digests(inputs: Inputs) -> Iterator[bytes]:
    """Yield a digest of every input as a model sees it, but for those of a single number."""
    for start in range(0, len(inputs), DIGESTED_AT_ONCE):
        for row in prepared(inputs[start : start + DIGESTED_AT_ONCE], *UNSCALED).flatten(1).numpy():
            if (row != row[0]).any():
                yield hashlib.blake2b(row.tobytes(), digest_size=16).digest()


def as_private(module: nn.Module) -> PrivateModel:
    """Return a model whose learner is ``private`` as what it is."""
    assert isinstance(module, PrivateModel)
    return module


def client_message(model: PrivateModel, samples: Samples, sampler: Sampler) -> Units32:
    """Return what a client sends, in units, (C, d + 1): all that leaves it."""
    vectors = model.map.vectors(model.features.of(samples.inputs))
    classes = model.head.out_features
    return message(vectors, samples.labels, classes, model.noise, sampler).units


def simulated_messages(
    model: PrivateModel, federation: Federation, progress: Report = quiet
) -> Messages:
    """Have every simulated client send its message, with new noise."""

    def send(samples: Samples) -> Units32:
        return client_message(model, samples, simulated_noise)

    sent, total = [], len(federation)
    _ = model.noise.signal  # which imports, as no thread may
    with ThreadPoolExecutor(usable_cores()) as threads:
        for units in threads.map(send, [client.train for client in federation.clients]):
            sent.append(units)
            progress(len(sent), total)
    return Messages.of(sent, model.noise)


@dataclass(frozen=True)
class MessageView(NamedFields):
    """What a malicious client starts from: the message of its data, poisoned or not.

    ``units``, int32 of shape (C, d + 1), are sums and weighted counts with noise (see
    :class:`.message.Messages`); ``member`` is the client's number.
    """

    units: Units32
    member: int
    seed: int


@runtime_checkable
class ForgesMessage(Protocol):
    """An attack that sends another message than that of the data its clients hold."""

    def forge_message(self, view: MessageView) -> Units32:
        """Return what a client sends, before any group is formed."""


def malicious_messages(
    module: nn.Module, attack: Attack | None, data: Mapping[int, Samples], seed: int
) -> dict[int, Units32]:
    """Return what malicious clients with these data send, by client: the same in every group.

    Their noise follows from the seed, as they have nothing to hide: it is drawn once.
    """
    model, sent = as_private(module), {}
    for client, samples in data.items():
        draw = generator(seed, "message of an attacker", client)

        def sampler(count: int, scale: float, draw: np.random.Generator = draw) -> Ints:
            return np.rint(draw.normal(0, scale, count)).astype(np.int64)

        sent[client] = client_message(model, samples, sampler)
        if isinstance(attack, ForgesMessage):
            view = MessageView(units=sent[client], member=client, seed=seed)
            sent[client] = np.asarray(attack.forge_message(view))
    return sent


def train_private(jobs: Sequence[GroupJob]) -> Iterator[tuple[int, GroupResult]]:
    """Compute the heads of groups from their members' messages; yield (position, result)."""
    for position, job in enumerate(jobs):
        assert job.messages is not None
        data = {
            number: client.train
            for number, client in zip(job.members, job.clients, strict=True)
            if number in job.malicious
        }
        sent = malicious_messages(job.module, job.attack, data, job.seed)
        places = {job.members.index(number): units for number, units in sent.items()}
        yield position, group_head(job.module, job.members, job.messages.replaced(places))


def group_head(module: nn.Module, members: Sequence[int], messages: Messages) -> GroupResult:
    """Return the head of one group, a function of its members' messages alone."""
    set_aside = {members[k]: why for k, why in messages.set_aside.items()}
    if len(set_aside) == len(members):
        return GroupResult(flat_weights(module), (), "empty", set_aside)
    matrix, biases = head(messages)
    with np.errstate(over="ignore"):
        trained = torch.from_numpy(np.concatenate([matrix.ravel(), biases]).astype(np.float32))
    stopped = CLOSED_FORM if bool(torch.isfinite(trained).all()) else "diverged"
    return GroupResult(trained, (), stopped, set_aside)


def made_up_trial(
    model: PrivateModel, messages: Messages, seed: int
) -> tuple[Floats32, Ints, Callable[[Ints], tuple[Floats, Floats]]]:
    """Return made-up vectors, their classes, and the head that any group of clients would have.

    All of it follows from the messages, so trying numbers of groups costs no ε.
    """
    vectors, labels = trial(messages, model.map.spread, TRIED, seed)
    return vectors, labels, lambda group: head(messages.of_clients(group))
