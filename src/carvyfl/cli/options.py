"""The options that several commands share, and the configuration they make."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml

from carvyfl.core.errors import CarvyError

if TYPE_CHECKING:
    from carvyfl.runs.config import RunConfig

DATA = "Data and clients"
GROUPING = "Types and groups"
TRAINING = "Training"

Config = Annotated[
    Path | None,
    typer.Option("--config", "-c", help="YAML file with any settings; flags override it."),
]
Preset = Annotated[
    str | None,
    typer.Option(help="Settings to start from: default, paper (as published), demo (2 minutes)."),
]
Dataset = Annotated[
    str | None,
    typer.Option(help="{datasets}, an IDX folder or an npz file.", rich_help_panel=DATA),
]
DataDir = Annotated[Path | None, typer.Option(help="Where to look for registered data sets.")]
NumClasses = Annotated[
    int | None,
    typer.Option(
        help="C of your own files; default: as the test labels have it.", rich_help_panel=DATA
    ),
]
Mean = Annotated[
    float | None,
    typer.Option(
        help="Subtracted from your own inputs; default 0.5 for pixels, else 0.",
        rich_help_panel=DATA,
    ),
]
Std = Annotated[
    float | None,
    typer.Option(
        help="Your own inputs are divided by it; default 0.5 for pixels, else 1.",
        rich_help_panel=DATA,
    ),
]
Partition = Annotated[
    str | None,
    typer.Option(
        help="How the data is split: {partitions}.",
        rich_help_panel=DATA,
    ),
]
PartitionOption = Annotated[
    list[str] | None,
    typer.Option(
        "--partition-option",
        "-p",
        help="The partition's own parameter, e.g. alpha=0.3.",
        metavar="NAME=VALUE",
        rich_help_panel=DATA,
    ),
]
Clients = Annotated[
    int | None, typer.Option(help="N, the number of clients.", rich_help_panel=DATA)
]
SamplesPerClient = Annotated[
    int | None,
    typer.Option("--samples", help="Training samples per client.", rich_help_panel=DATA),
]
Model = Annotated[
    str | None,
    typer.Option(help="{models}.", rich_help_panel=TRAINING),
]
Types = Annotated[
    str | None,
    typer.Option(
        help="How types are found: {profile_methods}.",
        rich_help_panel=GROUPING,
    ),
]
TypesFile = Annotated[
    Path | None,
    typer.Option(
        help="File with one type per client, in order; implies --types given.",
        rich_help_panel=GROUPING,
    ),
]
Groups = Annotated[
    int | None,
    typer.Option(
        "--groups",
        "-g",
        help="G, the number of groups, for every method; default: found.",
        rich_help_panel=GROUPING,
    ),
]
CoinsFile = Annotated[
    Path | None,
    typer.Option(
        "--coins",
        help="File of 'carvy coins' that random slots are drawn from; default: simulated coins.",
        rich_help_panel=GROUPING,
    ),
]
Seed = Annotated[int | None, typer.Option(help="All randomness is derived from it.")]
Workers = Annotated[int | None, typer.Option(help="Worker processes; default one per core.", min=1)]
Engine = Annotated[
    str,
    typer.Option(help="auto, loop (CPU cores) or batched (one GPU).", rich_help_panel=TRAINING),
]
Precision = Annotated[
    str | None,
    typer.Option(help="fp32, tf32 or bf16; default: the engine's own.", rich_help_panel=TRAINING),
]
Store = Annotated[
    Path | None,
    typer.Option(help="Where trained groups are kept and found again; default: your cache."),
]
Cluster = Annotated[
    str | None,
    typer.Option(
        help="Train on the Ray cluster at this address instead of on this machine.",
        rich_help_panel=TRAINING,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object for machines.")]


def resolve(config: Path | None, preset_name: str | None, flags: dict[str, Any]) -> RunConfig:
    """Combine preset, file and flags, each overriding the one before.

    Parameters
    ----------
    config
        A YAML file, or None.
    preset_name
        A preset, or None for the file's own or ``default``.
    flags
        Settings given on the command line; None means not given.
    """
    from carvyfl.runs.config import load_config

    changes = {name: value for name, value in flags.items() if value is not None}
    if "groups" in changes:
        changes["baseline_groups"] = changes["groups"]
    if "types_file" in changes:
        changes["given_types"] = read_types(changes.pop("types_file"))
        if changes.setdefault("types", "given") != "given":
            raise CarvyError(f"--types-file means --types given, not {changes['types']}; drop one")
    if "partition_options" in changes:
        changes["partition_options"] = dict(
            pair(text, "--partition-option") for text in changes["partition_options"]
        )
    if "data_dir" in changes:
        changes["data_dir"] = str(changes["data_dir"])
    return load_config(config, preset_name=preset_name, flags=changes)


def read_types(path: Path) -> list[int]:
    """Read one type per client: whole numbers, separated by white space or commas."""
    try:
        words = path.read_text(encoding="utf-8").replace(",", " ").split()
    except OSError as error:
        raise CarvyError(f"cannot read the types in {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise CarvyError(f"{path}: types are read from a text file; this is none") from error
    types = []
    for word in words:
        try:
            types.append(int(word))
        except ValueError:
            raise CarvyError(f"{path}: types must be whole numbers, not '{word[:40]}'") from None
    return types


def pair(text: str, flag: str) -> tuple[str, Any]:
    """Read NAME=VALUE, the value as YAML has it."""
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise CarvyError(f"{flag} takes NAME=VALUE, such as alpha=0.3, not '{text}'")
    try:
        return name.strip().replace("-", "_"), yaml.safe_load(value)
    except (yaml.YAMLError, ValueError) as error:
        raise CarvyError(f"{flag} {name}: '{value}' is not a plain value") from error
