"""Values read against types: what fits comes back, what does not is said in one line."""

from __future__ import annotations

import runpy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import pytest
from msgspec import Meta, Struct

from carvyfl.core.errors import CarvyError
from carvyfl.core.schema import check, plain, read, settings


class Part(Struct, frozen=True):
    """A part."""

    size: Annotated[int, Meta(ge=1)]
    """How large."""
    curve: Annotated[tuple[float, ...], Meta(min_length=1)]
    """Numbers."""


class Whole(Struct, frozen=True):
    """A whole."""

    parts: dict[str, Part]
    """By name."""
    note: str | None = None
    """A remark."""


@dataclass(frozen=True)
class Inner:
    rate: float = 0.5
    """A rate."""


@dataclass(frozen=True)
class Outer:
    count: Annotated[int, Meta(ge=1)] = 3
    """A number."""
    names: tuple[str, ...] = ("a",)
    """Names."""
    on: bool = False
    """A switch, of
    two positions."""
    inner: Inner = field(default_factory=Inner)
    """More."""


GOOD = {"parts": {"a": {"size": 2, "curve": [1, 2.5]}}, "note": None}


def test_plain_data_and_values_are_the_same() -> None:
    whole = read(Whole, GOOD, "x.json")
    assert whole.parts["a"] == Part(2, (1.0, 2.5))
    assert plain(whole) == GOOD
    with pytest.raises(ValueError, match="JSON"):
        plain(Part(1, (float("nan"),)))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([], ["x.json must be a mapping", "[]"]),
        ({}, ["x.json has no 'parts'"]),
        ({"parts": {}, "note": 3}, ["x.json: note must be a text or null, not 3"]),
        ({"parts": {"a": {"size": 0, "curve": [1]}}}, ["parts.size must be at least 1"]),
        ({"parts": {"a": {"size": True, "curve": [1]}}}, ["a whole number", "true or false"]),
        ({"parts": {"a": {"size": 1, "curve": []}}}, ["parts.curve", "length at least 1"]),
        ({"parts": {"a": {"size": 1, "curve": ["high"]}}}, ["a number", "a text"]),
        ({"parts": {}, "note": ["\x1b[2J\n" * 500]}, ["note must be a text or null"]),
    ],
    ids=str,
)
def test_what_does_not_fit_is_one_short_printable_line(value: Any, words: list[str]) -> None:
    with pytest.raises(CarvyError) as caught:
        read(Whole, value, "x.json")
    message = str(caught.value)
    assert message.isprintable()
    assert len(message) < 200
    for word in words:
        assert word in message


def test_settings_are_converted_gently() -> None:
    given = {"names": "a, b", "inner": {"rate": "1e-4"}}
    assert settings(Outer, given, "f") == {"names": ("a", "b"), "inner": {"rate": 1e-4}}
    assert settings(Outer, {"inner": {"rate": 1}}, "f") == {"inner": {"rate": 1.0}}
    for wrong, words in (
        ({"cuont": 3}, "did you mean 'count'"),
        ({"rate": 3}, "'rate' belongs under 'inner'"),
        ({"count": True}, "f: count must be a whole number, not True"),
        ({"count": "3"}, "must be a whole number"),
        ({"on": 1}, "must be true or false"),
        ({"inner": 3}, "must be a mapping of settings"),
    ):
        with pytest.raises(CarvyError, match=words):
            settings(Outer, wrong, "f")
    with pytest.raises(CarvyError, match="count must be at least 1, not 0"):
        check(Outer(count=0))


def test_a_schema_and_a_table_are_generated() -> None:
    script = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "reference.py"))
    schema = script["json_schema"]("Both", Whole, Part)
    assert schema["$defs"]["Part"]["properties"]["size"] == {
        "description": "How large.",
        "type": "integer",
        "minimum": 1,
    }
    assert [branch["$ref"] for branch in schema["anyOf"]] == ["#/$defs/Whole", "#/$defs/Part"]
    assert script["table"](Outer, default=True).splitlines()[2:] == [
        "| `count` | integer | 3 | A number. |",
        "| `names` | list of string | `a` | Names. |",
        "| `on` | boolean | false | A switch, of two positions. |",
        "| `inner` | object | see below | More. |",
    ]


@pytest.mark.parametrize("number", [float("inf"), float("nan"), "inf", "nan"])
def test_a_number_that_is_not_finite_is_refused_by_its_name(number: Any) -> None:
    with pytest.raises(CarvyError, match=r"x\.yaml: inner: rate must be a finite number"):
        settings(Outer, {"inner": {"rate": number}}, "x.yaml")
    with pytest.raises(CarvyError, match=r"^`rate must be a finite number, not"):
        check(Inner(float(number)), "`")
