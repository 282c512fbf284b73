"""Certified radius where clients share groups.

If one client sits in c groups, a margin of 2cm survives m of them. Most do less harm: what a
rewritten vote is worth depends on what it was. Counting each client's damage certifies more.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from carvyfl.core.arrays import plain_array
from carvyfl.core.errors import CarvyError
from carvyfl.voting.votes import Classes, Votes, tallies

Whole = npt.NDArray[np.int32]
Members = npt.NDArray[np.bool_]


def check_members(members: Any, num_groups: int) -> Members:
    """Return who can change which group as booleans of shape (clients, G)."""
    array = plain_array(members, "members")
    if array.ndim != 2 or array.shape[1] != num_groups or not len(array):
        wanted = f"one row per client and one column for each of the {num_groups} groups"
        raise CarvyError(f"members of shape {array.shape}: give {wanted}")
    if array.dtype.kind not in "biu" or not np.isin(array, (0, 1)).all():
        raise CarvyError("members: give 1 where a client is in a group and 0 where it is not")
    return array.astype(np.bool_)


def overlap_radius(votes: Votes, labels: Classes, members: Members) -> Whole:
    """Return how many malicious clients cannot make any other class win.

    Rewriting the vote of group g in favour of rival r moves the gap between y and r by
    d_g = 2 if g votes for y, 0 if it votes for r already, else 1. A client's damage
    is the sum of d_g over its groups. With m clients the gap shrinks by no more than the sum
    of the m largest damages; r cannot win while that is at most
    v_y - v_r - [y > r]. Groups that two clients share are counted twice, so this
    is a bound, and never below ⌊Δ/2c⌋ with c the most groups of a client.

    ``labels`` are the class y of every input, shape (n,); ``members`` says which groups each client
    can change, bool of shape (clients, G). Returns int32 of shape (n,): from 0 to the number of
    clients, -1 where y does not win or nobody votes.
    """
    radius = np.full(votes.num_inputs, len(members), dtype=np.int32)
    reach = members.astype(np.float32)  # exact: counts stay far below 2**24
    for part, counts in tallies(votes):
        cast, y = votes.groups[:, part], labels[part]
        label_votes = np.take_along_axis(counts, y[:, None], axis=1)[:, 0]
        for rival in range(votes.num_classes):
            gap = label_votes - counts[:, rival] - (y > rival)
            damage = reach @ ((cast == y).astype(np.float32) + (cast != rival))
            total = np.cumsum(-np.sort(-damage, axis=0), axis=0)
            survived = np.where(gap < 0, -1, np.count_nonzero(total <= gap, axis=0))
            radius[part] = np.where(y == rival, radius[part], np.minimum(radius[part], survived))
        radius[part][~counts.any(axis=1)] = -1
    return radius
