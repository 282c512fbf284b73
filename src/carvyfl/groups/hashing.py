"""Groups that no message decides: FLCert's, by a hash of the client's id, and random ones."""

from __future__ import annotations

import hashlib
import operator
from collections import Counter
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from carvyfl.core.errors import CarvyError
from carvyfl.core.randomness import derive, generator
from carvyfl.groups.grouping import Ints, check_num_groups

PARTITION = "partition"  # how the name of a simulated client begins; its number follows


def hash_groups(ids: Iterable[int], num_groups: int) -> Ints:
    """Group clients by the hash of their ids, as the paper describes FLCert.

    The hash is BLAKE2b of an id's 8 bytes, big-endian, to 8 bytes. One client is pre-assigned to
    every group so that none is empty, the others go to group hash(ID) mod G. The paper does not
    say which ones; here those with the G smallest hashes, ascending, go to groups 0 … G-1. So a
    client's group depends on the *set* of ids and not on the order in which they are listed.

    The ``ids`` are different whole numbers from 0 to 2**64 - 1; who may pick one picks a group, so
    the operator must issue them.
    """
    try:
        numbers = [operator.index(number) for number in ids]
    except TypeError as error:
        raise CarvyError(f"client ids must be whole numbers: {error}") from error
    for number, times in Counter(numbers).items():
        if not 0 <= number < 2**64:
            raise CarvyError(f"client id {number} does not fit 64 bits; use 0 to 2**64 - 1")
        if times > 1:
            raise CarvyError(f"client id {number} appears twice; give every client its own id")
    check_num_groups(num_groups, len(numbers), "clients")
    of_eight = [number.to_bytes(8, "big") for number in numbers]
    digests = b"".join(hashlib.blake2b(eight, digest_size=8).digest() for eight in of_eight)
    hashes = np.frombuffer(digests, ">u8").astype(np.uint64)
    assignment = (hashes % np.uint64(num_groups)).astype(np.int64)
    ascending = np.lexsort((np.array(numbers, dtype=np.uint64), hashes))
    assignment[ascending[:num_groups]] = np.arange(num_groups)
    return assignment


def balanced_random(num_clients: int, num_groups: int, seed: int) -> Ints:
    """Return a uniformly random grouping among those with sizes equal to within one."""
    check_num_groups(num_groups, num_clients, "clients")
    assignment = np.empty(num_clients, dtype=np.int64)
    dealt = generator(seed, "balanced").permutation(num_clients)
    assignment[dealt] = np.arange(num_clients) % num_groups
    return assignment


def client_ids(num_clients: int, seed: int) -> npt.NDArray[np.uint64]:
    """Derive N distinct 64-bit ids for a simulation.

    They count up, modulo 2**64, from a start that belongs to the seed, so client k's id does not
    change when further clients are added.
    """
    return np.uint64(derive(seed, "client ids")) + np.arange(num_clients, dtype=np.uint64)


def named_ids(names: Iterable[str], seed: int) -> list[int]:
    """Derive the 64-bit ids of clients that are known by names, such as those of their keys.

    The seed takes part: who makes keys until one falls into a chosen group must know it, so
    it is chosen after the keys were registered.
    """
    return [derive(seed, "client", name) for name in names]


def training_id(name: str, seed: int) -> int:
    """Return what a named client's training randomness is derived from, whoever else there is.

    A simulated partition's id is its number, as in ``carvy run``.
    """
    kind, _, number = name.partition(" ")
    return int(number) if kind == PARTITION else named_ids([name], seed)[0]
