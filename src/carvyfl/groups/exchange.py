"""Anticlustering of profile vectors: every group's profiles sum to nearly the same."""

from __future__ import annotations

from concurrent.futures import Executor, ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

from carvyfl.core.environment import usable_cores
from carvyfl.core.errors import CarvyError
from carvyfl.core.randomness import generator
from carvyfl.groups.grouping import Ints, check_num_groups

Floats = npt.NDArray[np.floating]

WHOLE = 5000  # up to so many clients, each is tried against every other until no swap helps
STARTS = 40, 4000  # most starts of a small problem, and most clients in all of them together
SWEEPS = 1000  # a bound on how often a small problem's clients are tried; ten or so are usual
BLOCK = 128  # clients of a large problem that are tried against each other at a time
VISITS = 16, 1_000_000  # how often each of many clients is tried at least, and all are together
ROUNDS = 2000  # most rounds of a large problem; only few large groups come to so many
CHUNK = 1 << 14  # clients whose blocks are worked on side by side: their products stay in the cache
THREADS = 8  # that compute the products of blocks at most; swapping is one thread's


def anticluster_profiles(vectors: npt.ArrayLike, num_groups: int, *, seed: int) -> Ints:
    """Form groups, of sizes within one, whose profiles sum to nearly the same.

    Clients of different groups are swapped as long as that lowers :func:`imbalance`. Up to WHOLE
    clients, the groups end where no single swap helps, and are the best of several starts. With
    more, groups are drawn into small blocks again and again, and swaps are sought inside those.

    One-hot profiles, that is disjoint types, are spread over the groups to within one client, as
    by :func:`carvyfl.groups.anticluster.anticluster`. The start deals clients of one profile
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

    Returns
    -------
    ndarray
        int64 of shape (N,), the group of every client. It does not depend on the order in which
        clients are listed, but for clients of equal profiles, who may change places.
    """
    checked = _check_vectors(vectors)
    check_num_groups(num_groups, len(checked), "clients")
    # Clients of equal profiles in random order: nothing may follow from how they are listed.
    listed = generator(seed, "anticluster", "listed").permutation(len(checked))
    order = listed[_canonical_order(checked[listed])]
    small = len(checked) <= WHOLE
    rows = _centred(checked, order, np.dtype(np.float64 if small else np.float32))
    exchange = _exchange_all if small else _exchange_blocks
    # A thread for some products, none for parts of one: these are small.
    with threadpool_limits(1), ThreadPoolExecutor(min(usable_cores(), THREADS)) as threads:
        members = exchange(rows, num_groups, seed, threads)
    assignment = np.empty(len(checked), dtype=np.int64)
    groups = np.broadcast_to(np.arange(num_groups)[:, None], members.shape)
    real = members >= 0
    assignment[order[members[real]]] = groups[real]
    return assignment


def imbalance(vectors: npt.ArrayLike, assignment: npt.ArrayLike, num_groups: int) -> float:
    """Return how far the groups' sums of profiles are from what their sizes let expect.

    With m the mean profile, it is the sum over groups g of ‖Σ_{k in g} (p_k - m)‖²: a group of s
    clients should hold s m. Clients assigned to -1 are ignored, in the mean too.
    """
    checked, groups = _check_vectors(vectors), np.asarray(assignment)
    if groups.shape != (len(checked),) or not ((groups >= -1) & (groups < num_groups)).all():
        wanted = f"a group from -1 to {num_groups - 1} for each of {len(checked)} clients"
        raise CarvyError(f"assignment must hold {wanted}")
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
    except ValueError as error:  # rows of different lengths
        raise CarvyError("profiles must all have the same length") from error
    if array.ndim != 2 or not array.size or array.dtype.kind not in "fiub":
        actual = f"{array.dtype} of shape {array.shape}"
        raise CarvyError(f"profiles must be real numbers of shape (clients, numbers), not {actual}")
    floats: Floats = array if array.dtype in (np.float32, np.float64) else array.astype(np.float64)
    if len(bad := np.flatnonzero(~np.isfinite(floats).all(axis=1))):
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

    The result, shape (G, ⌈N/G⌉), has their rows; -1, the zero row, fills the last column.
    """
    profile = np.append(0, np.cumsum((rows[1:-1] != rows[:-2]).any(axis=1)))
    order = np.argsort(rng.permutation(profile[-1] + 1)[profile], kind="stable")
    padded = np.append(order, np.full(-len(order) % num_groups, -1))
    return padded.reshape(-1, num_groups).T.copy()


def _exchange_all(rows: Floats, num_groups: int, seed: int, threads: Executor) -> Ints:
    """Swap until no swap of two clients helps, from several starts; return the best groups."""
    most, together = STARTS
    starts = min(max(together // (len(rows) - 1), 1), most)
    rng = generator(seed, "anticluster", "starts")
    members = np.stack([_deal(rows, num_groups, rng) for _ in range(starts)])
    members = _exchange(rows, members, _sums(rows, members, threads), SWEEPS, threads)
    sums = _sums(rows, members, threads)
    best: Ints = members[np.argmin(np.einsum("bgd,bgd->b", sums, sums))]
    return best


def _exchange_blocks(rows: Floats, num_groups: int, seed: int, threads: Executor) -> Ints:
    """Swap inside random blocks of groups, in a fixed number of rounds; return the groups."""
    members = _deal(rows, num_groups, generator(seed, "anticluster", "start"))
    clients, size = len(rows) - 1, members.shape[1]
    parts = np.array_split(members, -(-clients // CHUNK))
    sums = np.concatenate([rows[part].sum(axis=1, dtype=np.float64) for part in parts])
    sums = sums.astype(rows.dtype)
    held = min(size, BLOCK // min(num_groups, 8))  # clients of a group who take part in a round
    width = min(num_groups, BLOCK // held)  # groups in a block
    fewest, together = VISITS
    turns = -(-size // held)  # rounds in which all clients could have taken part
    idle = 0
    for number in range(min(max(together // clients, fewest) * turns, ROUNDS)):
        rng = generator(seed, "anticluster", "round", number)
        drawn = rng.permutation(num_groups)[: num_groups // width * width].reshape(-1, width, 1)
        columns = rng.permutation(size)[:held]
        idle += 1
        for start in range(0, len(drawn), CHUNK // BLOCK):
            groups = drawn[start : start + CHUNK // BLOCK]
            before = members[groups, columns]
            after = _exchange(rows, before, sums[groups[..., 0]], 1, threads)
            if not np.array_equal(before, after):
                idle = 0
                change = _sums(rows, after, threads) - _sums(rows, before, threads)
                sums[groups[..., 0]] += change
                members[groups, columns] = after
        if idle == fewest * turns:
            break
    return members


def _sums(rows: Floats, members: Ints, threads: Executor) -> Floats:
    """Return the sums of the groups' rows, shape (B, g, d), in each of B blocks."""
    parts = threads.map(lambda x: rows[members[x]].sum(axis=2), _shares(len(members)))
    return np.concatenate(list(parts))


def _shares(blocks: int) -> list[slice]:
    """Cut blocks into successive shares, one for each thread."""
    share = -(-blocks // min(usable_cores(), THREADS))
    return [slice(x, x + share) for x in range(0, blocks, share)]


def _exchange(rows: Floats, members: Ints, sums: Floats, sweeps: int, threads: Executor) -> Ints:
    """Swap clients of different groups, in every block side by side, where that helps most.

    Swapping i of group a for j of group b, with v = p_j - p_i, changes the imbalance by
    2 v·(S_a - S_b) + 2 ‖v‖². In a sweep every client in turn makes the swap that lowers it
    most, if one does; it ends early once no swap helps in any block. The products of all clients
    with each other and with the sums are kept, so a look at all others takes a few numbers each.

    ``rows`` are the profiles, and a last row of zeros. ``members``, shape (B, g, m), are in each of
    B blocks g groups and the rows of m clients of each; -1 in a slot that holds no client.
    ``sums``, shape (B, g, d), are the groups' sums over all their clients.
    """
    blocks, groups, held = members.shape
    slots = groups * held
    order = members.reshape(blocks, slots).copy()
    # One table, for clients who change places change columns in all of it.
    table = np.empty((blocks, groups + 1 + slots, slots), dtype=rows.dtype)
    pull, norms, gram = table[:, :groups], table[:, groups], table[:, groups + 1 :]

    def multiply(x: slice) -> None:
        profiles = rows[order[x]]
        np.matmul(sums[x], profiles.transpose(0, 2, 1), out=pull[x])
        np.matmul(profiles, profiles.transpose(0, 2, 1), out=gram[x])

    list(threads.map(multiply, _shares(blocks)))
    norms[:] = np.where(order < 0, np.inf, np.diagonal(gram, axis1=1, axis2=2))
    # Rounding must not pass for progress, or swaps could go round in circles.
    scale = np.abs(pull).max(axis=(1, 2)) + gram.max(axis=(1, 2))
    enough = -(np.finfo(gram.dtype).eps ** 0.75) * scale
    gram *= 2  # exact, and asked for at every visit
    each, every = np.arange(blocks), np.arange(groups)
    by_group = pull.reshape(blocks, groups, groups, held)  # a view
    change = np.empty((blocks, slots), dtype=gram.dtype)
    change_by_group = change.reshape(blocks, groups, held)

    def base(x: Ints) -> Floats:
        """Return ‖p_j‖² - p_j·S_b, with b the group of j, for all slots j of the blocks x."""
        return norms[x] - by_group[x[:, None], every, every].reshape(len(x), slots)

    fits = base(each)
    idle = 0  # clients in a row for whom no swap helped in any block
    for visit in range(sweeps * slots):
        if idle == slots:
            break
        idle += 1
        i, a = visit % slots, visit % slots // held
        np.add(pull[:, a], fits, out=change)
        change -= gram[:, i]
        change_by_group += pull[:, :, i, None]  # half of the change, less what i alone adds
        best = change.argmin(axis=1)
        x = (change[each, best] + norms[:, i] - pull[:, a, i] < enough).nonzero()[0]
        if not len(x):
            continue
        idle, j = 0, best[x]
        ours, theirs = gram[x, i], gram[x, j]
        moved = (theirs - ours) / 2
        pull[x, a] += moved
        pull[x, j // held] -= moved
        gram[x, i], gram[x, j] = theirs, ours
        table[x, :, i], table[x, :, j] = table[x, :, j], table[x, :, i]
        order[x, i], order[x, j] = order[x, j], order[x, i]
        fits[x] = base(x)
    return order.reshape(members.shape)
