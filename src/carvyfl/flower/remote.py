"""A group's training over the network, whatever its members do; nothing here knows another group.

In rounds, a member is asked with the model, measures it, trains it, and sends both: the accuracy
after a round is known with the answers of the next. In one-shot learning, it is asked for its sums,
once. They lie on disk until the group's head is made: a server holds the sums of few clients, and
started again asks only those that it has not heard. In private learning all clients are asked at
once, before there are groups.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from carvyfl.core.errors import CarvyError
from carvyfl.flower import wire
from carvyfl.flower.identity import ServerContext
from carvyfl.flower.questions import log
from carvyfl.flower.wire import Answer, Order, write
from carvyfl.learning.job import GroupJob, GroupResult, GroupState
from carvyfl.learning.models import flat_weights
from carvyfl.learning.one_shot.sums import Sums, from_triangle, triangle
from carvyfl.learning.one_shot.training import OneShotModel, as_one_shot, head_from
from carvyfl.learning.private.message import Messages
from carvyfl.learning.private.model import PrivateModel
from carvyfl.learning.recipe import UNUSABLE
from carvyfl.learning.scaffold.arithmetic import Update
from carvyfl.learning.scaffold.group import group_round, mean_accuracy
from carvyfl.learning.store import read_entry, trusting, write_entry

OTHER_COUNTS = "its sums count other samples than it said in Step 1, where its type comes from"
NOT_IN_TIME = "no answer before the deadline"
TOTAL_FACTOR = 5
"""How long a client may keep its group waiting in all, as a multiple of what is allowed at a time:
one that answers every third question would otherwise hold up its group, and the run, for weeks."""
PAUSE = 10.0
"""Seconds before a group asks again that nobody has answered: questions may be refused at once."""
_one_head = threading.Lock()  # a head needs several matrices of d × d numbers; groups are many


def train_group_remotely(
    context: ServerContext, group: int, job: GroupJob
) -> tuple[GroupResult, Counter[str]]:
    """Train a group (Algorithm 3), from its last completed round; ``job`` holds no data."""
    key, recipe, traffic = job.key(), job.recipe, Counter[str]()
    if (done := context.store.get(key, job)) is not None:
        return done, traffic
    state = context.store.get_state(key, job) or GroupState.initial(job)
    keeping: set[int] = set()  # members that hold the c_i that belongs to this state
    lost_seconds, clock = context.settings.lost_seconds, context.clock
    away_since: dict[int, float] = {}  # of members that do not answer
    waited: Counter[int] = Counter()  # whole seconds in which a member kept the group waiting
    why = state.stopped(recipe)
    while why not in UNUSABLE:
        began = clock.monotonic()
        if began >= context.until:
            why = why or ("deadline" if state.rounds else "untrained")
            log.warning("carvy: the deadline stops group %s at round %s", group, state.rounds)
            break
        training = state.rounds < recipe.rounds
        model = (state.rounds, training, state.weights)
        orders = {}
        for number, control in zip(state.active(job.members), state.controls, strict=True):
            controls = (state.server, control) if training else ()
            orders[number] = Order(group, context.ids[number], *model, *controls)
        answers, forgetful = _collect(context, orders, keeping, traffic)
        heard = {n: a for n, a in answers.items() if isinstance(a, Answer)}
        if state.rounds and (heard or not training):
            state = _measured(state, heard)
            why = state.stopped(recipe)
            if why is not None:
                break
        if not answers:
            clock.sleep(max(0.0, PAUSE - (clock.monotonic() - began)))
        now = clock.monotonic()
        away_since = {n: away_since.get(n, began) for n in orders if n not in answers}
        waited.update(dict.fromkeys(away_since.keys() | forgetful, round(now - began)))
        updates: dict[int, Update | str | None] = {
            n: a.update if isinstance(a, Answer) else a for n, a in answers.items()
        }
        for number, since in away_since.items():
            if now - since >= lost_seconds:
                updates[number] = f"no answer for {lost_seconds:g} seconds"
        for number, seconds in waited.items():
            if number in orders and seconds >= TOTAL_FACTOR * lost_seconds:
                updates[number] = f"kept its group waiting for {seconds} seconds"
        samples = {n: a.samples for n, a in heard.items()}
        following = group_round(job, state, updates, samples)
        for number in following.set_aside.keys() - state.set_aside.keys():
            log.warning("carvy: client %s set aside in %s", number, following.set_aside[number])
        keeping = heard.keys() - following.set_aside.keys()
        if keeping:  # somebody trained: the round is made, its accuracy known with the next answers
            following = replace(following, accuracy=(*state.accuracy, math.nan))
            log.info("carvy: group %s has made round %s", group, following.rounds)
        state = following
        context.store.put_state(key, state)
        why = state.stopped(recipe)
    result = GroupResult(state.weights, state.accuracy, str(why), state.set_aside)
    context.store.put(key, result)
    return result, traffic


def _collect(
    context: ServerContext, orders: dict[int, Order], keeping: Set[int], traffic: Counter[str]
) -> tuple[dict[int, Answer | str], Set[int]]:
    """Ask the members; return their answers, or what is wrong with them, and who was asked twice.

    One that keeps its c_i is sent it only once it says that it has lost it.
    """
    first = {
        n: replace(order, client_control=None) if n in keeping or order.round_ == 0 else order
        for n, order in orders.items()
    }
    answers = _ask(context, first, traffic)
    lost = {n: orders[n] for n, a in answers.items() if isinstance(a, Answer) and a.lost}
    if lost:
        again = _ask(context, lost, traffic)
        for number, answer in again.items():
            if isinstance(answer, Answer) and answer.lost:
                again[number] = "lost its control variate the moment it was sent it"
        answers = {n: a for n, a in answers.items() if n not in lost or n in again} | again
    return answers, lost.keys()


def _ask(
    context: ServerContext, orders: Mapping[int, Order], traffic: Counter[str]
) -> dict[int, Answer | str]:
    """Send orders to the members that are connected; wait for one if none is."""
    nodes = context.connected_nodes(orders)
    most = max((2 * len(order.weights) for order in orders.values()), default=0)
    questions = {number: write(orders[number]) for number in nodes}
    replies = context.replies(wire.ROUND, questions, nodes, traffic, numbers=most)
    # By number, so that a mean over members does not hang on who is quick.
    return {number: wire.read_answer(reply, orders[number]) for number, reply in sorted(replies)}


def _measured(state: GroupState, answers: Mapping[int, Answer]) -> GroupState:
    """Enter the mean of the members' accuracies (Algorithm 4, line 7) for the last round."""
    known = [a.accuracy for a in answers.values() if not math.isnan(a.accuracy)]
    return replace(state, accuracy=(*state.accuracy[:-1], mean_accuracy(known)))


@dataclass(frozen=True)
class ReceivedSums:
    """The sums that members of one group have sent, a file each, until its head is made."""

    folder: Path
    key: str

    def put(self, number: int, sums: Sums) -> None:
        """Keep what a member sent; afterwards it survives whatever happens to this process."""
        arrays = {"second": triangle(sums.second), "first": sums.first, "counts": sums.counts}
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        write_entry(self.file(number), tensors, {})

    def get(self, number: int) -> Sums | None:
        """Return what a member sent; None if there is nothing that can be trusted."""
        path = self.file(number)
        with trusting(path, "asked for again"):
            if (entry := read_entry(path)) is None:
                return None
            second, first, counts = (entry[0][n].numpy() for n in ("second", "first", "counts"))
            return Sums(from_triangle(second, first.shape[1]), first, counts)
        return None

    def in_order(self, numbers: Sequence[int]) -> Iterator[tuple[int, Sums]]:
        """Yield what members sent, one after another."""
        for number in numbers:
            if (sums := self.get(number)) is None:
                raise CarvyError(
                    f"{self.file(number)} was damaged after it was written; start the server "
                    "again: it asks that client once more"
                )
            yield number, sums

    def file(self, number: int) -> Path:
        """Return where the sums of a member are."""
        return self.folder / f"{self.key}-{number}.safetensors"


def learn_group_remotely(
    context: ServerContext, group: int, job: GroupJob, expected: Tensor
) -> tuple[GroupResult, Counter[str]]:
    """Ask a group's members for their sums until their time is over; return head and traffic.

    One that sends nothing usable is set aside. ``job`` holds no data; ``expected`` is the
    :func:`~carvyfl.learning.one_shot.features.probe` of the server's features.
    """
    module = as_one_shot(job.module)
    key, traffic = job.key(), Counter[str]()
    if (done := context.store.get(key, job)) is not None:
        return done, traffic
    received = ReceivedSums(context.store.folder / "sums", key)

    def ask(members: Sequence[int]) -> Iterator[tuple[int, str | None]]:
        for number, answer in _sums_of(context, members, module, expected, traffic):
            if isinstance(answer, Sums):
                received.put(number, answer)
            yield number, answer if isinstance(answer, str) else None

    set_aside = _ask_in_time(context, [n for n in job.members if received.get(n) is None], ask)
    late = NOT_IN_TIME in set_aside.values()
    used = [number for number in job.members if number not in set_aside]
    if late and not used:
        result = GroupResult(flat_weights(module), (), "untrained")
    else:
        with _one_head:
            result = head_from(module, received.in_order(used))
        if late and result.votes:
            result = replace(result, stopped="deadline")
    result = replace(result, set_aside=dict(sorted((set_aside | result.set_aside).items())))
    log.info("carvy: group %s has its head, of %s clients", group, len(used))
    context.store.put(key, result)
    for number in job.members:
        received.file(number).unlink(missing_ok=True)
    return result, traffic


def _ask_in_time(
    context: ServerContext,
    clients: Sequence[int],
    ask: Callable[[Sequence[int]], Iterator[tuple[int, str | None]]],
) -> dict[int, str]:
    """Ask clients until their time is over; return who is set aside, and why.

    ``ask`` takes those that are missing, and yields who answered, with what is wrong with it.
    """
    clock, lost_seconds, late = context.clock, context.settings.lost_seconds, False
    answered: dict[int, str | None] = {}
    began = clock.monotonic()
    while missing := [number for number in clients if number not in answered]:
        now = clock.monotonic()
        late = now >= context.until
        if late or now - began >= lost_seconds:
            break
        answered.update(ask(missing))
        if not any(number in answered for number in missing):
            clock.sleep(max(0.0, PAUSE - (clock.monotonic() - now)))
    silence = NOT_IN_TIME if late else f"no answer for {lost_seconds:g} seconds"
    set_aside = {number: why for number, why in answered.items() if why is not None}
    set_aside |= dict.fromkeys(missing, silence)
    for number, why in set_aside.items():
        log.warning("carvy: client %s set aside: %s", number, why)
    return set_aside


def hear_messages(
    context: ServerContext, model: PrivateModel, expected: Tensor
) -> tuple[Messages, Counter[str]]:
    """Ask every client for its private message until their time is over; return also the traffic.

    Nothing is kept meanwhile: asked again, a client sends what it has stored. One that sends
    nothing usable is set aside. ``expected`` is the probe of the server's features.
    """
    classes, width, traffic = model.head.out_features, model.map.width, Counter[str]()
    units = np.zeros((len(context.names), classes, width + 1), np.int32)
    order = wire.write(wire.MessageOrder.of(model, expected))

    def ask(clients: Sequence[int]) -> Iterator[tuple[int, str | None]]:
        nodes = context.connected_nodes(clients)
        replies = dict.fromkeys(nodes, order), nodes, traffic
        for number, reply in context.replies(wire.MESSAGE, *replies, numbers=units[0].size):
            message = wire.read_message(reply, classes, width)
            if isinstance(message, str):
                yield number, message
            else:
                units[number] = message
                yield number, None

    set_aside = _ask_in_time(context, range(len(context.names)), ask)
    if len(set_aside) == len(units):
        (why, clients), *_ = Counter(set_aside.values()).most_common()
        raise CarvyError(f"no message can be used; of {clients} of {len(units)} clients: {why}")
    log.info("carvy: messages of %s clients", len(units) - len(set_aside))
    sent = Messages.of(units, model.noise)
    return replace(sent, set_aside=dict(sorted(set_aside.items()))), traffic


def _sums_of(
    context: ServerContext,
    members: Sequence[int],
    module: OneShotModel,
    expected: Tensor,
    traffic: Counter[str],
) -> Iterator[tuple[int, Sums | str]]:
    """Ask members once; yield what each one sent, or what is wrong with it, as it arrives."""
    width, classes = module.head.in_features, module.head.out_features
    nodes = context.connected_nodes(members)
    questions = dict.fromkeys(nodes, write(wire.SumsOrder(expected)))
    most = sum(wire.sums_lengths(width, classes).values()) + classes  # a count takes two numbers
    for number, reply in context.replies(wire.SUMS, questions, nodes, traffic, numbers=most):
        sums = wire.read_sums(reply, width, classes)
        said = context.counts.get(number)
        if isinstance(sums, Sums) and said is not None and tuple(sums.counts.tolist()) != said:
            sums = OTHER_COUNTS
        yield number, sums
