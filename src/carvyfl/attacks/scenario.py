"""An attack on a grouping at every m: which groups to train, and what comes of it.

A client sits in one group, so an attack by m clients is the benign groups with
the hit ones exchanged for their attacked versions. Each version is trained once,
whatever m it occurs at, and the votes are composed afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import numpy.typing as npt
from msgspec import Meta

from carvyfl.attacks.attack import AttackContext, Malicious
from carvyfl.data.clients import Samples
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
    """The versions of a grouping's groups that an attack needs, and how they make it up.

    ``composed`` has, for every m, the version of every group that is trained under attack; ``jobs``
    the training of every version that occurs.
    """

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
    """Plan an attack."""
    rank = {client: place for place, client in enumerate(order)}
    drawn: dict[int, Samples] = {}
    planned: dict[Version, GroupJob] = {}
    composed = []
    for m in ms:
        row = []
        for job in groups(order[:m]):
            malicious = tuple(c for c in job.members if rank.get(c, m) < m)
            for client in malicious:
                if client not in drawn:
                    own = job.clients[job.members.index(client)].train
                    drawn[client] = attack.poisoned(own, rank[client], context)
            version = (job.members, malicious)
            planned.setdefault(benign(version), job)
            if version not in planned:
                planned[version] = attacked_job(job, attack, malicious, drawn)
            row.append(version)
        composed.append(tuple(row))
    return Scenario(attack, tuple(ms), tuple(composed), planned)


def benign(version: Version) -> Version:
    """Return the same group with everybody honest."""
    return version[0], ()


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
    """Accuracy on clean test inputs under attack, in percent."""
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


VotesOf = Callable[[Version], Ballots]
"""A version of a group → its votes, shape (n,)."""


def outcome(
    scenario: Scenario,
    labels: npt.NDArray[np.int64],
    num_classes: int,
    clean: VotesOf,
    backdoor: tuple[VotesOf, int] | None,
) -> Outcome:
    """Compose the votes of every m and measure them.

    ``clean`` gives what versions of groups vote on the test inputs; ``backdoor`` what they vote on
    D^trg with its trigger, and the target, or None without a backdoor.
    """
    accuracy, certified, asr, asr_lost, hit, lost = [], [], [], [], [], []
    curves: dict[tuple[Version, ...], npt.NDArray[np.float64]] = {}
    for m, row in zip(scenario.ms, scenario.composed, strict=True):
        honest = tuple(map(benign, row))
        if honest not in curves:
            curves[honest] = certify(_composed(honest, clean, num_classes), labels).ca()
        certified.append(float(curves[honest][m]) if m < len(curves[honest]) else 0.0)
        under_attack = _composed(row, clean, num_classes)
        accuracy.append(100 * int(np.sum(predict(under_attack) == labels)) / len(labels))
        hit.append(sum(bool(malicious) for _, malicious in row))
        lost.append(int(np.all(under_attack.groups == NO_VOTE, axis=1).sum()))
        if backdoor is not None:
            of, target = backdoor
            triggered = _composed(row, of, num_classes)
            asr.append(success_rate(triggered, target))
            full = np.where(triggered.groups == NO_VOTE, target, triggered.groups)
            asr_lost.append(success_rate(votes(full, num_classes), target))
    return Outcome(
        m=scenario.ms,
        accuracy=tuple(accuracy),
        certified=tuple(certified),
        groups_hit=tuple(hit),
        groups_lost=tuple(lost),
        asr=tuple(asr) if backdoor else None,
        asr_if_lost_votes_target=tuple(asr_lost) if backdoor else None,
    )


def success_rate(triggered: Votes, target: int) -> float:
    """Return the share of triggered inputs that get the target class, in percent (Eq. 15)."""
    return 100 * float(np.mean(predict(triggered) == target))


def _composed(row: Sequence[Version], of: VotesOf, num_classes: int) -> Votes:
    return votes(np.stack([of(version) for version in row]), num_classes)


def backdoor_wins(target: int, num_classes: int) -> Callable[[Ballots], tuple[float, float]]:
    """Return what a backdoor wants: inputs that get the target, then votes for it."""

    def wins(ballots: Ballots) -> tuple[float, float]:
        counts = tally(votes(ballots, num_classes))
        return float(np.sum(plurality(counts) == target)), float(counts[:, target].sum())

    return wins


def error_wins(
    labels: npt.NDArray[np.int64], num_classes: int
) -> Callable[[Ballots], tuple[float, float]]:
    """Return what an attack on accuracy wants: wrong answers, then fewer votes for right ones."""

    def wins(ballots: Ballots) -> tuple[float, float]:
        counts = tally(votes(ballots, num_classes))
        right = counts[np.arange(len(labels)), labels].sum()
        return float(np.sum(plurality(counts) != labels)), -float(right)

    return wins
