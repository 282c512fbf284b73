"""End to end: what random slots certify if clients may attack from the first message on."""

from __future__ import annotations

import itertools
import multiprocessing
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import t as student

from carvyfl.core.randomness import derive, generator
from carvyfl.groups.coins import coins_from_seed
from carvyfl.groups.grouping import Grouping
from carvyfl.groups.methods import Beforehand, form_groups
from carvyfl.groups.slots import plans, without
from carvyfl.pipeline import asked_groups
from carvyfl.profiles.methods import read_profiles
from carvyfl.profiles.types import ClientTypes
from carvyfl.settings import GroupingSettings
from carvyfl.voting.collective import Stakes, stakes
from carvyfl.voting.votes import predict, votes
from reproduction.experiment import TYPES, Experiment, Groups, Members, members
from reproduction.studies.common import area_below_100
from reproduction.targets import ALL_MALICIOUS

Composition = tuple[int, ...]
"""How many malicious clients there are of every type."""
Choice = tuple[str, Composition, Composition]
"""A reading, who is malicious, and a plan of Theorem 2: how many empty slots of every type the
attackers take."""
Shares = npt.NDArray[np.float64]
"""In percent: for every draw of the coins one share, or one for each of its draws of T."""
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

HONEST_ONLY, ALL_HONEST = BY_CHANCE = ("honest only, by chance", "all honest, by chance")
TRIES, AGAIN, WORST = 2, 50, 20
"""Draws of T per draw of the coins; and again for so many of the worst choices of the attackers."""
LOW = 0.05
"""The quantile of all samples that stands beside the mean; the least of twenty or fewer."""
TARGET, ORDERS = 0, 20
"""Of captured groups: the class they answer, and the orders in which clients turn malicious."""


def removals(grouping: Grouping, labels: Ints, order: Sequence[int]) -> Iterator[Ints]:
    """Yield the groups of clients with a label without the first 0, 1, … clients of an order.

    By the coupling of the proof, for random slots: they have the distribution of a fresh draw and
    leave most groups as they were.
    """
    assert grouping.coins is not None
    labels, here = labels.copy(), np.where(labels >= 0, grouping.assignment, -1)
    yield here
    for client in order:
        draw = generator(grouping.coins.key, "moving up", client)
        here = without(here, labels, [client], draw)
        labels[client] = -1
        yield here


def remove_in_order(grouping: Grouping, types: ClientTypes, order: Sequence[int]) -> Groups:
    """Return the groups of a run without some clients (:func:`removals`)."""
    *_, left = removals(grouping, types.labels, order)
    return _groups(left, grouping.num_groups)


def _groups(assignment: Ints, num_groups: int) -> Groups:
    return [tuple(np.flatnonzero(assignment == g).tolist()) for g in range(num_groups)]


@dataclass(frozen=True)
class Slots:
    """One draw of the coins: where the clients of a type sit without the first k of them.

    ``seats``: type → k → the group of every client, -1 for clients of other types and in no group.
    """

    seats: tuple[tuple[Ints, ...], ...]
    num_groups: int

    def left(self, composition: Composition) -> Ints:
        """Return the group of every client without the malicious ones, shape (types, N)."""
        return np.stack([self.seats[t][a] for t, a in enumerate(composition)])

    def groups(self, composition: Composition) -> Groups:
        """Return the groups of the run without the malicious clients."""
        return _groups(self.left(composition).max(axis=0), self.num_groups)

    def empty(self, composition: Composition) -> Bools:
        """Return in which groups nobody of a type sits then, shape (types, G)."""
        every = np.arange(self.num_groups)
        return ~np.stack([np.isin(every, held) for held in self.left(composition)])

    def taken(self, composition: Composition) -> Bools:
        """Return in which groups the malicious clients sit if they behave, shape (G,)."""
        whole = self.left((0,) * len(composition))
        return np.isin(np.arange(self.num_groups), whole[whole != self.left(composition)])


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
            for composition, drawn in itertools.product(self.compositions(m), self.slots):
                yield from drawn.groups(composition)
        for found in self.baselines.values():
            yield from itertools.chain(*found)


def draw_groupings(experiment: Experiment, num_groups: int, draws: int, most: int) -> Draws:
    """Draw random slots and the baselines, several times."""
    setup = experiment.setup
    steps = GroupingSettings(types=TYPES, groups=num_groups)
    profiles = read_profiles(steps.types, experiment.one_epoch(steps.types))
    types, clients, seed = profiles.types, len(setup.federation), setup.seed
    of_type = [np.where(types.labels == t, 0, -1) for t in range(types.num_types)]
    orders = [
        generator(seed, "malicious", t).permutation(np.flatnonzero(labels == 0))[:most].tolist()
        for t, labels in enumerate(of_type)
    ]
    found = Draws(types, [], {"flcert": [], "balanced": []}, most)
    for i in range(draws):
        coins = coins_from_seed(derive(seed, "end to end", i))
        asked = asked_groups("slots", steps, profiles)
        known = Beforehand(coins=coins)
        grouping = form_groups(
            "slots", num_clients=clients, seed=seed, profiles=profiles, beforehand=known, **asked
        )
        seats = [tuple(removals(grouping, *own)) for own in zip(of_type, orders, strict=True)]
        found.slots.append(Slots(tuple(seats), grouping.num_groups))
        for method, drawn in found.baselines.items():
            own = derive(seed, method, i)
            asked = asked_groups(method, steps, None)
            blind = form_groups(method, num_clients=clients, seed=own, **asked)
            drawn.append(members(blind))
    return found


def at_stake(experiment: Experiment, drawn: Sequence[Groups], most: int) -> list[Stakes]:
    """Return which votes of trained groups decide, for every draw of the coins."""
    data = experiment.prepared.dataset
    cast = (votes(experiment.cast(groups), data.num_classes) for groups in drawn)
    return [stakes(own, data.test.labels, most) for own in cast]


@dataclass(frozen=True)
class Attackers:
    """Some number m of malicious clients, and what is at stake if all clients behave."""

    experiment: Experiment
    drawn: Draws
    m: int
    complete: list[Stakes]

    def without(self, composition: Composition) -> list[Stakes]:
        """Return what is at stake without these clients, for every draw of the coins."""
        groups = [own.groups(composition) for own in self.drawn.slots]
        return at_stake(self.experiment, groups, self.m)

    def margins(self, composition: Composition) -> Shares:
        """Return the share with Δ ≥ 2m without these clients, for every draw of the coins."""
        drawn = self.drawn.slots
        return np.array([self.experiment.ca(own.groups(composition), self.m) for own in drawn])

    def chances(self, composition: Composition) -> dict[Choice, Shares]:
        """Return the shares that hold by chance, for both readings and every plan."""
        left = self.without(composition)
        empty = self.drawn.slots[0].empty(composition).sum(axis=1).tolist()
        choices = [(name, composition, plan) for name in BY_CHANCE for plan in plans(empty, self.m)]
        return {choice: self.held(*choice, left, TRIES) for choice in choices}

    def held(
        self, name: str, composition: Composition, plan: Composition, left: list[Stakes], times: int
    ) -> Shares:
        """Return the share of inputs that no rewriting turns, in percent, shape (draws, times).

        ``left`` is what is at stake without these clients; T is drawn so many ``times``.
        """
        sets, whole = self._seated(composition, plan, times), left
        if name == ALL_HONEST:
            sets |= np.stack([own.taken(composition) for own in self.drawn.slots])[:, None]
            whole = self.complete
        inputs = len(self.experiment.prepared.dataset.test)
        lost = []
        for own, chosen in zip(whole, sets, strict=True):
            sizes = chosen.sum(axis=1)
            lost.append(own.narrowed(int(sizes.min()), int(sizes.max())).lost(chosen))
        return 100.0 * (inputs - np.array(lost)) / inputs

    def _seated(self, composition: Composition, plan: Composition, times: int) -> Bools:
        """Draw T of Theorem 2 for every draw of the coins, shape (draws, times, G)."""
        empty = np.stack([own.empty(composition) for own in self.drawn.slots])  # (draws, types, G)
        seed = self.experiment.config.seed
        draw = generator(seed, "seated", times, str(composition), str(plan))
        shape = (len(empty), times, empty.shape[2])
        touched = np.zeros(shape, dtype=np.bool_)
        for t, count in enumerate(plan):
            if count:
                order = np.where(empty[:, t, None], draw.random(shape), 2.0).argsort(axis=2)
                np.put_along_axis(touched, order[:, :, :count], True, axis=2)
        # The others sit anywhere else: those in T already come first, and m are taken in all.
        order = np.where(touched, -1.0, draw.random(shape)).argsort(axis=2)
        np.put_along_axis(touched, order[:, :, : self.m], True, axis=2)
        return touched

    def worst(self, workers: int | None, tried: int) -> dict[str, dict[str, Any]]:
        """Return the worst over the attackers' choices, for every number of the study.

        By margins all compositions are tried; by chance, which takes far longer, ``tried`` of
        them, those that are worst by margins. With fewer than all the worst by chance may be
        missed.
        """
        compositions = self.drawn.compositions(self.m)
        _here.append(self)
        with multiprocessing.get_context("fork").Pool(workers) as pool:
            shares = pool.map(partial(_ask, "margins"), compositions)
            margins = dict(zip(compositions, shares, strict=True))
            found = pool.map(partial(_ask, "chances"), _least(margins, tried), chunksize=1)
        _here.pop()
        complete = self.drawn.complete
        behaved = np.array([self.experiment.ca(own, self.m, per_client=2) for own in complete])
        rows = {
            "honest only": summary({str(a): own for a, own in margins.items()}),
            "all honest": summary({"any": behaved}),
        }
        for name in BY_CHANCE if tried else ():
            chances = {c: own for part in found for c, own in part.items() if c[0] == name}
            # T is drawn anew, and more often, for the choices that looked worst.
            again = {
                f"{a}, {plan} in empty slots": self.held(name, a, plan, self.without(a), AGAIN)
                for _, a, plan in _least(chances, WORST)
            }
            rows[name] = summary(again)
        return rows


_here: list[Attackers] = []  # what forked workers look at: too much to send to each


def _ask(what: str, composition: Composition) -> Any:
    return getattr(_here[-1], what)(composition)


def _least(found: Mapping[Any, Shares], count: int) -> list[Any]:
    """Return the choices with the least means."""
    return sorted(found, key=lambda choice: float(np.mean(found[choice])))[:count]


def summary(found: Mapping[str, Shares]) -> dict[str, Any]:
    """Return of the attackers' worst choice the mean, Student's 95 % interval and a low quantile.

    Only draws of the coins are independent: the interval is that of their means over T.
    """
    (worst,) = _least(found, 1)
    samples, low, high = found[worst], 0.0, 100.0
    means = samples.reshape(len(samples), -1).mean(axis=1)
    mean, n = float(means.mean()), len(means)
    if n > 1:
        half = float(student.ppf(0.975, n - 1) * np.std(means, ddof=1) / np.sqrt(n))
        low, high = max(0.0, mean - half), min(100.0, mean + half)
    quantile = float(np.quantile(samples, LOW, method="lower"))
    return {"ca": mean, "low": low, "high": high, "quantile": quantile, "worst": worst}


def votes_of(experiment: Experiment, args: Namespace) -> None:
    """End to end: train the groups that `certified` and `captured` need, and keep their votes."""
    experiment.train(draw_groupings(experiment, args.groups, args.draws, args.most).groups)


def certified(experiment: Experiment, args: Namespace) -> dict[str, Any]:
    """End to end: E2E-CA(m), the accuracy that is left if m clients attack from the first message.

    The malicious clients are a fixed set: the first a_t clients of every type t, in an order that
    does not depend on the coins. All compositions a of m over the types are tried by margins, and
    as many as asked for by chance (``--tried``); the worst counts. For each, four numbers per draw
    of the coins (docs/concepts/end-to-end.md has the theorems):

    - honest only: the share of inputs with Δ ≥ 2m in the run without the malicious clients;
    - honest only, by chance (Theorem 2): the share that holds against the groups T in which the
      coins seat the malicious clients, for the worst plan;
    - all honest: the share with Δ ≥ 4m in the run in which all behave;
    - all honest, by chance (Theorem 3): the share of that run that holds against T and the seats
      that the malicious clients have there.

    Everything is an estimate: from some draws of the coins, some draws of T, and one order of the
    clients of a type. Beside it CA(m) of FLCert's and of balanced random groups.
    """
    drawn = draw_groupings(experiment, args.groups, args.draws, args.most)
    experiment.train(drawn.groups)
    rows: list[dict[str, dict[str, Any]]] = []
    for m in range(args.most + 1):
        complete = at_stake(experiment, drawn.complete, 2 * m)
        row = Attackers(experiment, drawn, m, complete).worst(args.workers, args.tried)
        for method, groups in drawn.baselines.items():
            row[method] = summary({method: np.array([experiment.ca(own, m) for own in groups])})
        print(f"m = {m}: " + ", ".join(f"{n} {r['ca']:.1f}" for n, r in row.items()), flush=True)
        rows.append(row)
    truth = experiment.setup.federation.types
    record: dict[str, Any] = {"num_groups": args.groups, "draws": args.draws, "quantile": LOW}
    record["types_exact"] = None if truth is None else drawn.types.agree_with(truth)
    for name, first in rows[0].items():
        record[name] = {part: [row[name][part] for row in rows] for part in first}
    return record


def captured(experiment: Experiment, args: Namespace) -> dict[str, Any]:
    """End to end: the ASR if every group with a malicious member answers the attackers' target.

    This is the most that an attack by these clients could reach in training (not in Step 1). Honest
    groups vote as they do on clean images. The mean is over draws and orders; with the paper's
    placements: attackers disperse over the slots, a hash puts them into FLCert's groups.
    """
    drawn = draw_groupings(experiment, args.groups, args.draws, most=0)
    experiment.train(drawn.groups)
    found: dict[str, Any] = {"target": TARGET, "draws": args.draws, "orders": ORDERS}
    for method, groupings in (("slots", drawn.complete), ("flcert", drawn.baselines["flcert"])):
        curves = []
        for i, groups in enumerate(groupings):
            home = {client: g for g, group in enumerate(groups) for client in group}
            for k in range(ORDERS):
                draw = generator(experiment.config.seed, "captured", method, i, k)
                if method == "slots":
                    order = draw.permutation(len(groups)).tolist()
                else:
                    order = [home[client] for client in draw.permutation(len(home))]
                curves.append(_captured(experiment, groups, order))
        areas = [area_below_100(curve) for curve in curves]
        found[method] = {
            "auc": {"mean": float(np.mean(areas)), "sd": float(np.std(areas, ddof=1))},
            "asr": np.mean(curves, axis=0).round(2).tolist(),
        }
        print(f"{method}: area of 100 − ASR {found[method]['auc']}")
    return found


def _captured(experiment: Experiment, groups: Groups, order: list[int]) -> list[float]:
    """Return the ASR in percent for every m: of inputs of other classes, those given the target."""
    dataset, found = experiment.prepared.dataset, []
    others, cast = dataset.test.labels != TARGET, experiment.cast(groups)
    for m in ALL_MALICIOUS:
        cast[order[:m]] = TARGET
        won = predict(votes(cast, dataset.num_classes)) == TARGET
        found.append(100 * float(won[others].mean()))
    return found
