"""Registering a variant for the time of a test."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from carvyfl.core.registry import Registry


@contextlib.contextmanager
def restored(*registries: Registry[Any]) -> Iterator[None]:
    """Forget afterwards what was registered meanwhile: other tests go through all that is there."""
    before = [dict(registry) for registry in registries]
    try:
        yield
    finally:
        for registry, entries in zip(registries, before, strict=True):
            registry._entries.clear()
            registry._entries.update(entries)


@contextlib.contextmanager
def registered(registry: Registry[Any], entry: Any) -> Iterator[None]:
    """Register an entry for a while."""
    with restored(registry):
        registry.add(entry)
        yield
