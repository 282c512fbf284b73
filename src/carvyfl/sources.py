"""Code and values that users bring, in words: part of the key of what was computed with them."""

from __future__ import annotations

import functools
import hashlib
import inspect
import secrets
from collections.abc import Callable, Mapping
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn

_UNKNOWN = secrets.token_hex(8)
"""Stands for what cannot be described: results of another process are not taken for equal."""


def source_of(code: type | Callable[..., Any]) -> str:
    """Return the source of a function, or of a class and its bases but torch's and Python's own.

    Results of an older version must not be served for a newer one. Of what was typed at a prompt
    only the name is known.
    """
    parts = code.__mro__ if isinstance(code, type) else (code,)
    return "\x1e".join(map(_source, filter(_is_ours, parts)))


def described(value: Any, inside: tuple[int, ...] = ()) -> str:
    """Return what tells a value from others that compute something else, in every process.

    Parameters
    ----------
    value
        A number, text, array, function, object, or a collection of such.
    inside
        The identities of the objects that this one is part of: an object may refer to itself.
    """
    if value is None or isinstance(
        value, bool | int | float | complex | str | bytes | torch.dtype | torch.device | np.generic
    ):
        return repr(value)
    if id(value) in inside:
        return f"<{inside.index(id(value))}>"
    inner = functools.partial(described, inside=(*inside, id(value)))
    if isinstance(value, torch.Tensor):
        plain = value.detach().cpu()
        value = (plain.float() if plain.is_floating_point() else plain).numpy()
    if isinstance(value, np.ndarray):
        digest = hashlib.blake2b(np.ascontiguousarray(value).data, digest_size=16).hexdigest()
        return f"{value.dtype}{value.shape}{digest}"
    name = f"{type(value).__module__}.{type(value).__qualname__}"
    if isinstance(value, tuple | list):
        return f"{name}({', '.join(map(inner, value))})"
    if isinstance(value, set | frozenset):
        return f"{name}({', '.join(sorted(map(inner, value)))})"
    if isinstance(value, Mapping):
        return f"{name}({', '.join(f'{inner(k)}: {inner(v)}' for k, v in value.items())})"
    if isinstance(value, functools.partial):
        return f"{name}({inner(value.func)}, {inner(value.args)}, {inner(value.keywords)})"
    if isinstance(value, MethodType):
        return f"{value.__func__.__qualname__} of {inner(value.__self__)}"
    if isinstance(value, type) or inspect.isroutine(value):
        return _described_code(value, inner)
    if isinstance(value, nn.Module):  # one that its owner did not register
        return f"{value!r} {inner(value.state_dict())} {inner(attributes(value))}"
    if hasattr(value, "__dict__"):
        return f"{name} {source_of(type(value))} {inner(attributes(value))}"
    return f"{name} {_UNKNOWN} {id(value)}"


def attributes(value: Any) -> dict[str, Any]:
    """Return the attributes of an object, of a module those that torch does not manage."""
    managed = vars(nn.Module()).keys() if isinstance(value, nn.Module) else ()
    return {name: own for name, own in vars(value).items() if name not in managed}


def _described_code(code: Any, inner: Callable[[Any], str]) -> str:
    name = f"{getattr(code, '__module__', None)}.{code.__qualname__}"
    if isinstance(code, type):
        return f"{name} {source_of(code)}"
    if not isinstance(code, FunctionType):
        owner = getattr(code, "__self__", None)
        return name if isinstance(owner, type | ModuleType) else f"{name} of {inner(owner)}"
    if not _is_ours(code):
        return name
    captured = [cell.cell_contents for cell in code.__closure__ or ()]
    return f"{name} {source_of(code)} {inner([captured, code.__defaults__, code.__kwdefaults__])}"


def _is_ours(part: Any) -> bool:
    return part.__module__.partition(".")[0] not in {"torch", "builtins", "abc", "typing"}


def _source(part: Any) -> str:
    try:
        return inspect.getsource(part)
    except (OSError, TypeError):
        return f"{part.__module__}.{part.__qualname__}"
