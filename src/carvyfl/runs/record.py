"""The record of a run: its schema, how it is made, and the seal that shows any later change."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Hashable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import numpy as np
from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import asdict

from carvyfl.attacks.scenario import Measured
from carvyfl.core.environment import usable_cores
from carvyfl.core.errors import CarvyError
from carvyfl.core.schema import plain
from carvyfl.data.datasets import DataSet
from carvyfl.group_count import GroupCount
from carvyfl.groups.basis import READINGS, Reading
from carvyfl.groups.grouping import Grouping
from carvyfl.learning.learners import learner_of
from carvyfl.privacy.statement import guarantee
from carvyfl.profiles.types import ClientTypes
from carvyfl.settings import RunSettings
from carvyfl.voting.certificate import Certificate
from carvyfl.voting.spread import Spread

if TYPE_CHECKING:
    from torch import nn

    from carvyfl.learning.job import GroupResult

R = TypeVar("R")

FORMAT = 4
"""Raised when files change their meaning."""

DIGEST = "digest"
"""The field that closes a sealed record."""

Count = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
Share = Annotated[float, Meta(ge=0, le=1)]
Curve = Annotated[tuple[float, ...], Meta(min_length=1)]
Reasons = dict[str, str]
Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$(?!\n)")]
# A method's name is that of its files; it may be of a grouping that is not registered here.
Method = Annotated[str, Meta(pattern=r"^[\w-]+$(?!\n)")]
Stopped = Annotated[
    str, Meta(pattern=r"^(rounds|patience|deadline|closed-form|diverged|empty|untrained)$(?!\n)")
]
Step = Annotated[str, Meta(pattern=r"^(types|training)$(?!\n)")]
Sent = Annotated[str, Meta(pattern=r"^(messages|down|up)$(?!\n)")]


class Data(Struct, frozen=True):
    """What was trained and tested on."""

    name: str
    """The data set."""
    input_shape: Annotated[tuple[Positive, ...], Meta(min_length=1)]
    """The shape of one input."""
    input_type: Annotated[str, Meta(pattern=r"^(uint8|float32)$(?!\n)")]
    """The type of inputs: uint8 or float32."""
    num_classes: Annotated[int, Meta(ge=2)]
    """C, the number of classes."""
    class_names: Annotated[tuple[str, ...], Meta(min_length=1)]
    """A name for each class."""
    mean: float
    """Subtracted from every input value."""
    std: Annotated[float, Meta(gt=0)]
    """Every input value is divided by it."""
    test_inputs: Positive
    """n, the number of test inputs."""
    test_sha256: Digest
    """The SHA-256 over type, shape and bytes of the test inputs, then of the test labels."""
    train_sha256: Digest | None
    """The same of the training set; null in a real federation, whose clients keep theirs."""


class Types(Struct, frozen=True):
    """What Step 1 found."""

    method: str
    """How types were found."""
    num_types: Count
    """L, the number of types."""
    sizes: Annotated[tuple[Positive, ...], Meta(min_length=1)]
    """The number of clients of each type."""
    names: tuple[str, ...]
    """A name for each type."""
    warnings: tuple[str, ...]
    """What looks wrong, and what to try."""
    set_aside: Reasons
    """Clients whose message could not be used, by number, and why."""
    true_types: tuple[int, ...] | None
    """The true type of each client in a simulation; null if there is none."""


class Certified(Struct, frozen=True):
    """Certified accuracy of an ensemble on labelled inputs."""

    num_groups: int
    """G, the number of groups."""
    ca: Curve
    """CA(m), certified accuracy in percent, for m = 0, 1, …; the curve ends with its first
    zero."""
    ca_low: Curve
    """Lower end of the confidence interval of each CA(m), in percent."""
    ca_high: Curve
    """Upper end of the confidence interval of each CA(m), in percent."""
    auc: float
    """Area under CA(m) by the trapezoid rule, in percent × clients."""
    per_class_ca: tuple[Curve | None, ...]
    """For each class, CA(m) on its inputs; null for a class without inputs."""


class Scope(Struct, frozen=True):
    """Why a certificate may claim what it does."""

    because: str
    """What the claims rest on in this run."""
    assumptions: tuple[str, ...]
    """What the guarantee rests on, as sentences; the last one names the reading of `ca`."""


class ReadAgainst(Struct, frozen=True):
    """Certified accuracy against one of three runs."""

    groups_per_client: int
    """How many groups one malicious client can change against that run, at most; CA(m) counts
    margins of twice that times m."""
    ca: Curve
    """CA(m) in percent."""
    auc: float
    """Area under it."""


class Readings(Struct, frozen=True):
    """Certified accuracy by the run it compares with; null if nothing is proved."""

    given_groups: ReadAgainst | None
    """Compared with the same groups without their malicious members."""
    honest_only: ReadAgainst | None
    """Compared with a run without the malicious clients, its grouping included."""
    all_honest: ReadAgainst | None
    """Compared with the run in which all clients behave."""


class CertifiedMethod(Certified, frozen=True):
    """What follows from the votes and the grouping of a method; `ca` is given these groups."""

    certificate: Scope
    """Why the certificate may claim what it does."""
    readings: Readings
    """Certified accuracy by the run it compares with."""


class MethodResult(CertifiedMethod, frozen=True):
    """What a run found with one method; intervals have 95 % confidence."""

    rounds: Annotated[tuple[Count, ...], Meta(min_length=1)]
    """The rounds that each group trained."""
    stopped: Annotated[tuple[Stopped, ...], Meta(min_length=1)]
    """Why each group stopped: rounds (all made), patience (early stop), deadline (the operator's),
    closed-form (one-shot: no rounds); diverged, empty or untrained (casts no vote)."""
    validation_accuracy: Annotated[tuple[tuple[Share | None, ...], ...], Meta(min_length=1)]
    """For each group, the mean validation accuracy (0…1) after every round; null where it was
    not measured: without validation data, and in most rounds without patience."""
    benched: tuple[Count, ...]
    """Clients in no group."""
    set_aside: Reasons
    """Clients whose reports could not be used, by number, and why."""


class Environment(Struct, frozen=True, kw_only=True):
    """What a result was computed with."""

    commit: str | UnsetType | None = UNSET
    """The commit of the source tree; null for an installed package."""
    carvyfl: str
    """Version of this package."""
    python: str
    """Version of Python."""
    torch: str
    """Version of PyTorch."""
    numpy: str
    """Version of NumPy."""
    processor: str
    """The processor's name."""
    cores: Positive
    """Cores that could be used."""
    gpu: str | None
    """The GPU's name; null without one."""
    engine: Literal["loop", "batched", "ray", "flower"]
    """What trained the groups."""
    precision: Literal["fp32", "tf32", "bf16"]
    """What products were computed in."""
    flower: str | UnsetType = UNSET
    """Version of Flower, if the clients were real."""


class Deployment(Struct, frozen=True):
    """How a Flower run was made."""

    settings: dict[str, Any]
    """The settings of the app, as in config.yaml."""
    authenticated: bool
    """Whether only holders of registered keys took part."""
    identity: str
    """What a client's name stands for, or why it stands for nothing."""
    clients: Annotated[tuple[str, ...], Meta(min_length=1)]
    """The clients' names, by number."""
    samples: Annotated[tuple[Count, ...], Meta(min_length=1)]
    """How many samples each client trains on; 0 if it did not say."""
    traffic: dict[Step, dict[Sent, Count]]
    """Messages, bytes down to and bytes up from all clients, in Steps 1 (types) and 3 (training),
    since the server was last started; a message that had to be sent again counts once."""


def population(config: RunSettings, deployment: Deployment | UnsetType) -> str:
    """Say how many clients there are, and what they train on if that is known of all."""
    samples = (config.samples,) if deployment is UNSET else deployment.samples
    number, low, high = f"{config.clients} clients", min(samples), max(samples)
    if low == 0:  # somebody did not say
        return number
    return f"{number} with {low if low == high else f'{low} to {high}'} samples"


class Privacy(Struct, frozen=True):
    """The differential privacy of what clients sent, against the server and everybody else."""

    epsilon: float
    """ε of a client's message, for one of its samples added or removed."""
    delta: float
    """δ of a client's message."""
    map: Digest
    """The SHA-256 of the map from features to the vectors in a message."""
    made_of: str
    """What the map was made of; no client's data."""
    message_bytes: Positive
    """The size of a message, which is all that leaves a client."""
    guarantee: str
    """What this covers, and what adds up."""


class RunRecord(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The record of a run, run.json."""

    format: int
    """The number of this format."""
    config: RunSettings
    """The configuration, as in config.yaml; of a Flower run what is known of it: N, and the median
    of the clients' samples."""
    data: Data
    """What was trained and tested on."""
    types: Types | None
    """What Step 1 found; null if no method needed types."""
    group_count: GroupCount | UnsetType = UNSET
    """How G was chosen for `carvy`; absent where it was set, or followed from types."""
    methods: Annotated[dict[Method, MethodResult], Meta(min_length=1)]
    """The result of every method."""
    deployment: Deployment | UnsetType = UNSET
    """How a Flower run was made; absent in simulations."""
    privacy: Privacy | UnsetType = UNSET
    """The privacy of what clients sent; absent where they send numbers without noise."""
    seconds: Annotated[float, Meta(ge=0)]
    """How long the run took."""
    environment: Environment
    """What it was computed with."""
    files: dict[str, str]
    """The SHA-256 of every other file but attacks.json and those in federation/, by name."""
    digest: str = ""
    """The SHA-256 of the record without this field, as it is written."""

    @property
    def budget(self) -> tuple[float, float] | None:
        """ε and δ of what every client sent; None where that was not private."""
        return (self.privacy.epsilon, self.privacy.delta) if self.privacy else None

    @property
    def missed_estimate(self) -> tuple[str, ...]:
        """A sentence if the models of `carvy` are far below what G was chosen by."""
        if self.group_count and "carvy" in self.methods:
            return self.group_count.missed_by(self.methods["carvy"].ca[0])
        return ()


@dataclass(frozen=True, kw_only=True)
class AttackResult(Measured):
    """One attack on one method of a run, for several numbers of malicious clients."""

    attack: str
    """The attack."""
    settings: dict[str, Any]
    """The attack's settings, by name."""
    placement: str
    """Where the malicious clients sat: the name of a placement, or the clients."""
    method: str
    """The method attacked."""
    promise_kept: bool
    """Whether accuracy under attack was never below CA(m)."""
    seconds: float
    """How long it took."""
    environment: Environment
    """What it was computed with."""

    def __post_init__(self) -> None:
        curves = (self.accuracy, self.certified, self.asr, self.asr_if_lost_votes_target)
        if any(curve is not None and len(curve) != len(self.m) for curve in curves):
            raise CarvyError("an attack's result has one value for every m")

    @property
    def key(self) -> str:
        """What distinguishes the result from others on the same run."""
        return json.dumps([self.attack, self.settings, self.placement, self.method], sort_keys=True)


class Attacks(Struct, frozen=True):
    """The file attacks.json."""

    run: str
    attacks: tuple[AttackResult, ...]


Verdict = Literal["all checked", "as far as checked", "mismatch"]
"""What an audit of a run comes to."""
State = Literal["ok", "mismatch", "not checked", "cannot be derived"]


@dataclass(frozen=True)
class Check:
    """One line of an audit."""

    what: str
    """What was looked at."""
    state: State
    """What came of it: not checked is what could be, with more at hand; what cannot be derived from
    a folder by any audit does not count against the verdict."""
    detail: str
    """How it was derived, what differs, or why it could not be checked."""


def certified(certificate: Certificate, confidence: float = 0.95) -> Certified:
    """Return certified accuracy as a record has it."""
    low, high = certificate.ca_interval(confidence)
    classes = certificate.per_class_ca()
    return Certified(
        num_groups=certificate.num_groups,
        ca=tuple(certificate.ca().tolist()),
        ca_low=tuple(low.tolist()),
        ca_high=tuple(high.tolist()),
        auc=certificate.auc(),
        per_class_ca=tuple(None if np.isnan(row).any() else tuple(row.tolist()) for row in classes),
    )


def certified_method(certificate: Certificate) -> CertifiedMethod:
    """Return everything that a record says of a method's certificate."""
    basis, readings = certificate.basis, dict[str, ReadAgainst | None].fromkeys(READINGS)
    for name in basis.readings:
        proved = certificate.under(name)
        ca = tuple(proved.ca().tolist())
        readings[name] = ReadAgainst(getattr(basis, name), ca, proved.auc())
    return CertifiedMethod(
        **asdict(certified(certificate)),
        certificate=Scope(basis.because, certificate.assumptions),
        readings=Readings(**readings),
    )


def method_result(
    grouping: Grouping, results: Sequence[GroupResult], certificate: Certificate
) -> MethodResult:
    """Return what a record says of a method: its groups, their training, its certificate."""
    return MethodResult(
        **asdict(certified_method(certificate)),
        rounds=tuple(result.rounds for result in results),
        stopped=tuple(result.stopped for result in results),
        validation_accuracy=tuple(
            tuple(None if math.isnan(a) else round(a, 5) for a in result.accuracy)
            for result in results
        ),
        benched=tuple(grouping.benched.tolist()),
        set_aside={str(k): why for result in results for k, why in result.set_aside.items()},
    )


def privacy_entry(module: nn.Module) -> Privacy | UnsetType:
    """Return what a record says of the privacy of the messages for a model."""
    about = learner_of(module).privacy(module)
    return UNSET if about is None else Privacy(**about)


def guarantee_over(records: Sequence[RunRecord]) -> str:
    """Say what ε covers in runs with the same settings; nothing where they are not private.

    The same clients are taken to have sent a message in each.
    """
    budget = records[0].budget
    return "" if budget is None else guarantee(*budget, messages=len(records))


def data_entry(dataset: DataSet) -> Data:
    """Return what a record says of the data; a data set without training data is a federation's."""
    return Data(
        **{name: getattr(dataset, name) for name in ("name", "num_classes", "mean", "std")},
        class_names=tuple(dataset.class_names),
        input_shape=dataset.test.inputs.shape[1:],
        input_type=str(dataset.test.inputs.dtype),
        test_inputs=len(dataset.test),
        test_sha256=dataset.test.sha256(),
        train_sha256=dataset.train.sha256() if len(dataset.train) else None,
    )


def types_entry(types: ClientTypes, true_types: Iterable[int] | None) -> Types:
    """Return what a record says of Step 1, and of the true types if they are known."""
    return Types(
        method=types.method,
        num_types=types.num_types,
        sizes=tuple(types.sizes.tolist()),
        names=tuple(types.names),
        warnings=tuple(types.warnings),
        set_aside={str(client): reason for client, reason in types.set_aside.items()},
        true_types=None if true_types is None else tuple(int(t) for t in true_types),
    )


def seed_sets(runs: Sequence[tuple[R, RunRecord]]) -> list[list[tuple[R, RunRecord]]]:
    """Put runs together that differ in the seed alone; a seed that comes twice stays by itself."""
    sets: dict[Hashable, list[tuple[R, RunRecord]]] = {}
    for run, record in runs:
        config = replace(record.config, seed=0, data_dir=None)
        key: tuple[Hashable, ...] = (config.to_yaml(), record.data.test_sha256)
        if any(record.config.seed == other.config.seed for _, other in sets.get(key, [])):
            key = (*key, len(sets))
        sets.setdefault(key, []).append((run, record))
    return list(sets.values())


def spreads(records: Sequence[RunRecord]) -> dict[str, dict[Reading, Spread]]:
    """Return CA(m) of every method over the runs, by method and reading that all runs have."""
    by_method: dict[str, dict[Reading, Spread]] = {}
    for method in records[0].methods:
        entries = [record.methods[method].readings for record in records]
        curves = {reading: [getattr(entry, reading) for entry in entries] for reading in READINGS}
        by_method[method] = {
            reading: Spread.of([curve.ca for curve in proved])
            for reading, proved in curves.items()
            if None not in proved
        }
    return by_method


def hashes(folder: Path, files: Iterable[Path]) -> dict[str, str]:
    """Return the SHA-256 of files, by their names relative to the folder."""
    names = {file.relative_to(folder).as_posix(): file for file in files}
    with ThreadPoolExecutor(usable_cores()) as threads:  # every method has a file of its models
        return dict(zip(names, threads.map(sha256, names.values()), strict=True))


def sealed(record: Struct | dict[str, Any]) -> str:
    """Return the only text of a record that :func:`unsealed` takes, closed by its SHA-256."""
    content = record if isinstance(record, dict) else plain(record)
    digest = hashlib.sha256(_text(content).encode()).hexdigest()
    return _text({**content, DIGEST: digest})


def unsealed(text: str) -> dict[str, Any]:
    """Return the record in a sealed text, without its digest; refuse a text changed since."""
    try:
        record = json.loads(text)
        record.pop(DIGEST)
        intact = sealed(record) == text
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError):
        raise CarvyError("the record is damaged, or was written without a digest") from None
    if not intact:
        raise CarvyError("the record was changed after it was written")
    return dict(record)


def _text(record: dict[str, Any]) -> str:
    return json.dumps(record, indent=1, allow_nan=False)


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal digits."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise CarvyError(f"cannot read {path}: {error.strerror}") from error
