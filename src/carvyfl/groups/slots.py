"""Random slots: whatever a malicious client sends, it changes one group of a run without it.

The proof is on the page "Certified from the first message on" of the documentation.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from carvyfl.core.errors import CarvyError
from carvyfl.core.randomness import derive, shuffled
from carvyfl.groups.coins import Coins
from carvyfl.groups.grouping import Ints, check_labels, check_num_groups


def random_slots(
    labels: npt.ArrayLike, names: Sequence[str], *, num_groups: int, coins: Coins
) -> Ints:
    """Put the clients of every type, independently, into uniformly random slots.

    Every group has one slot for each type. A type's clients take different slots, uniformly at
    random, with the coins that belong to the type's *name*: which other types occur, and how they
    are numbered, changes nothing. Of more than G clients, a uniformly random G take the slots and
    the others sit on the bench, in group -1, as clients without a type do. Groups may be empty:
    drawing again until none is would break the proof.

    Parameters
    ----------
    labels
        The type of every client, shape (N,); -1 for none.
    names
        The name of every type. It must be a function of a member's own message.
    num_groups
        G. It must have been set before any message was seen.
    coins
        What the slots are drawn from. Messages must have been independent of them.
    """
    types = check_labels(labels)
    check_num_groups(num_groups, len(types), "clients")
    if len(types) and types.max() >= len(names):
        raise CarvyError(f"type {types.max()} has no name; give {types.max() + 1} names")
    by_type = np.argsort(types, kind="stable")
    ends = np.searchsorted(types[by_type], np.arange(len(names) + 1))
    assignment = np.full(len(types), -1, dtype=np.int64)
    for kind, name in enumerate(names):
        alike = by_type[ends[kind] : ends[kind + 1]]
        seated = alike[_shuffled(len(alike), coins, name, "clients")][:num_groups]
        assignment[seated] = _shuffled(num_groups, coins, name, "slots")[: len(seated)]
    return assignment


def _shuffled(count: int, coins: Coins, *key: str) -> Ints:
    """Return 0 … ``count`` - 1 in an order that an auditor finds again, whatever the libraries."""
    import torch

    order: Ints = shuffled(torch.tensor(derive(coins.key, "slots", *key)), count).numpy()
    return order


def without(
    assignment: npt.ArrayLike, labels: npt.ArrayLike, gone: npt.ArrayLike, draw: np.random.Generator
) -> Ints:
    """Return the grouping of a run without some clients, at most one group a client away.

    This is the coupling of the proof: if ``assignment`` is one of :func:`random_slots`, the result
    is distributed exactly like the random slots of the remaining clients alone, and differs from it
    only in slots that the clients who are ``gone`` held. Benched clients of the same type move up
    into those, in uniformly random places, which ``draw`` chooses. Who is gone was chosen
    independently of the coins. ``assignment`` and ``labels`` are those of all clients, shape (N,).
    """
    types, after = check_labels(labels), np.array(assignment, dtype=np.int64)
    leaving = np.zeros(len(types), dtype=np.bool_)
    leaving[np.asarray(gone, dtype=np.int64)] = True
    for kind in np.unique(types[leaving & (types >= 0)]):
        alike = types == kind
        freed = after[alike & leaving & (after >= 0)]
        bench = np.flatnonzero(alike & ~leaving & (after == -1))
        moving = min(len(freed), len(bench))
        after[draw.permutation(bench)[:moving]] = draw.permutation(freed)[:moving]
    after[leaving] = -1
    return after


def plans(empty: Sequence[int], malicious: int) -> list[tuple[int, ...]]:
    """Return every plan: for each type, how many of m malicious clients take a slot it left empty.

    The others sit anywhere. One of the plans covers every strategy, as claims are chosen before the
    coins are drawn. ``empty`` counts each type's empty slots.
    """
    choices = itertools.product(*(range(min(count, malicious) + 1) for count in empty))
    return [plan for plan in choices if sum(plan) <= malicious]
