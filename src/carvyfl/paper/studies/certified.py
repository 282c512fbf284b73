"""End to end: E2E-CA(m), certified accuracy where clients may attack from the first message on.

E2E-CA(m) is the expected certified accuracy, over the coins, of runs without m clients, for the
worst way to choose them (all of one type, spread over the types, at random). By the theorem no
attack by m clients brings the expected accuracy below it. Beside it CA(m) of FLCert's and of
balanced random groups.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import t as student

from carvyfl.core.randomness import derive, generator
from carvyfl.groups.coins import coins_from_seed
from carvyfl.groups.grouping import Grouping
from carvyfl.groups.reach import Plan, empty_slots, plans, touched_groups
from carvyfl.groups.slots import without, without_wrapped
from carvyfl.paper.experiment import Experiment, Groups, Members, members, with_malicious
from carvyfl.pipeline import GroupingSettings, form_method
from carvyfl.profiles.methods import read_profiles
from carvyfl.profiles.types import ClientTypes

Reduced = list[Groups]
"""The groups of one draw of the coins, without the first m clients of an order, for every m."""
Ways = dict[str, list[Reduced]]
"""Way to choose the clients to remove → for every draw of the coins, the groups without them."""
Choices = dict[str, list[float]]
"""Choice of the attackers → an accuracy in percent for every draw of the coins."""

# The words in the keys of random numbers are part of the results: others give other draws.


@dataclass(frozen=True)
class Draws:
    """The groupings that E2E-CA is measured on.

    Attributes
    ----------
    types
        The clients' types.
    slots
        Random slots (``slots``, ``wrap``), and which clients were removed.
    baselines
        Method (``flcert``, ``balanced``) → the groups of every draw.
    """

    types: ClientTypes
    slots: dict[str, Ways]
    baselines: dict[str, list[Groups]]

    @property
    def complete(self) -> list[Groups]:
        """The random slots of all clients, for every draw of the coins."""
        return [reduced[0] for reduced in self.slots["slots"]["at random"]]

    @property
    def groups(self) -> Iterator[Members]:
        """Every group of them, some more than once."""
        drawn = [
            reduced for ways in self.slots.values() for own in ways.values() for reduced in own
        ]
        for groupings in (*drawn, *self.baselines.values()):
            yield from (group for groups in groupings for group in groups)


def draw_groupings(experiment: Experiment, num_groups: int, draws: int, most: int) -> Draws:
    """Draw random slots, remove up to ``most`` clients in all ways, and draw the baselines."""
    steps = GroupingSettings(groups=num_groups, baseline_groups=num_groups)
    profiles = read_profiles(steps.profiles, experiment.updates)
    types, seed = profiles.types, experiment.setup.seed
    found = Draws(types, {"slots": {}, "wrap": {}}, {"flcert": [], "balanced": []})
    for i in range(draws):
        coins = coins_from_seed(derive(seed, "end to end", i))
        orders = removal_orders(types, most, derive(seed, "away", i))
        for method, ways in found.slots.items():
            grouping = form_method(
                method, steps, num_clients=len(types), seed=seed, profiles=profiles, coins=coins
            )
            for way, order in orders.items():
                ways.setdefault(way, []).append(remove_in_order(grouping, types, order))
        for method, drawn in found.baselines.items():
            own_seed = derive(seed, method, i)
            grouping = form_method(
                method, steps, num_clients=len(types), seed=own_seed, profiles=None
            )
            drawn.append(members(grouping))
    return found


def removal_orders(types: ClientTypes, most: int, seed: int) -> dict[str, list[int]]:
    """Return, for each way to choose them, the clients to remove one after another."""
    by_type = [np.flatnonzero(types.labels == kind) for kind in range(types.num_types)]
    shuffled = [generator(seed, "departures", k).permutation(c) for k, c in enumerate(by_type)]
    longest = max(len(clients) for clients in shuffled)
    spread = [int(c[i]) for i in range(longest) for c in shuffled if i < len(c)]
    anybody = generator(seed, "departures").permutation(len(types))
    ways = {f"all of type {k}": c.tolist() for k, c in enumerate(shuffled) if len(c) >= most}
    ways |= {"spread over types": spread, "at random": anybody.tolist()}
    return {name: order[:most] for name, order in ways.items()}


def remove_in_order(grouping: Grouping, types: ClientTypes, order: Sequence[int]) -> Reduced:
    """Return the groups of runs without the first 0, 1, … clients of an order.

    By the couplings of the proof: they have the same distribution as fresh draws and leave most
    groups as they were, which need not be trained again.

    Parameters
    ----------
    grouping
        Random slots, wrapped or not.
    types
        Of all clients.
    order
        The clients to remove.
    """
    assert grouping.coins is not None
    assignment, labels, num_groups = grouping.assignment, types.labels.copy(), grouping.num_groups
    found = [members(grouping)]
    for client in order:
        draw = generator(grouping.coins.key, "moving up", client)
        if grouping.method == "slots":
            assignment = without(assignment, labels, [client], draw)
        else:
            assignment = without_wrapped(assignment, labels, client, num_groups, draw)
        labels[client] = -1
        left = [np.flatnonzero(assignment == g).tolist() for g in range(num_groups)]
        found.append([tuple(group) for group in left])
    return found


def train(experiment: Experiment, args: Namespace) -> None:
    """Train the groups that `certified` and `captured` need, and keep their votes."""
    experiment.train(draw_groupings(experiment, args.groups, args.draws, args.most).groups)


def measure(experiment: Experiment, args: Namespace) -> dict[str, Any]:
    """Measure E2E-CA(m), by both theorems, and CA(m) of the baselines."""
    drawn = draw_groupings(experiment, args.groups, args.draws, args.most)
    experiment.train(drawn.groups)
    types, slots = drawn.types, drawn.slots
    ms = range(args.most + 1)
    record: dict[str, Any] = {
        "num_groups": args.groups,
        "draws": args.draws,
        "slots": worst_choice(by_margin(experiment, slots["slots"], m) for m in ms),
        "slots, by chance": worst_choice(
            by_chance(experiment, slots["slots"], types, m) for m in ms
        ),
        "wrap": worst_choice(by_margin(experiment, slots["wrap"], m, per_client=2) for m in ms),
        "slots, all behave": mean_ca(experiment, drawn.complete, ms, per_client=2),
    }
    for method, found in drawn.baselines.items():
        record[method] = mean_ca(experiment, found, ms)
        record[f"{method}, by chance"] = worst_choice(
            baseline_by_chance(experiment, found, types, args.most, m) for m in ms
        )
    for name, curve in record.items():
        if isinstance(curve, dict):
            print(f"{name}: {' '.join(f'{value:.1f}' for value in curve['ca'])}")
    truth = experiment.setup.federation.types
    return record | {"types_exact": None if truth is None else types.agree_with(truth)}


def by_margin(experiment: Experiment, ways: Ways, m: int, per_client: int = 1) -> Choices:
    """Return E2E-CA(m) by the first theorem: margins of runs without m clients."""
    return {
        way: [experiment.ca(reduced[m], m, per_client) for reduced in drawn]
        for way, drawn in ways.items()
    }


def by_chance(experiment: Experiment, ways: Ways, types: ClientTypes, m: int) -> Choices:
    """Return E2E-CA(m) by the second theorem: the coins decide where malicious clients sit."""
    found: Choices = {}
    for way, drawn in ways.items():
        values = [
            _by_plan(experiment, reduced[m], types, m, way, i) for i, reduced in enumerate(drawn)
        ]
        if all(own.keys() == values[0].keys() for own in values):
            for plan in values[0]:
                found[f"{way}, {plan} in empty slots"] = [own[plan] for own in values]
        else:  # other clients, so other plans, in every draw: the worst of each
            found[way] = [min(own.values()) for own in values]
    return found


def _by_plan(
    experiment: Experiment, groups: Groups, types: ClientTypes, m: int, *key: str | int
) -> dict[Plan, float]:
    """Return the accuracy against every plan of m clients; ``key`` is that of random numbers."""
    assignment = np.full(len(types), -1, dtype=np.int64)
    for number, group in enumerate(groups):
        assignment[list(group)] = number
    empty = empty_slots(assignment, np.where(assignment >= 0, types.labels, -1), len(groups))
    every = plans([len(slots) for slots in empty], m)
    times = max(6, 100 // len(every))
    found = {}
    for plan in every:
        draw = generator(experiment.config.seed, "touched", *key, m, str(plan))
        hit = [touched_groups(empty, plan, len(groups), m, draw) for _ in range(times)]
        found[plan] = float(np.mean([experiment.accuracy_against(groups, t) for t in hit]))
    return found


def baseline_by_chance(
    experiment: Experiment, drawn: list[Groups], types: ClientTypes, most: int, m: int
) -> Choices:
    """Return the same for a baseline, if attackers registered before the groups were drawn."""
    found: Choices = {}
    for i, groups in enumerate(drawn):
        orders = [removal_orders(types, most, derive(i, "blind", k)) for k in range(20)]
        for way in orders[0]:
            hit = [with_malicious(groups, own[way][:m]) for own in orders]
            accuracy = [experiment.accuracy_against(groups, t) for t in hit]
            found.setdefault(way, []).append(float(np.mean(accuracy)))
    return found


def worst_choice(found: Iterable[Choices]) -> dict[str, Any]:
    """Return, for every m, the least mean over the attackers' choices, and its interval."""
    rows, names = [], []
    for choices in found:
        intervals = {name: interval(values) for name, values in choices.items()}
        names.append(min(intervals, key=lambda name: intervals[name][0]))
        rows.append(intervals[names[-1]])
    columns = map(list, zip(*rows, strict=True))
    return dict(zip(("ca", "low", "high"), columns, strict=True)) | {"worst": names}


def mean_ca(
    experiment: Experiment, drawn: list[Groups], ms: range, per_client: int = 1
) -> dict[str, Any]:
    """Return the mean of CA(m) over draws, and its interval: there is nothing to choose."""
    found = worst_choice({"": [experiment.ca(g, m, per_client) for g in drawn]} for m in ms)
    return {name: values for name, values in found.items() if name != "worst"}


def interval(samples: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean and Student's 95 % interval of independent samples, all in percent."""
    mean, n = float(np.mean(samples)), len(samples)
    if n < 2:
        return mean, 0.0, 100.0
    half = float(student.ppf(0.975, n - 1) * np.std(samples, ddof=1) / np.sqrt(n))
    return mean, max(0.0, mean - half), min(100.0, mean + half)
