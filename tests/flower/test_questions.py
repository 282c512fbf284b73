"""Questions over a network that loses, refuses and spoils messages."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ConfigRecord, Error, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from carvyfl.flower import questions
from carvyfl.flower.questions import ATTEMPTS, _reason, limit_array_bytes, replies, retry

LONG = 60.0  # more than any of these tests needs
GOOD, FAR = 1, 2  # two nodes: one that answers at once, one behind a bad network


@pytest.fixture(autouse=True)
def _a_running_app(monkeypatch: pytest.MonkeyPatch):
    """Say what Flower says of the process before it starts an app in it."""
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


class BadNetwork:
    """Carries questions; what becomes of the k-th to ``FAR``, and its reply, is scripted.

    A turn is ``refused`` or ``none`` (the push fails or gives no id), ``dropped`` (no
    reply ever), ``failed`` (an error comes back), ``unreadable`` (pulling raises, always),
    ``busy`` (pulling raises once) or ``well``.
    """

    def __init__(self, *turns: str) -> None:
        self.turns = turns
        self.sent: Counter[int] = Counter()
        self._pulled: Counter[str] = Counter()

    def _turn(self, node: int, attempt: int) -> str:
        return "well" if node == GOOD else self.turns[min(attempt, len(self.turns) - 1)]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        (message,) = messages
        node = message.metadata.dst_node_id
        attempt = self.sent[node]
        self.sent[node] += 1
        turn = self._turn(node, attempt)
        if turn == "refused":
            raise OSError("database is locked")
        return [None if turn == "none" else f"{node}:{attempt}"]  # type: ignore[list-item]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        (message_id,) = message_ids
        node, attempt = map(int, message_id.split(":"))
        turn = self._turn(node, attempt)
        self._pulled[message_id] += 1
        if turn == "unreadable" or (turn == "busy" and self._pulled[message_id] == 1):
            raise ValueError("cannot be read")
        if turn == "dropped":
            return []
        question = Message(RecordDict(), node, "query")
        if turn == "failed":
            return [Message(Error(code=1, reason="Traceback\nit failed"), reply_to=question)]
        content = RecordDict({"head": ConfigRecord({"node": node, "attempt": attempt})})
        return [Message(content, reply_to=question)]


def answered(network: BadNetwork, seconds: float = LONG) -> dict[int, int]:
    """Ask both nodes; return which attempt each one's answer belongs to."""
    questions = {GOOD: RecordDict(), FAR: RecordDict()}
    grid: Any = network
    found = replies(grid, "query", questions, seconds, numbers=0)
    return {
        node: int(str(reply.config_records["head"]["attempt"]))
        for node, reply in found
        if isinstance(reply, RecordDict)
    }


@pytest.mark.parametrize(
    ("turns", "attempt"),
    [
        (["well"], 0),
        (["busy", "dropped"], 0),  # a reply that was only delayed still counts
        (["refused", "well"], 1),
        (["none", "none", "well"], 2),
        (["failed", "well"], 1),
        (["unreadable", "well"], 1),
        (["failed", "refused", "well"], 2),
    ],
)
def test_what_goes_wrong_is_asked_again(turns: list[str], attempt: int):
    assert answered(BadNetwork(*turns)) == {GOOD: 0, FAR: attempt}


def test_silence_is_asked_once_more():
    network = BadNetwork("dropped", "well")
    assert answered(network, seconds=1.0) == {GOOD: 0, FAR: 1}
    network = BadNetwork("dropped")
    assert answered(network, seconds=1.0) == {GOOD: 0}
    assert network.sent == {GOOD: 1, FAR: 2}


@pytest.mark.parametrize("turn", ["refused", "none", "failed"])
def test_nobody_is_asked_for_ever(turn: str):
    network = BadNetwork(turn)
    assert answered(network) == {GOOD: 0}  # long before the time is over
    assert network.sent == {GOOD: 1, FAR: ATTEMPTS}


def test_a_busy_superlink_is_called_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(questions, "RETRY_PAUSES", (0.0, 0.0))

    def failing(times: int) -> Callable[[], str]:
        left = iter([OSError("database is locked")] * times)

        def call() -> str:
            for error in left:
                raise error
            return "nodes"

        return call

    assert retry(failing(2)) == "nodes"
    with pytest.raises(OSError, match="locked"):
        retry(failing(3))


def deflated(array: Array, repeat: int) -> tuple[bytes, Any]:
    """Return an array as it goes over the wire, its chunks named several times."""
    children = array.children
    assert children
    head, body = array.deflate().split(b"\0", 1)
    described = json.loads(body)
    described["arraychunk_ids"] *= repeat
    body = json.dumps(described).encode()
    return head.rsplit(b" ", 1)[0] + b" %d" % len(body) + b"\0" + body, children


def test_a_message_cannot_grow_beyond_what_was_asked_for():
    """A chunk may be named many times, and several arrays may share one."""
    numbers = np.arange(1000, dtype=np.float32)
    once, thrice = (deflated(Array(numbers), repeat) for repeat in (1, 3))
    size = len(Array(numbers).data)
    with limit_array_bytes(2 * size):
        assert np.array_equal(Array.inflate(*once).numpy(), numbers)
        Array.inflate(*once)
        with pytest.raises(ValueError, match="more than the"):
            Array.inflate(*once)
    with limit_array_bytes(2 * size), pytest.raises(ValueError, match="more than the"):
        Array.inflate(*thrice)
    assert len(Array.inflate(*thrice).data) == 3 * size  # elsewhere Flower is as it was


class Bomb(BadNetwork):
    """Its second node answers with a small message that wants much memory."""

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        names = list(message_ids)
        if names[0].startswith(f"{FAR}:"):
            Array.inflate(*deflated(Array(np.zeros(250_000, np.float32)), 100))
        return super().pull_messages(names)


def test_who_sends_a_bomb_is_not_asked_again():
    """It takes a while to receive such a message, and another one is as large."""
    network: Any = Bomb("well")
    questions = {GOOD: RecordDict(), FAR: RecordDict()}
    found = dict(replies(network, "query", questions, LONG, numbers=0))
    assert isinstance(found[GOOD], RecordDict)
    assert found[FAR] == "more than the 65536 bytes that were asked for"
    assert network.sent == {GOOD: 1, FAR: 1}


@pytest.mark.parametrize(
    ("code", "text", "words"),
    [
        (2, "data", "its data could not be loaded"),
        (2, "ValueError: /data/Erika\n\x1b[2J gone", "client app raised exception, says Flower"),
        (5, None, "node unavailable, says Flower"),
        (999, "x" * 50_000_000, "unknown, says Flower"),
    ],
)
def test_a_failure_is_described_in_the_servers_own_words(code: int, text: str | None, words: str):
    said = _reason(Error(code, text))
    assert said.startswith(words)
    assert len(said) < 100
