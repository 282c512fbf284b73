"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def markdown(head: Sequence[str], body: Iterable[Sequence[str]], *, numbers: bool = False) -> str:
    """Return a Markdown table; ``numbers`` aligns all columns but the first to the right."""
    lines = [f"| {' | '.join(line)} |\n" for line in (head, *body)]
    rule = f"| --- |{' ---: |' * (len(head) - 1)}" if numbers else "|---" * len(head) + "|"
    return "".join([lines[0], f"{rule}\n", *lines[1:]])
