"""A bound on what a message may grow to when Flower puts it together.

An array arrives as chunks and a list that says in which order to join them. The list may
name one chunk many times, and many arrays may share one, so a small message can ask for any
amount of memory, and a server that is killed for memory takes all groups with it. Flower has
no limit of its own, and hands a message over when it is complete; hence its
``Array.inflate`` is wrapped here, once.
"""

from __future__ import annotations

import contextlib
import functools
import json
import threading
from collections.abc import Iterator
from typing import Any

from flwr.app import Array
from flwr.supercore.inflatable.inflatable_object import (
    get_object_body,
    get_object_children_ids_from_object_content,
)

_here = threading.local()  # Flower inflates in the thread that asks for the message


@contextlib.contextmanager
def limit_array_bytes(size: int) -> Iterator[None]:
    """Refuse, with a ``ValueError``, arrays of more than ``size`` bytes together."""
    _wrap()
    _here.left = size
    try:
        yield
    finally:
        del _here.left


@functools.cache
def _wrap() -> None:
    inflate = Array.inflate

    def bounded(cls: type[Array], object_content: bytes, children: Any = None) -> Array:
        if hasattr(_here, "left"):
            names = get_object_children_ids_from_object_content(object_content)
            order = json.loads(get_object_body(object_content, cls))["arraychunk_ids"]
            _here.left -= sum(len(children[names[i]].data) for i in order)
            if _here.left < 0:
                raise ValueError("more in its arrays than was asked for")
        return inflate(object_content, children)

    Array.inflate = classmethod(bounded)  # type: ignore[assignment, method-assign]
