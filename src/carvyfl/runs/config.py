"""Everything a run depends on, as one value that can be saved and fed back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from carvyfl.core.checks import seed_number
from carvyfl.core.errors import CarvyError, shown
from carvyfl.core.registry import pick
from carvyfl.core.schema import check, settings
from carvyfl.core.yaml_text import read_yaml_file
from carvyfl.data.clients import Federation, Samples
from carvyfl.data.datasets import DataSet, load
from carvyfl.data.partitions import PARTITIONS, build_federation, shifted_test
from carvyfl.group_count import aimed_level
from carvyfl.groups.coins import Coins
from carvyfl.groups.methods import GROUPINGS
from carvyfl.learning.learners import LEARNERS, UNSCALED
from carvyfl.learning.recipe import Recipe
from carvyfl.privacy.noise import check_budget
from carvyfl.profiles.covariates import checked_table
from carvyfl.profiles.methods import PROFILE_METHODS
from carvyfl.settings import LISTED, RunSettings


@dataclass(frozen=True)
class RunConfig(RunSettings):
    """The configuration of a run: settings that are known here and fit together."""

    def __post_init__(self) -> None:
        from carvyfl.learning.models import MODELS
        from carvyfl.learning.one_shot.features import FEATURES
        from carvyfl.learning.scaffold.aggregation import AGGREGATION_RULES

        check(self)
        seed_number(self.seed)
        PARTITIONS.pick(self.partition).check_parameters(self.partition_options)
        learner = LEARNERS.pick(self.learner)
        MODELS.pick(self.model)
        FEATURES.pick(self.features)
        AGGREGATION_RULES.pick(self.training.aggregation)
        if self.keep_sums and learner.sends != "sums":
            raise CarvyError(
                f"clients of the learner '{self.learner}' send no sums to keep; leave out "
                "`keep_sums`, or use `learner='one-shot'`"
            )
        if learner.sends == "message":
            self._check_privacy()
        PROFILE_METHODS.pick(self.types)
        aimed_level(self.aim)
        if not self.methods:
            raise CarvyError("no method to run; give at least one, such as carvy")
        entries = [GROUPINGS.pick(method) for method in self.methods]
        if len(set(self.methods)) < len(self.methods):
            raise CarvyError(f"a method is named twice: {', '.join(self.methods)}")
        if self.training.patience is not None and self.validation == 0:
            raise CarvyError(
                "early stopping (training.patience) needs validation samples; "
                "set validation above 0 or patience to null"
            )
        if learner.stored_inputs and (self.mean, self.std) != (None, None):
            raise CarvyError(
                "fixed features see inputs as they are stored; leave out `mean` and `std`"
            )
        numbers = {"groups": self.groups}
        if any(entry.takes_groups and not entry.needs_profiles for entry in entries):
            numbers["baseline_groups"] = self.baseline_groups  # which nobody else asks for
        for name, value in numbers.items():
            if value is not None and value > self.clients:
                raise CarvyError(
                    f"{value} groups of {self.clients} clients: a group would be empty; "
                    f"{name} can be at most {self.clients}"
                )
        for types, setting in LISTED.items():
            listed, what = getattr(self, setting), setting.removeprefix("given_")
            if (self.types == types) != (listed is not None):
                raise CarvyError(
                    f"types '{types}' and the {what} themselves belong together; list those of "
                    f"every client with `{setting}`"
                )
            if listed is not None and len(listed) != self.clients:
                raise CarvyError(
                    f"{len(listed)} {what} were given for {self.clients} clients; "
                    "give one for every client"
                )
        if self.covariates is not None:
            checked_table(self.covariates)

    def _check_privacy(self) -> None:
        check_budget(self.epsilon, self.delta)
        if self.delta * self.samples >= 1:
            raise CarvyError(
                f"`delta` {self.delta:g} must be below one over the {self.samples} samples of a "
                "client: at that chance a message may give a sample away"
            )
        if self.public == self.dataset:
            raise CarvyError(
                f"`public` '{self.public}' is the clients' own data set; its inputs are not public"
            )
        if self.least_accuracy and self.groups is None:
            raise CarvyError(
                "`least_accuracy` needs estimates on clients' samples, which private learning does "
                "not have; set `groups`, or leave it out"
            )

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
    # One message with noise per client: (2, 0.00001)-differential privacy.
    "private": RunSettings(learner="private", types="private-means", validation=0),
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
    settings = pick(PRESETS, name, "preset")
    if name == "paper" and dataset in {"fashion-mnist", "embedded"}:
        settings = replace(settings, training=replace(settings.training, rounds=300))
    return settings if dataset is None else replace(settings, dataset=dataset)


def updated(config: RunSettings, *layers: dict[str, Any]) -> RunConfig:
    """Return a configuration with some settings changed, later layers over earlier ones."""
    return RunConfig(**vars(layered(config, *layers)))


def layered(config: RunSettings, *layers: dict[str, Any]) -> RunSettings:
    """Return settings with some of them changed, later layers over earlier ones.

    What a layer implies comes with it: a learner finds types from what its clients send, a number
    of groups is that of every method, types that are listed are the ones to use, and another
    partition does not keep the parameters of the one before.
    """
    state, recipe = dict(vars(config)), asdict(config.training)
    for layer in layers:
        implied: dict[str, Any] = {}
        if layer.get("learner", state["learner"]) != state["learner"]:
            implied["types"] = LEARNERS.pick(layer["learner"]).types
        if "groups" in layer:
            implied["baseline_groups"] = None
        named = [types for types, setting in LISTED.items() if layer.get(setting) is not None]
        named += [layer["types"]] if "types" in layer else []
        if named:
            others = {setting: None for types, setting in LISTED.items() if types != named[-1]}
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
    """Load a configuration's data, from ``data_dir`` or its own, scaled as its learner asks."""
    about = {name: getattr(config, name) for name in ("num_classes", "mean", "std")}
    dataset = load(config.dataset, data_dir=data_dir or config.data_dir, **about)
    if LEARNERS.pick(config.learner).stored_inputs:
        return replace(dataset, mean=UNSCALED[0], std=UNSCALED[1])
    return dataset


def load_voted_data(config: RunSettings, data_dir: Path | None = None) -> DataSet:
    """Load the data set of a configuration, with the test samples that its run votes on."""
    dataset = load_data(config, data_dir)
    return replace(dataset, test=voted_samples(config, dataset.test, dataset.num_classes))


def voted_samples(config: RunSettings, test: Samples, num_classes: int) -> Samples:
    """Return the test samples that a run votes on; unshifted, if its partition is unknown here."""
    if config.partition not in PARTITIONS:
        return test
    return shifted_test(test, config.partition, num_classes=num_classes, **config.split)


def split_data(config: RunSettings, dataset: DataSet) -> Federation:
    """Split the data set of a configuration over its clients."""
    split: dict[str, Any] = {"validation_share": config.validation_share, **config.split}
    return build_federation(dataset, config.partition, validation=config.validation, **split)


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
    name = str(preset_name or content.get("preset") or "default")
    content.pop("preset", None)
    below = settings(RunConfig, without_former(content, str(path)), str(path))
    return layered(_preset(name, above.get("dataset", below.get("dataset"))), below, above)
