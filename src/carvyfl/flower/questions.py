"""Questions to several nodes at once, each answered, or not, by itself."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from flwr.app import Array, Error, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import (
    get_object_body,
    get_object_children_ids_from_object_content,
)

from carvyfl.core.errors import printable
from carvyfl.flower.wire import FAULTS, PASSING

log = logging.getLogger("flwr")
"""Flower's own: what is said here appears in ``flwr log``."""

T = TypeVar("T")

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0
ATTEMPTS = 3
"""The most times a question is sent."""
HEADERS = 1 << 16
"""Bytes: more than the descriptions of an answer's few arrays take."""
RETRY_PAUSES = (1.0, 2.0, 5.0, 10.0, 20.0)


@dataclass
class _Question:
    """What one node is asked: the messages that carry it and have no reply yet."""

    content: RecordDict
    open: list[str] = field(default_factory=list)
    attempts: int = 0
    wanted: bool = True  # is to be sent, for the first time or again


def replies(
    grid: Grid, kind: str, questions: Mapping[int, RecordDict], seconds: float, *, numbers: int
) -> Iterator[tuple[int, RecordDict | str]]:
    """Send every node its question and yield what comes back in time, or what is wrong with it.

    A node that is gone, fails or sends something Flower cannot read is simply not in the answer:
    nothing it does disturbs the others. A SuperLink whose database is busy for five seconds
    refuses a question, or a reply, which the SuperNode then drops. So a question is sent again
    where something went wrong, and once where half of the time has brought nothing; ``ATTEMPTS``
    times in all. The first reply within ``seconds`` counts. One that holds more than ``numbers``
    numbers is not read, and not asked for again: its node yields the reason.
    """
    began, pause = time.monotonic(), FIRST_PAUSE
    until, half = began + seconds, began + seconds / 2
    waiting = {node: _Question(content) for node, content in questions.items()}
    while waiting and (now := time.monotonic()) < until:
        for node, question in waiting.items():
            silent = question.attempts == 1 and now >= half
            if (question.wanted or silent) and question.attempts < ATTEMPTS:
                _send(grid, kind, node, question, until - now)
        for node, question in list(waiting.items()):
            answer = _answer(grid, node, question, 4 * numbers + HEADERS)
            if answer is not None:
                yield node, answer
            if answer is not None or not (question.open or question.attempts < ATTEMPTS):
                del waiting[node]
        if waiting:
            time.sleep(min(pause, max(until - time.monotonic(), 0)))
            pause = min(1.5 * pause, LONGEST_PAUSE)


def _send(grid: Grid, kind: str, node: int, question: _Question, seconds: float) -> None:
    """Send a question; one that is refused stays wanted."""
    question.attempts, question.wanted = question.attempts + 1, True
    message = Message(question.content, node, kind, ttl=seconds)
    try:  # one at a time: a refused message must not be mistaken for its neighbour
        accepted = [name for name in grid.push_messages([message]) if name]
        question.open += accepted
        question.wanted = not accepted
    except Exception as error:  # whatever Flower makes of it, the other nodes are to be asked
        log.warning("carvy: node %s could not be asked (%s)", node, _describe(error))


def _answer(grid: Grid, node: int, question: _Question, most: int) -> RecordDict | str | None:
    """Return the reply to a question, if it is there, or why it cannot be used.

    What Flower cannot read must not end the federation: any exception counts as no reply yet.
    """
    for message in list(question.open):
        try:
            with limit_array_bytes(most):
                replies = list(grid.pull_messages([message]))
        except TooLargeError as error:
            return str(error)
        except Exception as error:
            log.warning("carvy: node %s: no reply could be read (%s)", node, _describe(error))
            question.wanted = True
            continue
        if replies:
            question.open.remove(message)
        for reply in replies:
            if not reply.has_error():
                return reply.content
            reason = _reason(reply.error)
            if reply.error.reason in FAULTS.keys() - PASSING:
                return reason
            log.warning("carvy: node %s failed: %s", node, reason)
            question.wanted = True
    return None


def retry(call: Callable[[], T]) -> T:
    """Call a function of Flower, again after a pause if it fails: it may only be busy."""
    for pause in RETRY_PAUSES:
        try:
            return call()
        except Exception as error:
            log.warning("carvy: the SuperLink failed; trying again (%s)", _describe(error))
            time.sleep(pause)
    return call()


def _describe(error: Exception) -> str:
    return printable(f"{type(error).__name__}: {error}")


def _reason(error: Error) -> str:
    """Say why a node failed, in words of the server's alone: a node may send any text."""
    codes = {code: name for name, code in vars(ErrorCode).items() if isinstance(code, int)}
    by_flower = codes.get(error.code, "unknown").replace("_", " ").lower()
    return FAULTS.get(error.reason or "", f"{by_flower}, says Flower; see the node's log")


class TooLargeError(ValueError):
    """A message holds more than was asked for."""


_limit = threading.local()  # Flower inflates in the thread that asks for the message


@contextlib.contextmanager
def limit_array_bytes(size: int) -> Iterator[None]:
    """Refuse, with a ``TooLargeError``, arrays of more than ``size`` bytes together.

    An array arrives as chunks and a list of how to join them, which may name one chunk many times:
    a small message can ask for any amount of memory, and a server that is killed for memory takes
    all groups with it. Flower has no limit, hence its ``Array.inflate`` is wrapped here, once. That
    is private code of Flower's: pyproject.toml says for which versions it was looked at.
    """
    _wrap()
    _limit.left = _limit.size = size
    try:
        yield
    finally:
        del _limit.left


@functools.cache
def _wrap() -> None:
    inflate = Array.inflate

    def bounded(cls: type[Array], object_content: bytes, children: Any = None) -> Array:
        if hasattr(_limit, "left"):
            names = get_object_children_ids_from_object_content(object_content)
            order = json.loads(get_object_body(object_content, cls))["arraychunk_ids"]
            _limit.left -= sum(len(children[names[i]].data) for i in order)
            if _limit.left < 0:
                raise TooLargeError(f"more than the {_limit.size} bytes that were asked for")
        return inflate(object_content, children)

    Array.inflate = classmethod(bounded)  # type: ignore[assignment, method-assign]
