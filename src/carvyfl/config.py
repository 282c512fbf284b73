"""Everything a run depends on, as one value that can be saved and fed back."""

from __future__ import annotations

import dataclasses
import types
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from carvyfl.errors import CarvyError, pick
from carvyfl.federation.models import MODELS
from carvyfl.federation.partitions import PARTITIONS
from carvyfl.grouping.anticluster import RULES
from carvyfl.grouping.methods import GROUPINGS
from carvyfl.inference import TYPE_METHODS
from carvyfl.training.recipe import Recipe


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
        G for ``carvy``; None lets it find G (Algorithm 2).
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
        pick(PARTITIONS, self.partition, "partition")
        pick(MODELS, self.model, "model")
        pick(TYPE_METHODS, self.types, "type inference")
        pick(RULES, self.group_rule, "rule for the number of groups")
        if not self.methods:
            raise CarvyError("no method to run; give at least one, such as carvy")
        for method in self.methods:
            pick(GROUPINGS, method, "method")
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
        for name in ("groups", "baseline_groups"):
            value = getattr(self, name)
            if value is not None and value > self.clients:
                raise CarvyError(
                    f"{value} groups of {self.clients} clients: a group would be empty; "
                    f"{name} can be at most {self.clients}"
                )
        if (self.types == "given") != (self.given_types is not None):
            raise CarvyError(
                "types 'given' and given_types (one type per client) belong together; "
                "set both or neither"
            )

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists, numbers and strings, fit for YAML and JSON."""
        plain = dataclasses.asdict(self)
        plain["methods"] = list(self.methods)
        plain["given_types"] = None if self.given_types is None else list(self.given_types)
        return plain

    def to_yaml(self) -> str:
        """Return the configuration as YAML that :func:`load_config` reads back."""
        return yaml.safe_dump(self.to_dict(), sort_keys=False, allow_unicode=True)


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
    # Two minutes on two cores: an MLP instead of the CNN, everything else as it comes.
    "demo": RunConfig(model="mlp", training=Recipe(rounds=40, lr=0.05, lr_min=0.001)),
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


def updated(config: RunConfig, changes: dict[str, Any], where: str) -> RunConfig:
    """Return a configuration with some settings changed.

    Parameters
    ----------
    config
        What to start from.
    changes
        Settings by name; those of ``training`` nested in a mapping.
    where
        Where they came from, for error messages.
    """
    changes = dict(changes)
    training = changes.pop("training", {})
    if not isinstance(training, dict):
        raise CarvyError(f"{where}: training must be a mapping of settings")
    recipe = _replaced(config.training, training, f"{where}: training")
    return _replaced(config, {**changes, "training": recipe}, where)


def load_config(path: Path, base: RunConfig | None = None) -> RunConfig:
    """Read a YAML file of settings over a base (default: the ``default`` preset).

    A ``preset`` key in the file chooses another base.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise CarvyError(f"cannot read the configuration {path}: {error}") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" in line {mark.line + 1}" if mark else ""
        raise CarvyError(f"{path} is not valid YAML{line}") from error
    if content is None:
        content = {}
    if not isinstance(content, dict):
        raise CarvyError(f"{path} must hold a mapping of settings")
    chosen = content.pop("preset", None)
    if base is None or chosen is not None:
        base = preset(str(chosen or "default"), content.get("dataset"))
    return updated(base, content, str(path))


Record = typing.TypeVar("Record", RunConfig, Recipe)


def _replaced(value: Record, changes: dict[str, Any], where: str) -> Record:
    hints = typing.get_type_hints(type(value))
    checked = {}
    for name, given in changes.items():
        pick(hints, str(name), f"setting in {where}")
        checked[name] = _fitting(given, hints[name], f"{where}: {name}")
    return dataclasses.replace(value, **checked)


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
    if kind is float and isinstance(value, int | str) and not isinstance(value, bool):
        try:  # YAML reads 1e-4 as a string
            return float(value)
        except ValueError:
            pass
    if isinstance(value, kind) and not (kind is int and isinstance(value, bool)):
        return value
    expected = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
    name = expected.get(kind, "a mapping" if kind is dict else "a list")
    raise CarvyError(f"{where} must be {name}, not {value!r}")
