"""Run a study: python -m carvyfl.paper.studies NAME … (NAME --help lists its options).

The end-to-end study (certified accuracy where clients may attack from the first message on, and
what attacks on Step 1 do to each grouping) has parts: votes, certified, attacks, captured and cost
write JSON files, present draws them. A part whose file exists is not run again.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from carvyfl.core.errors import CarvyError
from carvyfl.paper.studies import (
    attacks,
    captured,
    certified,
    control_variates,
    cost,
    fidelity,
    precision,
    present,
    quality,
)


def draw_options(parser: ArgumentParser) -> None:
    """Add the option of `draw`."""
    parser.add_argument("folder", type=Path, nargs="?", default=Path("results"))


def draw(args: Namespace) -> None:
    """Draw the reproduction's figures, tables, verdicts and report from its records.

    FOLDER (default: results) holds paper.jsonl and default.jsonl; nothing is trained.
    """
    from carvyfl.paper.present import present

    print(present(args.folder))


STUDIES: Mapping[
    str, tuple[str | None, Callable[[ArgumentParser], None], Callable[[Namespace], None]]
] = {
    "votes": (certified.run_votes.__doc__, certified.options, certified.run_votes),
    "certified": (certified.__doc__, certified.options, certified.run),
    "attacks": (attacks.__doc__, attacks.options, attacks.run),
    "captured": (captured.__doc__, certified.add_draw_options, captured.run),
    "cost": (cost.__doc__, cost.options, cost.run),
    "present": (present.__doc__, present.options, present.run),
    "fidelity": (fidelity.__doc__, fidelity.options, fidelity.run),
    "precision": (precision.__doc__, precision.options, precision.run),
    "quality": (quality.__doc__, quality.options, quality.run),
    "control-variates": (control_variates.__doc__, control_variates.options, control_variates.run),
    "draw": (draw.__doc__, draw_options, draw),
}
"""Name → what it does, its options, and the study."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the study that the command line (or a list of arguments) names."""
    parser = ArgumentParser(
        prog="python -m carvyfl.paper.studies",
        description=__doc__,
        formatter_class=RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="NAME")
    for name, (about, options, run) in STUDIES.items():
        about = about or ""
        command = commands.add_parser(
            name,
            help=about.splitlines()[0],
            description=about,
            formatter_class=RawDescriptionHelpFormatter,
        )
        options(command)
        command.set_defaults(run=run)
    args = parser.parse_args(arguments)
    try:
        args.run(args)
    except CarvyError as error:
        print(f"studies: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
