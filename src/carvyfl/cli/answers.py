"""What ``--json`` prints: one type for every answer, from which the JSON schemas are generated."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from carvyfl.data.fetch import Availability, FileCheck
from carvyfl.runs.audit import Check
from carvyfl.runs.record import AttackResult, Certified, Reasons, RunRecord

Assumptions = Annotated[
    tuple[str, ...],
    Meta(
        description="What the guarantee rests on, as sentences; "
        "the last one says how far it reaches into the grouping."
    ),
]


class CertifiedVotes(Certified, frozen=True, kw_only=True):
    """The certificate of votes that came with labels."""

    num_inputs: Annotated[int, Meta(description="n, the number of inputs voted on.")]
    num_classes: Annotated[int, Meta(description="C, the number of classes.")]
    assumptions: Assumptions
    confidence: Annotated[
        float, Meta(description="Confidence of the interval, for each m by itself.")
    ]


class UnlabelledVotes(Struct, frozen=True):
    """The certificate of votes without labels, input by input."""

    num_groups: Annotated[int, Meta(description="G, the number of groups.")]
    num_inputs: Annotated[int, Meta(description="n, the number of inputs voted on.")]
    num_classes: Annotated[int, Meta(description="C, the number of classes.")]
    assumptions: Assumptions
    certified_share: Annotated[
        tuple[float, ...],
        Meta(
            description="Without labels: percentage of inputs whose prediction m malicious clients "
            "cannot change, for m = 0, 1, …; ends with its first zero."
        ),
    ]
    prediction: Annotated[
        tuple[int, ...], Meta(description="Without labels: the ensemble's label of each input.")
    ]
    radius: Annotated[
        tuple[int, ...],
        Meta(
            description="Without labels: for each input, how many malicious clients cannot change "
            "its prediction."
        ),
    ]


class GroupsScope(Struct, frozen=True):
    """What groups allow a certificate to claim."""

    kind: Annotated[
        str,
        Meta(description="How far a certificate on these groups reaches: conditional, end-to-end."),
    ]
    because: Annotated[str, Meta(description="Why.")]
    honest_only: Annotated[
        int,
        Meta(
            description="If the kind is end-to-end: how many groups one malicious client can "
            "change, compared with a run without it."
        ),
    ]
    all_honest: Annotated[
        int, Meta(description="The same, compared with the run in which it behaves.")
    ]


class CoinsShown(Struct, frozen=True):
    """What random slots were drawn from."""

    value: Annotated[str, Meta(description="The coins, 32 bytes in hexadecimal.")]
    source: Annotated[
        str,
        Meta(
            description="Where they came from: the operating system's secure source (system), or "
            "the seed of a simulation (seed)."
        ),
    ]
    commitment: Annotated[str, Meta(description="Their hash, to be published before the reports.")]


class Groups(Struct, frozen=True):
    """Steps 1 and 2: the type and the group of every client."""

    types: Annotated[
        tuple[int, ...], Meta(description="The type of each client; -1 for a client set aside.")
    ]
    type_names: Annotated[tuple[str, ...], Meta(description="A name for each type.")]
    num_types: Annotated[int, Meta(description="L, the number of types.")]
    groups: Annotated[
        tuple[int, ...], Meta(description="The group of each client; -1 for a client in no group.")
    ]
    num_groups: Annotated[int, Meta(description="G, the number of groups.")]
    method: Annotated[str, Meta(description="How the groups were formed.")]
    diversity: Annotated[
        tuple[float, ...],
        Meta(description="For each group, the share of all types that it holds, 0…1."),
    ]
    certificate: Annotated[
        GroupsScope, Meta(description="What these groups allow a certificate to claim.")
    ]
    coins: Annotated[
        CoinsShown | None,
        Meta(description="What random slots were drawn from; null if none were."),
    ]
    warnings: Annotated[
        tuple[str, ...], Meta(description="What looks wrong with the types, and what to try.")
    ]
    set_aside: Annotated[
        Reasons, Meta(description="Clients whose message could not be used, by number, and why.")
    ]


class Run(RunRecord, frozen=True, omit_defaults=True, kw_only=True):
    """The record of a run, and where it lies."""

    run: Annotated[str, Meta(description="The run folder.")]


class Audit(Struct, frozen=True):
    """What an audit of a run folder checked, up to the first mismatch."""

    run: Annotated[str, Meta(description="The run folder.")]
    verdict: Annotated[
        Literal["ok", "mismatch"],
        Meta(description="Whether every claim that could be checked holds."),
    ]
    checks: Annotated[
        tuple[Check, ...], Meta(description="One entry for each claim, up to the first mismatch.")
    ]


class Attacked(Struct, frozen=True):
    """What attacks on a finished run achieved; attacks.json in the run folder keeps all of them."""

    attacks: Annotated[
        tuple[AttackResult, ...], Meta(description="One result for each method attacked.")
    ]


class Target(Struct, frozen=True):
    """A figure or table of the paper."""

    title: Annotated[str, Meta(description="What it is.")]
    trials: Annotated[int, Meta(description="The trials it takes.")]
    done: Annotated[
        dict[str, int],
        Meta(description="Trials whose records are there already, by preset."),
    ]


class Targets(Struct, frozen=True):
    """What can be reproduced."""

    targets: Annotated[
        dict[str, Target],
        Meta(
            description="Every target by name: its `title`, its `trials`, and how many are `done` "
            "with each preset."
        ),
    ]


class Reproduced(Struct, frozen=True):
    """What was run."""

    trials: Annotated[int, Meta(description="The trials of the targets, for each preset.")]
    presets: Annotated[tuple[str, ...], Meta(description="The presets they were run with.")]
    report: Annotated[str | None, Meta(description="The HTML report; null with --records-only.")]


class Prediction(Struct, frozen=True):
    """The label of one input, and how much it withstands."""

    input: Annotated[str, Meta(description="The file; with [i] for the i-th input of a stack.")]
    label: Annotated[int, Meta(description="The ensemble's label.")]
    radius: Annotated[int, Meta(description="How many malicious clients cannot change the label.")]
    end_to_end_radius: Annotated[
        int | None,
        Meta(
            description="The same against attacks on the grouping too (compared with a run without "
            "the malicious clients); null if nothing is proved."
        ),
    ]
    votes: Annotated[tuple[int, ...], Meta(description="How many groups vote for each class.")]


class Predictions(Struct, frozen=True):
    """Labels for new inputs."""

    method: Annotated[str, Meta(description="Whose models voted.")]
    predictions: Annotated[
        tuple[Prediction, ...], Meta(description="One entry for each input, in the order given.")
    ]
    assumptions: Assumptions


class DataSets(Struct, frozen=True):
    """Which data sets there are."""

    datasets: Annotated[tuple[Availability, ...], Meta(description="All registered data sets.")]


class DataFiles(Struct, frozen=True):
    """Whether a data set's files are the published ones."""

    name: Annotated[str, Meta(description="The data set.")]
    files: Annotated[tuple[FileCheck, ...], Meta(description="All files of the data set.")]


ANSWERS: dict[str, tuple[str, tuple[type, ...]]] = {
    "certify": ("carvy certify VOTES --json", (CertifiedVotes, UnlabelledVotes)),
    "groups": ("carvy groups --json", (Groups,)),
    "run": ("carvy run --json, carvy show RUN --json", (Run,)),
    "verify": ("carvy verify RUN --json", (Audit,)),
    "attack": ("carvy attack RUN --json", (Attacked,)),
    "reproduce": ("carvy reproduce --json, carvy reproduce TARGET --json", (Targets, Reproduced)),
    "predict": ("carvy predict RUN IMAGES… --json", (Predictions,)),
    "data": ("carvy data list --json, carvy data verify NAME --json", (DataSets, DataFiles)),
}
"""Every answer: the command that prints it, and its types."""
