"""Where the malicious clients sit: an order of clients, of which the first m are malicious."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from carvyfl.core.errors import CarvyError
from carvyfl.core.randomness import generator
from carvyfl.core.registry import Registry
from carvyfl.groups.grouping import Grouping
from carvyfl.groups.methods import GROUPINGS


def dispersed(grouping: Grouping, seed: int) -> list[int]:
    """Spread over as many groups as possible, in random order: the paper's for CARVY-FL."""
    turns = itertools.zip_longest(*_shuffled(grouping, seed, "dispersed"))
    return [client for turn in turns for client in turn if client is not None]


def concentrated(grouping: Grouping, seed: int) -> list[int]:
    """Fill one group after another, in random order."""
    return [client for group in _shuffled(grouping, seed, "concentrated") for client in group]


def _shuffled(grouping: Grouping, seed: int, placement: str) -> list[list[int]]:
    """Return the groups, and the clients of each, in random order; a group may be empty."""
    random = generator(seed, "placement", placement)
    return [
        # A copy: NumPy refuses to shuffle nothing that is read-only.
        random.permutation(np.array(grouping.groups[g])).tolist()
        for g in random.permutation(grouping.num_groups)
    ]


def by_hash(grouping: Grouping, seed: int) -> list[int]:
    """Take clients in the order of their ids: the hash decides whom they meet (FLCert)."""
    return np.flatnonzero(grouping.assignment >= 0).tolist()


def random_order(grouping: Grouping, seed: int) -> list[int]:
    """Take clients in random order."""
    random = generator(seed, "placement", "random")
    return list(map(int, random.permutation(by_hash(grouping, seed))))


@dataclass(frozen=True)
class Placement:
    """Where malicious clients sit: the first m of an order of all grouped clients."""

    name: str
    help: str
    order: Callable[[Grouping, int], list[int]]  # of a grouping and a seed


WORST = "worst"
"""What :func:`worst_groups` finds, from a dispersed start, when the attacked groups are trained."""
PLACEMENTS: Registry[Placement] = Registry(
    "placement",
    "carvyfl.placements",
    [
        Placement("dispersed", "over as many groups as possible", dispersed),
        Placement("concentrated", "one group after another", concentrated),
        Placement("hash", "in the order of their ids", by_hash),
        Placement("random", "in random order", random_order),
        Placement(WORST, "where a search finds that they hurt most", dispersed),
    ],
)
"""Every placement; a list of clients can be given instead of a name."""


def paper_placement(method: str) -> str:
    """Return where the paper puts attackers: in chosen groups, unless hash or lot decides."""
    return GROUPINGS[method].placement if method in GROUPINGS else "dispersed"


def given(clients: Sequence[int], grouping: Grouping) -> list[int]:
    """Check a list of malicious clients, in order."""
    grouped = set(by_hash(grouping, 0))
    if strangers := [client for client in clients if client not in grouped]:
        raise CarvyError(f"client {strangers[0]} sits in no group; name clients that do")
    if len(set(clients)) < len(clients):
        raise CarvyError("a malicious client is listed twice; name each once")
    return list(clients)


def worst_groups(
    benign: np.ndarray, attacked: np.ndarray, wins: Callable[[np.ndarray], tuple[float, float]]
) -> list[int]:
    """Order the groups by what their capture brings the attacker, found by greedy search.

    Of votes (G, n) without and with an attacker, ``wins`` gives what the attacker maximises:
    (inputs won, progress on the others). Something may be worse; the certificate covers it.
    """
    order, remaining = list[int](), list(range(len(benign)))

    def gain(group: int) -> tuple[float, float]:
        captured = np.isin(np.arange(len(benign)), [*order, group])[:, None]
        return wins(np.where(captured, attacked, benign))

    while remaining:
        order.append(max(remaining, key=gain))
        remaining.remove(order[-1])
    return order
