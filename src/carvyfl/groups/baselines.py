"""Groupings that CARVY-FL is compared with; FLCert's own is in :mod:`~carvyfl.groups.hashing`."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from carvyfl.core.randomness import generator
from carvyfl.groups.anticluster import permuted_types
from carvyfl.groups.grouping import Ints, check_num_groups


def cluster_groups(labels: npt.ArrayLike, num_groups: int, seed: int) -> Ints:
    """FLCert+clustering, the paper's oracle variant: alike clients share a group.

    Clients are laid out by type, in random order inside each type, and cut into
    G consecutive pieces of equal size to within one. Each of the L - 1 borders
    between types falls inside at most one piece, so that the groups together
    hold at most G + L - 1 (group, type) pairs.

    ``labels`` are the true types, shape (N,); a client with -1 has none, and gets group -1.
    """
    layout = np.concatenate(permuted_types(labels, seed, "cluster"))
    check_num_groups(num_groups, len(layout), "clients with a type")
    assignment = np.full(np.shape(labels), -1, dtype=np.int64)
    for group, members in enumerate(np.array_split(layout, num_groups)):
        assignment[members] = group
    return assignment


def balanced_random(num_clients: int, num_groups: int, seed: int) -> Ints:
    """Return a uniformly random grouping among those with sizes equal to within one.

    As blind to the data as hashing, hence with the same guarantee, but without
    its small groups.
    """
    check_num_groups(num_groups, num_clients, "clients")
    assignment = np.empty(num_clients, dtype=np.int64)
    dealt = generator(seed, "balanced").permutation(num_clients)
    assignment[dealt] = np.arange(num_clients) % num_groups
    return assignment
