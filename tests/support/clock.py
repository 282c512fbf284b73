"""Time that passes only where somebody waits."""

from __future__ import annotations


class Clock:
    """Stands for the module ``time`` where a test cannot wait."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
