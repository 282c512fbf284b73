"""Write what is generated in the documentation: JSON schemas, tables of fields, included files.

``python scripts/reference.py`` writes them.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import typer

from carvyfl.cli import answers
from carvyfl.cli.commands import app
from carvyfl.cli.variants import with_names
from carvyfl.core.files import write_text
from carvyfl.core.schema import descriptions
from carvyfl.group_count import Candidate, GroupCount
from carvyfl.learning.recipe import Recipe
from carvyfl.runs import record
from carvyfl.runs.flower_settings import Settings
from carvyfl.settings import RunSettings

DOCS = Path(__file__).parents[1] / "docs"
REFERENCE = DOCS / "reference"
ROOT = DOCS.parent


def json_schema(title: str, *kinds: type) -> dict[str, Any]:
    """Return the JSON schema of a value that has one of these types.

    The docstring after a field is its description.
    """
    schemas, components = msgspec.json.schema_components(kinds)
    for kind in {own for top in kinds for own in _classes(top)}:
        for name, text in descriptions(kind).items():
            own = components[kind.__name__]["properties"][name]
            components[kind.__name__]["properties"][name] = {
                "description": with_names(text),
                **own,
            }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": title,
        **({"anyOf": list(schemas)} if len(kinds) > 1 else schemas[0]),
        "$defs": components,
    }


def table(*kinds: type, default: bool = False) -> str:
    """Return the fields of types as a Markdown table: name, type, meaning.

    With ``default``, the default values are a column, too.
    """
    heads = ["field", "type", *(["default"] if default else []), "meaning"]
    rows = [heads, ["---"] * len(heads)]
    for kind in kinds:
        (schema,), components = msgspec.json.schema_components([kind])
        properties = components[schema["$ref"].rpartition("/")[2]]["properties"]
        for name, text in descriptions(kind).items():
            cells = [f"`{name}`", _type_words(properties[name])]
            rows.append(
                [*cells, *([_default_words(kind, name)] if default else []), with_names(text)]
            )
    lines = dict.fromkeys(f"| {' | '.join(row)} |" for row in rows)  # a field of both kinds once
    return "\n".join(lines) + "\n"


def _classes(hint: Any) -> Iterator[type]:
    """Yield the dataclasses and structs that a type is made of, itself included."""
    if dataclasses.is_dataclass(hint) or hasattr(hint, "__struct_fields__"):
        yield hint
        parts = tuple(typing.get_type_hints(hint, include_extras=True).values())
    else:
        parts = typing.get_args(hint)
    for part in parts:
        yield from _classes(part)


def _type_words(schema: dict[str, Any]) -> str:
    """Name a JSON schema's type as a person would."""
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(map(_type_words, schema["anyOf"])))
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "$ref" in schema or "allOf" in schema:
        return "object"
    if schema.get("type") == "array" and schema.get("items"):
        return f"list of {_type_words(schema['items'])}"
    return str(schema.get("type", "any"))


def _default_words(kind: type, name: str) -> str:
    (field,) = (field for field in dataclasses.fields(kind) if field.name == name)
    value = field.default
    if field.default_factory is not dataclasses.MISSING:
        value = field.default_factory()
    if dataclasses.is_dataclass(value):
        return "see below"
    if value in (None, {}, ()):
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ", ".join(f"`{item}`" for item in value)
    return f"`{value}`" if isinstance(value, str) else str(value)


TABLES = {
    "certify": table(answers.CertifiedVotes, answers.UnlabelledVotes),
    "collective": table(answers.CollectiveShare),
    "groups": table(answers.Groups),
    "run": table(answers.Run),
    "seeds": table(answers.Seeds),
    "mean over seeds": table(answers.MeanCurve),
    "data of a run": table(record.Data),
    "types of a run": table(record.Types),
    "number of groups": table(GroupCount),
    "candidate": table(Candidate),
    "method": table(record.MethodResult),
    "certificate": table(record.Scope),
    "readings": table(record.Readings, record.ReadAgainst),
    "environment": table(record.Environment),
    "deployment": table(record.Deployment),
    "verify": table(answers.Audit),
    "check": table(record.Check),
    "attack": table(answers.Attacked, record.AttackResult),
    "predict": table(answers.Predictions),
    "prediction": table(answers.Prediction),
    "data": table(answers.DataSets, answers.DataFiles),
    "settings": table(RunSettings, default=True),
    "training": table(Recipe, default=True),
    "flower settings": table(Settings, default=True),
}
MARKED = re.compile(r"(<!-- table: ([\w ]+) -->\n).*?(<!-- end -->)", re.DOTALL)
INCLUDED = re.compile(r"(<!-- file: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def included(name: str) -> str:
    """Return a file as a page shows it: a table as it is, an example as a block of code.

    The content is part of the page, so that it can be read where no site is built. Examples have
    tests of their own, and their fence is one that the tests of pages do not run.
    """
    text = (ROOT / name).read_text(encoding="utf-8").strip("\n")
    return f"``` {{ .python }}\n{text}\n```" if name.endswith(".py") else text


def commands(command: Any, name: str = "carvy") -> Iterator[tuple[str, Any]]:
    """Yield every command that does something, with its whole name."""
    if not hasattr(command, "commands"):
        yield name, command
    for word, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, f"{name} {word}")


def option_table(command: Any) -> str:
    """Return the options of a command as a Markdown table, as its help has them."""
    rows = ["| option | meaning |", "|---|---|"]
    for parameter in command.params:
        argument = parameter.param_type_name == "argument"
        names = [parameter.name.upper()] if argument else parameter.opts
        default = "" if parameter.default in (None, False) else f" Default: `{parameter.default}`."
        about = with_names(parameter.help)
        rows.append(f"| {', '.join(f'`{name}`' for name in names)} | {about}{default} |")
    return "\n".join(rows) + "\n"


def with_options(page: str) -> str:
    """Return the page of commands with the table of each command's options."""
    known = dict(commands(typer.main.get_command(app)))
    if gone := set(re.findall(r"^## (carvy .*)$", page, re.MULTILINE)) - set(known):
        raise ValueError(f"commands.md describes what does not exist: {', '.join(sorted(gone))}")
    for name, command in known.items():
        before, heading, rest = page.partition(f"# {name}\n")
        about, head, rest = rest.partition("| option | meaning |\n")
        rows = list(itertools.takewhile(lambda line: line.startswith("|"), rest.splitlines(True)))
        if not (heading and head) or "# carvy" in about:
            raise ValueError(f"commands.md has no table of options for '{name}'")
        page = before + heading + about + option_table(command) + rest[len("".join(rows)) :]
    return page


def generated() -> dict[Path, str]:
    """Return the text of every file that is generated, or holds a generated table."""
    found = {
        REFERENCE / "schemas" / f"{name}.schema.json": json.dumps(
            json_schema(title, *kinds), indent=2, ensure_ascii=False
        )
        + "\n"
        for name, (title, kinds) in answers.ANSWERS.items()
    }
    for page in sorted(DOCS.rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        text = MARKED.sub(lambda m: f"{m[1]}\n{TABLES[m[2]]}\n{m[3]}", text)
        found[page] = INCLUDED.sub(lambda m: f"{m[1]}\n{included(m[2])}\n\n{m[3]}", text)
    found[REFERENCE / "commands.md"] = with_options(found[REFERENCE / "commands.md"])
    return found


def stale() -> list[Path]:
    """Return the files that are not as they would be generated."""
    return [
        path
        for path, text in generated().items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]


if __name__ == "__main__":
    behind = stale()
    for path, text in generated().items():
        if path in behind:
            write_text(path, text)
