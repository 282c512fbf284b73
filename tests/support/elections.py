"""Elections counted by hand."""

from __future__ import annotations

from collections.abc import Sequence

from carvyfl.voting.votes import NO_VOTE


def winner(column: Sequence[int], num_classes: int) -> int:
    """Return the class with the most votes, the smallest one on a tie; NO_VOTE without a vote."""
    best = max(range(num_classes), key=lambda c: (column.count(c), -c))
    return best if best in column else NO_VOTE
