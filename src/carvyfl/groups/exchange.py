"""Anticlustering of profile vectors: every group's profiles sum to nearly the same."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from carvyfl.core.errors import CarvyError
from carvyfl.core.randomness import generator
from carvyfl.groups.grouping import Ints, check_num_groups

Floats = npt.NDArray[np.floating]

WHOLE = 5000
"""Up to so many clients, each is tried against every other until no swap helps."""

STARTS = 4000
"""Clients in all the starts of a small problem together: 100 clients start 40 times."""

BLOCK = 128
"""Clients that are tried against each other at a time where there are more than WHOLE."""

VISITS = (24, 200, 20_000_000)
"""Fewest and most times a client of a large problem is tried, and how often all are together."""

CHUNK = 1 << 15
"""Clients whose blocks are worked on side by side; their numbers should stay in the cache."""


def anticluster_profiles(vectors: npt.ArrayLike, num_groups: int, *, seed: int) -> Ints:
    """Form groups, of sizes within one, whose profiles sum to nearly the same.

    What is made small is :func:`imbalance`. Clients of different groups are swapped as long as
    that lowers it. Up to WHOLE clients, the groups end where no single swap helps, and are
    the best of several starts. With more clients, groups are drawn into small blocks again and
    again, and swaps are sought inside the blocks.

    Equal profiles are spread over the groups to within one client if the profiles are one-hot,
    as in :func:`carvyfl.groups.anticluster.anticluster`. The start deals clients of one profile
    in a row, so each type t has q_t or q_t + 1 clients in every group, and swaps keep it so. For
    groups a, b let D be the difference of their counts, so |D_t| ≤ 1, and m the mean profile.
    If a is larger by e ∈ {0, 1}, swapping a's client of type t for b's of type u helps where
    (D_t - D_u) - e (m_t - m_u) > 2, hence only if D_t = 1 and D_u = -1: both groups
    still hold q or q + 1 of t and of u after it.

    Parameters
    ----------
    vectors
        Shape (N, d), the profile of every client; all finite.
    num_groups
        G, from 1 to N.
    seed
        The run's seed.

    Returns
    -------
    ndarray
        int64 of shape (N,), the group of every client. It does not depend on the order in which
        clients are listed, but for clients of equal profiles, who may change places.

    Raises
    ------
    CarvyError
        If the vectors have another shape or are not finite, or G is not from 1 to N.
    """
    checked = _check_vectors(vectors)
    check_num_groups(num_groups, len(checked), "clients")
    order = _canonical_order(checked)
    small = len(checked) <= WHOLE
    rows = _centred(checked, order, np.dtype(np.float64 if small else np.float32))
    members = (_exchange_all if small else _exchange_blocks)(rows, num_groups, seed)
    assignment = np.empty(len(checked), dtype=np.int64)
    for group_of, column in zip([np.arange(num_groups)] * members.shape[1], members.T, strict=True):
        real = column >= 0
        assignment[order[column[real]]] = group_of[real]
    return assignment


def imbalance(vectors: npt.ArrayLike, assignment: npt.ArrayLike, num_groups: int) -> float:
    """Return how far the groups' sums of profiles are from what their sizes let expect.

    With m the mean profile, it is the sum over groups g of ‖Σ_{k in g} (p_k - m)‖², in squared
    units of the profiles. A group of s clients should hold s m, so profiles are centred: sizes
    that differ by one then cost nothing themselves. Clients assigned to -1 are ignored, in the
    mean too.
    """
    checked, groups = _check_vectors(vectors), np.asarray(assignment)
    if groups.shape != (len(checked),) or not ((groups >= -1) & (groups < num_groups)).all():
        raise CarvyError(
            f"assignment must hold a group from -1 to {num_groups - 1} for each of "
            f"{len(checked)} clients"
        )
    by_group = np.argsort(groups, kind="stable")[np.count_nonzero(groups == -1) :]
    if not len(by_group):
        return 0.0
    _, starts, sizes = np.unique(groups[by_group], return_index=True, return_counts=True)
    sums = np.add.reduceat(checked[by_group], starts, axis=0, dtype=np.float64)
    sums -= sizes[:, None] * (sums.sum(axis=0) / len(by_group))
    return float(np.einsum("gd,gd->", sums, sums))


def random_imbalance(vectors: npt.ArrayLike, num_groups: int) -> float:
    """Return the expected :func:`imbalance` of random groups whose sizes differ by at most one.

    Two different clients' centred profiles have the mean product -T / (N (N - 1)), where T is
    the sum of their squared lengths, for all centred profiles sum to zero. So a group of s is
    expected at s T / N - s (s - 1) T / (N (N - 1)) = s (N - s) T / (N (N - 1)).
    """
    checked = _check_vectors(vectors)
    clients = len(checked)
    check_num_groups(num_groups, clients, "clients")
    total = clients * float(checked.var(axis=0, dtype=np.float64).sum())
    sizes = clients // num_groups + (np.arange(num_groups) < clients % num_groups)
    return float((sizes * (clients - sizes)).sum()) * total / (clients * max(clients - 1, 1))


def _check_vectors(vectors: npt.ArrayLike) -> Floats:
    try:
        array = np.asarray(vectors)
        floats: Floats = array if array.dtype.kind == "f" else array.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise CarvyError("profiles must be a table of numbers, one row per client") from error
    if floats.ndim != 2 or not floats.size:
        raise CarvyError(f"profiles must have the shape (clients, numbers), not {floats.shape}")
    bad = np.flatnonzero(~np.isfinite(floats).all(axis=1))
    if len(bad):
        raise CarvyError(f"the profile of client {bad[0]} is not finite; set that client aside")
    return floats


def _canonical_order(vectors: Floats) -> Ints:
    """Return the order that sorts the rows, first column first."""
    order = np.argsort(vectors[:, 0], kind="stable")
    first = vectors[order, 0]
    equal = first[1:] == first[:-1]
    # Few rows share their first number as a rule; all columns are compared for those alone.
    tied = np.flatnonzero(np.append(equal, False) | np.append(False, equal))
    if len(tied):
        rows = order[tied]
        order[tied] = rows[np.lexsort(vectors[rows].T[::-1])]
    return order


def _centred(vectors: Floats, order: Ints, dtype: np.dtype[np.floating]) -> Floats:
    """Return the ordered rows less their mean, the largest number ±1, and a last row of zeros."""
    rows = np.zeros((len(vectors) + 1, vectors.shape[1]), dtype=dtype)
    real = rows[:-1]
    largest = max(abs(float(vectors.max())), abs(float(vectors.min())), np.finfo(np.float64).tiny)
    np.divide(vectors[order], largest, out=real, casting="same_kind")
    real -= real.mean(axis=0, dtype=np.float64).astype(dtype)
    spread = max(float(real.max()), -float(real.min()))
    if spread > 0:
        real /= dtype.type(spread)
    return rows


def _deal(rows: Floats, num_groups: int, rng: np.random.Generator) -> Ints:
    """Deal the clients over the groups, those of one profile in a row, profiles at random.

    Returns
    -------
    ndarray
        Shape (G, ⌈N/G⌉), rows of each group's clients; -1, the zero row, fills the last column.
    """
    profile = np.cumsum((rows[1:-1] != rows[:-2]).any(axis=1))
    profile = np.append(0, profile)
    order = np.argsort(rng.permutation(profile[-1] + 1)[profile], kind="stable")
    padded = np.append(order, np.full(-len(order) % num_groups, -1))
    return padded.reshape(-1, num_groups).T.copy()


def _exchange_all(rows: Floats, num_groups: int, seed: int) -> Ints:
    """Swap until no swap of two clients helps, from several starts; return the best groups."""
    starts = max(1, STARTS // len(rows))
    rng = generator(seed, "anticluster", "starts")
    members = np.stack([_deal(rows, num_groups, rng) for _ in range(starts)])
    vectors = rows[members]
    slots = members.reshape(starts, -1)
    order = _exchange(vectors, vectors.sum(axis=2), slots < 0, None)
    members = np.take_along_axis(slots, order, axis=1).reshape(members.shape)
    sums = rows[members].sum(axis=2)
    return members[np.argmin(np.einsum("bgd,bgd->b", sums, sums))]


def _exchange_blocks(rows: Floats, num_groups: int, seed: int) -> Ints:
    """Swap inside random blocks of groups, in a fixed number of rounds; return the groups."""
    members = _deal(rows, num_groups, generator(seed, "anticluster", "start"))
    clients, size = len(rows) - 1, members.shape[1]
    sums = np.empty((num_groups, rows.shape[1]), dtype=rows.dtype)
    for group, of_group in enumerate(members):
        sums[group] = rows[of_group].sum(axis=0)
    held = min(size, BLOCK // 2)  # clients of a group who take part in a round
    width = min(num_groups, BLOCK // held)  # groups in a block
    fewest, most, together = VISITS
    visits = min(max(together // clients, fewest), most)
    for number in range(-(-visits * size // held)):
        rng = generator(seed, "anticluster", "round", number)
        drawn = rng.permutation(num_groups)[: num_groups // width * width].reshape(-1, width)
        if held < size:
            rng.permuted(members, axis=1, out=members)
        swapped = False
        for start in range(0, len(drawn), CHUNK // BLOCK):
            groups = drawn[start : start + CHUNK // BLOCK]
            before = members[groups, :held]
            vectors, slots = rows[before], before.reshape(len(groups), -1)
            order = _exchange(vectors, sums[groups], slots < 0, sweeps=1)
            after = np.take_along_axis(slots, order, axis=1).reshape(before.shape)
            if not np.array_equal(before, after):
                swapped = True
                sums[groups] += rows[after].sum(axis=2) - vectors.sum(axis=2)
                members[groups, :held] = after
        if not swapped:
            break
    return members


def _exchange(
    vectors: Floats, sums: Floats, fixed: npt.NDArray[np.bool_], sweeps: int | None
) -> Ints:
    """Swap clients of different groups, in every block side by side, where that helps most.

    Swapping i of group a for j of group b, with v = p_j - p_i, changes the imbalance by
    2 v·(S_a - S_b) + 2 ‖v‖². In a sweep every client in turn makes the swap that lowers it
    most, if one does. The products of all clients with each other and with the sums are kept,
    so a client's look at all others takes a few numbers for each.

    Parameters
    ----------
    vectors
        Shape (B, g, m, d): in each of B blocks, g groups and m clients of each.
    sums
        Shape (B, g, d), the groups' sums over all their clients.
    fixed
        Shape (B, g m), True in a slot that holds no client.
    sweeps
        How many; None until no swap helps in any block.

    Returns
    -------
    ndarray
        Shape (B, g m), the slot whose client is now in each slot.
    """
    blocks, groups, held, _ = vectors.shape
    slots = groups * held
    flat = vectors.reshape(blocks, slots, -1)
    gram = flat @ flat.transpose(0, 2, 1)
    pull = sums @ flat.transpose(0, 2, 1)  # (B, g, g m), of each group on each client
    norms = np.where(fixed, np.inf, np.diagonal(gram, axis1=1, axis2=2)).astype(gram.dtype)
    # Rounding must not pass for progress, or swaps could go round in circles.
    least = 64 * np.finfo(gram.dtype).eps * float(np.abs(pull).max() + gram.max())
    order = np.tile(np.arange(slots), (blocks, 1))
    each, every = np.arange(blocks), np.arange(groups)
    own = pull.reshape(blocks, groups, groups, held)  # own[:, h, h]: of its group on each client
    base = norms - own[:, every, every].reshape(blocks, slots)
    idle = sweep = 0
    while sweep != sweeps and idle < slots:
        sweep += 1
        for i in range(slots):
            a = i // held
            change = pull[:, a] + base
            change -= 2 * gram[:, i]
            change.reshape(blocks, groups, held)[:] += pull[:, :, i, None]
            best = change.argmin(axis=1)
            helps = change[each, best] + norms[:, i] - pull[:, a, i] < -least
            x = np.flatnonzero(helps)
            idle += 1
            if not len(x):
                if idle == slots:
                    break
                continue
            idle = 0
            j = best[x]
            moved = gram[x, j] - gram[x, i]
            pull[x, a] += moved
            pull[x, j // held] -= moved
            for table in (order, norms, gram):
                table[x, i], table[x, j] = table[x, j], table[x, i]
            for table in (pull, gram):
                table[x, :, i], table[x, :, j] = table[x, :, j], table[x, :, i]
            base[x] = norms[x] - own[x[:, None], every, every].reshape(len(x), slots)
    return order
