"""What the checks of an audit share: why something is not checked, and how claims are compared."""

from __future__ import annotations

from typing import Any, TypeVar

from carvyfl.core.errors import CarvyError, printable
from carvyfl.core.registry import Entry, Registry
from carvyfl.core.schema import plain

T = TypeVar("T", bound=Entry)


class UncheckedError(Exception):
    """Why something was not checked that could be, with more at hand."""


class UnderivableError(Exception):
    """Why no audit can derive something from a folder."""


def registered(registry: Registry[T], name: str) -> T:
    """Return what is registered under a name, which may be known elsewhere only."""
    if name not in registry:
        raise UncheckedError(
            f"{registry.what} '{printable(name, 60)}' is not registered here; install the package "
            "that brings it"
        )
    return registry[name]


def compare(derived: object, claimed: object, what: str) -> None:
    """Refuse a claim that differs from what was derived; numbers agree to 1e-6."""
    there = plain(claimed)
    for name, value in plain(derived).items():
        if name not in there or not _same(value, there[name]):
            raise CarvyError(f"{what}: {name} is not what follows from the files")


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, float) and isinstance(b, int | float):
        return abs(a - b) <= 1e-6  # an interval's ends may move with the library's version
    return bool(a == b)
