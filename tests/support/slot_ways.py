"""Every equally likely outcome of random slots, counted without any code of the package."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

Slots = tuple[frozenset[str], ...]
"""What each slot of one type holds."""


def benched(clients: list[str], num_groups: int) -> list[Slots]:
    """All equally likely ways to put clients into slots, those beyond G on the bench."""
    empty = [""] * max(0, num_groups - len(clients))
    ways = set(itertools.permutations([*clients, *empty], num_groups))
    return [tuple(frozenset({c} - {""}) for c in way) for way in ways]


def all_groupings(
    claims: dict[str, int], num_types: int, num_groups: int
) -> Iterator[tuple[frozenset[str], ...]]:
    """Every equally likely grouping: the product of the types' slots."""
    by_type = [
        benched([c for c, t in claims.items() if t == kind], num_groups)
        for kind in range(num_types)
    ]
    for parts in itertools.product(*by_type):
        yield tuple(frozenset().union(*(part[g] for part in parts)) for g in range(num_groups))
