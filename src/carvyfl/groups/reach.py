"""Which groups malicious clients come to sit in when slots are random, whatever they claim.

They choose their claims before the coins are drawn, so they do not choose their groups. The page
"Certified from the first message on" proves that every strategy is covered by one of the plans
here: so many of the m clients take slots that honest clients of some type left empty, the others
sit anywhere.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from carvyfl.groups.grouping import Ints, check_labels

Plan = tuple[int, ...]
"""For every type, how many malicious clients take a slot that it left empty."""


def empty_slots(assignment: npt.ArrayLike, labels: npt.ArrayLike, num_groups: int) -> list[Ints]:
    """Return, for every type that occurs, the groups in which nobody of that type sits.

    Parameters
    ----------
    assignment, labels
        Groups and types of the honest clients, shape (N,); -1 for none.
    num_groups
        G.
    """
    groups, types = np.asarray(assignment, dtype=np.int64), check_labels(labels)
    held = [groups[(types == kind) & (groups >= 0)] for kind in np.unique(types[types >= 0])]
    return [np.setdiff1d(np.arange(num_groups), own) for own in held]


def plans(empty: Sequence[int], malicious: int) -> list[Plan]:
    """Return every plan: at most the empty slots of each type, at most m clients in all.

    Parameters
    ----------
    empty
        The number of slots that each type leaves empty.
    malicious
        m.
    """
    choices = itertools.product(*(range(min(count, malicious) + 1) for count in empty))
    return [plan for plan in choices if sum(plan) <= malicious]


def touched_groups(
    empty: Sequence[Ints],
    plan: Plan,
    num_groups: int,
    malicious: int,
    draw: np.random.Generator,
) -> npt.NDArray[np.bool_]:
    """Draw the groups that m malicious clients touch under a plan: T of the second theorem.

    For every type, uniformly chosen slots among those it leaves empty, as many as the plan says;
    then, uniformly among the other groups, as many as make m together.

    Parameters
    ----------
    empty
        From :func:`empty_slots`.
    plan
        One of :func:`plans`.
    num_groups, malicious
        G and m.
    draw
        Chooses the groups.

    Returns
    -------
    ndarray
        bool of shape (G,), true for min(m, G) groups.
    """
    touched = np.zeros(num_groups, dtype=np.bool_)
    for slots, count in zip(empty, plan, strict=True):
        touched[draw.permutation(slots)[:count]] = True
    others = draw.permutation(np.flatnonzero(~touched))
    touched[others[: max(0, malicious - int(touched.sum()))]] = True
    return touched
