"""The options that several commands share, and the configuration they make."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from carvyfl.cli.output import phase
from carvyfl.core.errors import CarvyError

if TYPE_CHECKING:
    from carvyfl.pipeline import Compute
    from carvyfl.runs.config import RunConfig, RunSettings


def _panel(title: str) -> Callable[..., Any]:
    """Return what declares an option that the help text shows under a title."""

    def option(help: str, *names: str, **more: Any) -> Any:
        return typer.Option(*names, help=help, rich_help_panel=title, **more)

    return option


data = _panel("Data and clients")
grouping = _panel("Types and groups")
training = _panel("Training")

RunPath = Annotated[Path, typer.Argument(help="A folder that 'carvy run' wrote.")]
Config = Annotated[
    Path | None,
    typer.Option("--config", "-c", help="YAML file with any settings; flags override it."),
]
Preset = Annotated[
    str | None,
    typer.Option(
        help="Settings to start from: default, one-shot, paper (as published), cao-2021, "
        "demo (2 minutes)."
    ),
]
Dataset = Annotated[str | None, data("{datasets}, an IDX folder or an npz file.")]
DataDir = Annotated[Path | None, typer.Option(help="Where to look for registered data sets.")]
NumClasses = Annotated[
    int | None, data("C of your own files; default: as the test labels have it.")
]
Mean = Annotated[
    float | None, data("Subtracted from your own inputs; default 0.5 for pixels, else 0.")
]
Std = Annotated[
    float | None, data("Your own inputs are divided by it; default 0.5 for pixels, else 1.")
]
Partition = Annotated[str | None, data("How the data is split: {partitions}.")]
PartitionOptions = Annotated[
    list[str] | None,
    data(
        "The partition's own parameter, e.g. alpha=0.3.",
        "--partition-option",
        "-p",
        metavar="NAME=VALUE",
    ),
]
Clients = Annotated[int | None, data("N, the number of clients.")]
Samples = Annotated[int | None, data("Training samples per client.")]
Learner = Annotated[
    str | None, training("How groups learn: scaffold (in rounds) or one-shot (closed form).")
]
Features = Annotated[str | None, training("Fixed features of one-shot learning: {features}.")]
Projection = Annotated[
    int | None, training("Project the features to so many numbers; default: leave them.")
]
Ridge = Annotated[float | None, training("λ of one-shot heads: larger shrinks them more.")]
KeepSums = Annotated[
    bool | None,
    training("Keep what one-shot clients send, for 'carvy verify' to derive the models."),
]
Model = Annotated[str | None, training("{models}.")]
Types = Annotated[str | None, grouping("How types are found: {profile_methods}.")]
TypesFile = Annotated[
    Path | None, grouping("File with one type per client, in order; implies --types given.")
]
Epsilon = Annotated[
    float | None,
    grouping("ε of local differential privacy in Step 1, for --types private-shares."),
]
CovariatesFile = Annotated[
    Path | None,
    grouping(
        "CSV file with a header and a row per client, in order, of what you know of them; implies "
        "--types covariates."
    ),
]
Groups = Annotated[
    str | None,
    grouping(
        "G, the number of groups, for every method; auto (default) chooses it by what it would "
        "certify.",
        "--groups",
        "-g",
        metavar="G|auto",
    ),
]
Aim = Annotated[
    str | None,
    grouping(
        "What --groups auto aims at: auc (area under CA(m)), or such as m60 (the largest m at "
        "which 60 % are certified)."
    ),
]
LeastAccuracy = Annotated[
    float | None,
    grouping("Percent: --groups auto takes no G with a lower estimated accuracy, if it can."),
]
CoinsFile = Annotated[
    Path | None,
    grouping("File of 'carvy coins' that random slots are drawn from; default: simulated coins."),
]
Seed = Annotated[int | None, typer.Option(help="All randomness is derived from it.")]
Workers = Annotated[int | None, typer.Option(help="Worker processes; default one per core.", min=1)]
Engine = Annotated[str, training("auto, loop (CPU cores) or batched (one GPU).")]
Precision = Annotated[str | None, training("fp32, tf32 or bf16; default: the engine's own.")]
Store = Annotated[
    Path | None,
    typer.Option(help="Where trained groups are kept and found again; default: your cache."),
]
Cluster = Annotated[
    str | None, training("Train on the Ray cluster at this address instead of on this machine.")
]


def _load_plugins(context: typer.Context, paths: list[Path] | None) -> list[Path] | None:
    """Load the files before any name is looked up, in a help text for one."""
    if paths and not context.resilient_parsing:  # which completion does
        from carvyfl.cli.help import count_registered
        from carvyfl.core.plugins import load_plugin

        for path in paths:
            load_plugin(path, count_registered)
    return paths


Plugin = Annotated[
    list[Path] | None,
    typer.Option(
        "--plugin",
        metavar="FILE",
        help="Python file that registers variants of your own; may be repeated.",
        callback=_load_plugins,
        is_eager=True,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object for machines.")]


def resolve(given: Mapping[str, Any]) -> RunConfig:
    """Return the configuration that a command was given, checked."""
    from carvyfl.runs.config import RunConfig

    return RunConfig(**vars(resolve_settings(given)))


def resolve_settings(given: Mapping[str, Any]) -> RunSettings:
    """Combine preset, file and flags, each overriding the one before.

    Parameters
    ----------
    given
        The command's parameters by name; None means not given. Those that are not settings
        of a run are ignored.
    """
    from carvyfl.profiles.covariates import read_covariates
    from carvyfl.runs.config import RunSettings, load_settings

    known = {field.name for field in dataclasses.fields(RunSettings)}
    flags = {name: own for name, own in given.items() if name in known and own is not None}
    if "groups" in flags:
        flags["groups"] = flags["baseline_groups"] = _number_of_groups(flags["groups"])
    if given["types_file"] is not None:
        flags["given_types"] = read_types(given["types_file"])
        if flags.setdefault("types", "given") != "given":
            raise CarvyError(f"--types-file means --types given, not {flags['types']}; drop one")
    if given["covariates_file"] is not None:
        flags["covariates"] = read_covariates(given["covariates_file"])
        if flags.setdefault("types", "covariates") != "covariates":
            raise CarvyError(
                f"--covariates-file means --types covariates, not {flags['types']}; drop one"
            )
    if "partition_options" in flags:
        flags["partition_options"] = pairs(flags["partition_options"], "--partition-option")
    if "data_dir" in flags:
        flags["data_dir"] = str(flags["data_dir"])
    return load_settings(given["config"], preset_name=given["preset"], flags=flags)


def _number_of_groups(text: str) -> int | None:
    """Return G, None for auto."""
    if text == "auto":
        return None
    if not text.isdecimal():
        raise CarvyError(f"--groups is a whole number or auto, not '{text}'")
    return int(text)


def compute(
    engine: str,
    precision: str | None,
    workers: int | None,
    store: Path | None,
    cluster: str | None = None,
) -> Compute:
    """Return where and how to compute, and where trained groups are kept."""
    from carvyfl.data.datasets import cache_folder
    from carvyfl.learning.engines import cluster_engine, make_engine
    from carvyfl.learning.store import GroupStore
    from carvyfl.pipeline import Compute

    if cluster:
        trainer = cluster_engine(cluster, engine, precision)
    else:
        trainer = make_engine(engine, workers=workers, precision=precision)
    return Compute(trainer, workers, GroupStore(store or cache_folder() / "groups"), phase)


def read_types(path: Path) -> list[int]:
    """Read one type per client: whole numbers, separated by white space or commas."""
    try:
        words = path.read_text(encoding="utf-8").replace(",", " ").split()
    except OSError as error:
        raise CarvyError(f"cannot read the types in {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise CarvyError(f"{path}: types are read from a text file; this is not one") from error
    types = []
    for word in words:
        try:
            types.append(int(word))
        except ValueError:
            raise CarvyError(f"{path}: types must be whole numbers, not '{word[:40]}'") from None
    return types


LARGEST_RANGE = 10_000
"""No list of numbers on the command line is longer."""


def whole_numbers(text: str, flag: str, most: int | None = None, of: str = "") -> list[int]:
    """Read whole numbers from 0 up: ``0-10``, ``1,5,9`` or a mixture, in ascending order.

    Parameters
    ----------
    text, flag
        What was typed, and after which flag.
    most, of
        The largest number there can be, and what there are so many of.
    """
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        try:
            low, high = int(first), int(last if dash else first)
        except ValueError:
            raise CarvyError(f"{flag} takes numbers such as 0-10 or 1,5,9, not '{text}'") from None
        if most is not None and max(low, high) > most:
            raise CarvyError(f"{flag} {text}: there are only {most} {of}")
        if high - low >= LARGEST_RANGE:
            raise CarvyError(f"{flag} {text}: that is more than {LARGEST_RANGE:,} numbers")
        found.update(range(low, high + 1))
    if not found:
        raise CarvyError(f"{flag} {text} names no number; give some such as 0-10")
    return sorted(found)


def pairs(texts: Iterable[str], flag: str) -> dict[str, Any]:
    """Read texts NAME=VALUE, the values as YAML has them."""
    from carvyfl.core.yaml_text import read_yaml

    found = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise CarvyError(f"{flag} takes NAME=VALUE, such as alpha=0.3, not '{text}'")
        found[name.strip().replace("-", "_")] = read_yaml(value, f"{flag} {name}")
    return found
