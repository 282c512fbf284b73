"""The client's half: it keeps its data, what goes wrong with them, and its control variate."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from platformdirs import user_data_path
from torch import Tensor, nn

from carvyfl.core.errors import CarvyError
from carvyfl.data.clients import Client, Samples, usable_samples
from carvyfl.data.own_data import federation_from_arrays
from carvyfl.flower import wire
from carvyfl.flower.questions import log
from carvyfl.flower.wire import (
    Answer,
    MessageOrder,
    NoisyMessage,
    Order,
    PackedSums,
    Profile,
    ProfileOrder,
    SumsOrder,
    map_lengths,
)
from carvyfl.learning.job import GroupJob, validates
from carvyfl.learning.learners import LEARNERS, learner_of
from carvyfl.learning.models import num_weights, set_weights
from carvyfl.learning.one_shot.features import Features, features_for, is_same, probe
from carvyfl.learning.one_shot.sums import counts_of
from carvyfl.learning.one_shot.training import client_sums
from carvyfl.learning.private.model import PrivateModel, client_message
from carvyfl.learning.scaffold.arithmetic import Task
from carvyfl.learning.scaffold.client import Batches, FlatNet, honest, one_thread
from carvyfl.privacy import Ledger, LimitError, secure_noise
from carvyfl.profiles import asking
from carvyfl.runs.flower_settings import Settings, read_settings

T = TypeVar("T")
LEDGER, LIMIT = "carvy-ledger", "carvy-epsilon-limit"
"""What a client's node config says of its ledger: the folder, and the most ε."""
STATE = "carvy"
"""The record in Flower's client state that says whose control variate lies beside it."""


class RefusalError(CarvyError):
    """A client cannot do what it is asked for; the server learns which of the ``FAULTS`` it is."""

    def __init__(self, fault: str, text: str) -> None:
        super().__init__(text)
        self.fault = fault


@contextlib.contextmanager
def refusing(fault: str) -> Iterator[None]:
    """Name the fault behind whatever exception is raised within."""
    try:
        yield
    except Exception as error:
        raise RefusalError(fault, str(error)) from error


@dataclass(frozen=True)
class Party:
    """What a client works with: the settings, its data, the model, and what Flower keeps for it."""

    settings: Settings
    client: Client
    module: nn.Module
    state: RecordDict = field(default_factory=RecordDict)

    def job(self, client_id: int) -> GroupJob:
        """Describe the training of this client alone."""
        chosen, alone = self.settings, ((client_id,), (self.client,), self.module)
        return GroupJob(*alone, chosen.training, chosen.seed, chosen.mean, chosen.std)


def client_app(data: Callable[[Context], Any]) -> ClientApp:
    """Make the ClientApp of a federation.

    ``data`` is called with Flower's context on the client's machine and returns this client's data:
    (inputs, labels), a torch ``Dataset``, or a :class:`~carvyfl.data.clients.Client` that brings
    its own validation data. The model is the one the settings name.
    """
    app = ClientApp()

    def party(context: Context, *, private: bool = False) -> Party:
        with refusing("settings"):
            settings = read_settings(context.run_config)
        if private != (LEARNERS[settings.learner].sends == "message"):
            text = f"the server asks for what clients of the learner {settings.learner} do not send"
            raise RefusalError("settings", text)
        if not private and LIMIT in context.node_config:
            text = f"with {LIMIT} this client answers the learner private alone, and sends no more"
            raise RefusalError("limit", text)
        share, seed = settings.split_off, settings.seed
        with refusing("data"):
            if private:  # no sample may make this client refuse: the server would learn of it
                train, unused = usable_samples(data(context), settings.num_classes, "the data")
                if unused:
                    log.warning("carvy: %d samples left out: other labels, or not finite", unused)
                return Party(
                    settings, Client(train, train.take(np.arange(0))), nn.Module(), context.state
                )
            (client,) = federation_from_arrays(
                [data(context)], num_classes=settings.num_classes, validation_share=share, seed=seed
            ).clients
        with refusing("settings"):
            module = settings.module(client.train.inputs.shape[1:], settings.num_classes)
        return Party(settings, client, module, context.state)

    def serve(kind: str, answer: Callable[[RecordDict, Context], Any]) -> None:
        def reply(message: Message, context: Context) -> Message:
            try:
                return Message(wire.write(answer(message.content, context)), reply_to=message)
            except Exception as error:  # whatever it says, none of it leaves this machine
                log.exception("carvy: this client cannot answer: %s", error)
                fault = error.fault if isinstance(error, RefusalError) else "failed"
                reported = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, fault)
                return Message(reported, reply_to=message)

        category, _, name = kind.partition(".")
        (app.train if category == "train" else app.query)(name)(reply)

    def hello(_: RecordDict, context: Context) -> wire.Hello:
        partition = context.node_config.get("partition-id")
        return wire.Hello(partition if isinstance(partition, int) else -1)

    serve(wire.HELLO, hello)
    serve(wire.PROFILE, lambda content, context: answer_profile(content, party(context)))
    serve(wire.ROUND, lambda content, context: answer_round(content, party(context)))
    serve(wire.COUNTS, lambda _, context: answer_counts(party(context)))
    serve(wire.SUMS, lambda content, context: answer_sums(content, party(context)))
    serve(wire.MESSAGE, lambda content, context: answer_message(
        content, party(context, private=True), client_ledger(context.node_config)
    ))  # fmt: skip
    return app


def _usable(kind: type[T], content: RecordDict, length: int | Mapping[str, int]) -> T:
    """Return what the server asks for, or refuse a message that cannot be read."""
    order = wire.read(kind, content, length)
    if isinstance(order, str):
        raise RefusalError("message", f"the server's message cannot be used: {order}")
    return order


def answer_profile(content: RecordDict, party: Party) -> Profile:
    """Return what Step 1 needs of this client's data, or of an epoch from w⁰."""
    order = _usable(ProfileOrder, content, num_weights(party.module))
    set_weights(party.module, order.weights)
    job, settings = party.job(order.client_id), party.settings
    profile = asking.client_message(job, settings.num_classes, settings.types)
    return Profile(torch.from_numpy(profile), len(party.client.train))


def answer_counts(party: Party) -> wire.ClassCounts:
    """Return how many samples of each class this client has."""
    return wire.ClassCounts(counts_of(party.client.train.labels, party.settings.num_classes))


def answer_sums(content: RecordDict, party: Party) -> PackedSums:
    """Return the sums of this client's data, if the server's features are the ones here."""
    features, data = learner_of(party.module).features(party.module), party.client.train
    if features is None:
        text = "the server asks for sums, but carvy.learner is not one-shot"
        raise RefusalError("settings", text)
    order = _usable(SumsOrder, content, features.width)
    _check_features(features, order.probe, party)
    return wire.packed(client_sums(party.job(0), data))


def _check_features(features: Features, expected: Tensor, party: Party) -> None:
    if not is_same(probe(features, party.client.train.inputs.shape[1:]), expected.numpy()):
        raise RefusalError(
            "features",
            f"features '{party.settings.features}' give other numbers here than on the server; "
            "install the same version of carvyfl, and of the network if they come from one",
        )


def client_ledger(node_config: Mapping[str, Any]) -> Ledger:
    """Open this client's ledger, where its node config says, with the limit that it sets.

    The server has no say in a node config. By default the ledger lies in the user's data folder.
    """
    part, folder = node_config.get("partition-id"), user_data_path("carvyfl") / "ledger"
    with refusing("settings"):
        default = folder if part is None else folder / f"partition-{part}"
        ledger = Ledger(str(node_config.get(LEDGER) or default))
        limit: Any = node_config.get(LIMIT)
        if limit is not None and limit != ledger.limit.epsilon:
            ledger.set_limit(limit)
    return ledger


def answer_message(content: RecordDict, party: Party, ledger: Ledger) -> NoisyMessage:
    """Return the private message of this client's data, new or as it was sent before."""
    settings, data = party.settings, party.client.train
    with refusing("settings"):
        features = features_for(settings.features, data.inputs.shape[1:])
    order = _usable(MessageOrder, content, map_lengths(features.width, settings.num_classes))
    names = "epsilon", "delta", "num_classes"
    if any(getattr(order, name) != getattr(settings, name) for name in names):
        raise RefusalError("settings", "the server asks for another ε, δ or C than its settings")
    _check_features(features, order.probe, party)
    with refusing("message"):
        private_map = order.map()
    model = PrivateModel(features, private_map, order.num_classes, order.epsilon, order.delta)
    asked = {"map": order.digest, "features": features.digest, "num_classes": order.num_classes}

    def draw() -> dict[str, Any]:
        return {"units": client_message(model, data, secure_noise)}

    try:
        units = ledger.message({"samples": _digests(data)}, asked, model.noise, draw)["units"]
    except CarvyError as error:  # the limit, a ledger that cannot be read, or OpenDP is missing
        fault = "limit" if isinstance(error, LimitError) else "settings"
        raise RefusalError(fault, str(error)) from error
    spent, limit = sum(each.epsilon for each in ledger.spendings), ledger.limit.epsilon
    log.info("carvy: ε = %g spent, limit %s: %s", spent, limit or "none", ledger.path)
    return NoisyMessage(units)


def _digests(data: Samples) -> npt.NDArray[np.uint8]:
    """Return a digest of every sample, (n, 32), sorted: the same in whatever order they come."""
    head = f"{data.inputs.dtype} {data.inputs.shape[1:]} ".encode()
    samples = zip(np.ascontiguousarray(data.inputs), data.labels.tolist(), strict=True)
    rows = sorted(sha256(head + f"{c} ".encode() + x.tobytes()).digest() for x, c in samples)
    return np.frombuffer(b"".join(rows), np.uint8).reshape(-1, 32)


def answer_round(content: RecordDict, party: Party) -> Answer:
    """Do what an order asks for: measure the model, and train it with c_i of the own state."""
    order, state = _usable(Order, content, num_weights(party.module)), party.state
    _check_place(order, state)
    job, client = party.job(order.client_id), party.client
    with one_thread():
        net = FlatNet(party.module)
        net.load(order.weights)
        validation = Batches.of(client.validation, job.mean, job.std)
        judged = len(validation) and validates(order.round_, job.recipe)
        accuracy = net.accuracy(validation) if judged else float("nan")
        measured = Answer(*wire.place(order), accuracy, len(client.train))
        shared, control = order.server_control, _control(order, state)
        if not order.train or control is None or shared is None:
            return replace(measured, lost=order.train)
        lr = job.recipe.learning_rate(order.round_)
        task = Task(order.weights, shared, control, lr, order.round_)
        data = Batches.of(client.train, job.mean, job.std)
        update = honest(order.client_id, data, task, net, job)
    state[STATE] = ConfigRecord(
        {"group": order.group, "id": order.client_id, "round": order.round_ + 1}
    )
    state["control"] = ArrayRecord({"control": Array(update.client_control.numpy())})
    return replace(measured, weights=update.weights, client_control=update.client_control)


def _control(order: Order, state: RecordDict) -> Tensor | None:
    """Return c_i for this round: what the server restores, what is here, or 0 at the start."""
    if order.client_control is not None:
        return order.client_control
    if order.round_ == 0:
        return torch.zeros_like(order.weights)
    place, control = state.get(STATE), state.get("control")
    if not isinstance(place, ConfigRecord) or not isinstance(control, ArrayRecord):
        return None
    if place["round"] != order.round_:  # the server did not take what was made since
        return None
    return torch.from_numpy(control["control"].numpy().copy())


def _check_place(order: Order, state: RecordDict) -> None:
    """Refuse an order for a group or an id other than this client was given."""
    place = state.get(STATE)
    if not isinstance(place, ConfigRecord):
        return
    for name, ordered in (("group", order.group), ("id", order.client_id)):
        if place[name] != ordered:
            text = f"the server gives this client {name} {ordered}, but it has {place[name]!r}"
            raise RefusalError("place", text)
