"""Questions to several nodes at once, each answered, or not, by itself."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

log = logging.getLogger("flwr")
"""Flower's own: what is said here appears in ``flwr log``."""

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0


def ask(
    grid: Grid, kind: str, questions: Mapping[int, RecordDict], seconds: float
) -> dict[int, RecordDict]:
    """Send every node its question and return what came back in time.

    A node that is gone, fails or sends something Flower cannot read is simply not in
    the answer: nothing it does disturbs the others.

    Parameters
    ----------
    grid
        Flower's connection to the nodes.
    kind
        The message type, such as ``train`` or ``query.hello``.
    questions
        By node: what to send.
    seconds
        How long to wait. Later answers are never looked at.
    """
    until = time.monotonic() + seconds
    waiting: dict[str, int] = {}
    for node, content in questions.items():
        message = Message(content, node, kind, ttl=seconds)
        # One at a time: a refused message must not be mistaken for its neighbour.
        waiting |= {found: node for found in grid.push_messages([message]) if found}
    answers: dict[int, RecordDict] = {}
    pause = FIRST_PAUSE
    while waiting and time.monotonic() < until:
        for message_id, node in list(waiting.items()):
            for reply in _replies(grid, message_id):
                del waiting[message_id]
                if reply.has_error():
                    log.warning("carvy: node %s failed: %s", node, _last_line(reply.error.reason))
                else:
                    answers[node] = reply.content
        if waiting:
            time.sleep(min(pause, max(until - time.monotonic(), 0)))
            pause = min(1.5 * pause, LONGEST_PAUSE)
    return answers


def _replies(grid: Grid, message_id: str) -> list[Message]:
    """Return the reply to a message, if it is there.

    A reply that Flower cannot read must not end the federation, whatever Flower makes of
    it, so any exception counts as no reply yet; a broken connection is one, too.
    """
    try:
        return list(grid.pull_messages([message_id]))
    except Exception as error:
        log.warning("carvy: no reply could be read (%s: %s)", type(error).__name__, error)
        return []


def _last_line(text: str | None) -> str:
    """Return the last line of what an error says of itself: of a traceback, what went wrong."""
    lines = (text or "no reason given").strip().splitlines()
    return lines[-1] if lines else "no reason given"
