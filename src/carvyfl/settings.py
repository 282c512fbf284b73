"""Every setting, declared once: its name, its type and limits, its default, and what it means.

Options, parameters of :class:`~carvyfl.CarvyFL`, YAML, the settings of a Flower app, checks and
reference pages are made from these classes; the text after a field is what they say of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta

from carvyfl.core.errors import CarvyError
from carvyfl.core.schema import plain
from carvyfl.core.yaml_text import to_yaml
from carvyfl.learning.learners import LEARNERS, OWN_TYPES, RIDGE
from carvyfl.learning.recipe import Recipe

if TYPE_CHECKING:  # torch takes seconds to import, and reading settings needs none
    from torch import nn

    from carvyfl.groups.methods import GroupingMethod
    from carvyfl.learning.models import Shape
    from carvyfl.profiles.methods import Known

Count = Annotated[int, Meta(ge=1)]
NOISY_TYPES = "private-shares"  # with noise of their own, whatever the learner is
LISTED = {"given": "given_types", "covariates": "covariates"}
"""The types for which the operator lists something of every client, and in which setting."""


@dataclass(frozen=True, kw_only=True)
class PrivacySettings:
    """Differential privacy against the server."""

    epsilon: Annotated[float, Meta(gt=0)] = 2.0
    """ε of one message of `learner: private`, for a sample added or removed, or of `types:
    private-shares`, for all of a client's data. Further messages of a client (another seed or
    setting) spend ε again, and these add up."""
    delta: Annotated[float, Meta(gt=0, lt=1)] = 1e-5
    """δ of `learner: private`; below one over the number of a client's samples."""


def check_privacy_asked(learner: str, types: object) -> None:
    """Refuse ε or δ that somebody set, where clients add no noise to anything."""
    if "epsilon" not in LEARNERS.pick(learner).settings and types != NOISY_TYPES:
        raise CarvyError(
            f"`epsilon` and `delta` would protect nothing: clients of the learner '{learner}' send "
            "exact numbers; use `learner='private'`, or leave them out"
        )


@dataclass(frozen=True, kw_only=True)
class LearningSettings(PrivacySettings):
    """Step 3: how every group learns."""

    model: str = field(default="compact-cnn", kw_only=False)
    """The model of learning in rounds: {models}; one-shot learning has a linear head instead."""
    learner: str = "scaffold"
    """How a group learns: {learners}."""
    features: str = "scattering"
    """The fixed features of `one-shot` and `private`: {features}; `none` for the inputs
    themselves."""
    projection: Count | None = None
    """d: project the features to so many numbers, by a fixed random matrix; none leaves them."""
    ridge: Annotated[float, Meta(gt=0)] = RIDGE
    """λ of a one-shot head: larger shrinks it more."""
    public: str | None = None
    """For `private`: public inputs that its map is made of, a data set's training inputs or an npy
    file; nobody's secret, and fixed beforehand. None takes synthetic images."""
    training: Recipe = field(default_factory=Recipe)
    """The recipe of every group."""
    seed: int = 0
    """All randomness is derived from it, but for random slots with coins of their own and the noise
    of `types: private-shares`."""

    def module(self, shape: Shape, num_classes: int, seed: int = 0) -> nn.Module:
        """Build the model that every group trains, for inputs of a shape."""
        return LEARNERS.pick(self.learner).build(self, shape, num_classes, seed)


@dataclass(frozen=True, kw_only=True)
class FederatedGrouping:
    """Steps 1 and 2, as far as a real federation sets them, too."""

    types: str = OWN_TYPES
    """What Step 1 learns of clients, or what the operator knows: {profile_methods}."""
    groups: Count | None = None
    """G, the number of groups; none lets `carvy` choose it by what it would certify, and other
    methods take the one of `carvy`."""

    def groups_of(self, method: GroupingMethod, chosen: int | None) -> int | None:
        """Return the G that a method is asked for; None where it has its own.

        ``chosen`` is the G that was chosen for ``carvy``, or that it has.
        """
        if not method.takes_groups:
            return None
        if method.needs_profiles and method.needs_groups:  # it would not know of what it came
            return self.groups
        return self.groups or chosen


@dataclass(frozen=True, kw_only=True)
class GroupingSettings(FederatedGrouping, PrivacySettings):
    """Steps 1 and 2: what is learnt of the clients, and how groups are formed."""

    given_types: tuple[int, ...] | None = None
    """One whole number per client, for `types: given`."""
    covariates: tuple[tuple[float, ...], ...] | None = None
    """A row of numbers per client that the operator knows, for `types: covariates`."""
    aim: str = "auc"
    """What G is chosen for: `auc`, the area under CA(m), or such as `m60`, the largest m at which
    60 % of the inputs are certified."""
    least_accuracy: Annotated[float, Meta(ge=0, le=100)] = 0.0
    """Percent: a G with a lower estimated accuracy is not chosen, if another one reaches it."""

    @property
    def listed(self) -> Known:
        """What the operator lists of every client, types or covariates; None if nothing."""
        return self.given_types if self.covariates is None else self.covariates


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """What the clients hold, in a simulation."""

    dataset: str = "embedded"
    """{datasets}, or the path of an IDX folder or npz file."""
    data_dir: str | None = None
    """Where to look for registered data sets first; then `$CARVYFL_DATA`, then the cache."""
    num_classes: Annotated[int, Meta(ge=2)] | None = None
    """C of one's own files; none counts the classes of the test labels."""
    mean: float | None = None
    """Subtracted from the inputs of one's own files; none is 0.5 for pixels, else 0."""
    std: Annotated[float, Meta(gt=0)] | None = None
    """The inputs of one's own files are divided by it; none is 0.5 for pixels, else 1."""
    partition: str = "class-disjoint"
    """How the data is split over clients: {partitions}."""
    partition_options: dict[str, Any] = field(default_factory=dict)
    """The partition's own parameters, such as `{alpha: 0.3}`."""
    clients: Annotated[int, Meta(ge=1)] = 100
    """N, the number of clients."""
    samples: Annotated[int, Meta(ge=1)] = 100
    """Training samples per client (the mean, under `quantity-skew` and `label-bias`)."""
    validation: Annotated[int, Meta(ge=0)] = 60
    """Validation samples per client; early stopping needs some."""
    validation_share: Annotated[float, Meta(ge=0, lt=1)] = 0.1
    """The part of the training set that validation samples are drawn from, and no others."""


@dataclass(frozen=True, kw_only=True)
class RunSettings(LearningSettings, GroupingSettings, DataSettings):
    """The settings of a run, as its record holds them."""

    methods: tuple[str, ...] = ("carvy", "flcert")
    """The groupings to compare, each trained and certified: {groupings}."""
    baseline_groups: Count | None = None
    """G of methods that ask no client; none takes `groups`, or the one that `carvy` has, and if
    that was found, their certificates compare with these groups only, too."""
    keep_sums: bool = False
    """Keep what every client of one-shot learning sends, so that an audit can derive the models
    again; the sums reveal much about the clients' data."""
    commitment: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")] | None = None
    """The hash of the coins that random slots are drawn from; none simulates coins, from the
    seed."""

    def groups_of(self, method: GroupingMethod, chosen: int | None) -> int | None:
        """Return the G that a method is asked for; None where it has its own."""
        if self.baseline_groups and method.takes_groups and not method.needs_profiles:
            return self.baseline_groups
        return super().groups_of(method, chosen)

    @property
    def split(self) -> dict[str, Any]:
        """The parameters of the partition, by name."""
        split = {"num_clients": self.clients, "samples": self.samples, "seed": self.seed}
        return {**self.partition_options, **split}

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists, numbers and strings, fit for YAML and JSON."""
        return dict(plain(self))

    def to_yaml(self) -> str:
        """Return the settings as YAML that :func:`~carvyfl.runs.config.load_config` reads back."""
        return to_yaml(self.to_dict())
