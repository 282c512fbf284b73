"""End to end: E2E-CA(m), the accuracy that is left if m clients attack from the first message.

The malicious clients are a fixed set: the first a_t clients of every type t, in an order that does
not depend on the coins. All compositions a of m over the types are tried by margins, and as many
as asked for by chance (``--tried``); the worst counts. For each, four numbers per draw of the coins
(docs/concepts/end-to-end.md has the theorems):

- honest only: the share of inputs with Δ ≥ 2m in the run without the malicious clients;
- honest only, by chance (Theorem 2): the share that holds against the groups T in which the coins
  seat the malicious clients, for the worst plan;
- all honest: the share with Δ ≥ 4m in the run in which all behave;
- all honest, by chance (Theorem 3): the share of that run that holds against T and the seats that
  the malicious clients have there.

Everything is an estimate: from some draws of the coins, some draws of T, and one order of the
clients of a type. Beside it CA(m) of FLCert's and of balanced random groups.
"""

from __future__ import annotations

import itertools
import multiprocessing
from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import t as student

from carvyfl.core.randomness import derive, generator
from carvyfl.groups.coins import coins_from_seed
from carvyfl.groups.grouping import Grouping
from carvyfl.groups.reach import plans
from carvyfl.groups.slots import without, without_wrapped
from carvyfl.paper.experiment import TYPES, Experiment, Groups, Members, members
from carvyfl.pipeline import GroupingSettings, form_method
from carvyfl.profiles.methods import read_profiles
from carvyfl.profiles.types import ClientTypes
from carvyfl.voting.collective import Stakes, stakes
from carvyfl.voting.votes import votes

Composition = tuple[int, ...]
"""How many malicious clients there are of every type."""
Chances = dict[tuple[str, Composition, Composition], list[float]]
"""Reading, composition and plan → the share that holds, for every draw of the coins and of T."""
Ints = npt.NDArray[np.int64]

BY_CHANCE = ("honest only, by chance", "all honest, by chance")
TRIES, AGAIN, WORST = 2, 50, 20
"""Draws of T per draw of the coins; and again for so many of the worst choices of the attackers."""
LOW = 0.05
"""The quantile over the coins and T that stands beside the mean."""


@dataclass(frozen=True)
class Slots:
    """One draw of the coins: where the clients of a type sit without the first k of them.

    Attributes
    ----------
    seats
        Type → k → the group of every client, -1 for clients of other types and in no group.
    num_groups
        G.
    """

    seats: tuple[tuple[Ints, ...], ...]
    num_groups: int

    def groups(self, composition: Composition) -> Groups:
        """Return the groups of the run without the malicious clients."""
        own = [self.seats[t][a] for t, a in enumerate(composition)]
        together = np.max(own, axis=0)
        return [tuple(np.flatnonzero(together == g).tolist()) for g in range(self.num_groups)]

    def empty(self, composition: Composition) -> npt.NDArray[np.bool_]:
        """Return in which groups nobody of a type sits then, shape (types, G)."""
        found = np.ones((len(composition), self.num_groups), dtype=np.bool_)
        for t, a in enumerate(composition):
            held = self.seats[t][a]
            found[t, held[held >= 0]] = False
        return found

    def taken(self, composition: Composition) -> npt.NDArray[np.bool_]:
        """Return in which groups the malicious clients sit if they behave, shape (G,)."""
        found = np.zeros(self.num_groups, dtype=np.bool_)
        for t, a in enumerate(composition):
            whole, left = self.seats[t][0], self.seats[t][a]
            gone = whole[(whole >= 0) & (left != whole)]
            found[gone] = True
        return found


@dataclass(frozen=True)
class Draws:
    """The groupings that are measured: random slots and, for comparison, baselines."""

    types: ClientTypes
    slots: list[Slots]
    baselines: dict[str, list[Groups]]
    most: int

    @property
    def complete(self) -> list[Groups]:
        """The random slots of all clients, for every draw of the coins."""
        return [drawn.groups((0,) * self.types.num_types) for drawn in self.slots]

    def compositions(self, m: int) -> list[Composition]:
        """Return every composition of m over the types."""
        sizes = [range(min(m, int(size)) + 1) for size in self.types.sizes]
        return [a for a in itertools.product(*sizes) if sum(a) == m]

    @property
    def groups(self) -> Iterator[Members]:
        """Every group of them, some more than once."""
        for m in range(self.most + 1):
            for composition in self.compositions(m):
                for drawn in self.slots:
                    yield from drawn.groups(composition)
        for found in self.baselines.values():
            yield from (group for groups in found for group in groups)


def draw_groupings(experiment: Experiment, num_groups: int, draws: int, most: int) -> Draws:
    """Draw random slots and the baselines, several times."""
    setup = experiment.setup
    steps = GroupingSettings(TYPES, groups=num_groups, baseline_groups=num_groups)
    profiles = read_profiles(steps.profiles, experiment.one_epoch(steps.profiles))
    types, num_clients, seed = profiles.types, len(setup.federation), setup.seed
    orders = [
        generator(seed, "malicious", t).permutation(np.flatnonzero(types.labels == t))[:most]
        for t in range(types.num_types)
    ]
    found = Draws(types, [], {"flcert": [], "balanced": []}, most)
    for i in range(draws):
        coins = coins_from_seed(derive(seed, "end to end", i))
        grouping = form_method(
            "slots", steps, num_clients=num_clients, seed=seed, profiles=profiles, coins=coins
        )
        found.slots.append(_without_some(grouping, types, orders))
        for method, drawn in found.baselines.items():
            own_seed = derive(seed, method, i)
            baseline = form_method(
                method, steps, num_clients=num_clients, seed=own_seed, profiles=None
            )
            drawn.append(members(baseline))
    return found


def _without_some(grouping: Grouping, types: ClientTypes, orders: Sequence[Ints]) -> Slots:
    """Remove the clients of every type one after another, by the coupling of the proof."""
    assert grouping.coins is not None
    seats = []
    for t, order in enumerate(orders):
        labels = np.where(types.labels == t, 0, -1)
        here = np.where(labels == 0, grouping.assignment, -1)
        found = [here]
        for client in order.tolist():
            draw = generator(grouping.coins.key, "moving up", client)
            here = without(here, labels, [client], draw)
            labels[client] = -1
            found.append(here)
        seats.append(tuple(found))
    return Slots(tuple(seats), grouping.num_groups)


def remove_in_order(grouping: Grouping, types: ClientTypes, order: Sequence[int]) -> Groups:
    """Return the groups of a run without some clients, by the couplings of the proof.

    They have the same distribution as a fresh draw and leave most groups as they were.

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
    for client in order:
        draw = generator(grouping.coins.key, "moving up", client)
        if grouping.method == "slots":
            assignment = without(assignment, labels, [client], draw)
        else:
            assignment = without_wrapped(assignment, labels, client, grouping.num_groups, draw)
        labels[client] = -1
    return [tuple(np.flatnonzero(assignment == g).tolist()) for g in range(grouping.num_groups)]


def train(experiment: Experiment, args: Namespace) -> None:
    """End to end: train the groups that `certified` and `captured` need, and keep their votes."""
    experiment.train(draw_groupings(experiment, args.groups, args.draws, args.most).groups)


def measure(experiment: Experiment, args: Namespace) -> dict[str, Any]:
    """Measure E2E-CA(m) in both readings, by margins and by chance, and CA(m) of the baselines."""
    drawn = draw_groupings(experiment, args.groups, args.draws, args.most)
    experiment.train(drawn.groups)
    curves: dict[str, list[dict[str, Any]]] = {}
    for m in range(args.most + 1):
        complete = [_stakes(experiment, groups, 2 * m) for groups in drawn.complete]
        for name, row in _rows(
            Round(experiment, drawn, complete, m), args.workers, args.tried
        ).items():
            curves.setdefault(name, []).append(row)
        for method, groups in drawn.baselines.items():
            shares = [experiment.ca(own, m) for own in groups]
            curves.setdefault(method, []).append(summary(shares, method))
        print(
            f"m = {m}: " + ", ".join(f"{n} {r[-1]['ca']:.1f}" for n, r in curves.items()),
            flush=True,
        )
    truth = experiment.setup.federation.types
    record: dict[str, Any] = {"num_groups": args.groups, "draws": args.draws, "quantile": LOW}
    record["types_exact"] = None if truth is None else drawn.types.agree_with(truth)
    return record | {name: _columns(rows) for name, rows in curves.items()}


@dataclass(frozen=True)
class Round:
    """One number m of malicious clients, and what is voted on."""

    experiment: Experiment
    drawn: Draws
    complete: list[Stakes]
    m: int

    def margins(self, composition: Composition) -> list[float]:
        """Return the share with Δ ≥ 2m without these clients, for every draw of the coins."""
        return [self.experiment.ca(own.groups(composition), self.m) for own in self.drawn.slots]

    def chances(self, composition: Composition) -> Chances:
        """Return the shares that hold by chance, for every plan."""
        slots, m = self.drawn.slots, self.m
        without_them = [_stakes(self.experiment, own.groups(composition), m) for own in slots]
        found: Chances = {}
        inputs = len(self.experiment.prepared.dataset.test)
        for plan in _plans(self.drawn, composition, m):
            sampled = _sampled(self.experiment, self.drawn, composition, plan, m, TRIES)
            both = _against(self.drawn, composition, without_them, self.complete, sampled)
            for name, at_stake, sets in both:
                found[name, composition, plan] = _held(at_stake, sets, inputs)
        return found


_here: list[Round] = []  # what forked workers look at: too much to send to each


def _margins(composition: Composition) -> list[float]:
    return _here[-1].margins(composition)


def _chances(composition: Composition) -> Chances:
    return _here[-1].chances(composition)


def _rows(round_: Round, workers: int | None, tried: int) -> dict[str, dict[str, Any]]:
    """Return the worst over the attackers' choices, for every number of this study.

    By margins all compositions are tried; by chance, which takes far longer, ``tried`` of them,
    those that are worst by margins. With fewer than all the worst by chance may be missed.
    """
    drawn, m = round_.drawn, round_.m
    compositions = drawn.compositions(m)
    _here.append(round_)
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        shares = pool.map(_margins, compositions)
        margins = dict(zip(compositions, shares, strict=True))
        worst = sorted(compositions, key=lambda a: float(np.mean(margins[a])))[:tried]
        found = pool.map(_chances, worst, chunksize=1)
    _here.pop()
    rows = {
        "honest only": summary(*_least({str(a): own for a, own in margins.items()})),
        "all honest": summary(
            [round_.experiment.ca(own, m, per_client=2) for own in drawn.complete], "any"
        ),
    }
    for name in BY_CHANCE if tried else ():
        chances = {
            (composition, plan): own
            for chance in found
            for (label, composition, plan), own in chance.items()
            if label == name
        }
        rows[name] = _again(round_.experiment, drawn, round_.complete, name, chances, m)
    return rows


def _again(
    experiment: Experiment,
    drawn: Draws,
    complete: Sequence[Stakes],
    name: str,
    found: dict[tuple[Composition, Composition], list[float]],
    m: int,
) -> dict[str, Any]:
    """Draw T anew, and more often, for the choices that looked worst."""
    worst = sorted(found, key=lambda choice: float(np.mean(found[choice])))[:WORST]
    shares: dict[str, list[float]] = {}
    for composition, plan in worst:
        without_them = [_stakes(experiment, own.groups(composition), m) for own in drawn.slots]
        sampled = _sampled(experiment, drawn, composition, plan, m, AGAIN)
        both = _against(drawn, composition, without_them, complete, sampled)
        (own,) = ((at_stake, sets) for label, at_stake, sets in both if label == name)
        shares[f"{composition}, {plan} in empty slots"] = _held(
            *own, len(experiment.prepared.dataset.test)
        )
    return summary(*_least(shares))


def _against(
    drawn: Draws,
    composition: Composition,
    without_them: Sequence[Stakes],
    complete: Sequence[Stakes],
    sampled: npt.NDArray[np.bool_],
) -> Iterator[tuple[str, Sequence[Stakes], npt.NDArray[np.bool_]]]:
    """Yield both readings by chance: the votes, and the groups that are given up."""
    seats = np.stack([own.taken(composition) for own in drawn.slots])
    yield BY_CHANCE[0], without_them, sampled
    yield BY_CHANCE[1], complete, sampled | seats[:, None]


def _plans(drawn: Draws, composition: Composition, m: int) -> list[Composition]:
    """Return the plans of Theorem 2: how many empty slots of every type the attackers take."""
    empty = drawn.slots[0].empty(composition).sum(axis=1)
    return plans(empty.tolist(), m)


def _sampled(
    experiment: Experiment,
    drawn: Draws,
    composition: Composition,
    plan: Composition,
    m: int,
    times: int,
) -> npt.NDArray[np.bool_]:
    """Draw T of Theorem 2 for every draw of the coins, shape (draws, times, G)."""
    empty = np.stack([own.empty(composition) for own in drawn.slots])  # (draws, types, G)
    draw = generator(experiment.config.seed, "seated", times, str(composition), str(plan))
    num_draws, _, num_groups = empty.shape
    shape = (num_draws, times, num_groups)
    touched = np.zeros(shape, dtype=np.bool_)
    for t, count in enumerate(plan):
        if count:
            order = np.where(empty[:, t, None], draw.random(shape), 2.0).argsort(axis=2)
            np.put_along_axis(touched, order[:, :, :count], True, axis=2)
    # The others sit anywhere else: those in T already come first, and m are taken in all.
    order = np.where(touched, -1.0, draw.random(shape)).argsort(axis=2)
    np.put_along_axis(touched, order[:, :, :m], True, axis=2)
    return touched


def _stakes(experiment: Experiment, groups: Groups, most: int) -> Stakes:
    dataset = experiment.prepared.dataset
    return stakes(votes(experiment.cast(groups), dataset.num_classes), dataset.test.labels, most)


def _held(at_stake: Sequence[Stakes], sets: npt.NDArray[np.bool_], num_inputs: int) -> list[float]:
    """Return the share of inputs that no rewriting turns, in percent, for every draw of both."""
    found = []
    for own, chosen in zip(at_stake, sets, strict=True):
        sizes = chosen.sum(axis=1)
        lost = own.narrowed(int(sizes.min()), int(sizes.max())).lost(chosen)
        found += (100.0 * (num_inputs - lost) / num_inputs).tolist()
    return found


def interval(samples: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean and Student's 95 % interval of independent samples, all in percent."""
    mean = float(np.mean(samples))
    if len(samples) < 2:
        return mean, 0.0, 100.0
    half = float(
        student.ppf(0.975, len(samples) - 1) * np.std(samples, ddof=1) / np.sqrt(len(samples))
    )
    return mean, max(0.0, mean - half), min(100.0, mean + half)


def summary(samples: Sequence[float], worst: str) -> dict[str, Any]:
    """Return the mean over the coins (and T), its interval, and the low quantile."""
    mean, low, high = interval(samples)
    quantile = float(np.quantile(samples, LOW, method="lower"))
    return {"ca": mean, "low": low, "high": high, "quantile": quantile, "worst": worst}


def _least(found: dict[str, list[float]]) -> tuple[list[float], str]:
    """Return the attackers' choice with the least mean, and its name."""
    worst = min(found, key=lambda name: float(np.mean(found[name])))
    return found[worst], worst


def _columns(rows: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return the rows of every m as columns."""
    listed = list(rows)
    return {name: [row[name] for row in listed] for name in listed[0]}
