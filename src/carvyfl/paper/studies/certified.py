"""End to end: E2E-CA(m), certified accuracy where clients may attack from the first message on.

E2E-CA(m) is the expected certified accuracy, over the coins, of runs without m clients, for the
worst way to choose them (all of one type, spread over the types, at random). By the theorem no
attack by m clients brings the expected accuracy below it. Beside it CA(m) of FLCert's and of
balanced random groups.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import t as student

from carvyfl.core.randomness import derive, generator
from carvyfl.groups.coins import coins_from_seed
from carvyfl.groups.grouping import Grouping
from carvyfl.groups.reach import Plan, empty_slots, plans, touched_groups
from carvyfl.groups.slots import without, without_wrapped
from carvyfl.paper.studies.experiment import (
    Experiment,
    Groups,
    Members,
    add_experiment_options,
    is_done,
    members,
    prepare_experiment,
    result_file,
    run_part,
    with_malicious,
)
from carvyfl.pipeline import GroupingSettings, find_profiles, form_method
from carvyfl.profiles.types import ClientTypes

Reduced = list[Groups]
"""The groups of one draw of the coins, without the first m clients of an order, for every m."""

# The words in the keys of random numbers are part of the results: others give other draws.


@dataclass(frozen=True)
class Draws:
    """The groupings that E2E-CA is measured on.

    Attributes
    ----------
    types
        The clients' types.
    slots
        Method (``slots``, ``wrap``) → way to choose the clients to remove → for every draw of
        the coins the groups without them.
    baselines
        Method (``flcert``, ``balanced``) → the groups of every draw.
    """

    types: ClientTypes
    slots: dict[str, dict[str, list[Reduced]]]
    baselines: dict[str, list[Groups]]

    @property
    def complete(self) -> list[Groups]:
        """The random slots of all clients, for every draw of the coins."""
        return [reduced[0] for reduced in self.slots["slots"]["at random"]]

    @property
    def groups(self) -> Iterator[Members]:
        """Every group of them, some more than once."""
        for ways in self.slots.values():
            for drawn in ways.values():
                yield from (group for reduced in drawn for groups in reduced for group in groups)
        for found in self.baselines.values():
            yield from (group for groups in found for group in groups)


def draw_groupings(experiment: Experiment, num_groups: int, draws: int, most: int) -> Draws:
    """Draw random slots, remove up to ``most`` clients in all ways, and draw the baselines."""
    setup = experiment.prepared.setup
    steps = GroupingSettings(groups=num_groups, baseline_groups=num_groups)
    profiles = find_profiles(setup, steps, experiment.compute)
    types, num_clients, seed = profiles.types, len(setup.federation), setup.seed
    found = Draws(types, {"slots": {}, "wrap": {}}, {"flcert": [], "balanced": []})
    for i in range(draws):
        coins = coins_from_seed(derive(seed, "end to end", i))
        orders = removal_orders(types, most, derive(seed, "away", i))
        for method, ways in found.slots.items():
            grouping = form_method(
                method, steps, num_clients=num_clients, seed=seed, profiles=profiles, coins=coins
            )
            for way, order in orders.items():
                ways.setdefault(way, []).append(remove_in_order(grouping, types, order))
        for method, drawn in found.baselines.items():
            own_seed = derive(seed, method, i)
            grouping = form_method(
                method, steps, num_clients=num_clients, seed=own_seed, profiles=None
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
    assignment, labels = grouping.assignment, types.labels.copy()
    found = [members(grouping)]
    for client in order:
        draw = generator(grouping.coins.key, "moving up", client)
        if grouping.method == "slots":
            assignment = without(assignment, labels, [client], draw)
        else:
            assignment = without_wrapped(assignment, labels, client, grouping.num_groups, draw)
        labels[client] = -1
        found.append(
            [tuple(np.flatnonzero(assignment == g).tolist()) for g in range(grouping.num_groups)]
        )
    return found


def add_draw_options(parser: ArgumentParser) -> None:
    """Add the options of a part that draws groups several times."""
    add_experiment_options(parser)
    parser.add_argument("--draws", type=int, default=5, help="of groups; default: %(default)s")


def options(parser: ArgumentParser) -> None:
    """Add the options of this part, and of `votes`."""
    add_draw_options(parser)
    parser.add_argument("--most", type=int, default=10, help="largest m; default: %(default)s")


def run_votes(args: Namespace) -> None:
    """Train the groups that `certified` and `captured` need, and keep their votes."""
    path = result_file("votes", args, "npz")
    if is_done(path):
        return
    experiment = prepare_experiment(args)
    experiment.train(draw_groupings(experiment, args.groups, args.draws, args.most).groups)
    experiment.save(path)


def run(args: Namespace) -> None:
    """Measure and write."""
    run_part("certified", args, measure, with_votes=True)


def measure(experiment: Experiment, args: Namespace) -> dict[str, Any]:
    """Measure E2E-CA(m), by both theorems, and CA(m) of the baselines."""
    most: int = args.most
    drawn = draw_groupings(experiment, args.groups, args.draws, most)
    experiment.train(drawn.groups)
    types, slots = drawn.types, drawn.slots
    record: dict[str, Any] = {
        "num_groups": args.groups,
        "draws": args.draws,
        "slots": _worst(experiment, slots["slots"], most, per_client=1),
        "slots, by chance": _by_chance(experiment, slots["slots"], types, most),
        "wrap": _worst(experiment, slots["wrap"], most, per_client=2),
        "slots, all behave": _mean(experiment, drawn.complete, most, per_client=2),
    }
    for method, found in drawn.baselines.items():
        record[method] = _mean(experiment, found, most, per_client=1)
        record[f"{method}, by chance"] = _baseline_by_chance(experiment, found, types, most)
    for name, curve in record.items():
        if isinstance(curve, dict):
            print(f"{name}: {' '.join(f'{value:.1f}' for value in curve['ca'])}")
    truth = experiment.prepared.setup.federation.types
    record["types_exact"] = None if truth is None else types.agree_with(truth)
    return record


def interval(samples: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean and Student's 95 % interval of independent samples, all in percent."""
    mean = float(np.mean(samples))
    if len(samples) < 2:
        return mean, 0.0, 100.0
    half = float(
        student.ppf(0.975, len(samples) - 1) * np.std(samples, ddof=1) / np.sqrt(len(samples))
    )
    return mean, max(0.0, mean - half), min(100.0, mean + half)


def _mean(
    experiment: Experiment, drawn: list[Groups], most: int, per_client: int
) -> dict[str, Any]:
    """Return the mean of CA(m) over independent draws, with its interval."""
    return _columns(
        interval([experiment.ca(experiment.cast(groups), m, per_client) for groups in drawn])
        for m in range(most + 1)
    )


def _worst(
    experiment: Experiment, ways: dict[str, list[Reduced]], most: int, per_client: int
) -> dict[str, Any]:
    """Return the least mean of CA(m) over the ways to remove m clients, with its interval."""
    return _least(
        {
            way: [experiment.ca(experiment.cast(own[m]), m, per_client) for own in drawn]
            for way, drawn in ways.items()
        }
        for m in range(most + 1)
    )


def _by_chance(
    experiment: Experiment, ways: dict[str, list[Reduced]], types: ClientTypes, most: int
) -> dict[str, Any]:
    """Return E2E-CA(m) by the second theorem: the coins decide where malicious clients sit."""

    def by_plan(way: str, number: int, groups: Groups, m: int) -> dict[Plan, float]:
        """Return the accuracy against every plan."""
        empty = empty_slots(*_assigned(groups, types), len(groups))
        every = plans([len(slots) for slots in empty], m)
        times = max(6, 100 // len(every))
        cast, found = experiment.cast(groups), {}
        for plan in every:
            draw = generator(experiment.config.seed, "touched", way, number, m, str(plan))
            hit = [touched_groups(empty, plan, len(groups), m, draw) for _ in range(times)]
            found[plan] = float(np.mean([experiment.accuracy_against(cast, t) for t in hit]))
        return found

    def choices(m: int) -> dict[str, list[float]]:
        found: dict[str, list[float]] = {}
        for way, drawn in ways.items():
            values = [by_plan(way, i, reduced[m], m) for i, reduced in enumerate(drawn)]
            if all(own.keys() == values[0].keys() for own in values):
                for plan in values[0]:
                    found[f"{way}, {plan} in empty slots"] = [own[plan] for own in values]
            else:  # other clients, so other plans, in every draw: the worst of each
                found[way] = [min(own.values()) for own in values]
        return found

    return _least(choices(m) for m in range(most + 1))


def _baseline_by_chance(
    experiment: Experiment, drawn: list[Groups], types: ClientTypes, most: int
) -> dict[str, Any]:
    """Return the same for the baselines, if attackers registered before the groups were drawn."""

    def choices(m: int) -> dict[str, list[float]]:
        found: dict[str, list[float]] = {}
        for i, groups in enumerate(drawn):
            cast = experiment.cast(groups)
            orders = [removal_orders(types, most, derive(i, "blind", k)) for k in range(20)]
            for way in orders[0]:
                hit = [with_malicious(groups, own[way][:m]) for own in orders]
                accuracy = [experiment.accuracy_against(cast, t) for t in hit]
                found.setdefault(way, []).append(float(np.mean(accuracy)))
        return found

    return _least(choices(m) for m in range(most + 1))


def _assigned(
    groups: Groups, types: ClientTypes
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return group and type of every client, -1 for those in no group."""
    assignment = np.full(len(types), -1, dtype=np.int64)
    for number, group in enumerate(groups):
        assignment[list(group)] = number
    return assignment, np.where(assignment >= 0, types.labels, -1)


def _least(found: Iterable[dict[str, list[float]]]) -> dict[str, Any]:
    """Return, for every m, the least mean over the attackers' choices, with its interval.

    Parameters
    ----------
    found
        For every m: choice → one value for each draw of the coins.
    """
    rows, names = [], []
    for choices in found:
        intervals = {name: interval(values) for name, values in choices.items()}
        names.append(min(intervals, key=lambda name: intervals[name][0]))
        rows.append(intervals[names[-1]])
    return _columns(rows) | {"worst": names}


def _columns(rows: Iterable[tuple[float, float, float]]) -> dict[str, Any]:
    """Return the means and the ends of the intervals of every m."""
    return dict(zip(("ca", "low", "high"), map(list, zip(*rows, strict=True)), strict=True))
