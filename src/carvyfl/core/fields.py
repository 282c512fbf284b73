"""Values that people's own code reads: a wrong name is answered with the right one."""

from __future__ import annotations

import dataclasses
import difflib
from typing import TYPE_CHECKING, NoReturn

from carvyfl.core.errors import CarvyError


class NoSuchFieldError(CarvyError, AttributeError):
    """A field that a value does not have was asked for."""


class NamedFields:
    """A base of dataclasses that name their fields when asked for another."""

    if not TYPE_CHECKING:  # or a type checker would allow every name

        def __getattr__(self, name: str) -> NoReturn:
            """Refuse an unknown name; this is only called for those."""
            kind = type(self)
            if name.startswith("__"):  # Python asks for these itself
                raise AttributeError(name)
            own = [field.name for field in dataclasses.fields(self)]
            own += [key for key, value in vars(kind).items() if isinstance(value, property)]
            near = difflib.get_close_matches(name, own, n=1, cutoff=0.5)
            hint = f"did you mean '{near[0]}'? " if near else ""
            raise NoSuchFieldError(
                f"{kind.__name__} has no '{name}'; {hint}it has: {', '.join(own)}"
            )
