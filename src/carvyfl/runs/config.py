"""Everything a run depends on, as one value that can be saved and fed back."""

from __future__ import annotations

import contextlib
import dataclasses
import types
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from carvyfl.core.errors import CarvyError
from carvyfl.core.registry import pick
from carvyfl.data.partitions import PARTITIONS
from carvyfl.groups.anticluster import RULES
from carvyfl.groups.methods import GROUPINGS
from carvyfl.learning.models.registry import MODELS
from carvyfl.learning.recipe import Recipe
from carvyfl.pipeline import GroupingSettings
from carvyfl.profiles.methods import PROFILE_METHODS


@dataclass(frozen=True)
class RunConfig:
    """The whole configuration of a run.

    Attributes
    ----------
    dataset, data_dir
        A registered name, or the path of an IDX folder or npz file; and where
        to look for registered ones.
    partition, partition_options
        How the data is split over clients, and that partition's own parameters.
    clients, samples, validation
        N; training samples per client; validation samples per client.
    model
        A registered model.
    methods
        The groupings to compare, each trained and certified.
    types, given_types
        How Step 1 finds the types; the types themselves (one per client) where
        the operator knows them.
    groups
        G for ``carvy``, ``slots`` and ``wrap``; None lets ``carvy`` find G (Algorithm 2), and its
        certificate is conditional then.
    group_rule, literal
        Which rule finds G; whether Algorithm 2 deals clients out word for word.
    baseline_groups
        G for the baselines; None takes the one ``carvy`` has.
    training
        The recipe of every group.
    seed
        All randomness is derived from it.
    """

    dataset: str = "embedded"
    data_dir: str | None = None
    partition: str = "class-disjoint"
    partition_options: dict[str, Any] = field(default_factory=dict)
    clients: int = 100
    samples: int = 100
    validation: int = 60
    model: str = "compact-cnn"
    methods: tuple[str, ...] = ("carvy", "flcert")
    types: str = "bias-profile"
    given_types: tuple[int, ...] | None = None
    groups: int | None = None
    group_rule: str = "largest"
    literal: bool = False
    baseline_groups: int | None = None
    training: Recipe = field(default_factory=Recipe)
    seed: int = 0

    def __post_init__(self) -> None:
        PARTITIONS.pick(self.partition).check_parameters(self.partition_options)
        pick(MODELS, self.model, "model")
        PROFILE_METHODS.pick(self.types)
        pick(RULES, self.group_rule, "rule for the number of groups")
        if not self.methods:
            raise CarvyError("no method to run; give at least one, such as carvy")
        for method in self.methods:
            GROUPINGS.pick(method)
        if len(set(self.methods)) < len(self.methods):
            raise CarvyError(f"a method is named twice: {', '.join(self.methods)}")
        for name in ("clients", "samples", "groups", "baseline_groups"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise CarvyError(f"{name} must be at least 1, not {value}")
        if self.validation < 0:
            raise CarvyError(f"validation must be 0 or more samples, not {self.validation}")
        if self.training.patience is not None and self.validation == 0:
            raise CarvyError(
                "early stopping (training.patience) needs validation samples; "
                "set validation above 0 or patience to null"
            )
        wanted = {"groups": self.groups}
        if any(
            GROUPINGS[m].takes_groups and not GROUPINGS[m].needs_profiles for m in self.methods
        ):  # nobody else asks for it
            wanted["baseline_groups"] = self.baseline_groups
        for name, value in wanted.items():
            if value is not None and value > self.clients:
                raise CarvyError(
                    f"{value} groups of {self.clients} clients: a group would be empty; "
                    f"{name} can be at most {self.clients}"
                )
        if self.literal and self.groups is not None:
            raise CarvyError(
                "Algorithm 2 word for word (literal) finds its own number of groups; "
                "leave out groups or set literal to false"
            )
        if (self.types == "given") != (self.given_types is not None):
            raise CarvyError(
                "types 'given' and the types themselves belong together; list one type per client "
                "with --types-file or given_types"
            )
        if self.given_types is not None and len(self.given_types) != self.clients:
            raise CarvyError(
                f"{len(self.given_types)} types were given for {self.clients} clients; "
                "give one for every client"
            )

    @property
    def grouping(self) -> GroupingSettings:
        """How Steps 1 and 2 are done."""
        return GroupingSettings(
            self.types,
            self.given_types,
            self.groups,
            self.baseline_groups,
            self.group_rule,
            self.literal,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists, numbers and strings, fit for YAML and JSON."""
        plain = dataclasses.asdict(self)
        plain["methods"] = list(self.methods)
        plain["given_types"] = None if self.given_types is None else list(self.given_types)
        return plain

    def to_yaml(self) -> str:
        """Return the configuration as YAML that :func:`load_config` reads back."""
        return to_yaml(self.to_dict())


def to_yaml(plain: dict[str, Any]) -> str:
    """Return plain settings as YAML, in their own order."""
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)


_PAPER_TRAINING = Recipe(
    rounds=200, lr=0.01, lr_min=0.0001, batch_size=16, patience=10, min_improvement=1e-4
)

PRESETS: dict[str, RunConfig] = {
    "default": RunConfig(),
    # Section 4.1 of the paper; Fashion-MNIST takes 300 rounds there (`preset` below).
    "paper": RunConfig(
        dataset="mnist",
        samples=500,
        methods=("carvy", "flcert", "cluster", "single"),
        types="xmeans",
        literal=True,
        baseline_groups=20,
        training=_PAPER_TRAINING,
    ),
    # Two minutes on two cores: an MLP instead of the CNN. G is set, for an end-to-end certificate.
    "demo": RunConfig(model="mlp", groups=20, training=Recipe(rounds=40, lr=0.05, lr_min=0.001)),
}


def preset(name: str, dataset: str | None = None) -> RunConfig:
    """Return a preset, for a data set.

    ``paper`` trains 300 rounds on Fashion-MNIST and 200 on anything else.
    """
    config = pick(PRESETS, name, "preset")
    if dataset is None:
        return config
    if name == "paper" and dataset in {"fashion-mnist", "embedded"}:
        config = dataclasses.replace(
            config, training=dataclasses.replace(config.training, rounds=300)
        )
    return dataclasses.replace(config, dataset=dataset)


def updated(config: RunConfig, *layers: dict[str, Any]) -> RunConfig:
    """Return a configuration with some settings changed, later layers over earlier ones.

    What a layer implies comes with it: a number of groups means Appendix A and not
    Algorithm 2 word for word, types that are listed are the ones to use, and another
    partition does not keep the parameters of the one before.

    Parameters
    ----------
    config
        What to start from.
    layers
        Settings as :func:`checked` returns them.
    """
    state = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    recipe = dataclasses.asdict(config.training)
    for layer in layers:
        implied: dict[str, Any] = {}
        if layer.get("groups") is not None:
            implied["literal"] = False
        if layer.get("given_types") is not None:
            implied["types"] = "given"
        elif layer.get("types", "given") != "given":
            implied["given_types"] = None
        if layer.get("partition", state["partition"]) != state["partition"]:
            implied["partition_options"] = {}
        state |= implied | layer
        recipe |= layer.get("training", {})
    return RunConfig(**{**state, "training": Recipe(**recipe)})


def checked(settings: dict[Any, Any], where: str) -> dict[str, Any]:
    """Check the names and types of settings; those of ``training`` are nested in a mapping.

    Parameters
    ----------
    settings
        Settings by name, as a YAML or JSON file holds them.
    where
        Where they came from, for error messages.
    """
    training = settings.get("training", {})
    if not isinstance(training, dict):
        raise CarvyError(f"{where}: training must be a mapping of settings")
    rest = {name: value for name, value in settings.items() if name != "training"}
    return {
        **fields_of(RunConfig, rest, where),
        "training": fields_of(Recipe, training, f"{where}: training"),
    }


def load_config(
    path: Path | None,
    *,
    preset_name: str | None = None,
    flags: dict[str, Any] | None = None,
) -> RunConfig:
    """Combine a preset, a YAML file and flags, each overriding the one before.

    Parameters
    ----------
    path
        A YAML file with any settings, or None. Its key ``preset`` chooses a preset.
    preset_name
        A preset to take instead of the file's own; without either, ``default``.
    flags
        Settings that override the file's.
    """
    above = checked(flags or {}, "command line")
    content = {} if path is None else _read_yaml(path)
    own_preset = content.pop("preset", None)
    below = checked(content, str(path))
    dataset = above.get("dataset", below.get("dataset"))
    base = preset(str(preset_name or own_preset or "default"), dataset)
    return updated(base, below, above)


def _read_yaml(path: Path) -> dict[Any, Any]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CarvyError(f"cannot read the configuration {path}: {error.strerror}") from error
    except (yaml.YAMLError, ValueError) as error:  # ValueError: not UTF-8, or a 13th month
        mark = getattr(error, "problem_mark", None)
        line = f" in line {mark.line + 1}" if mark else ""
        raise CarvyError(f"{path} is not valid YAML{line}; correct it") from error
    if not isinstance(content, dict | None):
        raise CarvyError(f"{path} must hold a mapping of settings, such as 'clients: 100'")
    return content or {}


def fields_of(kind: type, settings: dict[Any, Any], where: str) -> dict[str, Any]:
    """Check settings against the fields of a dataclass: names, and types gently converted."""
    known = typing.get_type_hints(kind)
    hints = {field.name: known[field.name] for field in dataclasses.fields(kind)}
    for name in settings:
        if name not in hints and kind is RunConfig and name in typing.get_type_hints(Recipe):
            raise CarvyError(f"{where}: '{name}' belongs under 'training'; move it there")
        pick(hints, str(name), f"setting in {where}:")
    return {
        name: _fitting(value, hints[name], f"{where}: {name}") for name, value in settings.items()
    }


def _fitting(value: Any, hint: Any, where: str) -> Any:
    """Return a value if it is of the hinted type, gently converted, or say what is wrong."""
    if isinstance(hint, types.UnionType):
        if value is None:
            return None
        hint = next(option for option in typing.get_args(hint) if option is not type(None))
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(_fitting(item, arguments[0], where) for item in value)
    if origin is tuple and arguments[0] is str and isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    kind = origin or hint
    if kind is dict and isinstance(value, dict):
        return {str(name): _number(item) for name, item in value.items()}
    if kind is float:
        value = _number(value)
        value = float(value) if type(value) is int else value
    if isinstance(value, kind) and not (kind is int and isinstance(value, bool)):
        return value
    expected = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
    name = expected.get(kind, "a mapping" if kind is dict else "a list")
    raise CarvyError(f"{where} must be {name}, not {value!r}")


def _number(value: Any) -> Any:
    """Return a text that is a number as that number: YAML reads 1e-4 as a text."""
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            return float(value)
    return value
