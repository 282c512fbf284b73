"""Variants by name: the built-in ones, those a program adds, and those of installed packages.

A registry is the only place that knows a variant by name.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NoReturn, Protocol, Self, TypeVar

from carvyfl.core.errors import CarvyError


class Entry(Protocol):
    """What every registered object has: a name and a line of help."""

    @property
    def name(self) -> str: ...  # noqa: D102

    @property
    def help(self) -> str: ...  # noqa: D102


T = TypeVar("T", bound=Entry)

ELSEWHERE: dict[str, str] = {}
"""Names that somebody may give in a wrong place: what they are, and how they are used."""


class PlugInWarning(UserWarning):
    """A variant of an installed package could not be used."""


class Registry(Mapping[str, T]):
    """Entries by name.

    ``what`` is registered, in the singular; other packages do so through the entry points of
    ``group``. ``use`` says how an entry, in braces, is used to who gives it in a wrong place.
    """

    def __init__(self, what: str, group: str, entries: Iterable[T] = (), *, use: str = "") -> None:
        self.what, self.group, self.use = what, group, use
        self._entries: dict[str, T] = {}
        for entry in entries:
            self.add(entry)

    def add(self, entry: T) -> T:
        """Register an entry and return it, so that this also decorates a class."""
        name, about = getattr(entry, "name", None), getattr(entry, "help", None)
        if not (isinstance(name, str) and name and isinstance(about, str)):
            raise CarvyError(f"a {self.what} needs a name and a line of help, both texts")
        if name in self._entries:
            raise CarvyError(f"there is a {self.what} '{name}' already; choose another name")
        self._entries[name] = entry
        if self.use:
            article = "an" if self.what[0] in "aeiou" else "a"
            ELSEWHERE[name] = f"{article} {self.what}; {self.use.format(name)}"
        return entry

    def pick(self, name: object) -> T:
        """Return the entry of a name that a user gave, or suggest the nearest one."""
        return pick(self, name, self.what)

    @functools.cached_property
    def _known(self) -> dict[str, T]:
        """All entries, those of installed packages included, which are loaded once."""
        from importlib.metadata import entry_points  # here, since `carvy --help` needs none

        for point in entry_points(group=self.group):
            try:
                self.add(point.load())
            except Exception as error:  # a package of somebody else's may fail in any way
                package = "" if point.dist is None else f" of package {point.dist.name}"
                reason = " ".join(str(error).split()) or type(error).__name__
                warnings.warn(
                    f"plug-in '{point.name}'{package} ({point.group}) is left out: {reason}",
                    PlugInWarning,
                    stacklevel=2,
                )
        return self._entries

    def __getitem__(self, name: str) -> T:
        return self._known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


V = TypeVar("V")


class UnknownVariantError(CarvyError):
    """A name that is in no registry, of a variant that another package or a plugin may add."""


def pick(table: Mapping[str, V], name: object, what: str) -> V:
    """Look up the name that a user gave of a ``what``, or suggest the nearest one."""
    if not isinstance(name, str):  # from Python, where nobody checks types
        raise CarvyError(f"{what} must be a name, not {name!r}; known: {', '.join(sorted(table))}")
    if name in table:
        return table[name]
    if name in ELSEWHERE:
        raise CarvyError(f"'{name}' is no {what} but {ELSEWHERE[name]}")
    kind = UnknownVariantError if isinstance(table, Registry) else CarvyError
    raise kind(f"unknown {what} '{name}'; {nearest(name, table)}known: {', '.join(sorted(table))}")


def nearest(name: str, known: Iterable[str]) -> str:
    """Ask whether the nearest of the known names was meant; nothing if none is near."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean '{near[0]}'? " if near else ""


class NoSuchFieldError(CarvyError, AttributeError):
    """A field that a value does not have was asked for."""


class NamedFields:
    """A base of dataclasses that variants get to see: asked for another field, they name theirs."""

    if not TYPE_CHECKING:  # or a type checker would allow every name

        def __getattr__(self, name: str) -> NoReturn:
            """Refuse an unknown name; this is only called for those."""
            kind = type(self)
            if name.startswith("__"):  # Python asks for these itself
                raise AttributeError(name)
            names = [field.name for field in dataclasses.fields(self)]
            names += [key for key, value in vars(kind).items() if isinstance(value, property)]
            raise NoSuchFieldError(
                f"{kind.__name__} has no '{name}'; {nearest(name, names)}it has: {', '.join(names)}"
            )


class NamedParameters:
    """A base of dataclasses that users make: given another parameter, they name theirs."""

    if not TYPE_CHECKING:  # or a type checker would allow every name

        def __new__(cls, *args: object, **given: object) -> Self:
            """Refuse an unknown name; the dataclass does the rest."""
            known = {field.name: field for field in dataclasses.fields(cls)}
            for name in given:
                pick(known, name, f"parameter of {cls.__name__}")
            return super().__new__(cls)
