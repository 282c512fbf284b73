"""A group's training over the network: its rounds, whatever its members do.

Nothing here knows another group. A member is asked with the model, measures it, trains it, and
sends both: the accuracy after a round is known with the answers of the next.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import replace

from carvyfl.flower.identity import ServerContext
from carvyfl.flower.questions import log
from carvyfl.flower.wire import ROUND, Answer, Order, read_answer, write
from carvyfl.learning.job import GroupJob, GroupResult, GroupState
from carvyfl.learning.recipe import UNUSABLE
from carvyfl.learning.scaffold.arithmetic import Update
from carvyfl.learning.scaffold.server import group_round, mean_accuracy

TOTAL_FACTOR = 5
"""How long a client may keep its group waiting in all, as a multiple of what is allowed at a time:
one that answers every third question would otherwise hold up its group, and the run, for weeks."""
PAUSE = 10.0
"""Seconds before a group asks again that nobody has answered: questions may be refused at once."""


def train_group_remotely(
    context: ServerContext, group: int, job: GroupJob
) -> tuple[GroupResult, Counter[str]]:
    """Train a group (Algorithm 3), from its last completed round if it was begun before.

    ``job`` holds no data. Returns the result and the traffic, see :meth:`ServerContext.replies`.
    """
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

    A member that keeps its c_i is not sent it, unless it says that it has lost it.
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
    replies = context.replies(ROUND, questions, nodes, traffic, numbers=most)
    # By number, so that a mean over members does not hang on who is quick.
    return {number: read_answer(reply, orders[number]) for number, reply in sorted(replies)}


def _measured(state: GroupState, answers: Mapping[int, Answer]) -> GroupState:
    """Enter the mean of the members' accuracies (Algorithm 4, line 7) for the last round."""
    known = [a.accuracy for a in answers.values() if not math.isnan(a.accuracy)]
    return replace(state, accuracy=(*state.accuracy[:-1], mean_accuracy(known)))
