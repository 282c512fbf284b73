"""E2E-CA(m): certified accuracy when clients may attack from the first message on."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from lab import Groups, Lab, Members, members, without_some
from scipy.stats import t as student

from carvyfl.core.randomness import derive, generator
from carvyfl.groups.coins import coins_from_seed
from carvyfl.groups.methods import form_groups
from carvyfl.groups.reach import Plan, empty_slots, plans, touched_groups
from carvyfl.profiles.methods import infer_types
from carvyfl.profiles.types import ClientTypes

Runs = dict[str, dict[str, list[list[Groups]]]]
"""Method → way to take clients away → a draw of the coins → the groups without the first m."""


@dataclasses.dataclass(frozen=True)
class Draws:
    """The groupings that E2E-CA is measured on."""

    types: ClientTypes
    runs: Runs
    blind: dict[str, list[Groups]]

    @property
    def groups(self) -> Iterable[Members]:
        """Every group of them."""
        for ways in self.runs.values():
            for drawn in ways.values():
                for nested in drawn:
                    for groups in nested:
                        yield from groups
        for found in self.blind.values():
            for groups in found:
                yield from groups


def draw_groupings(lab: Lab, num_groups: int, draws: int, most: int) -> Draws:
    """Draw random slots, all ways to take up to ``most`` clients away, and blind groupings."""
    federation, config = lab.setting.federation, lab.config
    updates = lab.updates("bias-profile")
    types = infer_types("bias-profile", updates)
    runs: Runs = {"slots": {}, "wrap": {}}
    blind: dict[str, list[Groups]] = {"flcert": [], "balanced": []}
    for i in range(draws):
        coins = coins_from_seed(derive(config.seed, "end to end", i))
        for method in runs:
            full = form_groups(
                method,
                num_clients=len(federation),
                seed=config.seed,
                types=types,
                num_groups=num_groups,
                coins=coins,
            )
            for way, order in departures(types, most, derive(config.seed, "away", i)).items():
                runs[method].setdefault(way, []).append(without_some(method, full, types, order))
        for method, found in blind.items():
            drawn = form_groups(
                method,
                num_clients=len(federation),
                seed=derive(config.seed, method, i),
                num_groups=num_groups,
            )
            found.append(members(drawn.assignment, num_groups))
    return Draws(types, runs, blind)


def departures(types: ClientTypes, most: int, draw: int) -> dict[str, list[int]]:
    """Return, for each way to choose them, the clients to take away one after another."""
    by_type = [np.flatnonzero(types.labels == kind) for kind in range(types.num_types)]
    shuffled = [generator(draw, "departures", k).permutation(c) for k, c in enumerate(by_type)]
    longest = max(len(clients) for clients in shuffled)
    spread = [int(c[i]) for i in range(longest) for c in shuffled if i < len(c)]
    anybody = generator(draw, "departures").permutation(len(types))
    ways = {f"all of type {k}": c.tolist() for k, c in enumerate(shuffled) if len(c) >= most}
    ways |= {"spread over types": spread, "at random": anybody.tolist()}
    return {name: order[:most] for name, order in ways.items()}


def certified(lab: Lab, num_groups: int, draws: int, most: int) -> dict[str, Any]:
    """Measure E2E-CA(m), by both theorems, for m = 0 … ``most``, and CA(m) of blind groupings."""
    drawn = draw_groupings(lab, num_groups, draws, most)
    types, runs, blind = drawn.types, drawn.runs, drawn.blind
    lab.train(drawn.groups)
    record: dict[str, Any] = {"num_groups": num_groups, "draws": draws}
    record["slots"] = _worst(lab, runs["slots"], most, per_client=1)
    record["slots, by chance"] = _by_chance(lab, runs["slots"], types, most)
    record["wrap"] = _worst(lab, runs["wrap"], most, per_client=2)
    whole = [nested[0] for nested in runs["slots"]["at random"]]
    record["slots, all behave"] = _curve(lab, whole, most, per_client=2)
    for method, found in blind.items():
        record[method] = _curve(lab, found, most, per_client=1)
        record[f"{method}, by chance"] = _blind_by_chance(lab, found, types, most)
    truth = lab.setting.federation.types
    record["types_exact"] = None if truth is None else types.agree_with(truth)
    return record


def interval(samples: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean and Student's 95 % interval of independent samples."""
    mean = float(np.mean(samples))
    if len(samples) < 2:
        return mean, 0.0, 100.0
    half = float(
        student.ppf(0.975, len(samples) - 1) * np.std(samples, ddof=1) / np.sqrt(len(samples))
    )
    return mean, max(0.0, mean - half), min(100.0, mean + half)


def _curve(lab: Lab, drawn: list[Groups], most: int, per_client: int) -> dict[str, Any]:
    """Return the mean of CA(m) over independent draws, with its interval."""
    found = [
        interval([lab.ca(lab.cast(groups), m, per_client) for groups in drawn])
        for m in range(most + 1)
    ]
    return dict(zip(("ca", "low", "high"), map(list, zip(*found, strict=True)), strict=True))


def _worst(
    lab: Lab, ways: dict[str, list[list[Groups]]], most: int, per_client: int
) -> dict[str, Any]:
    """Return the least mean of CA(m) over the ways to take m clients away, with its interval."""
    return _least(
        {
            way: [lab.ca(lab.cast(nested[m]), m, per_client) for nested in drawn]
            for way, drawn in ways.items()
        }
        for m in range(most + 1)
    )


def _by_chance(
    lab: Lab, ways: dict[str, list[list[Groups]]], types: ClientTypes, most: int
) -> dict[str, Any]:
    """Return E2E-CA(m) by the second theorem: where the malicious sit is left to the coins."""

    def by_plan(way: str, number: int, groups: Groups, m: int) -> dict[Plan, float]:
        """Return the share of inputs that hold, for every plan."""
        empty = empty_slots(*_seated(groups, types), len(groups))
        every = plans([len(slots) for slots in empty], m)
        times = max(6, 100 // len(every))
        shares = {}
        for plan in every:
            draw = generator(lab.config.seed, "touched", way, number, m, str(plan))
            touched = [touched_groups(empty, plan, len(groups), m, draw) for _ in range(times)]
            shares[plan] = float(np.mean([lab.held(lab.cast(groups), t) for t in touched]))
        return shares

    def found(m: int) -> dict[str, list[float]]:
        choices: dict[str, list[float]] = {}
        for way, drawn in ways.items():
            shares = [by_plan(way, i, nested[m], m) for i, nested in enumerate(drawn)]
            if all(own.keys() == shares[0].keys() for own in shares):
                for plan in shares[0]:
                    choices[f"{way}, {plan} in empty slots"] = [own[plan] for own in shares]
            else:  # other clients, so other plans, in every draw: the worst of each
                choices[way] = [min(own.values()) for own in shares]
        return choices

    return _least(found(m) for m in range(most + 1))


def _blind_by_chance(
    lab: Lab, drawn: list[Groups], types: ClientTypes, most: int
) -> dict[str, Any]:
    """Return the same for groups drawn blindly, if attackers were in before the draw."""

    def found(m: int) -> dict[str, list[float]]:
        shares: dict[str, list[float]] = {}
        for i, groups in enumerate(drawn):
            chosen = [departures(types, most, derive(i, "blind", k)) for k in range(20)]
            for way in chosen[0]:
                malicious = [set(orders[way][:m]) for orders in chosen]
                touched = [np.array([bool(who & set(g)) for g in groups]) for who in malicious]
                held = [lab.held(lab.cast(groups), t) for t in touched]
                shares.setdefault(way, []).append(float(np.mean(held)))
        return shares

    return _least(found(m) for m in range(most + 1))


def _seated(
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
    curve = dict(zip(("ca", "low", "high"), map(list, zip(*rows, strict=True)), strict=True))
    return {**curve, "worst": names}
