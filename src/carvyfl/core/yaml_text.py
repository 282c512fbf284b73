"""YAML that somebody else wrote, read in bounded time and memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from carvyfl.core.errors import CarvyError, printable

LARGEST_FILE = 1_000_000  # bytes; the types of a hundred thousand clients fit
DEEPEST = 20  # levels of nesting
MOST_ALIASES = 10  # each can stand for all that was written before it
LONGEST_VALUE = 3_000  # characters; Python prints no whole number of more than 4,300 digits

# What PyYAML raises where a value is not of the type that it is said to be, or is a 13th month.
_NO_VALUE = (ValueError, LookupError, AttributeError, TypeError, OverflowError)


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, which alone would follow any nesting and any alias."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._aliases = 0
        self._open: list[str | None] = []  # anchors of what is being read

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Read the next value, within the limits."""
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        anchor = getattr(event, "anchor", None)
        problem = None
        if isinstance(event, yaml.AliasEvent):
            self._aliases += 1
            if self._aliases > MOST_ALIASES or anchor in self._open:
                problem = f"more than {MOST_ALIASES} aliases, or one within what it stands for"
        elif len(self._open) > DEEPEST:
            problem = f"nested more than {DEEPEST} deep"
        elif len(getattr(event, "value", "")) > LONGEST_VALUE:
            problem = f"a value of more than {LONGEST_VALUE:,} characters"
        if problem is not None:
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)
        self._open.append(None if isinstance(event, yaml.AliasEvent) else anchor)
        node = super().compose_node(parent, index)
        self._open.pop()
        return node


def read_yaml(text: str, where: str) -> Any:
    """Return the plain values, lists and mappings of a YAML text; errors call it ``where``."""
    try:
        return yaml.load(text, _Loader)
    except (yaml.YAMLError, *_NO_VALUE) as error:
        mark, why = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        line = f" in line {mark.line + 1}" if mark else ""
        reason = f" ({printable(why)})" if why else ""
        raise CarvyError(f"{where} is not valid YAML{line}{reason}; correct it") from error


def read_yaml_file(path: Path) -> Any:
    """Return what a YAML file stands for."""
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
        if len(content) > LARGEST_FILE:
            remedy = "too many for settings; give long lists of types with `given_types`"
            raise CarvyError(f"{path} has more than {LARGEST_FILE:,} bytes, {remedy}")
        return read_yaml(content.decode(), str(path))
    except OSError as error:
        raise CarvyError(f"cannot read the configuration {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise CarvyError(f"{path} is not valid YAML: no text in UTF-8; correct it") from error


def to_yaml(settings: dict[str, Any]) -> str:
    """Return plain settings as YAML, in their own order."""
    return yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)
