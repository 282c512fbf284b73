"""The source of code that users write, as part of the key of what it computed."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def source_of(code: type | Callable[..., Any]) -> str:
    """Return the source of a function, or of a class and its bases but torch's and Python's own.

    Results of an older version must not be served for a newer one. Of what was typed at a prompt
    only the name is known.
    """
    parts = code.__mro__ if isinstance(code, type) else (code,)
    return "\x1e".join(map(_source, filter(_is_ours, parts)))


def _is_ours(part: Any) -> bool:
    return part.__module__.partition(".")[0] not in {"torch", "builtins", "abc", "typing"}


def _source(part: Any) -> str:
    try:
        return inspect.getsource(part)
    except (OSError, TypeError):
        return f"{part.__module__}.{part.__qualname__}"
