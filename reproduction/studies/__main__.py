"""Run a study: python -m reproduction.studies NAME … (NAME --help lists its options).

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
from inspect import getdoc
from pathlib import Path
from typing import Any

from carvyfl.attacks.step_one import STEP_ONE_ATTACKS
from carvyfl.core.errors import CarvyError
from carvyfl.learning.learners import RIDGE
from reproduction.published import BEST_GROUPS, DATASETS, METHODS, SAMPLES, SWEEP_SAMPLES
from reproduction.studies.attacks import attacks
from reproduction.studies.certified import captured, certified, votes_of
from reproduction.studies.common import EVERYWHERE, add_options, keep_votes, run_part
from reproduction.studies.figures import heterogeneity_figures, one_shot_figures, present
from reproduction.studies.heterogeneity import (
    GAINS,
    OVERLAPPING,
    PARTITIONS,
    flcert_p,
    heterogeneity,
    kept_gain,
)
from reproduction.studies.one_shot import one_shot
from reproduction.studies.privacy import EPSILONS, privacy
from reproduction.studies.privacy_audit import privacy_attacks, privacy_audit
from reproduction.studies.privacy_figures import privacy_figures
from reproduction.studies.profile_attacks import PARTITIONS as LIED_ABOUT
from reproduction.studies.profile_attacks import profile_attacks
from reproduction.studies.training import control_variates, cost, fidelity, precision, quality


def draw(args: Namespace) -> None:
    """Draw the reproduction's figures, tables, verdicts and report from its records.

    FOLDER (default: results) holds paper.jsonl and default.jsonl; nothing is trained.
    """
    from reproduction.present import present

    print(present(args.folder))


@dataclass(frozen=True)
class Study:
    """A study: what runs it, what it does, its options with their defaults, and its argument."""

    run: Callable[[Namespace], None]
    about: str | None
    options: Mapping[str, Any]
    argument: Mapping[str, Any] | None = None


def study(
    run: Callable[[Namespace], None],
    out: str,
    about: str | None = None,
    argument: Mapping[str, Any] | None = None,
    **options: Any,
) -> Study:
    """Return a study that trains and writes into a folder of its own."""
    given = {**EVERYWHERE, **options, "out": Path("results") / out}
    return Study(run, about or getdoc(run), given, argument)


def part(measure: Callable[..., dict[str, Any]], *, with_votes: bool = False, **own: Any) -> Study:
    """Return a part of the end-to-end study: its record is called as the function is."""
    run = partial(run_part, measure, with_votes=with_votes)
    return study(run, "end_to_end", getdoc(measure), **PART, **own)


def drawing(run: Callable[[Namespace], None], out: str) -> Study:
    """Return a study that draws what others wrote."""
    return Study(run, getdoc(run), {"out": Path("results") / out})


SHARE: dict[str, Any] = {"validation-share": 0.1}
PART: dict[str, Any] = {"preset": "default", "groups": 20, "inputs": None, "seed": 0}
DRAWS: dict[str, Any] = {"draws": 10, "most": 9}
FASHION: dict[str, Any] = {"dataset": "fashion-mnist", "samples": 200}
HEADS: dict[str, Any] = {"seeds": (0, 1, 2), "learner": "one-shot", "features": None, "ridge": None}
ON_PARTITIONS: dict[str, Any] = {**FASHION, **HEADS, "groups": BEST_GROUPS}
STEP_ONE: dict[str, Any] = {"m": (1, 5), "attacks": tuple(STEP_ONE_ATTACKS)}

STUDIES = {
    "votes": study(partial(keep_votes, votes_of), "end_to_end", getdoc(votes_of), **PART, **DRAWS),
    "certified": part(certified, with_votes=True, **DRAWS, tried=0),
    "attacks": part(attacks, **STEP_ONE),
    "captured": part(captured, with_votes=True, draws=5),
    "cost": part(cost, timed=5),
    "present": drawing(present, "end_to_end"),
    "fidelity": study(
        fidelity,
        "fidelity",
        dataset="mnist",
        samples=50,
        precision="fp32",
        seeds=(0, 1, 2),
    ),
    "precision": study(
        precision, "precision", **FASHION, seeds=(0, 1, 2, 3, 4), precisions=("bf16", "tf32")
    ),
    "quality": study(
        quality,
        "quality",
        argument={"dest": "part", "choices": ["bound", "types"]},
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
        **FASHION,
        seeds=(0, 1, 2, 3, 4),
        partitions=tuple(PARTITIONS),
        learner="scaffold",
        **dict.fromkeys(["types", "epsilon", "model", "features", "ridge"]),
        methods=("carvy", "balanced", "flcert", "slots"),
        groups=BEST_GROUPS,
        sweep=(14, 25, 33, 50, 100),
        together=1,
        label="",
    ),
    "heterogeneity-figures": drawing(heterogeneity_figures, "heterogeneity"),
    "flcert-p": study(
        flcert_p, "heterogeneity", **ON_PARTITIONS, partitions=OVERLAPPING, draws=500
    ),
    "kept-gain": study(
        kept_gain,
        "end_to_end",
        **{**ON_PARTITIONS, "features": "scattering", "seeds": tuple(range(10))},
        partitions=GAINS,
        types="class-means",
        methods=("balanced", "carvy", "slots"),
        label="",
    ),
    "profile-attacks": study(
        profile_attacks, "heterogeneity", **ON_PARTITIONS, partitions=LIED_ABOUT, **STEP_ONE
    ),
    "privacy": Study(
        privacy,
        getdoc(privacy),
        {
            "dataset": ("fashion-mnist", "mnist"),
            "samples": (200, 500),
            "partitions": ("class-disjoint", "Dirichlet 0.3", "2 classes", "i.i.d."),
            "epsilons": EPSILONS,
            "seeds": (10,),
            **dict.fromkeys(["embeddings", "data-dir", "store", "commit"]),
            "out": Path("results/privacy"),
        },
    ),
    "privacy-audit": Study(
        privacy_audit,
        getdoc(privacy_audit),
        {
            "epsilons": (1.0, 2.0),
            "trials": 100_000,
            "commit": None,
            "out": Path("results/privacy"),
        },
    ),
    "privacy-attacks": Study(
        privacy_attacks,
        getdoc(privacy_attacks),
        {
            "dataset": "embedded",
            "epsilons": EPSILONS,
            "clients": 2000,
            **dict.fromkeys(["data-dir", "commit"]),
            "out": Path("results/privacy"),
        },
    ),
    "privacy-figures": Study(
        privacy_figures,
        getdoc(privacy_figures),
        {"out": Path("results/privacy"), "picture": Path("docs/images/privacy.png")},
    ),
    "one-shot-figures": drawing(one_shot_figures, "one_shot"),
    "draw": Study(
        draw, getdoc(draw), {}, {"dest": "folder", "type": Path, "nargs": "?", "default": "results"}
    ),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the study that the command line (or a list of arguments) names."""
    looks: dict[str, Any] = {"formatter_class": RawDescriptionHelpFormatter}
    program = "python -m reproduction.studies"
    parser = ArgumentParser(prog=program, description=__doc__, **looks)
    commands = parser.add_subparsers(required=True, metavar="NAME")
    for name, own in STUDIES.items():
        about = own.about or ""
        title = about.splitlines()[0]
        command = commands.add_parser(name, help=title, description=about, **looks)
        add_options(command, own.options)
        if own.argument:
            command.add_argument(**own.argument)
        command.set_defaults(run=own.run)
    args = parser.parse_args(arguments)
    try:
        args.run(args)
    except CarvyError as error:
        print(f"studies: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
