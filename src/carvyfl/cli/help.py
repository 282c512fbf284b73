"""Help texts that list what is registered, entries of other packages included."""

from __future__ import annotations

import pkgutil
import re
from typing import TYPE_CHECKING, Any

import click
from typer.core import TyperCommand

from carvyfl.cli.output import stopping_cleanly

if TYPE_CHECKING:
    from carvyfl.core.registry import Registry

REGISTRIES = {
    "aggregation_rules": "carvyfl.learning.scaffold.aggregation:AGGREGATION_RULES",
    "attacks": "carvyfl.attacks.registry:ATTACKS",
    "datasets": "carvyfl.data.datasets:DATASETS",
    "features": "carvyfl.learning.one_shot.features:FEATURES",
    "groupings": "carvyfl.groups.methods:GROUPINGS",
    "learners": "carvyfl.learning.learners:LEARNERS",
    "models": "carvyfl.learning.models:MODELS",
    "partitions": "carvyfl.data.partitions:PARTITIONS",
    "placements": "carvyfl.attacks.placement:PLACEMENTS",
    "profile_methods": "carvyfl.profiles.methods:PROFILE_METHODS",
    "shifts": "carvyfl.data.shifts:SHIFTS",
    "step_one_attacks": "carvyfl.attacks.step_one:STEP_ONE_ATTACKS",
}
"""All registries: what stands in braces in a help text, and where its names come from."""


def all_registries() -> list[Registry[Any]]:
    """Return every registry that a plugin can add to."""
    return [pkgutil.resolve_name(place) for place in REGISTRIES.values()]


def with_names(text: str) -> str:
    """Fill in the names that stand in braces in a help text."""
    return re.sub(
        r"{(\w+)}", lambda found: ", ".join(pkgutil.resolve_name(REGISTRIES[found[1]])), text
    )


class Command(TyperCommand):
    """A command that stops cleanly, and whose options say which variants there are."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; one that has more to say when it is stopped says it itself."""
        with stopping_cleanly():
            return super().invoke(ctx)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Fill the names in; not before, since loading the registries takes a while."""
        for parameter in self.params:
            text = getattr(parameter, "help", None)
            if text:
                parameter.help = with_names(text)  # type: ignore[attr-defined]
        super().format_help(ctx, formatter)
