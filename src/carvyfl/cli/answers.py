"""What ``--json`` prints: one type for every answer, from which the JSON schemas are generated."""

from __future__ import annotations

from msgspec import Struct

from carvyfl.data.fetch import Availability, FileCheck
from carvyfl.group_count import GroupCount
from carvyfl.groups.basis import Basis
from carvyfl.runs.record import AttackResult, Certified, Check, Reasons, RunRecord, Verdict
from carvyfl.voting.spread import Spread, sample_sd


class CertifiedVotes(Certified, frozen=True, kw_only=True):
    """The certificate of votes that came with labels."""

    num_inputs: int
    """n, the number of inputs voted on."""
    num_classes: int
    """C, the number of classes."""
    assumptions: tuple[str, ...]
    """What the guarantee rests on, as sentences; the last one names the reading."""
    privacy: str | None
    """What the differential privacy of clients' messages covers; null where they are not private,
    or nothing is known of them."""
    confidence: float
    """Confidence of the interval, for each m by itself."""
    collective: CollectiveShare | None
    """The collective certificate; null unless --collective asks for it."""


class CollectiveShare(Struct, frozen=True):
    """For m = 0, 1, …: what one set of m malicious clients leaves of the test set."""

    ca: tuple[float, ...]
    """Percentage of all inputs that are certain to be answered correctly; which ones is left
    open."""
    exact: tuple[bool, ...]
    """Whether some m groups can leave no more than that; false is a lower bound."""


class UnlabelledVotes(Struct, frozen=True):
    """The certificate of votes without labels, input by input."""

    num_groups: int
    """G, the number of groups."""
    num_inputs: int
    """n, the number of inputs voted on."""
    num_classes: int
    """C, the number of classes."""
    assumptions: tuple[str, ...]
    """What the guarantee rests on, as sentences; the last one names the reading."""
    privacy: str | None
    """What the differential privacy of clients' messages covers; null where they are not private,
    or nothing is known of them."""
    certified_share: tuple[float, ...]
    """Without labels: percentage of inputs whose prediction m malicious clients cannot change, for
    m = 0, 1, …; ends with its first zero."""
    prediction: tuple[int, ...]
    """Without labels: the ensemble's label of each input; -1 where no group votes."""
    radius: tuple[int, ...]
    """Without labels: for each input, how many malicious clients cannot change its prediction; -1
    where no group votes."""


class CoinsShown(Struct, frozen=True):
    """What random slots were drawn from."""

    value: str
    """The coins, 32 bytes in hexadecimal."""
    source: str
    """Where they came from: the operating system's secure source (system), or the seed
    (simulated)."""
    commitment: str
    """Their hash, to be published before the reports."""


class Groups(Struct, frozen=True):
    """Steps 1 and 2: the type and the group of every client."""

    types: tuple[int, ...]
    """The type of each client; -1 for a client set aside."""
    type_names: tuple[str, ...]
    """A name for each type."""
    num_types: int
    """L, the number of types."""
    groups: tuple[int, ...]
    """The group of each client; -1 for a client in no group."""
    num_groups: int
    """G, the number of groups."""
    method: str
    """How the groups were formed."""
    diversity: tuple[float, ...]
    """For each group, the share of all types that it holds, 0…1."""
    certificate: Basis
    """What these groups allow a certificate to claim."""
    coins: CoinsShown | None
    """What random slots were drawn from; null if none were."""
    group_count: GroupCount | None
    """How G was chosen for `carvy`; null where it was set, or followed from types."""
    warnings: tuple[str, ...]
    """What looks wrong with the types, and what to try."""
    set_aside: Reasons
    """Clients whose message could not be used, by number, and why."""


class Run(RunRecord, frozen=True, omit_defaults=True, kw_only=True):
    """The record of a run, and where it lies."""

    run: str
    """The run folder."""


class Audit(Struct, frozen=True):
    """What an audit of a run folder checked, up to the first mismatch."""

    run: str
    """The run folder."""
    verdict: Verdict
    """Whether every claim holds that an audit can derive (all checked), or something was not at
    hand (as far as checked), or one does not hold (mismatch)."""
    checks: tuple[Check, ...]
    """One entry for each claim, up to the first mismatch."""


class Attacked(Struct, frozen=True):
    """What attacks on a finished run achieved; attacks.json in the run folder keeps all of them."""

    attacks: tuple[AttackResult, ...]
    """One result for each method attacked."""


class MeanCurve(Struct, frozen=True):
    """CA(m) over several seeds."""

    mean: tuple[float, ...]
    """The mean of CA(m) in percent, for m = 0, 1, …"""
    sd: tuple[float, ...]
    """The sample standard deviation of each CA(m) (ddof 1)."""
    auc_mean: float
    """The mean of the area under CA(m)."""
    auc_sd: float
    """The sample standard deviation of that area."""

    @classmethod
    def of(cls, curves: Spread) -> MeanCurve:  # noqa: D102
        areas = float(curves.auc.mean()), float(sample_sd(curves.auc))
        return cls(tuple(curves.mean.tolist()), tuple(curves.sd.tolist()), *areas)


class Seeds(Struct, frozen=True):
    """Runs that differ in the seed alone."""

    runs: tuple[str, ...]
    """The run folders."""
    seeds: tuple[int, ...]
    """Their seeds, in the same order."""
    methods: dict[str, dict[str, MeanCurve]]
    """What was certified, by method and by the run it is compared with: given_groups, honest_only,
    all_honest. A reading that is not proved in every run is absent."""
    privacy: str | None
    """What the differential privacy of all their messages covers; null where they are not
    private."""


class Prediction(Struct, frozen=True):
    """The label of one input, and how much it withstands."""

    input: str
    """The file; with [i] for the i-th input of a stack."""
    label: int | None
    """The ensemble's label; null if no group votes."""
    radius: dict[str, int | None]
    """How many malicious clients cannot change the label, by the run it is compared with:
    given_groups, honest_only, all_honest; null if nothing is proved."""
    votes: tuple[int, ...]
    """How many groups vote for each class."""


class Predictions(Struct, frozen=True):
    """Labels for new inputs."""

    method: str
    """Whose models voted."""
    predictions: tuple[Prediction, ...]
    """One entry for each input, in the order given."""
    assumptions: tuple[str, ...]
    """What the guarantee rests on, as sentences; the last one names the reading."""
    privacy: str | None
    """What the differential privacy of clients' messages covers; null where they are not
    private."""


class DataSets(Struct, frozen=True):
    """Which data sets there are."""

    datasets: tuple[Availability, ...]
    """All registered data sets."""


class DataFiles(Struct, frozen=True):
    """Whether a data set's files are the published ones."""

    name: str
    """The data set."""
    files: tuple[FileCheck, ...]
    """All files of the data set."""


ANSWERS: dict[str, tuple[str, tuple[type, ...]]] = {
    "certify": ("carvy certify VOTES --json", (CertifiedVotes, UnlabelledVotes)),
    "groups": ("carvy groups --json", (Groups,)),
    "run": ("carvy run --json, carvy show RUN --json", (Run,)),
    "seeds": ("carvy run --seeds … --json, carvy show RUN RUN… --json", (Seeds,)),
    "verify": ("carvy verify RUN --json", (Audit,)),
    "attack": ("carvy attack RUN --json", (Attacked,)),
    "predict": ("carvy predict RUN IMAGES… --json", (Predictions,)),
    "data": ("carvy data list --json, carvy data verify NAME --json", (DataSets, DataFiles)),
}
"""Every answer: the command that prints it, and its types."""
