"""The paper's figures and tables, as data: which trials each of them is made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from carvyfl.attacks.badnets import BadNets
from carvyfl.attacks.placement import paper_placement
from carvyfl.core.errors import CarvyError
from carvyfl.core.registry import pick
from reproduction.published import DATASETS, SAMPLES, SWEEP_SAMPLES, group_counts

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

    ``kind`` is ``ca`` (certified accuracy), ``asr`` (under the paper's attack, a name of
    :data:`PAPER_ATTACKS`) or ``types``, which has no method; ``groups`` is G in the sweep over G,
    None for the method's own.
    """

    kind: str
    dataset: str
    samples: int
    seed: int
    method: str = ""
    groups: int | None = None
    attack: str = PAPER_ATTACK

    @property
    def placement(self) -> str:
        """Where malicious clients sit: as in the paper."""
        return paper_placement(self.method)

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
        methods = {name: name for target in TARGETS.values() for name in target.trials if name}
        for method in self.methods or ():
            pick(methods, method, "method")
        for size in self.samples or ():
            if size not in SAMPLES:
                *smaller, largest = SAMPLES
                raise CarvyError(
                    f"no trial has {size} samples a client; use {', '.join(map(str, smaller))} "
                    f"or {largest}"
                )

    def keeps(self, trial: Trial) -> bool:
        """Return whether a trial is in this part; types are found before any method."""
        return (
            (self.seeds is None or trial.seed < self.seeds)
            and (self.samples is None or trial.samples in self.samples)
            and (self.datasets is None or trial.dataset in self.datasets)
            and (self.methods is None or not trial.method or trial.method in self.methods)
        )


@dataclass(frozen=True)
class Target:
    """A figure or table of the paper, and the trials it takes (:class:`Trial`).

    ``trials`` says how many there are of every method, with seeds 0, 1, …
    """

    title: str
    kind: str
    datasets: tuple[str, ...] = tuple(DATASETS)
    samples: tuple[int, ...] = (SWEEP_SAMPLES,)
    trials: Mapping[str, int] = field(
        default_factory=lambda: {"carvy": 10, "flcert": 10, "cluster": 10, "single": 3}
    )
    groups: tuple[int | None, ...] = (None,)
    attack: str = PAPER_ATTACK

    def expand(self, only: Only | None = None) -> list[Trial]:
        """Return the trials, or a part of them."""
        trials = [
            Trial(self.kind, dataset, size, seed, method, groups, self.attack)
            for dataset in self.datasets
            for size in self.samples
            for method, count in self.trials.items()
            for groups in self.groups
            for seed in range(count)
        ]
        return [trial for trial in trials if only is None or only.keeps(trial)]


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


def named(names: Iterable[str]) -> dict[str, Target]:
    """Return the targets of these names, ``all`` being all of them."""
    found: dict[str, Target] = {}
    for name in names:
        found |= TARGETS if name == "all" else {name: pick(TARGETS, name, "target")}
    return found


def without_effect(targets: Mapping[str, Target], only: Only) -> list[str]:
    """Say what was asked of some targets that they do not have, a sentence each."""
    whole = {name: target.expand(replace(only, seeds=None)) for name, target in targets.items()}
    asked = {"samples": only.samples, "dataset": only.datasets, "method": only.methods}
    found = [
        f"--{option} {value} fits no trial of {', '.join(targets)}"
        for option, values in asked.items()
        for value in values or ()
        if not any(getattr(trial, option) == value for part in whole.values() for trial in part)
    ]
    if only.seeds is not None:
        most = {name: 1 + max(t.seed for t in part) for name, part in whole.items() if part}
        fewer = [f"{name} has {n}" for name, n in most.items() if n < only.seeds]
        if fewer:
            found.append(f"--seeds {only.seeds} is more than there are: {', '.join(fewer)}")
    return found


def chosen(names: Iterable[str], only: Only | None = None) -> list[Trial]:
    """Return the distinct trials of some targets, those of one federation together.

    Raises
    ------
    CarvyError
        If a target is unknown, or nothing is left of them.
    """
    wanted = {trial for target in named(names).values() for trial in target.expand(only)}
    if not wanted:
        raise CarvyError("no trial fits; check --samples, --dataset and --method against it")

    def order(t: Trial) -> tuple[str | int, ...]:
        return t.dataset, t.samples, t.seed, t.kind, t.method, t.groups or 0, t.attack

    return sorted(wanted, key=order)
