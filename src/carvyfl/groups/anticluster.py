"""Anticlustering of types (Algorithm 2), and its opposite, clustering."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from carvyfl.core.errors import CarvyError
from carvyfl.core.randomness import generator
from carvyfl.groups.grouping import Ints, check_labels, check_num_groups


def permuted_types(labels: npt.ArrayLike, seed: int, purpose: str) -> list[Ints]:
    """Return each type's clients in random order, types ascending (Algorithm 2, lines 1-3).

    The order inside a type comes from the key (seed, purpose, type) alone. Clients labelled -1
    appear nowhere.
    """
    checked = check_labels(labels)
    present, sizes = np.unique(checked[checked >= 0], return_counts=True)
    if not len(present):
        raise CarvyError("no client has a usable type, so no group can be formed from types")
    by_type = np.argsort(checked, kind="stable")[-sizes.sum() :]  # those without a type come first
    ends = np.cumsum(sizes)
    return [
        generator(seed, purpose, kind).permutation(by_type[end - size : end])
        for kind, size, end in zip(present.tolist(), sizes.tolist(), ends.tolist(), strict=True)
    ]


def anticluster(
    labels: npt.ArrayLike, *, seed: int, num_groups: int | None = None, literal: bool = False
) -> Ints:
    """Deal the clients, type after type, round-robin over the groups.

    Clients are laid out sorted by type, in random order inside each type, and the client at
    position i goes to group i mod G: one continuous sweep. A type is a run of consecutive
    positions, and a run of k consecutive numbers meets every residue modulo G either ⌊k/G⌋ or
    ⌈k/G⌉ times. So the sizes of groups differ by at most one, a type of at most G clients is never
    twice in a group, and a larger one is spread to within one client (Appendix A). If every type
    has G clients, each starts at group 0 again, which is Algorithm 2.

    Algorithm 2 restarts at the first group for *every* type, so the late groups miss a true type
    that inference split. Neighbouring type numbers are alike, so here the pieces still form one
    run: a true type with at least G clients reaches every group however it was split.

    Parameters
    ----------
    labels
        The type of every client, shape (N,); a client with -1 was set aside, and gets group -1.
        Neighbouring numbers should mean similar types.
    num_groups
        G; None takes the size of the largest type, as Algorithm 2 does.
    literal
        Algorithm 2 word for word: every type starts again at the first group. It finds its own G.
    """
    if literal and num_groups is not None:
        remedy = f"leave out num_groups={num_groups} or set literal=False"
        raise CarvyError(f"Algorithm 2 taken literally finds its own number of groups; {remedy}")
    types = permuted_types(labels, seed, "anticluster")
    sizes = [len(members) for members in types]
    num_groups = max(sizes) if num_groups is None else num_groups
    check_num_groups(num_groups, sum(sizes), "clients with a type")
    # The position each client is dealt from: in its type, or in the whole layout.
    position = np.concatenate([np.arange(k) for k in sizes]) if literal else np.arange(sum(sizes))
    assignment = np.full(np.shape(labels), -1, dtype=np.int64)
    assignment[np.concatenate(types)] = position % num_groups
    return assignment


def cluster_groups(labels: npt.ArrayLike, num_groups: int, seed: int) -> Ints:
    """FLCert+clustering, the paper's oracle variant: alike clients share a group.

    The layout of true types is cut into G consecutive pieces of equal size to within one, so that
    the groups together hold at most G + L - 1 (group, type) pairs.
    """
    layout = np.concatenate(permuted_types(labels, seed, "cluster"))
    check_num_groups(num_groups, len(layout), "clients with a type")
    assignment = np.full(np.shape(labels), -1, dtype=np.int64)
    for group, members in enumerate(np.array_split(layout, num_groups)):
        assignment[members] = group
    return assignment
