"""What the groups of a federation share while they are trained, and no group changes."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from flwr.serverapp import Grid

from carvyfl.flower.identity import Presence, Roster
from carvyfl.learning.store import GroupStore
from carvyfl.runs.flower_settings import Settings


@dataclass(frozen=True)
class ServerContext:
    """What all groups share, and no group changes.

    ``grid``, ``presence``, ``roster``: the nodes, which of them are connected, and who they are.
    ``until``: when the operator's deadline passes, on the clock of ``time.monotonic``.
    ``counts``: the class counts of every client that was asked for them in Step 1, by number.
    """

    grid: Grid
    presence: Presence
    roster: Roster
    settings: Settings
    store: GroupStore
    until: float = math.inf
    counts: Mapping[int, tuple[int, ...]] = field(default_factory=dict)


def connected_nodes(context: ServerContext, numbers: Iterable[int]) -> dict[int, int]:
    """Return the nodes of those of these clients that are connected: number → node id.

    Waits for one if none is, as long as for an answer.
    """
    wanted = list(numbers)
    until = time.monotonic() + context.settings.answer_seconds
    while not (nodes := _located(context, wanted)) and time.monotonic() < until:
        time.sleep(1)
    return nodes


def _located(context: ServerContext, numbers: Iterable[int]) -> dict[int, int]:
    located = context.roster.located(context.presence.now())
    return {number: located[number] for number in numbers if number in located}
