"""A network to clients that answer in this process, on a clock that only questions move."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from flwr.app import RecordDict

from support.clock import Clock


class Killed(BaseException):
    """The server dies."""


class Network:
    """Stands in for Flower's: client k is node 1000 + k.

    Questions take ``pace`` seconds, or all the time there is where an answer is withheld (None),
    unless questions to such a client are ``refused`` at once.
    """

    def __init__(self) -> None:
        self.clock, self.pace, self.refused = Clock(), 0.0, False

    def answer(self, number: int, kind: str, question: RecordDict, most: int) -> RecordDict | None:
        """Return what a client answers, of at most so many numbers."""
        raise NotImplementedError

    def replies(
        self,
        grid: object,
        kind: str,
        questions: Mapping[int, RecordDict],
        seconds: float,
        numbers: int,
    ) -> Iterator[tuple[int, RecordDict]]:
        """Take the place of :func:`carvyfl.flower.questions.replies`."""
        silent = False
        for node, question in questions.items():
            reply = self.answer(node - 1000, kind, question, numbers)
            if reply is not None:
                yield node, reply
            elif not self.refused:
                silent = True
        self.clock.sleep(seconds if silent else self.pace)
