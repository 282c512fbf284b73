"""Collective certificate: how many answers of a whole test set survive m malicious clients.

The radius of an input lets the attackers choose their groups anew for every input. But they
sit in the same groups whatever is asked, so one set T of at most k groups serves for all inputs.
The certificate counts the answers that are left against the worst such set. It speaks of the share
of this test set, not of any single input.

Let v be the votes on an input with true class y. Groups in T vote as the attackers like. Rival r
wins for some rewriting exactly if the gap v_y - v_r - [y > r] is below the sum over T of d_g, where
d_g is 2 if g votes y, 0 if it votes r, and 1 otherwise: voting r is the best that T can do for r.
So an input is lost to T if that holds for some rival.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from carvyfl.core.errors import CarvyError
from carvyfl.voting.votes import Votes, check_labels, tallies

Percent = npt.NDArray[np.float64]

SETS_AT_MOST = 250_000
"""Up to so many sets of groups are tried one by one; beyond, an integer programme decides."""
CELLS = 1 << 25  # sets × inputs in memory at a time


@dataclass(frozen=True, eq=False)
class Collective:
    """The share of a test set that is certain to be answered correctly, whoever is malicious.

    Attributes
    ----------
    ca
        Percent for m = 0, 1, …: a lower bound, and the exact value where ``exact``.
    exact
        For every m, whether no smaller share is possible.
    groups_per_client
        How many groups a malicious client can change.
    """

    ca: Percent
    exact: npt.NDArray[np.bool_]
    groups_per_client: int


@dataclass(frozen=True)
class _Contested:
    """Inputs that some set of k groups turns and some other set does not, equal ones together.

    Attributes
    ----------
    damage
        uint8 of shape (patterns, R, G): d_g for each of the strongest rivals.
    gap
        int32 of shape (patterns, R); rivals that cannot win have a gap beyond reach.
    weight
        How many inputs have the pattern.
    """

    damage: npt.NDArray[np.uint8]
    gap: npt.NDArray[np.int32]
    weight: npt.NDArray[np.int64]


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
        How many groups one malicious client can change: 1 against the run without the malicious
        clients, 2 with random slots against the run in which they behave.
    seconds
        How long an integer programme may take for one m. Its bound is sound where it stops early.
    """
    truth = check_labels(labels, votes.num_inputs, votes.num_classes)
    if groups_per_client < 1:
        raise CarvyError(f"groups_per_client must be at least 1, not {groups_per_client}")
    damage, gap, weight = _patterns(votes, truth)
    last = votes.num_groups if most is None else most
    shares, exact = [], []
    for m in range(last + 1):
        k = min(m * groups_per_client, votes.num_groups)
        lost, proved = _most_lost(damage, gap, weight, k, seconds)
        shares.append(100.0 * (votes.num_inputs - lost) / votes.num_inputs)
        exact.append(proved)
        if most is None and lost >= votes.num_inputs:
            break
    return Collective(np.array(shares), np.array(exact), groups_per_client)


def _patterns(
    votes: Votes, truth: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    """Return damage (n, R, G), gaps (n, R) and weights (n,) of inputs with different votes.

    Equal columns of votes with equal labels are one pattern. R is C - 1, the rivals of the label.
    """
    table = np.concatenate([votes.groups.T, truth[:, None]], axis=1).astype(np.int32)
    kinds, weight = np.unique(table, axis=0, return_counts=True)
    cast, y = kinds[:, :-1], kinds[:, -1]
    unique = Votes(np.ascontiguousarray(cast.T), votes.num_classes)
    counts = np.concatenate([part for _, part in tallies(unique)])
    rivals = np.array([[r for r in range(votes.num_classes) if r != own] for own in y])
    own = np.take_along_axis(counts, y[:, None], axis=1)
    gap = own - np.take_along_axis(counts, rivals, axis=1) - (y[:, None] > rivals)
    damage = (cast[:, None] == y[:, None, None]).astype(np.uint8) + (
        cast[:, None] != rivals[:, :, None]
    )
    return damage, gap.astype(np.int32), weight.astype(np.int64)


def _most_lost(
    damage: npt.NDArray[np.uint8],
    gap: npt.NDArray[np.int32],
    weight: npt.NDArray[np.int64],
    k: int,
    seconds: float,
) -> tuple[int, bool]:
    """Return the most inputs that any k groups can turn, or a bound, and whether it is exact."""
    groups = damage.shape[2]
    ordered = -np.sort(-damage.astype(np.int32), axis=2)
    worst = (ordered[:, :, :k].sum(axis=2) > gap).any(axis=1)  # some set turns it
    best = (ordered[:, :, groups - k :].sum(axis=2) > gap).any(axis=1)  # every set does
    surely = int(weight[best].sum())
    open_ = worst & ~best
    if not open_.any() or k == 0:
        return surely, True
    contested = _Contested(damage[open_], gap[open_], weight[open_])
    if math.comb(groups, k) <= SETS_AT_MOST:
        return surely + _by_trying(contested, k), True
    bound, exact = _by_programme(contested, k, seconds)
    return surely + bound, exact


def _by_trying(contested: _Contested, k: int) -> int:
    """Try every set of k groups."""
    patterns, rivals, groups = contested.damage.shape
    sets = np.array(list(itertools.combinations(range(groups), k)))
    chosen = np.zeros((len(sets), groups), dtype=np.float32)
    np.put_along_axis(chosen, sets, 1.0, axis=1)
    damage = contested.damage.astype(np.float32)  # sums of small whole numbers: exact
    lost, step = 0, max(1, CELLS // patterns)
    for start in range(0, len(chosen), step):
        some = chosen[start : start + step]
        turned = np.zeros((len(some), patterns), dtype=np.bool_)
        for r in range(rivals):
            turned |= some @ damage[:, r].T > contested.gap[:, r]
        lost = max(lost, int((turned @ contested.weight).max()))
    return lost


def _by_programme(contested: _Contested, k: int, seconds: float) -> tuple[int, bool]:
    """Bound the most inputs that k groups can turn, by an integer programme (HiGHS).

    t_g says whether group g is in the set, w_xr whether rival r wins on x, z_x whether any does.
    ``least`` is true of every set, and brings the relaxation closer to whole numbers.
    Where the time ends first, the relaxation's bound holds all the same.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import coo_array

    patterns, _, groups = contested.damage.shape
    ordered = np.sort(contested.damage.astype(int), axis=2)
    x, r = np.nonzero(ordered[:, :, groups - k :].sum(axis=2) > contested.gap)
    least = ordered[x, r, :k].sum(axis=1)  # what any k groups do at least
    pairs = len(x)
    first_w, first_z = groups, groups + pairs
    width = first_z + patterns
    row, group = np.nonzero(contested.damage[x, r])
    # least + (gap + 1 - least) w <= sum of d_g t_g
    wins = coo_array(
        (
            np.concatenate(
                [contested.damage[x, r][row, group], least - (contested.gap[x, r] + 1.0)]
            ),
            (
                np.concatenate([row, np.arange(pairs)]),
                np.concatenate([group, first_w + np.arange(pairs)]),
            ),
        ),
        shape=(pairs, width),
    )
    # z_x <= sum of w_xr
    any_rival = coo_array(
        (
            np.concatenate([np.ones(pairs), -np.ones(patterns)]),
            (
                np.concatenate([x, np.arange(patterns)]),
                np.concatenate([first_w + np.arange(pairs), first_z + np.arange(patterns)]),
            ),
        ),
        shape=(patterns, width),
    )
    size = coo_array(
        (np.ones(groups), (np.zeros(groups, int), np.arange(groups))), shape=(1, width)
    )
    gain = np.zeros(width)
    gain[first_z:] = -contested.weight
    found = milp(
        gain,
        integrality=np.concatenate([np.ones(first_z), np.zeros(patterns)]),
        bounds=Bounds(0, 1),
        constraints=[
            LinearConstraint(wins.tocsr(), lb=least),
            LinearConstraint(any_rival.tocsr(), lb=0),
            LinearConstraint(size.tocsr(), lb=k, ub=k),
        ],
        options={"time_limit": seconds, "mip_rel_gap": 0},
    )
    total = int(contested.weight.sum())
    if found.mip_dual_bound is None or not np.isfinite(found.mip_dual_bound):
        return total, False
    bound = min(total, math.floor(-found.mip_dual_bound + 1e-6))
    return bound, found.fun is not None and round(-found.fun) == bound
