"""The client's half: it keeps its data, and its control variate, to itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn

from carvyfl.core.errors import CarvyError
from carvyfl.data.clients import Client
from carvyfl.data.own_data import federation_from_arrays
from carvyfl.flower.messages import (
    COUNTS,
    HELLO,
    PROFILE,
    ROUND,
    SUMS,
    Answer,
    Order,
    Vector,
    read_order,
    read_profile_order,
    read_sums_order,
    write_answer,
    write_counts,
    write_hello,
    write_profile,
    write_sums,
)
from carvyfl.learning.job import GroupJob, validates
from carvyfl.learning.models.weights import flat_weights, set_weights
from carvyfl.learning.one_shot.features import is_same, probe
from carvyfl.learning.one_shot.model import OneShotModel
from carvyfl.learning.one_shot.sums import Sums, counts_of
from carvyfl.learning.one_shot.training import client_sums
from carvyfl.learning.scaffold.group import honest
from carvyfl.learning.scaffold.local import Batches, FlatNet, one_thread
from carvyfl.learning.scaffold.round import Task
from carvyfl.profiles.asking import client_message
from carvyfl.runs.flower_settings import Settings, read_settings

T = TypeVar("T")
STATE = "carvy"
"""The record in Flower's client state that says whose control variate lies beside it."""


def client_app(data: Callable[[Context], Any]) -> ClientApp:
    """Make the ClientApp of a federation.

    Parameters
    ----------
    data
        Called with Flower's context on the client's machine; returns this client's
        data: (inputs, labels), a torch ``Dataset``, or a
        :class:`~carvyfl.data.clients.Client` that brings its own validation data.
        The model is the one the settings name.
    """
    app = ClientApp()

    def own(context: Context) -> tuple[Settings, Client, nn.Module]:
        settings = read_settings(context.run_config)
        federation = federation_from_arrays(
            [data(context)],
            num_classes=settings.num_classes,
            validation_share=settings.split_off,
            seed=settings.seed,
        )
        client = federation.clients[0]
        shape = client.train.inputs.shape[1:]
        return settings, client, settings.module(shape)

    @app.query(HELLO.partition(".")[2])
    def hello(message: Message, context: Context) -> Message:
        partition = context.node_config.get("partition-id")
        return Message(write_hello(partition), reply_to=message)

    @app.train(PROFILE.partition(".")[2])
    def profile(message: Message, context: Context) -> Message:
        settings, client, module = own(context)
        order = _usable(read_profile_order(message.content, len(flat_weights(module))))
        sent = profile_message(*order, client, module, settings)
        return Message(write_profile(sent, len(client.train)), reply_to=message)

    @app.train(ROUND.partition(".")[2])
    def train(message: Message, context: Context) -> Message:
        settings, client, module = own(context)
        order = _usable(read_order(message.content, len(flat_weights(module))))
        found = answer(order, client, module, settings, context.state)
        return Message(write_answer(order, found), reply_to=message)

    @app.query(COUNTS.partition(".")[2])
    def counts(message: Message, context: Context) -> Message:
        settings, client, _ = own(context)
        found = counts_of(client.train.labels, settings.num_classes)
        return Message(write_counts(found), reply_to=message)

    @app.query(SUMS.partition(".")[2])
    def sums(message: Message, context: Context) -> Message:
        settings, client, module = own(context)
        found = own_sums(message.content, client, module, settings)
        return Message(write_sums(found), reply_to=message)

    return app


def _usable(order: T | str) -> T:
    """Return what the server asks for, or refuse a message that cannot be read."""
    if isinstance(order, str):
        raise CarvyError(f"the server's message cannot be used: {order}")
    return order


def _job(number: int, client: Client, module: nn.Module, settings: Settings) -> GroupJob:
    """Describe the training of this client alone."""
    recipe, seed = settings.training, settings.seed
    return GroupJob((number,), (client,), module, recipe, seed, settings.mean, settings.std)


def profile_message(
    client_id: int, weights: Tensor, client: Client, module: nn.Module, settings: Settings
) -> Vector:
    """Return what Step 1 needs of this client's data, or of an epoch from w⁰, float32."""
    set_weights(module, weights)
    job = _job(client_id, client, module, settings)
    return client_message(job, settings.num_classes, settings.types)


def own_sums(content: RecordDict, client: Client, module: nn.Module, settings: Settings) -> Sums:
    """Return the sums of this client's data, if the server's features are the ones here."""
    if not isinstance(module, OneShotModel):
        raise CarvyError("the server asks for sums, but carvy.learner is not one-shot")
    expected = _usable(read_sums_order(content, module.features.width))
    if not is_same(probe(module.features, client.train.inputs.shape[1:]), expected):
        raise CarvyError(
            f"features '{settings.features}' give other numbers here than on the server; install "
            "the same version of carvyfl, and of the network if they come from one"
        )
    return client_sums(_job(0, client, module, settings), client.train)


def answer(
    order: Order, client: Client, module: nn.Module, settings: Settings, state: RecordDict
) -> Answer:
    """Do what an order asks for: measure the model, then train it for a round.

    The control variate is taken from the client's own state, and the new one put there.
    """
    _check_place(order, state)
    job = _job(order.client_id, client, module, settings)
    with one_thread():
        net = FlatNet(module)
        net.load(order.weights)
        validation = Batches.of(client.validation, job.mean, job.std)
        judged = len(validation) and validates(order.round_, settings.training)
        accuracy = net.accuracy(validation) if judged else float("nan")
        control = _control(order, state)
        if not order.train or control is None:
            return Answer(None, accuracy, len(client.train), lost=order.train)
        lr = settings.training.learning_rate(order.round_)
        task = Task(order.weights, order.server_control, control, lr, order.round_)
        data = Batches.of(client.train, job.mean, job.std)
        update = honest(order.client_id, data, task, net, job)
    state[STATE] = ConfigRecord(
        {"group": order.group, "id": order.client_id, "round": order.round_ + 1}
    )
    state["control"] = ArrayRecord({"control": Array(update.client_control.numpy())})
    return Answer(update, accuracy, len(client.train))


def _control(order: Order, state: RecordDict) -> Tensor | None:
    """Return c_i for this round: what the server restores, what was kept, or 0 at the start."""
    if order.client_control is not None:
        return order.client_control
    if order.round_ == 0:
        return torch.zeros_like(order.weights)
    kept, control = state.get(STATE), state.get("control")
    if not isinstance(kept, ConfigRecord) or not isinstance(control, ArrayRecord):
        return None
    if kept["round"] != order.round_:  # the server did not take what was made since
        return None
    return torch.from_numpy(control["control"].numpy().copy())


def _check_place(order: Order, state: RecordDict) -> None:
    """Refuse an order for a group or an id other than this client was given."""
    kept = state.get(STATE)
    if not isinstance(kept, ConfigRecord):
        return
    for name, given in (("group", order.group), ("id", order.client_id)):
        if kept[name] != given:
            raise CarvyError(
                f"the server gives this client {name} {given}, but it has {kept[name]!r}"
            )
