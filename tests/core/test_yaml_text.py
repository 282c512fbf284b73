"""YAML from elsewhere: any text is read or refused within bounds."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from carvyfl.core.errors import CarvyError
from carvyfl.core.yaml_text import read_yaml, read_yaml_file

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(plain)
def test_plain_values_are_read_as_ever(value: Any) -> None:
    text = yaml.safe_dump(value)
    assert read_yaml(text, "text") == value


def test_a_few_aliases_are_read() -> None:
    text = "a: &x [1, 2]\nb: *x\nc: &y {k: 1}\nd: {<<: *y, l: 2}"
    read = read_yaml(text, "text")
    assert read == {"a": [1, 2], "b": [1, 2], "c": {"k": 1}, "d": {"k": 1, "l": 2}}


def laughs(levels: int) -> str:
    """Each level lists the one before nine times."""
    lines = ["l0: &l0 [lol]"]
    lines += [f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 9)}]" for i in range(1, levels)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (laughs(12), "aliases"),
        ("a: &a {b: {c: *a}}", "within what it stands for"),
        ("a: " + "[" * 100_000, "nested more than 20 deep"),
        ("- " * 3_000 + "a", "nested more than 20 deep"),
        ("a: 1" + ":59" * 200_000, "a value of more than"),
        ("a: 0x" + "f" * 500_000, "a value of more than"),
        ("a: !!bool x", "not valid YAML"),
        ("a: !!int ''", "not valid YAML"),
        ("a: !!timestamp x", "not valid YAML"),
        ("a: 2001-01-01 00:00:00 +99:99", "not valid YAML"),
        ("a: " + "9" * 2_999, None),
        ("a: \x1b[2J", "not valid YAML"),
    ],
)
def test_what_would_take_all_memory_or_time(text: str, reason: str | None) -> None:
    started = time.process_time()
    if reason is None:
        assert len(repr(read_yaml(text, "text"))) < 4_000
        return
    with pytest.raises(CarvyError) as caught:
        read_yaml(text, "text")
    message = str(caught.value)
    assert message.startswith("text is not valid YAML")
    assert reason in message
    assert message.isprintable()
    assert len(message) < 300
    assert time.process_time() - started < 10


@given(st.text("[]{}:-?&*!|>'\"%@`,# \nab01.~<=\\"))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        read_yaml(text, "text")
    except CarvyError as error:
        assert "\n" not in str(error)  # noqa: PT017


def test_a_file_of_many_megabytes_is_not_parsed(tmp_path: Path) -> None:
    path = tmp_path / "large.yaml"
    path.write_text("- 0\n" * 5_000_000)
    started = time.process_time()
    with pytest.raises(CarvyError, match=r"large\.yaml has more than 1,000,000 bytes"):
        read_yaml_file(path)
    assert time.process_time() - started < 5
