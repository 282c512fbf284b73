"""Everything a run depends on, as one value that can be saved and fed back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import yaml
from msgspec import Meta

from carvyfl.core.checks import seed_number
from carvyfl.core.errors import CarvyError, shown
from carvyfl.core.registry import pick
from carvyfl.core.schema import check, plain, settings
from carvyfl.core.yaml_text import read_yaml_file
from carvyfl.data.clients import Federation, Samples
from carvyfl.data.datasets import DataSet, load
from carvyfl.data.partitions import PARTITIONS, build_federation, shifted_test
from carvyfl.group_count import aimed_level
from carvyfl.groups.coins import Coins
from carvyfl.groups.methods import GROUPINGS
from carvyfl.learning.learners import LEARNERS, OWN_TYPES, RIDGE, UNSCALED
from carvyfl.learning.recipe import Recipe
from carvyfl.profiles.covariates import checked_table
from carvyfl.profiles.methods import PROFILE_METHODS

if TYPE_CHECKING:  # torch takes seconds to import, and reading a record needs none
    from torch import nn

    from carvyfl.learning.models.registry import Shape
    from carvyfl.pipeline import GroupingSettings

Count = Annotated[int, Meta(ge=1)]
LISTED = {"given": "given_types", "covariates": "covariates"}
"""The types for which the operator lists something of every client, and in which setting."""


@dataclass(frozen=True)
class RunSettings:
    """The settings of a run, as its record holds them."""

    dataset: str = "embedded"
    """A registered name, or the path of an IDX folder or npz file."""
    data_dir: str | None = None
    """Where to look for registered data sets first; then `$CARVYFL_DATA`, then the cache."""
    num_classes: Annotated[int, Meta(ge=2)] | None = None
    """C of one's own files; none counts the classes of the test labels."""
    mean: float | None = None
    """Subtracted from the inputs of one's own files; none is 0.5 for pixels, else 0."""
    std: Annotated[float, Meta(gt=0)] | None = None
    """The inputs of one's own files are divided by it; none is 0.5 for pixels, else 1."""
    partition: str = "class-disjoint"
    """How the data is split over clients."""
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
    learner: str = "scaffold"
    """How a group learns: `scaffold`, in rounds, or `one-shot`, from one message per client."""
    model: str = "compact-cnn"
    """`compact-cnn`, `mlp` or `resnet`; one-shot learning has a linear head instead."""
    features: str = "scattering"
    """The fixed features of one-shot learning: `scattering`, or `none` for the inputs
    themselves."""
    projection: Count | None = None
    """d: project the features to so many numbers, by a fixed random matrix; none leaves them."""
    ridge: Annotated[float, Meta(gt=0)] = RIDGE
    """λ of a one-shot head: larger shrinks it more."""
    keep_sums: bool = False
    """Keep what every client of one-shot learning sends, so that an audit can derive the models
    again; the sums reveal much about the clients' data."""
    methods: tuple[str, ...] = ("carvy", "flcert")
    """The groupings to compare, each trained and certified: `carvy`, `slots`, `flcert`,
    `cluster`, `balanced`, `single`."""
    types: str = "class-means"
    """What Step 1 learns of clients: `class-means`, `class-counts`, `private-shares`, `covariates`,
    or types alone: `bias-profile`, `xmeans`, `given`, `oracle`."""
    given_types: tuple[int, ...] | None = None
    """One whole number per client, for `types: given`."""
    covariates: tuple[tuple[float, ...], ...] | None = None
    """A row of numbers per client that the operator knows, for `types: covariates`."""
    epsilon: Annotated[float, Meta(gt=0)] = 10.0
    """ε of local differential privacy in Step 1, for `types: private-shares`; δ is 0.00001. Every
    further run spends ε again, and these add up."""
    groups: Count | None = None
    """G for `carvy` and `slots`; none lets `carvy` choose G by what it would certify."""
    aim: str = "auc"
    """What G is chosen for: `auc`, the area under CA(m), or such as `m60`, the largest m at which
    60 % of the inputs are certified."""
    least_accuracy: Annotated[float, Meta(ge=0, le=100)] = 0.0
    """Percent: a G with a lower estimated accuracy is not chosen, if another one reaches it."""
    baseline_groups: Count | None = None
    """G for the baselines; none takes the one `carvy` has, and if `carvy` found it, their
    certificates compare with these groups only, too."""
    training: Recipe = field(default_factory=Recipe)
    """The recipe of every group."""
    seed: int = 0
    """All randomness is derived from it, but for random slots with coins of their own and the noise
    of `types: private-shares`."""
    commitment: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")] | None = None
    """The hash of the coins that random slots are drawn from; none simulates coins, from the
    seed."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists, numbers and strings, fit for YAML and JSON."""
        return dict(plain(self))

    def to_yaml(self) -> str:
        """Return the settings as YAML that :func:`load_config` reads back."""
        return to_yaml(self.to_dict())

    def module(self, shape: Shape, num_classes: int, seed: int = 0) -> nn.Module:
        """Build the model that every group trains, for inputs of a shape."""
        from carvyfl.learning.models.registry import build_model
        from carvyfl.learning.one_shot.model import one_shot_model

        if self.learner == "one-shot":
            return one_shot_model(self.features, shape, num_classes, self.ridge, self.projection)
        return build_model(self.model, shape, num_classes, seed)

    @property
    def split(self) -> dict[str, Any]:
        """The parameters of the partition, by name."""
        own = {"num_clients": self.clients, "samples": self.samples, "seed": self.seed}
        return {**self.partition_options, **own}

    @property
    def grouping(self) -> GroupingSettings:
        """How Steps 1 and 2 are done."""
        from carvyfl.pipeline import GroupingSettings

        return GroupingSettings(
            self.types,
            self.given_types if self.covariates is None else self.covariates,
            self.groups,
            self.baseline_groups,
            self.aim,
            self.least_accuracy,
            self.epsilon,
        )


@dataclass(frozen=True)
class RunConfig(RunSettings):
    """The configuration of a run: settings that are known here and fit together."""

    def __post_init__(self) -> None:
        from carvyfl.learning.models.registry import MODELS
        from carvyfl.learning.one_shot.features import FEATURES
        from carvyfl.learning.scaffold.aggregation import AGGREGATION_RULES

        check(self)
        seed_number(self.seed)
        PARTITIONS.pick(self.partition).check_parameters(self.partition_options)
        pick(LEARNERS, self.learner, "learner")
        MODELS.pick(self.model)
        FEATURES.pick(self.features)
        AGGREGATION_RULES.pick(self.training.aggregation)
        if self.keep_sums and self.learner != "one-shot":
            raise CarvyError(
                f"clients of the learner '{self.learner}' send no sums to keep; leave out "
                "`keep_sums`, or use `learner='one-shot'`"
            )
        PROFILE_METHODS.pick(self.types)
        aimed_level(self.aim)
        if not self.methods:
            raise CarvyError("no method to run; give at least one, such as carvy")
        for method in self.methods:
            GROUPINGS.pick(method)
        if len(set(self.methods)) < len(self.methods):
            raise CarvyError(f"a method is named twice: {', '.join(self.methods)}")
        if self.training.patience is not None and self.validation == 0:
            raise CarvyError(
                "early stopping (training.patience) needs validation samples; "
                "set validation above 0 or patience to null"
            )
        if self.learner == "one-shot" and (self.mean, self.std) != (None, None):
            raise CarvyError(
                "fixed features see inputs as they are stored; leave out `mean` and `std`"
            )
        wanted = {"groups": self.groups}
        entries = [GROUPINGS[method] for method in self.methods]
        if any(own.takes_groups and not own.needs_profiles for own in entries):  # nobody else asks
            wanted["baseline_groups"] = self.baseline_groups
        for name, value in wanted.items():
            if value is not None and value > self.clients:
                raise CarvyError(
                    f"{value} groups of {self.clients} clients: a group would be empty; "
                    f"{name} can be at most {self.clients}"
                )
        for types, own in LISTED.items():
            known, what = getattr(self, own), own.removeprefix("given_")
            if (self.types == types) != (known is not None):
                raise CarvyError(
                    f"types '{types}' and the {what} themselves belong together; list those of "
                    f"every client with `{own}`"
                )
            if known is not None and len(known) != self.clients:
                raise CarvyError(
                    f"{len(known)} {what} were given for {self.clients} clients; "
                    "give one for every client"
                )
        if self.covariates is not None:
            checked_table(self.covariates)

    def check_coins(self, coins: Coins | None) -> None:
        """Refuse coins other than those of the commitment."""
        if (None if coins is None else coins.commitment) == self.commitment:
            return
        raise CarvyError(
            "the configuration holds no commitment; set it to that of the coins"
            if self.commitment is None
            else f"the groups are to be drawn from the coins with commitment {self.commitment}; "
            "give these with `coins`"
        )


def to_yaml(settings: dict[str, Any]) -> str:
    """Return plain settings as YAML, in their own order."""
    return yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)


FORMER: Mapping[str, Any] = {"group_rule": "largest", "literal": False}
"""Settings of earlier versions, with the one value that says what is done now."""
PRESETS: dict[str, RunSettings] = {
    "default": RunSettings(),
    # Section 4.1 of the paper; Fashion-MNIST takes 300 rounds there (`preset` below).
    "paper": RunSettings(
        dataset="mnist",
        samples=500,
        methods=("carvy", "flcert", "cluster", "single"),
        types="xmeans",
        baseline_groups=20,
        training=Recipe(
            rounds=200, lr=0.01, lr_min=0.0001, batch_size=16, patience=10, min_improvement=1e-4
        ),
    ),
    # Closed-form heads on scattering features.
    "one-shot": RunSettings(learner="one-shot", groups=20, validation=0),
    # The benchmark of Cao, Jia and Gong (AAAI 2021), all 60,000 images dealt out.
    "cao-2021": RunSettings(
        dataset="mnist",
        partition="label-bias",
        partition_options={"q": 0.5},
        clients=1000,
        samples=60,
        validation=0,
        validation_share=0.0,
        learner="one-shot",
        types="class-counts",
        methods=("balanced",),
        baseline_groups=200,
    ),
    # Two minutes on two cores: an MLP instead of the CNN.
    "demo": RunSettings(model="mlp", groups=20, training=Recipe(rounds=40, lr=0.05, lr_min=0.001)),
}


def preset(name: str, dataset: str | None = None) -> RunConfig:
    """Return a preset, for a data set.

    ``paper`` trains 300 rounds on Fashion-MNIST and 200 on anything else.
    """
    return updated(_preset(name, dataset))


def _preset(name: str, dataset: str | None) -> RunSettings:
    chosen = pick(PRESETS, name, "preset")
    if dataset is None:
        return chosen
    if name == "paper" and dataset in {"fashion-mnist", "embedded"}:
        chosen = replace(chosen, training=replace(chosen.training, rounds=300))
    return replace(chosen, dataset=dataset)


def updated(config: RunSettings, *layers: dict[str, Any]) -> RunConfig:
    """Return a configuration with some settings changed, later layers over earlier ones."""
    return RunConfig(**vars(layered(config, *layers)))


def layered(config: RunSettings, *layers: dict[str, Any]) -> RunSettings:
    """Return settings with some of them changed, later layers over earlier ones.

    What a layer implies comes with it: a learner finds types from what its clients send, types
    that are listed are the ones to use, and another partition does not keep the parameters of the
    one before.
    """
    state = {field.name: getattr(config, field.name) for field in fields(config)}
    recipe = asdict(config.training)
    for layer in layers:
        implied: dict[str, Any] = {}
        if layer.get("learner", state["learner"]) != state["learner"]:
            implied["types"] = OWN_TYPES
        named = [types for types, own in LISTED.items() if layer.get(own) is not None]
        named += [layer["types"]] if "types" in layer else []
        if named:
            others = {own: None for types, own in LISTED.items() if types != named[-1]}
            implied |= {"types": named[-1], **others}
        if layer.get("partition", state["partition"]) != state["partition"]:
            implied["partition_options"] = {}
        state |= implied | layer
        recipe |= layer.get("training", {})
    return RunSettings(**{**state, "training": Recipe(**recipe)})


def without_former(given: Mapping[Any, Any], where: str) -> dict[Any, Any]:
    """Return settings without those of earlier versions that say what is always done now."""
    for name, value in FORMER.items():
        if given.get(name, value) != value:
            raise CarvyError(
                f"{where} sets `{name}` to {shown(given[name])}, which is gone; leave it out, or "
                "use the version that wrote it"
            )
    return {name: value for name, value in given.items() if name not in FORMER}


def load_data(config: RunSettings, data_dir: Path | None = None) -> DataSet:
    """Load the data set of a configuration, looking into ``data_dir`` instead of its own.

    Fixed features see inputs as they are: with one-shot learning mean and std are 0 and 1.
    """
    own = {name: getattr(config, name) for name in ("num_classes", "mean", "std")}
    dataset = load(config.dataset, data_dir=data_dir or config.data_dir, **own)
    if config.learner == "one-shot":
        return replace(dataset, mean=UNSCALED[0], std=UNSCALED[1])
    return dataset


def load_voted_data(config: RunSettings, data_dir: Path | None = None) -> DataSet:
    """Load the data set of a configuration, with the test samples that its run votes on."""
    dataset = load_data(config, data_dir)
    return replace(dataset, test=voted_samples(config, dataset.test, dataset.num_classes))


def voted_samples(config: RunSettings, test: Samples, num_classes: int) -> Samples:
    """Return what a run votes on, of the test samples of its data set.

    A partition that is not registered here (another package's, or real clients in place of one)
    leaves them as they are; whoever relies on them compares their SHA-256 with the recorded one.
    """
    if config.partition not in PARTITIONS:
        return test
    return shifted_test(test, config.partition, num_classes=num_classes, **config.split)


def split_data(config: RunSettings, dataset: DataSet) -> Federation:
    """Split the data set of a configuration over its clients."""
    return build_federation(
        dataset,
        config.partition,
        validation=config.validation,
        validation_share=config.validation_share,
        **config.split,
    )


def load_config(
    path: Path | None, *, preset_name: str | None = None, flags: dict[str, Any] | None = None
) -> RunConfig:
    """Combine a preset, a YAML file and flags, and check that they fit together."""
    return updated(load_settings(path, preset_name=preset_name, flags=flags))


def load_settings(
    path: Path | None, *, preset_name: str | None = None, flags: dict[str, Any] | None = None
) -> RunSettings:
    """Combine a preset, a YAML file and flags, each overriding the one before.

    The key ``preset`` of the file chooses a preset, ``preset_name`` another one; without either
    it is ``default``.
    """
    above = settings(RunConfig, flags or {}, "command line")
    content = None if path is None else read_yaml_file(path)
    if not isinstance(content, dict | None):
        raise CarvyError(f"{path} must hold a mapping of settings, such as 'clients: 100'")
    content = content or {}
    own_preset = content.pop("preset", None)
    below = settings(RunConfig, without_former(content, str(path)), str(path))
    dataset = above.get("dataset", below.get("dataset"))
    base = _preset(str(preset_name or own_preset or "default"), dataset)
    return layered(base, below, above)
