"""How many groups: G chosen by what it would certify, before anything is trained.

More groups mean more votes to win, and less data for each model. Which G is best hangs on the
data, and the best one can certify many times what a poor one does. Closed-form heads tell before
any training: a fifth of each client's samples is held out; for every candidate G the clients are
anticlustered, every group's head follows from its members' sums (:mod:`carvyfl.learning.one_shot`),
and the heads vote on the held-out samples of all clients. Nothing of the test data is used.

G chosen like this depends on all clients' data, so the certificate compares with these groups
only. Chosen on an earlier cohort or on public data and then set, it leaves the method ``slots`` and
the baselines their certificates against whole runs.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

from carvyfl.core.environment import usable_cores
from carvyfl.core.errors import CarvyError
from carvyfl.core.progress import Report, quiet
from carvyfl.core.randomness import generator
from carvyfl.data.clients import Federation, Samples
from carvyfl.data.partitions import set_aside
from carvyfl.groups.exchange import anticluster_profiles
from carvyfl.groups.hashing import balanced_random
from carvyfl.learning.learners import learner_of
from carvyfl.learning.one_shot.sums import Sums, add, fault, sums_of
from carvyfl.plots.figure import Curve, Panel
from carvyfl.plots.style import method_style
from carvyfl.voting.certificate import certify
from carvyfl.voting.votes import NO_VOTE, argmax_ballots, votes

if TYPE_CHECKING:  # reading a choice that was made needs no torch, which takes seconds
    from torch import nn

    from carvyfl.learning.one_shot.features import Features
    from carvyfl.learning.private.message import Messages

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Floats32 = npt.NDArray[np.float32]
Cast = Callable[[Sequence[Ints]], npt.NDArray[np.integer[Any]]]
"""Gives the votes of the heads of groups, shape (G, samples tried), by the groups' members."""

HELD_OUT = 0.2
"""The part of each client's samples that the heads are tried on."""
MOST_TRIED = 5_000
"""Held-out samples that are voted on at most."""
GROUP_SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 25, 33, 50)
"""Clients per group of the first candidates."""
HALVINGS = 3
"""How often the gaps on both sides of the best candidate are halved."""
WIDEST = 512
"""Features of the heads at most; more tell little more of G."""
MOST_NUMBERS = 2**27
"""Numbers in all clients' matrices of second moments at most: half a gigabyte."""
STACKED_AT_ONCE = 2**25
"""Numbers in the matrices, or in the scores, of the groups whose heads a device finds at once."""
NO_GAIN = 0.01
"""A gain below this part counts as none."""
FAR_BELOW = 20.0
"""Percentage points of accuracy below the estimate that somebody should know of."""


@dataclass(frozen=True)
class Candidate:
    """What some number of groups would certify, estimated."""

    groups: int
    """G."""
    auc: float
    """The area under CA(m), percent times clients."""
    accuracy: float
    """CA(0) in percent."""
    largest_m: int
    """The largest m at which the share of the aim is certified, -1 if not even m = 0."""


@dataclass(frozen=True)
class Goal:
    """What G is chosen for: the ``aim``, and the percentage that CA(0) is to reach."""

    aim: str = "auc"
    least_accuracy: float = 0.0


LARGEST_AREA = Goal()


@dataclass(frozen=True)
class GroupCount:
    """G, and the curve it was chosen from."""

    aim: str
    """What was aimed at: `auc`, or `m60` for the largest m at which 60 % are certified."""
    least_accuracy: float
    """Percent: the accuracy CA(0) that was asked for at least."""
    groups: int
    """The chosen G."""
    candidates: tuple[Candidate, ...]
    """Every G that was tried, descending, with anticlustered groups."""
    balanced: Candidate
    """Balanced random groups at the chosen G."""
    made_up: bool = False
    """Whether heads were tried on made-up inputs, which only ranks the candidates: real inputs are
    harder."""

    @property
    def chosen(self) -> Candidate:
        """The candidate that was chosen."""
        return next(each for each in self.candidates if each.groups == self.groups)

    @property
    def gain(self) -> float:
        """By how much the chosen groups' area exceeds that of balanced random ones, as a part."""
        return self.chosen.auc / self.balanced.auc - 1 if self.balanced.auc > 0 else 0.0

    @property
    def panel(self) -> Panel:
        """The curve that G was chosen from, as a picture shows it."""
        groups, areas = zip(*[(c.groups, c.auc) for c in self.candidates[::-1]], strict=True)
        carvy, balanced = method_style("carvy"), method_style("balanced")
        curves = [
            Curve(carvy.label, groups, areas, style=carvy),
            Curve(f"chosen: G = {self.groups}", [self.groups], [self.chosen.auc]),
            Curve(balanced.label, [self.groups], [self.balanced.auc], style=balanced),
        ]
        title, y_label = f"G = {self.groups} chosen from estimates", "estimated AUC of CA(m)"
        return Panel(title, "G, groups", y_label, curves, y_range=None, marked=self.groups)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the user should know of it."""
        sentences = []
        if self.chosen.accuracy < self.least_accuracy:
            sentences.append(
                f"no number of groups reached an accuracy of {self.least_accuracy:g} %; the best "
                f"was estimated to have {self.chosen.accuracy:.1f} %"
            )
        if self.groups == self.candidates[0].groups > 1:
            sentences.append(
                "every client is a group of its own, so no grouping can differ from another; for "
                "groups of several clients set `groups`"
            )
        elif self.gain < NO_GAIN:
            sentences.append(
                f"anticlustering brings nothing on these clients: an estimated AUC of "
                f"{self.chosen.auc:.0f}, against {self.balanced.auc:.0f} for random groups "
                "(`balanced`), whose certificate also covers Step 1 if `groups` is set"
            )
        return tuple(sentences)

    def missed_by(self, accuracy: float) -> tuple[str, ...]:
        """Say so if the accuracy of the models that vote, in percent, is far below the estimate."""
        if self.made_up or accuracy > self.chosen.accuracy - FAR_BELOW:
            return ()
        return (
            f"the accuracy CA(0) is {accuracy:.1f} %, where {self.chosen.accuracy:.1f} % was "
            "estimated when the number of groups was chosen: the groups' models may need more "
            "training (`rounds`, `lr`) or more data (fewer groups, `groups`)",
        )


def aimed_level(aim: str) -> float | None:
    """Return the percentage of an aim such as ``m60``, None for ``auc``; refuse any other."""
    if aim == "auc":
        return None
    if (percentage := re.fullmatch(r"m(\d{1,2}|100)", aim)) is None:
        raise CarvyError(
            f"aim '{aim}' is unknown; `aim` is auc, or such as m60 for the largest m at which 60 % "
            "are certified"
        )
    return float(percentage[1])


def candidates(num_clients: int) -> list[int]:
    """Return the numbers of groups that are tried first, descending."""
    whole = {num_clients // size for size in GROUP_SIZES}
    return sorted((groups for groups in whole if groups > 1), reverse=True) or [1]


def halfway(tried: Sequence[int], best: int) -> list[int]:
    """Return what lies halfway between the best of those tried, descending, and its neighbours."""
    at = tried.index(best)
    near = tried[max(at - 1, 0) : at + 2]
    return [middle for a, b in pairwise(near) if b < (middle := (a + b) // 2)]


def best_candidate(tried: Sequence[Candidate], goal: Goal) -> Candidate:
    """Return the candidate that serves the goal best; the first of several that are alike.

    Where none has the accuracy that was asked for, it is the most accurate one.
    """
    fine = [each for each in tried if each.accuracy >= goal.least_accuracy]
    if not fine:
        return max(tried, key=lambda each: each.accuracy)
    by_area = aimed_level(goal.aim) is None
    return max(fine, key=lambda each: (each.auc,) if by_area else (each.largest_m, each.auc))


def search(
    num_clients: int, judge: Callable[[int, int], Candidate], goal: Goal
) -> tuple[Candidate, ...]:
    """Try numbers of groups, then more of them near the best; return all, descending.

    ``judge`` takes a number of groups, and how many groups those still to be tried have together,
    itself included.
    """
    tried: list[Candidate] = []
    todo = candidates(num_clients)
    for _ in range(1 + HALVINGS):
        tried += [judge(groups, sum(todo[i:])) for i, groups in enumerate(todo)]
        tried.sort(key=lambda each: -each.groups)
        todo = halfway([each.groups for each in tried], best_candidate(tried, goal).groups)
    return tuple(tried)


def choose_group_count(
    federation: Federation,
    module: nn.Module,
    vectors: Floats32,
    clients: Ints,
    seed: int,
    goal: Goal = LARGEST_AREA,
    *,
    device: str | None = None,
    folder: Path | None = None,
    progress: Report = quiet,
    messages: Messages | None = None,
) -> GroupCount:
    """Choose G for anticlustered groups.

    Parameters
    ----------
    federation, module
        The clients, and the model. A one-shot model's own features and λ are used; for another
        one, scattering features of images, or the inputs themselves.
    vectors, clients
        The profiles that are compared, shape (N, d), and the clients that take part.
    goal
        Whether the area under CA(m) is to be large, or some m; and the least accuracy.
    device, folder
        Where features are computed, and where they are kept; None for the CPU, and for nowhere.
    messages
        What the clients sent, where the learner has one message for all steps: heads then follow
        from it, and are tried on made-up inputs.
    """
    number, level, done = len(clients), aimed_level(goal.aim), 0
    form = functools.partial(anticluster_profiles, vectors[clients], seed=seed)
    # Small matrices: several threads for each would wait for each other more than they compute.
    with threadpool_limits(1), ThreadPoolExecutor(1) as thread:
        # The first candidates are known beforehand: they are formed while sums are computed.
        ahead = {groups: thread.submit(form, groups) for groups in candidates(number)}

        def estimate(assignment: Ints, groups: int) -> Candidate:
            """Estimate what a grouping of the clients certifies."""
            ballots = cast([np.flatnonzero(assignment == group) for group in range(groups)])
            certificate = certify(votes(ballots, federation.num_classes), labels)
            largest = certificate.largest_m(60.0 if level is None else level)
            auc, accuracy = float(certificate.auc()), float(certificate.ca()[0])
            return Candidate(groups, auc, accuracy, -1 if largest is None else largest)

        def judge(groups: int, left: int) -> Candidate:
            nonlocal done
            progress(done, done + left)
            assignment = ahead[groups].result() if groups in ahead else form(groups)
            done += groups
            return estimate(assignment, groups)

        try:
            learner = learner_of(module)
            if messages is not None:
                sent = messages.of_clients(clients)
                inputs, labels, head_of = learner.made_up_trial(module, sent, seed)
                cast = _on_cores(inputs, head_of)
            else:
                sums, inputs, labels = _split(federation, module, clients, seed, device, folder)
                ridge = learner.ridge(module)
                if device is None:
                    cast = _on_cores(inputs, _head_of_sums(sums, ridge))
                else:
                    cast = _on_device(sums, inputs, ridge, device)
            tried = search(number, judge, goal)
        finally:
            thread.shutdown(cancel_futures=True)
        progress(done, done)
        groups = best_candidate(tried, goal).groups
        balanced = estimate(balanced_random(number, groups, seed), groups)
    made_up = messages is not None
    return GroupCount(goal.aim, goal.least_accuracy, groups, tried, balanced, made_up)


def _split(
    federation: Federation,
    module: nn.Module,
    clients: Ints,
    seed: int,
    device: str | None,
    folder: Path | None,
) -> tuple[tuple[Sums | None, ...], Floats32, Ints]:
    """Return clients' sums, None where they overflow, and the samples that heads are tried on."""
    from carvyfl.learning.one_shot.features import projected_to

    features = _features(federation, module)
    most = max(2, min(WIDEST, int(np.sqrt(MOST_NUMBERS / len(clients)))))
    features = features if features.width <= most else projected_to(most, features)
    samples = [federation.clients[k].train for k in clients.tolist()]
    arrays = [data.inputs for data in samples]
    if device is None:  # of what a device computes nothing is kept on disk
        features.known.learn(arrays, device=None, folder=folder, progress=quiet)
    classes = federation.num_classes

    def look(k: int, data: Samples, rows: Floats32) -> tuple[Sums | None, Floats32, Ints]:
        """Return a client's sums, and the features and labels of what it holds out."""
        trained, held = set_aside(data.labels, HELD_OUT, seed, "held out", k)
        with np.errstate(over="ignore", invalid="ignore"):
            sums = sums_of(rows[trained], data.labels[trained], classes)
        if fault(sums, rows.shape[1], classes) is not None:
            return None, rows[:0], data.labels[:0]
        return sums, rows[held], data.labels[held]

    with ThreadPoolExecutor(usable_cores()) as threads:
        # Step 3 of one-shot learning needs the same features; they were learned before Step 1.
        learned = learner_of(module).features(module) is not None
        each = features.of_each(arrays, device, learned=learned)
        looked = threads.map(look, clients.tolist(), samples, each)
        sums, inputs, labels = zip(*looked, strict=True)
    problem = "the number of groups cannot be estimated: "
    if all(client_sums is None for client_sums in sums):
        raise CarvyError(
            f"{problem}every client's sums of features overflow; scale the inputs down"
        )
    tried, truth = np.concatenate(inputs), np.concatenate(labels)
    if not len(truth):
        raise CarvyError(f"{problem}no client has two samples; set `groups`")
    drawn = np.sort(generator(seed, "tried").permutation(len(truth))[:MOST_TRIED])
    return sums, tried[drawn], truth[drawn]


HeadOf = Callable[[Ints], tuple[Floats, Floats] | None]
"""Gives the head of a group, by its members; None where it has none."""


def _head_of_sums(clients: Sequence[Sums | None], ridge: float) -> HeadOf:
    from carvyfl.learning.one_shot.head import head  # here, not on several threads at once

    def head_of(group: Ints) -> tuple[Floats, Floats] | None:
        sums = [known for k in group.tolist() if (known := clients[k]) is not None]
        return head(add(sums), ridge) if sums else None

    return head_of


def _on_cores(inputs: Floats32, head_of: HeadOf) -> Cast:
    silence = np.full(len(inputs), NO_VOTE, dtype=np.int64)  # without a usable head

    def vote(group: Ints) -> Ints:
        weights, biases = head_of(group) or (None, None)
        if weights is None or biases is None or not np.isfinite(weights).all():
            return silence
        scores = inputs @ weights.T.astype(np.float32) + biases.astype(np.float32)
        classes: Ints = scores.argmax(axis=1)
        return classes

    def cast(members: Sequence[Ints]) -> Ints:
        with ThreadPoolExecutor(usable_cores()) as threads:  # linear algebra, which they share
            return np.stack(list(threads.map(vote, members)))

    return cast


def _on_device(
    clients: Sequence[Sums | None], samples: Floats32, ridge: float, device: str | None
) -> Cast:
    """Put sums on a device, where as many heads as fit vote at once; up to rounding as on cores."""
    import torch

    from carvyfl.learning.one_shot.head import heads

    usable = np.array([sums is not None for sums in clients])
    example = next(sums for sums in clients if sums is not None)
    zero = Sums(0 * example.second, 0 * example.first, 0 * example.counts)
    # After the clients comes nobody, who fills up groups with fewer members than the largest.
    each = [zero if sums is None else sums for sums in (*clients, None)]
    parts = [
        torch.from_numpy(np.stack([getattr(sums, name) for sums in each])).to(device)
        for name in ("second", "first", "counts")
    ]
    inputs = torch.from_numpy(samples).to(device).double()
    numbers = max(example.width**2, len(inputs) * len(example.counts))
    at_once = max(STACKED_AT_ONCE // numbers, 1)

    def cast(members: Sequence[Ints]) -> npt.NDArray[np.int32]:
        ballots = np.full((len(members), len(inputs)), NO_VOTE, dtype=np.int32)
        voting = np.flatnonzero([usable[group].any() for group in members])
        for start in range(0, len(voting), at_once):
            batch = voting[start : start + at_once]
            most = max(len(members[g]) for g in batch)
            places = np.full((most, len(batch)), len(usable))
            for column, g in enumerate(batch):
                places[: len(members[g]), column] = members[g]
            turns = torch.from_numpy(places).to(device)
            second, first, counts = (part[turns[0]] for part in parts)
            total = second.double(), first.double(), counts
            for turn in turns[1:]:  # in the members' order
                for sums, part in zip(total, parts, strict=True):
                    sums += part[turn]
            weights, biases = heads(*total, ridge)
            scores = inputs @ weights.mT + biases[:, None]
            ballots[batch] = argmax_ballots(scores).cpu().numpy()
        return ballots

    return cast


def _features(federation: Federation, module: nn.Module) -> Features:
    from carvyfl.learning.one_shot.features import features_for

    if (features := learner_of(module).features(module)) is not None:
        return features
    shape = federation.clients[0].train.inputs.shape[1:]
    image = len(shape) == 3 and min(shape[1:]) >= 8
    return features_for("scattering" if image else "none", shape)
