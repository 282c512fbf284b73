"""Plain data and settings, checked against the types that describe them."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import inspect
import itertools
import json
import math
import re
import textwrap
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
import numpy as np

from carvyfl.core.errors import CarvyError, printable, shown
from carvyfl.core.registry import pick

T = TypeVar("T")

_WORDS = {"int": "a whole number", "float": "a number", "str": "a text", "bool": "true or false"}
_WORDS |= {"array": "a list", "object": "a mapping"}


def read(kind: type[T], value: Any, where: str) -> T:
    """Return plain data of a JSON or YAML file as a value of a type that msgspec knows."""
    try:
        converted = msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise CarvyError(_one_line(str(error), value, where)) from None
    if isinstance(converted, float) and not math.isfinite(converted):  # no JSON file holds it
        raise CarvyError(f"{where} must be a finite number, not {converted}")
    return converted


def settings(kind: type, given: Mapping[Any, Any], where: str, prefix: str = "") -> dict[str, Any]:
    """Check some settings of a dataclass, by name and type, and return them.

    A text that is a number may stand for a number, since YAML reads 1e-4 as a text, and a text with
    commas for a list. A dataclass among the fields is given, and returned, as a mapping.
    """
    hints = hints_of(kind)
    nested = {n: bare(hint) for n, hint in hints.items() if dataclasses.is_dataclass(bare(hint))}
    checked = {}
    for name, value in given.items():
        owner = next((part for part, hint in nested.items() if name in hints_of(hint)), None)
        if name not in hints and owner is not None:
            raise CarvyError(f"{where}: '{name}' belongs under '{owner}'; move it there")
        hint, place = pick(hints, str(name), f"setting in {where}:"), f"{where}: {prefix}{name}"
        if name not in nested:
            checked[name] = read(hint, _gentle(value, hint), place)
        elif isinstance(value, Mapping):
            checked[name] = settings(nested[name], value, place)
        else:
            raise CarvyError(f"{place} must be a mapping of settings")
    return checked


def check(value: Any, prefix: str = "") -> None:
    """Refuse a dataclass with a field that is not as declared; NumPy's numbers pass as Python's."""
    for name, hint in hints_of(value.__class__).items():
        entry = getattr(value, name)
        if not dataclasses.is_dataclass(entry):
            read(hint, entry.item() if isinstance(entry, np.generic) else entry, prefix + name)


def plain(value: Any) -> Any:
    """Return a value as JSON holds it: mappings, lists, texts, finite numbers, booleans, None."""
    return json.loads(json.dumps(msgspec.to_builtins(value), allow_nan=False))


@functools.cache
def descriptions(kind: type) -> dict[str, str]:
    """Return the texts after the fields of a class and of its bases, by field."""
    texts = {}
    for base in reversed(kind.__mro__):
        if base.__module__.partition(".")[0] in {"builtins", "msgspec"}:
            continue
        (declared,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        for statement, text in itertools.pairwise(getattr(declared, "body", [])):
            match statement, text:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str(words))),
                ):
                    texts[name] = " ".join(words.split())
    return texts


@functools.cache
def hints_of(kind: Any) -> dict[str, Any]:
    """Return the types of a dataclass's fields, with their limits, by name."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def bare(hint: Any) -> Any:
    """Return a type without its constraints, and without None if it is optional."""
    while typing.get_origin(hint) is typing.Annotated:
        hint = typing.get_args(hint)[0]
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        (hint,) = (option for option in typing.get_args(hint) if option is not types.NoneType)
        return bare(hint)
    return hint


def _gentle(value: Any, hint: Any) -> Any:
    kind = bare(hint)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple and arguments[0] is str and isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    if origin is dict and isinstance(value, Mapping):
        return {str(name): _number(item) for name, item in value.items()}
    return _number(value) if kind is float else value


def _number(value: Any) -> Any:
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            return float(value)
    return value


def _one_line(message: str, value: Any, where: str) -> str:
    """Say in a person's words what msgspec found wrong."""
    what, _, place = message.partition(" - at ")
    path = re.findall(r"\.(\w+)|\[(\d+|\.\.\.)\]", place)
    names = [name for name, _ in path if name]
    where = ": ".join([where, ".".join(names)]) if names else where
    field = re.search(r"(missing required|unknown) field `(.*)`", what)
    if field:
        return f"{where} has no '{field[2]}'" if "missing" in what else f"{where}: {what}"
    known = "`key`" not in place
    try:
        for name, index in path:
            value = value[name] if name else value[int(index)]
    except (ValueError, LookupError, TypeError):  # some value of a mapping: [...]
        known = False
    expected = re.match(r"Expected `(.*?)`(.*?)(?:, got `(.*)`)?$", what)
    if not expected:
        return f"{where}: {printable(what)}"
    kinds, bound, got = expected.groups()
    wanted = " or ".join(_WORDS.get(kind, kind) for kind in kinds.split(" | "))
    if bound:
        for sign, words in ((">= ", "at least "), ("> ", "above "), ("< ", "below ")):
            bound = bound.replace(sign, words)
        wanted = bound.strip() if kinds in ("int", "float") else wanted + bound
    ending = f", not {shown(value) if known else _WORDS.get(got, got)}" if known or got else ""
    return f"{where} must be {wanted}{ending}"
