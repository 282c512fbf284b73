"""Descriptions of code and values that users bring, as parts of a job's key."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import itertools
import secrets
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

PLAIN = bool | int | float | complex | str | bytes | np.generic | None
PLAIN |= torch.dtype | torch.device | torch.layout | torch.memory_format


def source_of(code: type | Callable[..., Any]) -> str:
    """Return the source of a function, or of a class and its bases but torch's and Python's own."""
    parts = code.__mro__ if isinstance(code, type) else (code,)
    return "\x1e".join(map(_source, filter(_is_ours, parts)))


def fingerprint(module: nn.Module) -> str:
    """Describe the computation a module performs, without its weights.

    Functions that ``forward`` calls by name are not looked into.
    """
    return _Describer().of_module(module)


def describe(value: Any) -> str:
    """Describe a value, the same way in every process.

    What cannot be described, such as a lock, is named as the object it is, here alone.
    """
    return _Describer().of(value)


class Fingerprinted:
    """An object that describes itself."""

    @property
    def fingerprint(self) -> str:
        """The name of all that it computes."""
        raise NotImplementedError


class _Describer:
    """Describes objects that may refer to each other: each in full at its first occurrence."""

    def __init__(self) -> None:
        self.seen: dict[int, tuple[int, object]] = {}  # objects too: an id lives as long as they

    def of(self, value: Any) -> str:
        if isinstance(value, PLAIN):
            return repr(value)
        if isinstance(value, Fingerprinted):
            return value.fingerprint
        if isinstance(value, ModuleType):
            return value.__name__
        name = f"{type(value).__module__}.{type(value).__qualname__}"
        if isinstance(value, tuple):
            return f"{name}({self._all(value)})"
        if id(value) in self.seen:
            return f"<{self.seen[id(value)][0]}>"
        self.seen[id(value)] = len(self.seen), value
        try:
            return f"{name} {self._inside(value)}"
        except Exception:  # whatever an object of a user's may raise when looked into
            number, _ = _named.setdefault(id(value), (next(_numbers), value))
            return f"{name} {_process}-{number}"  # kept, so that no other gets its identity

    def _inside(self, value: Any) -> str:
        if isinstance(value, Tensor):
            plain = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
            return f"{value.dtype}{tuple(value.shape)}{_digest(plain.tobytes())}"
        if isinstance(value, np.ndarray):
            objects = value.dtype.hasobject
            content = self.of(value.tolist()) if objects else _digest(value.tobytes())
            return f"{value.dtype}{value.shape}{content}"
        if isinstance(value, list):
            return self._all(value)
        if isinstance(value, set | frozenset):
            return ", ".join(sorted(map(describe, value)))
        if isinstance(value, Mapping):
            return ", ".join(f"{self.of(key)}: {self.of(item)}" for key, item in value.items())
        if isinstance(value, functools.partial):
            return self._all([value.func, value.args, value.keywords])
        if isinstance(value, MethodType):
            return f"{value.__func__.__qualname__} of {self.of(value.__self__)}"
        if isinstance(value, nn.Module):  # one that its owner did not register
            return f"{self.of_module(value)} {self.of(dict(value.state_dict()))}"
        if isinstance(value, type | FunctionType | BuiltinFunctionType):
            return self._code(value)
        parts = value.__reduce_ex__(4)  # what it would be copied by: its class and its content
        if isinstance(parts, str):
            return parts
        listed = [list(part) if hasattr(part, "__next__") else part for part in parts]
        return f"{source_of(type(value))} {self._all(listed)}"

    def of_module(self, module: nn.Module) -> str:
        parts = [repr(module)]
        parts += [f"{name}:{tuple(p.shape)}" for name, p in module.named_parameters()]
        parts += [f"{name}:{self.of(buffer)}" for name, buffer in module.named_buffers()]
        parts += [f"{name}:{self.of(_attributes(m))}" for name, m in module.named_modules()]
        kinds = {type(layer) for layer in module.modules()}
        parts += map(
            source_of, sorted(kinds, key=lambda kind: (kind.__module__, kind.__qualname__))
        )
        return _digest("\x1e".join(parts).encode())

    def _code(self, code: Any) -> str:
        name = f"{code.__module__}.{code.__qualname__} {code.__name__}"
        if isinstance(code, type):
            return f"{name} {source_of(code)}"
        if isinstance(code, BuiltinFunctionType):
            return f"{name} of {self.of(code.__self__)}"
        if not _is_ours(code):
            return name
        captured = [_content(cell) for cell in code.__closure__ or ()]
        more = self.of([captured, code.__defaults__, code.__kwdefaults__])
        return f"{name} {source_of(code)} {_compiled(code.__code__)} {more}"

    def _all(self, values: Iterable[Any]) -> str:
        return ", ".join(map(self.of, values))


def _attributes(layer: nn.Module) -> dict[str, Any]:
    """Return the attributes of a layer that torch does not manage itself."""
    managed = vars(nn.Module()).keys()
    ours = _is_ours(type(layer))
    return {
        name: value
        for name, value in vars(layer).items()
        if name not in managed and (ours or not name.startswith("_")) and not _refers(value)
    }


def _refers(value: Any) -> bool:
    """Whether this only leads to parameters, as a recurrent layer's lists of them do."""
    if isinstance(value, list | tuple):
        return len(value) > 0 and all(map(_refers, value))
    return isinstance(value, nn.Parameter | weakref.ref)


_numbers = itertools.count()
_process = secrets.token_hex(8)
_named: dict[int, tuple[int, object]] = {}


def _content(cell: Any) -> Any:
    with contextlib.suppress(ValueError):
        return cell.cell_contents


def _compiled(code: CodeType) -> str:
    """Describe compiled code: two functions may stand on one line of source."""
    consts = (_compiled(c) if isinstance(c, CodeType) else describe(c) for c in code.co_consts)
    return f"{code.co_code.hex()} {code.co_names} {' '.join(consts)}"


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _is_ours(part: Any) -> bool:
    package = (part.__module__ or "").partition(".")[0]
    return package not in {"torch", "builtins", "abc", "typing"}


_one_at_a_time = threading.Lock()
"""Finding a class parses its file, which Python before 3.11.10 cannot do on two threads."""


def _source(part: Any) -> str:
    with _one_at_a_time:
        for _ in range(100):  # another library may parse on a thread of its own
            try:
                return inspect.getsource(part)
            except SystemError:
                continue
            except (OSError, TypeError):
                break
    return f"{part.__module__}.{part.__qualname__}"
