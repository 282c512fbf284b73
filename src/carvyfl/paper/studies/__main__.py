"""Run a study: python -m carvyfl.paper.studies NAME … (NAME --help lists its options).

The end-to-end study (certified accuracy where clients may attack from the first message on, and
what attacks on Step 1 do to each grouping) has parts: votes, certified, attacks, captured and cost
write JSON files, present draws them. A part whose file exists is not run again.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from carvyfl.attacks.step_one import STEP_ONE_ATTACKS
from carvyfl.core.errors import CarvyError
from carvyfl.learning.one_shot.model import RIDGE
from carvyfl.paper.published import BEST_GROUPS, DATASETS, METHODS, SAMPLES, SWEEP_SAMPLES
from carvyfl.paper.studies import (
    attacks,
    captured,
    certified,
    control_variates,
    cost,
    fidelity,
    flcert_p,
    heterogeneity,
    heterogeneity_figures,
    kept_gain,
    one_shot,
    one_shot_figures,
    precision,
    present,
    profile_attacks,
    quality,
)
from carvyfl.paper.studies.common import EVERYWHERE, add_options, keep_votes, run_part


def draw(args: Namespace) -> None:
    """Draw the reproduction's figures, tables, verdicts and report from its records.

    FOLDER (default: results) holds paper.jsonl and default.jsonl; nothing is trained.
    """
    from carvyfl.paper.present import present

    print(present(args.folder))


Argument = Mapping[str, Any] | None


@dataclass(frozen=True)
class Study:
    """A study: what runs it, what it does, its options with their defaults, and its argument."""

    run: Callable[[Namespace], None]
    about: str | None
    options: Mapping[str, Any]
    argument: Argument = None


def part(module: ModuleType, options: Mapping[str, Any], *, with_votes: bool = False) -> Study:
    """Return a part of the end-to-end study: it is called as its module is."""
    name = module.__name__.rpartition(".")[2]
    run = partial(run_part, name, module.measure, with_votes=with_votes)
    return Study(run, module.__doc__, {**EVERYWHERE, **PART, **options})


def study(module: ModuleType, out: str, argument: Argument = None, **options: Any) -> Study:
    """Return another study, which writes into a folder of its own."""
    given = {**EVERYWHERE, **options, "out": Path("results") / out}
    return Study(module.run, module.__doc__, given, argument)


SHARE: dict[str, Any] = {"validation-share": 0.1}
OUT = {"out": Path("results/end_to_end")}
PART = {**OUT, "preset": "default", "groups": 20, "inputs": None, "seed": 0}
DRAWS = {"draws": 10, "most": 9}
ON_PARTITIONS: dict[str, Any] = {
    "dataset": "fashion-mnist",
    "samples": 200,
    "seeds": (0, 1, 2),
    "learner": "one-shot",
    "groups": BEST_GROUPS,
    "features": None,
    "ridge": None,
}
TRAIN = {**EVERYWHERE, **PART, **DRAWS}

STUDIES = {
    "votes": Study(partial(keep_votes, certified.train), certified.train.__doc__, TRAIN),
    "certified": part(certified, {**DRAWS, "tried": 0}, with_votes=True),
    "attacks": part(attacks, {"m": (1, 5), "attacks": tuple(STEP_ONE_ATTACKS)}),
    "captured": part(captured, {"draws": 5}, with_votes=True),
    "cost": part(cost, {"timed": 5}),
    "present": Study(present.run, present.__doc__, OUT),
    "fidelity": study(
        fidelity,
        "fidelity",
        dataset="mnist",
        samples=50,
        precision="fp32",
        seeds=(0, 1, 2),
        work=Path("runs/fidelity"),
    ),
    "precision": study(
        precision,
        "precision",
        dataset="fashion-mnist",
        samples=200,
        seeds=(0, 1, 2, 3, 4),
        precisions=("bf16", "tf32"),
    ),
    "quality": study(
        quality,
        "quality",
        {"dest": "part", "choices": ["bound", "types"]},
        dataset=tuple(DATASETS),
        samples=SAMPLES,
        seeds=(0, 1, 2),
    ),
    "control-variates": study(
        control_variates, "attacks", dataset="mnist", samples=SWEEP_SAMPLES, seeds=1
    ),
    "one-shot": study(
        one_shot,
        "one_shot",
        dataset=tuple(DATASETS),
        samples=SAMPLES,
        seeds=(10,),
        methods=METHODS,
        groups=BEST_GROUPS,
        partition="class-disjoint",
        parameters=(),
        features="scattering",
        ridge=RIDGE,
        **SHARE,
        label="",
    ),
    "heterogeneity": study(
        heterogeneity,
        "heterogeneity",
        dataset="fashion-mnist",
        samples=200,
        seeds=(0, 1, 2, 3, 4),
        partitions=tuple(heterogeneity.PARTITIONS),
        learner="scaffold",
        types=None,
        epsilon=None,
        model=None,
        features=None,
        ridge=None,
        methods=("carvy", "balanced", "flcert", "slots"),
        groups=BEST_GROUPS,
        sweep=(14, 25, 33, 50, 100),
        together=1,
        label="",
    ),
    "heterogeneity-figures": Study(
        heterogeneity_figures.run,
        heterogeneity_figures.__doc__,
        {"out": Path("results/heterogeneity")},
    ),
    "flcert-p": study(
        flcert_p, "heterogeneity", **ON_PARTITIONS, partitions=flcert_p.PARTITIONS, draws=500
    ),
    "kept-gain": study(
        kept_gain,
        "end_to_end",
        **{**ON_PARTITIONS, "features": "scattering", "seeds": tuple(range(10))},
        partitions=kept_gain.WHERE,
        types="class-means",
        methods=("balanced", "carvy", "slots", "seats"),
        label="",
    ),
    "profile-attacks": study(
        profile_attacks,
        "heterogeneity",
        **ON_PARTITIONS,
        partitions=profile_attacks.PARTITIONS,
        m=(1, 5),
        attacks=tuple(STEP_ONE_ATTACKS),
    ),
    "one-shot-figures": Study(
        one_shot_figures.run, one_shot_figures.__doc__, {"out": Path("results/one_shot")}
    ),
    "draw": Study(
        draw, draw.__doc__, {}, {"dest": "folder", "type": Path, "nargs": "?", "default": "results"}
    ),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the study that the command line (or a list of arguments) names."""
    looks: dict[str, Any] = {"formatter_class": RawDescriptionHelpFormatter}
    program = "python -m carvyfl.paper.studies"
    parser = ArgumentParser(prog=program, description=__doc__, **looks)
    commands = parser.add_subparsers(required=True, metavar="NAME")
    for name, study in STUDIES.items():
        about = study.about or ""
        title = about.splitlines()[0]
        command = commands.add_parser(name, help=title, description=about, **looks)
        add_options(command, study.options)
        if study.argument:
            command.add_argument(**study.argument)
        command.set_defaults(run=study.run)
    args = parser.parse_args(arguments)
    try:
        args.run(args)
    except CarvyError as error:
        print(f"studies: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
