"""An attack on a grouping at every m: which groups to train, and what comes of it.

A client sits in one group, so an attack by m clients is the benign groups with the hit ones
exchanged for their attacked versions. Each is trained once, and the votes are composed afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import numpy.typing as npt
from msgspec import Meta

from carvyfl.attacks.attack import AttackContext, Malicious, poisoned_samples
from carvyfl.data.clients import Labels, Samples
from carvyfl.voting.certificate import certify, undercut
from carvyfl.voting.votes import NO_VOTE, Votes, plurality, predict, tally, votes

if TYPE_CHECKING:
    from carvyfl.learning.job import GroupJob

Ballots = npt.NDArray[np.integer[Any]]
Version = tuple[tuple[int, ...], tuple[int, ...]]
"""The members of a group, and those among them that are malicious."""

Groups = Callable[[Sequence[int]], "Sequence[GroupJob]"]
"""Malicious clients → the benign training of every group, as Steps 1 and 2 then form them.
Attackers who behave in Step 1 change nothing there: the groups are always the same."""


@dataclass(frozen=True)
class Scenario:
    """The versions of every group at every m (``composed``), and the training of each version."""

    attack: Malicious
    ms: tuple[int, ...]
    composed: tuple[tuple[Version, ...], ...]
    jobs: dict[Version, GroupJob]


def plan_scenario(
    groups: Groups,
    attack: Malicious,
    order: Sequence[int],
    ms: Sequence[int],
    context: AttackContext,
) -> Scenario:
    """Plan an attack in which, for every m, the first m clients of an order are malicious."""
    rank = {client: place for place, client in enumerate(order)}
    poisoned: dict[int, Samples] = {}
    jobs: dict[Version, GroupJob] = {}
    composed = []
    for m in ms:
        row = []
        for job in groups(order[:m]):
            malicious = tuple(c for c in job.members if rank.get(c, m) < m)
            for number, client in zip(job.members, job.clients, strict=True):
                if number in malicious and number not in poisoned:
                    data = poisoned_samples(attack, client.train, rank[number], context)
                    poisoned[number] = data
            row.append((job.members, malicious))
            jobs.setdefault((job.members, ()), job)
            if row[-1] not in jobs:
                jobs[row[-1]] = attacked_job(job, attack, malicious, poisoned)
        composed.append(tuple(row))
    return Scenario(attack, tuple(ms), tuple(composed), jobs)


def attacked_job(
    job: GroupJob, attack: Malicious, malicious: tuple[int, ...], data: dict[int, Samples]
) -> GroupJob:
    """Return a group's training with some members malicious; their validation data stay theirs."""
    if not malicious:
        return job
    clients = tuple(
        replace(client, train=data[number]) if number in malicious else client
        for number, client in zip(job.members, job.clients, strict=True)
    )
    return replace(job, clients=clients, attack=attack, malicious=malicious)


Percent = Annotated[tuple[float, ...], Meta(min_length=1)]
Counts = tuple[int, ...]


@dataclass(frozen=True)
class Measured:
    """What was measured of an attack, point by point over m."""

    m: Annotated[Counts, Meta(min_length=1)]
    """Numbers of malicious clients, rising; the lists below are as long."""
    accuracy: Percent
    """Accuracy on clean test inputs under attack, in percent; an input on which no group votes is
    answered wrong."""
    certified: Percent
    """CA(m) in percent of the same groups with everybody honest, which no attack may undercut."""
    groups_hit: Counts
    """Groups with a malicious member."""
    groups_lost: Counts
    """Groups whose model casts no vote."""
    asr: Percent | None
    """Attack success rate (Eq. 15) in percent; null if the attack is not a backdoor."""
    asr_if_lost_votes_target: Percent | None
    """The same if groups without a vote are read as voting for the target, as the argmax of NaN
    would for class 0."""
    dropped: Counts = ()
    """Malicious clients that were set aside, since what they sent could not be used."""


@dataclass(frozen=True)
class Outcome(Measured):
    """What an attack achieved."""

    @property
    def promise_kept(self) -> bool:
        """Whether accuracy under attack was never below CA(m)."""
        return not undercut(self.accuracy, self.certified)


def outcome(
    scenario: Scenario,
    labels: Labels,
    num_classes: int,
    clean: Mapping[Version, npt.ArrayLike],
    triggered: Mapping[Version, npt.ArrayLike] | None = None,
    target: int = 0,
) -> Outcome:
    """Measure what versions vote, (n,) each, on ``clean`` inputs and on a backdoor's."""

    def together(row: Sequence[Version], of: Mapping[Version, npt.ArrayLike]) -> Votes:
        return votes(np.stack([of[version] for version in row]), num_classes)

    def success_rate(fooled: Votes) -> float:  # Eq. 15; nobody's answer is an argmax's, class 0
        return 100 * float(np.mean(np.maximum(predict(fooled), 0) == target))

    rows = scenario.composed
    honest = [tuple((members, ()) for members, _ in row) for row in rows]
    curves = {row: certify(together(row, clean), labels).ca().tolist() for row in set(honest)}
    attacked = [together(row, clean) for row in rows]
    asr = asr_if_lost = None
    if triggered is not None:
        fooled = [together(row, triggered) for row in rows]
        full = (np.where(cast.groups == NO_VOTE, target, cast.groups) for cast in fooled)
        asr = tuple(map(success_rate, fooled))
        asr_if_lost = tuple(success_rate(votes(ballots, num_classes)) for ballots in full)
    right = (int(np.sum(predict(cast) == labels)) for cast in attacked)
    return Outcome(
        m=scenario.ms,
        accuracy=tuple(100 * correct / len(labels) for correct in right),
        certified=tuple(
            next(iter(curves[row][m:]), 0.0)  # a curve that has ended is zero
            for m, row in zip(scenario.ms, honest, strict=True)
        ),
        groups_hit=tuple(sum(bool(malicious) for _, malicious in row) for row in rows),
        groups_lost=tuple(int(np.all(cast.groups == NO_VOTE, axis=1).sum()) for cast in attacked),
        asr=asr,
        asr_if_lost_votes_target=asr_if_lost,
    )


def attack_gain(
    ballots: Ballots, num_classes: int, labels: npt.ArrayLike, backdoor: bool
) -> tuple[float, float]:
    """Return what votes (G, n) for or against ``labels`` bring: inputs won, then progress."""
    counts = tally(votes(ballots, num_classes))
    wanted = np.broadcast_to(labels, len(counts))
    hits, progress = plurality(counts) == wanted, counts[np.arange(len(counts)), wanted].sum()
    return (hits.sum(), progress) if backdoor else ((~hits).sum(), -progress)
