"""Collective certificate: how many answers of a whole test set survive m malicious clients.

The radius of an input lets the attackers choose their groups anew for every input, but they sit in
the same groups whatever is asked: one set T of at most k groups serves for all inputs. The
certificate counts the answers that the worst such set leaves of this test set.

Groups in T vote as the attackers like. Rival r wins over the true class y for one of their
rewritings exactly if the gap v_y - v_r - [y > r] is below the sum over T of d_g, where d_g is 2 if
g votes y, 0 if it votes r, and 1 otherwise. An input is lost to T if that holds for one rival. A
larger set loses no fewer inputs.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from carvyfl.core.checks import whole_number
from carvyfl.voting.certificate import Percent, margin
from carvyfl.voting.votes import Votes, check_labels, tallies

SETS_AT_MOST = 250_000
"""Up to so many sets of groups are tried one by one; beyond, an integer programme decides."""
CELLS = 1 << 24  # sets × (input, rival) pairs in memory at a time


@dataclass(frozen=True, eq=False)
class Collective:
    """The share of a test set that is certain to be answered correctly, whoever is malicious.

    ``ca`` is in percent for m = 0, 1, …: a lower bound, and the exact value where ``exact``. A
    malicious client can change ``groups_per_client`` groups.
    """

    ca: Percent
    exact: npt.NDArray[np.bool_]
    groups_per_client: int


@dataclass(frozen=True, eq=False)
class Stakes:
    """What it takes to turn the answers of a test set; inputs with equal votes are one pattern.

    ``damage`` (pairs, G) and ``gap`` are d_g and v_y - v_r - [y > r] of every pattern and rival;
    ``starts`` and ``weight`` a pattern's first pair and number of inputs; ``gone`` inputs are lost
    to any set.
    """

    damage: npt.NDArray[np.float32]
    gap: npt.NDArray[np.float32]
    starts: npt.NDArray[np.int64]
    weight: npt.NDArray[np.int64]
    gone: int

    @property
    def pattern(self) -> npt.NDArray[np.int64]:
        """The pattern of every pair."""
        return np.repeat(np.arange(len(self.starts)), np.diff([*self.starts, len(self.gap)]))

    def narrowed(self, least: int, most: int) -> Stakes:
        """Leave out what sets of ``least`` to ``most`` groups all turn, or never turn."""
        ordered = -np.sort(-self.damage, axis=1)
        possible = ordered[:, :most].sum(axis=1) > self.gap
        certain = ordered[:, ordered.shape[1] - least :].sum(axis=1) > self.gap
        lost = np.zeros(len(self.starts), dtype=np.bool_)
        lost[self.pattern[certain]] = True
        contested = possible & ~lost[self.pattern]
        patterns, starts = np.unique(self.pattern[contested], return_index=True)
        gone = self.gone + int(self.weight[lost].sum())
        pairs = self.damage[contested], self.gap[contested]
        return Stakes(*pairs, starts, self.weight[patterns], gone)

    def lost(self, sets: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
        """Return how many inputs each set of groups, (sets, G), turns; shape (sets,)."""
        lost = np.full(len(sets), self.gone, dtype=np.int64)
        if not len(self.starts):
            return lost
        step = max(1, CELLS // len(self.gap))
        for start in range(0, len(sets), step):
            part = slice(start, start + step)
            turned = sets[part].astype(np.float32) @ self.damage.T > self.gap  # exact: small sums
            lost[part] += np.logical_or.reduceat(turned, self.starts, axis=1) @ self.weight
        return lost


def stakes(votes: Votes, labels: Any, most: int) -> Stakes:
    """Return what it takes to turn the right answers of a test set with up to ``most`` groups."""
    truth = check_labels(labels, votes.num_inputs, votes.num_classes)
    counts = np.concatenate([part for _, part in tallies(votes)])
    lead = margin(counts, truth)
    contested = np.flatnonzero((lead >= 0) & (lead < 2 * most))  # the others are decided
    table = np.concatenate([votes.groups[:, contested].T, truth[contested, None]], axis=1)
    patterns, first, weight = np.unique(
        table.astype(np.int32), axis=0, return_index=True, return_counts=True
    )
    cast, y, counts = patterns[:, :-1], patterns[:, -1:], counts[contested[first]]
    others = np.arange(votes.num_classes - 1)
    rivals = others + (others >= y)
    label_votes = np.take_along_axis(counts, y.astype(np.int64), axis=1)
    gap = label_votes - np.take_along_axis(counts, rivals, axis=1) - (y > rivals)
    damage = (cast == y)[:, None] + (cast[:, None] != rivals[:, :, None]).astype(np.int8)
    return Stakes(
        damage.reshape(-1, votes.num_groups).astype(np.float32),
        gap.reshape(-1).astype(np.float32),
        np.arange(len(patterns)) * len(others),
        weight.astype(np.int64),
        int(np.count_nonzero(lead < 0)),
    )


def collective(
    votes: Votes,
    labels: Any,
    *,
    most: int | None = None,
    groups_per_client: int = 1,
    seconds: float = 20.0,
) -> Collective:
    """Certify the share of a test set against one set of malicious clients for all inputs.

    Parameters
    ----------
    votes, labels
        What every group votes on every input, and the true classes.
    most
        The largest m; None goes on to the first m at which nothing is left.
    groups_per_client
        How many groups one malicious client can change: the basis' number for a reading.
    seconds
        How long an integer programme may take for one m. Its bound is sound where it stops early.
    """
    groups_per_client = whole_number(groups_per_client, "groups_per_client")
    last = votes.num_groups if most is None else whole_number(most, "most", least=0)
    shares, exact = [], []
    for m in range(last + 1):
        k = min(m * groups_per_client, votes.num_groups)
        lost, proved = _most_lost(stakes(votes, labels, k).narrowed(k, k), k, seconds)
        shares.append(100.0 * (votes.num_inputs - lost) / votes.num_inputs)
        exact.append(proved)
        if most is None and lost >= votes.num_inputs:
            break
    return Collective(np.array(shares), np.array(exact), groups_per_client)


def _most_lost(contested: Stakes, k: int, seconds: float) -> tuple[int, bool]:
    """Return the most inputs that any k groups can turn, or a bound, and whether it is exact."""
    groups = contested.damage.shape[1]
    if not len(contested.starts):
        return contested.gone, True
    if math.comb(groups, k) > SETS_AT_MOST:
        return _by_programme(contested, k, seconds)
    sets = np.zeros((math.comb(groups, k), groups), dtype=np.bool_)
    members = np.array(list(itertools.combinations(range(groups), k)))
    np.put_along_axis(sets, members, True, axis=1)
    return int(contested.lost(sets).max()), True


def _by_programme(contested: Stakes, k: int, seconds: float) -> tuple[int, bool]:
    """Bound the most inputs that k groups can turn, by an integer programme (HiGHS).

    t_g says whether group g is in the set, w whether a rival wins on a pattern, z whether any does:
    least + (gap + 1 - least) w ≤ Σ d_g t_g, z ≤ Σ w, Σ t_g = k. ``least``, what any k groups do,
    tightens the relaxation, whose bound holds where the time ends first.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array, diags_array, eye_array, hstack, vstack

    (pairs, groups), patterns = contested.damage.shape, len(contested.starts)
    of_pattern = csr_array(
        (np.ones(pairs), (contested.pattern, np.arange(pairs))), shape=(patterns, pairs)
    )
    least = np.sort(contested.damage, axis=1)[:, :k].sum(axis=1)
    needed = diags_array(contested.gap + 1.0 - least)
    wins = hstack([csr_array(contested.damage), -needed, csr_array((pairs, patterns))])
    any_rival = hstack([csr_array((patterns, groups)), of_pattern, -eye_array(patterns)])
    size = csr_array(np.repeat([1.0, 0.0], [groups, pairs + patterns])[None])
    solution = milp(
        np.concatenate([np.zeros(groups + pairs), -contested.weight]),
        integrality=np.repeat([1, 0], [groups + pairs, patterns]),
        bounds=Bounds(0, 1),
        constraints=[
            LinearConstraint(
                csr_array(vstack([wins, any_rival])), lb=np.concatenate([least, np.zeros(patterns)])
            ),
            LinearConstraint(size, lb=k, ub=k),
        ],
        options={"time_limit": seconds, "mip_rel_gap": 0},
    )
    total, dual = int(contested.weight.sum()), solution.mip_dual_bound
    if dual is None or not np.isfinite(dual):
        return contested.gone + total, False
    bound = min(total, math.floor(-dual + 1e-6))
    exact = solution.fun is not None and round(-solution.fun) == bound
    return contested.gone + bound, exact
