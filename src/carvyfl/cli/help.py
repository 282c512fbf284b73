"""Help texts that list what is registered, entries of other packages included."""

from __future__ import annotations

import importlib
import re

import click
from typer.core import TyperCommand

REGISTRIES = {
    "attacks": ("carvyfl.attacks.registry", "ATTACKS"),
    "datasets": ("carvyfl.data.datasets", "DATASETS"),
    "features": ("carvyfl.learning.one_shot.features", "FEATURES"),
    "groupings": ("carvyfl.groups.methods", "GROUPINGS"),
    "models": ("carvyfl.learning.models.registry", "MODELS"),
    "partitions": ("carvyfl.data.partitions", "PARTITIONS"),
    "placements": ("carvyfl.attacks.placement", "PLACEMENTS"),
    "profile_methods": ("carvyfl.profiles.methods", "PROFILE_METHODS"),
}
"""What stands in braces in a help text, and where its names come from."""


def with_names(text: str) -> str:
    """Fill in the names that stand in braces in a help text."""

    def names(found: re.Match[str]) -> str:
        module, registry = REGISTRIES[found[1]]
        return ", ".join(getattr(importlib.import_module(module), registry))

    return re.sub(r"{(\w+)}", names, text)


class Command(TyperCommand):
    """A command whose options say which variants there are."""

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Fill the names in; not before, since loading the registries takes a while."""
        for parameter in self.params:
            text = getattr(parameter, "help", None)
            if text:
                parameter.help = with_names(text)  # type: ignore[attr-defined]
        super().format_help(ctx, formatter)
