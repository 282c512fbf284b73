"""The paper's figures and tables, as data: which trials each of them is made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from carvyfl.attacks.badnets import BadNets
from carvyfl.core.errors import CarvyError
from carvyfl.core.registry import pick
from carvyfl.paper.published import DATASETS, SAMPLES, SWEEP_SAMPLES, group_counts

ALL_MALICIOUS = tuple(range(21))
SINGLE_MALICIOUS = (0, 1, 2, 3, 10, 20)

PAPER_ATTACK, SCALED_ATTACK = "badnets", "badnets-scaled"
PAPER_ATTACKS: Mapping[str, BadNets] = {
    PAPER_ATTACK: BadNets(),
    SCALED_ATTACK: BadNets(control="scaled"),
}
"""The paper's attack by the name that records have for it: the paper does not say what attackers
report as control variate. The first is our reading; with the second, that of the scaled model,
hit groups blow up."""


@dataclass(frozen=True)
class Trial:
    """One measurement: what a record will hold.

    Attributes
    ----------
    kind
        ``ca`` (certified accuracy), ``asr`` (under the paper's attack) or ``types``.
    dataset, samples, seed
        Of the federation.
    method
        The grouping; "" for ``types``.
    groups
        G in the sweep over G; 0 for the method's own.
    attack
        A name of :data:`PAPER_ATTACKS`, for ``asr``.
    """

    kind: str
    dataset: str
    samples: int
    seed: int
    method: str = ""
    groups: int = 0
    attack: str = PAPER_ATTACK

    @property
    def malicious(self) -> tuple[int, ...]:
        """The numbers of malicious clients looked at."""
        return SINGLE_MALICIOUS if self.method == "single" else ALL_MALICIOUS


@dataclass(frozen=True)
class Only:
    """A part of a target: at most so many seeds, only these sizes, data sets and methods."""

    seeds: int | None = None
    samples: tuple[int, ...] | None = None
    datasets: tuple[str, ...] | None = None
    methods: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        """Refuse what no target has."""
        for dataset in self.datasets or ():
            pick(DATASETS, dataset, "data set")
        for method in self.methods or ():
            pick(_methods(), method, "method")
        for size in self.samples or ():
            if size not in SAMPLES:
                *smaller, largest = SAMPLES
                raise CarvyError(
                    f"no trial has {size} samples a client; use {', '.join(map(str, smaller))} "
                    f"or {largest}"
                )


EVERYTHING = Only()


@dataclass(frozen=True)
class Target:
    """A figure or table of the paper, and what it takes.

    Attributes
    ----------
    title
        What it is, in a few words.
    kind
        What is measured (:class:`Trial`).
    datasets, samples
        Of the federations.
    trials
        Method → number of trials with seeds 0, 1, …
    groups
        The values of G; (0,) for each method's own.
    attack
        A name of :data:`PAPER_ATTACKS`, for ``asr``.
    """

    title: str
    kind: str
    datasets: tuple[str, ...] = tuple(DATASETS)
    samples: tuple[int, ...] = (SWEEP_SAMPLES,)
    trials: Mapping[str, int] = field(
        default_factory=lambda: {"carvy": 10, "flcert": 10, "cluster": 10, "single": 3}
    )
    groups: tuple[int, ...] = (0,)
    attack: str = PAPER_ATTACK

    def expand(self, only: Only = EVERYTHING) -> list[Trial]:
        """Return the trials, or a part of them."""
        return [
            Trial(self.kind, dataset, size, seed, method, groups, self.attack)
            for dataset in self.datasets
            if only.datasets is None or dataset in only.datasets
            for size in self.samples
            if only.samples is None or size in only.samples
            for method, count in self.trials.items()
            if only.methods is None or not method or method in only.methods
            for groups in self.groups
            for seed in range(count if only.seeds is None else min(only.seeds, count))
        ]


TARGETS: Mapping[str, Target] = {
    "ca-mnist": Target("certified accuracy on MNIST", "ca", ("mnist",), SAMPLES),
    "ca-fashion-mnist": Target(
        "certified accuracy on Fashion-MNIST", "ca", ("fashion-mnist",), SAMPLES
    ),
    "asr": Target("attack success rate: curves, and the table of areas", "asr"),
    "asr-scaled": Target(
        "the same if attackers report the control variate of their scaled model",
        "asr",
        attack=SCALED_ATTACK,
    ),
    "groups": Target(
        "areas under CA for 18 numbers of groups",
        "ca",
        trials={"carvy": 3, "flcert": 6, "cluster": 3},
        groups=tuple(group_counts()),
    ),
    "types": Target(
        "type estimation: scatter plots and success counts",
        "types",
        samples=SAMPLES,
        trials={"": 10},
    ),
    "failed-types": Target(
        "certified accuracy when type estimation succeeds and when it fails",
        "ca",
        ("fashion-mnist",),
        trials={"carvy": 10},
    ),
}
"""Name → target; ``all`` stands for all of them."""


def _methods() -> dict[str, str]:
    return {name: name for target in TARGETS.values() for name in target.trials if name}


def named(names: Iterable[str]) -> dict[str, Target]:
    """Return the targets of these names, ``all`` being all of them.

    Raises
    ------
    CarvyError
        If a target is unknown.
    """
    found: dict[str, Target] = {}
    for name in names:
        found |= TARGETS if name == "all" else {name: pick(TARGETS, name, "target")}
    return found


def without_effect(targets: Mapping[str, Target], only: Only) -> list[str]:
    """Say what was asked of some targets that they do not have, a sentence each."""
    whole = {name: target.expand(replace(only, seeds=None)) for name, target in targets.items()}
    trials = [trial for part in whole.values() for trial in part]
    asked: list[tuple[str, tuple[object, ...] | None, set[object]]] = [
        ("--samples", only.samples, {trial.samples for trial in trials}),
        ("--dataset", only.datasets, {trial.dataset for trial in trials}),
        ("--method", only.methods, {trial.method for trial in trials}),
    ]
    found = [
        f"{flag} {value} fits no trial of {', '.join(targets)}"
        for flag, values, there in asked
        for value in values or ()
        if value not in there
    ]
    if only.seeds is not None:
        most = {name: 1 + max(t.seed for t in part) for name, part in whole.items() if part}
        fewer = [f"{name} has {n}" for name, n in most.items() if n < only.seeds]
        if fewer:
            found.append(f"--seeds {only.seeds} is more than there are: {', '.join(fewer)}")
    return found


def chosen(names: Iterable[str], only: Only = EVERYTHING) -> list[Trial]:
    """Return the distinct trials of some targets, those of one federation together.

    Raises
    ------
    CarvyError
        If a target is unknown, or nothing is left of them.
    """
    wanted = {trial for target in named(names).values() for trial in target.expand(only)}
    if not wanted:
        raise CarvyError("no trial fits; check --samples, --dataset and --method against it")
    return sorted(
        wanted, key=lambda t: (t.dataset, t.samples, t.seed, t.kind, t.method, t.groups, t.attack)
    )
