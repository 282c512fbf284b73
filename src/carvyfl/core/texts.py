"""Values as one short line, for the displays of notebooks and for messages."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from carvyfl.core.errors import shown


def call_text(
    name: str, given: Mapping[str, Any], default: Mapping[str, Any], first: Collection[str] = ()
) -> str:
    """Return an object as the call that makes it, with what differs from the defaults.

    Parameters that are ``first`` are written without their names.
    """
    parts = [
        value_text(value) if key in first else f"{key}={value_text(value)}"
        for key, value in given.items()
        if not _same(value, default.get(key))
    ]
    return f"{name}({', '.join(parts)})"


def value_text(value: Any) -> str:
    """Return a value as one line: small ones as Python writes them, others by their kind."""
    if shape := getattr(value, "shape", None):
        return f"<{type(value).__name__} of shape {tuple(shape)}>"
    name = getattr(value, "__name__", None)
    if callable(value) and isinstance(name, str):
        return f"<{name}>"
    text = shown(value)
    if "\n" in repr(value) or text.startswith("<"):  # a torch module prints a line per layer
        return f"<{type(value).__name__}>"
    return text


def _same(value: Any, other: Any) -> bool:
    """Whether two values are alike; arrays, which compare entry by entry, never are."""
    if value is other:
        return True
    return type(value) is type(other) and isinstance(value, str | int | float) and value == other
