"""FLCert's disjoint grouping: a client's group is a hash of its id."""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from carvyfl.core.errors import CarvyError
from carvyfl.core.randomness import derive
from carvyfl.groups.grouping import Ints, check_num_groups


def hash_id(client_id: int) -> int:
    """Hash a 64-bit id to 64 bits: BLAKE2b of its 8 bytes, big-endian both ways.

    Python's own ``hash`` will not do: it leaves small integers as they are.
    """
    digest = hashlib.blake2b(client_id.to_bytes(8, "big"), digest_size=8).digest()
    return int.from_bytes(digest, "big")


def hash_groups(ids: Iterable[int], num_groups: int) -> Ints:
    """Group clients by the hash of their ids, as the paper describes FLCert.

    One client is pre-assigned to every group so that none is empty, the others
    go to group hash(ID) mod G. The paper does not say which ones are
    pre-assigned; here the clients with the G smallest hash values, in ascending
    order, go to groups 0 … G-1. A client's group therefore depends on the *set*
    of ids and not on the order in which they are listed.

    The ``ids`` are different whole numbers from 0 to 2**64 - 1; who may pick one picks a group, so
    the operator must issue them. Returned is the group of every client, in their order.
    """
    numbers = _checked_ids(ids)
    check_num_groups(num_groups, len(numbers), "clients")
    hashes = np.array([hash_id(number) for number in numbers], dtype=np.uint64)
    assignment = (hashes % np.uint64(num_groups)).astype(np.int64)
    ascending = np.lexsort((np.array(numbers, dtype=np.uint64), hashes))
    assignment[ascending[:num_groups]] = np.arange(num_groups)
    return assignment


def client_ids(num_clients: int, seed: int) -> npt.NDArray[np.uint64]:
    """Derive N distinct 64-bit ids for a simulation.

    They count up, modulo 2**64, from a start that belongs to the seed: distinct
    by construction, and :func:`hash_id` scatters them. Client k's id does not
    change when further clients are added.
    """
    return np.uint64(derive(seed, "client ids")) + np.arange(num_clients, dtype=np.uint64)


def named_ids(names: Iterable[str], seed: int) -> list[int]:
    """Derive the 64-bit ids of clients that are known by names, such as those of their keys.

    The seed takes part: who makes keys until one falls into a chosen group must know it, so
    it is chosen after the keys were registered.
    """
    return [derive(seed, "client", name) for name in names]


PARTITION = "partition"
"""How the name of a simulated client begins; the number of its partition follows."""


def training_id(name: str, seed: int) -> int:
    """Return what a named client's training randomness is derived from, whoever else there is.

    A simulated partition's id is its number, as in ``carvy run``.
    """
    kind, _, number = name.partition(" ")
    return int(number) if kind == PARTITION else named_ids([name], seed)[0]


def _checked_ids(ids: Iterable[int]) -> list[int]:
    try:
        numbers = [operator.index(number) for number in ids]
    except TypeError as error:
        raise CarvyError(f"client ids must be whole numbers: {error}") from error
    seen: set[int] = set()
    for number in numbers:
        if not 0 <= number < 2**64:
            raise CarvyError(f"client id {number} does not fit 64 bits; use 0 to 2**64 - 1")
        if number in seen:
            raise CarvyError(f"client id {number} appears twice; give every client its own id")
        seen.add(number)
    return numbers
