"""Committed seats: every client sits in one of a few groups that coins drew for it.

What clients send decides only which of its seats each of them takes. What this leaves to malicious
clients, and what it does not, is on the page "Certified from the first message on".
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from carvyfl.core.randomness import derive, fold, shuffled
from carvyfl.groups.coins import Coins
from carvyfl.groups.grouping import Ints, check_num_groups

Floats = npt.NDArray[np.float64]

SHARE: Final = 5
"""A client may sit in one of so many groups."""

FEWEST, MOST = 2, 20
"""Seats of a client, at least and at most; more seats than this would only take memory."""

SIZE: Final = 0.6
"""How much a client's presence counts, of how much profiles differ; from trials on label skew."""

STARTS: Final = 40, 4000
"""Most orders that are tried, and most clients in all of them together; at least one order."""

SWEEPS: Final = 100
"""A bound on how often all clients may change their seats; five times or so are usual."""


def seats_each(num_groups: int) -> int:
    """Return how many groups are drawn for a client."""
    return min(max(num_groups // SHARE, FEWEST), MOST)


def draw_seats(num_clients: int, num_groups: int, coins: Coins) -> Ints:
    """Draw the groups that each client may sit in, int64 of shape (N, seats).

    Every column is a random grouping of all registered clients, of sizes within one; no client is
    asked. A client may have the same seat twice.
    """
    import torch

    seats = np.empty((num_clients, seats_each(num_groups)), dtype=np.int64)
    for column in range(seats.shape[1]):
        key = torch.tensor(derive(coins.key, "seats", column))
        seats[shuffled(key, num_clients).numpy(), column] = np.arange(num_clients) % num_groups
    return seats


def take_seats(vectors: npt.ArrayLike, num_groups: int, coins: Coins) -> Ints:
    """Have every client take one of its seats, so that groups' profiles sum to nearly the same.

    Clients come in random order, and each takes the seat that lowers the imbalance most; then they
    change seats in turn until nobody's change lowers it. The best of several orders is kept. Sizes
    count like one more number of the profiles, the same for all.

    Parameters
    ----------
    vectors
        Shape (N, d), the profile of every registered client; one whose row is not finite takes no
        part, and gets group -1. A group may be empty.
    num_groups
        G. It must have been set before any message was seen.
    """
    import torch

    profiles = np.asarray(vectors, dtype=np.float64)
    check_num_groups(num_groups, len(profiles), "clients")
    seats = draw_seats(len(profiles), num_groups, coins)
    present = np.flatnonzero(np.isfinite(profiles).all(axis=1))
    assignment = np.full(len(profiles), -1, dtype=np.int64)
    if not len(present):
        return assignment
    rows, own = _with_size(profiles[present]), seats[present]
    most, together = STARTS
    starts = min(max(together // len(present), 1), most)
    key = torch.tensor(derive(coins.key, "seats", "orders"))
    best = np.inf
    for start in range(starts):
        taken, left = _descend(rows, own, num_groups, shuffled(fold(key, start), len(own)).numpy())
        if left < best * (1 - 1e-9):  # rounding must not decide: an auditor chooses again
            assignment[present], best = taken, left
    return assignment


def _with_size(profiles: Floats) -> Floats:
    """Return profiles less their mean, with one more number that is the same for all."""
    rows = profiles - profiles.mean(axis=0)
    spread = np.sqrt(np.einsum("nd,nd->", rows, rows) / len(rows))
    return np.column_stack([rows, np.full(len(rows), SIZE * spread or 1.0)])


def _descend(rows: Floats, seats: Ints, num_groups: int, order: Ints) -> tuple[Ints, float]:
    """Seat clients in this order, then let them change; return their groups and Σ_g ‖S_g‖²."""
    sums = np.zeros((num_groups, rows.shape[1]))
    taken = np.full(len(rows), -1, dtype=np.int64)
    least = 1e-9 * float(np.einsum("nd,nd->n", rows, rows).max())
    for _ in range(SWEEPS):
        moved = False
        for client in order:
            row, here = rows[client], taken[client]
            if here >= 0:
                sums[here] -= row
            costs = sums[seats[client]] @ row
            seat = seats[client, costs.argmin()]
            if here >= 0 and costs.min() > sums[here] @ row - least:
                seat = here
            moved |= bool(seat != here)
            taken[client] = seat
            sums[seat] += row
        if not moved:
            break
    return taken, float(np.einsum("gd,gd->", sums, sums))
