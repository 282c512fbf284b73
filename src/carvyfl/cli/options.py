"""The options that `carvy run` and `carvy groups` share, and the configuration they make."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml

from carvyfl.errors import CarvyError

if TYPE_CHECKING:
    from carvyfl.config import RunConfig

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
    typer.Option(help="embedded, mnist, fashion-mnist, an IDX folder or an npz file."),
]
DataDir = Annotated[Path | None, typer.Option(help="Where to look for registered data sets.")]
Partition = Annotated[
    str | None,
    typer.Option(help="class-disjoint, iid, dirichlet, classes-per-client or quantity-skew."),
]
PartitionOption = Annotated[
    list[str] | None,
    typer.Option(
        "--partition-option",
        "-p",
        help="The partition's own parameter, e.g. alpha=0.3.",
        metavar="NAME=VALUE",
    ),
]
Clients = Annotated[int | None, typer.Option(help="N, the number of clients.")]
SamplesPerClient = Annotated[
    int | None, typer.Option("--samples", help="Training samples per client.")
]
Model = Annotated[str | None, typer.Option(help="compact-cnn (the paper's) or mlp (quick).")]
Types = Annotated[
    str | None,
    typer.Option(help="How types are found: bias-profile, xmeans (the paper's), given, oracle."),
]
TypesFile = Annotated[
    Path | None,
    typer.Option(help="File with one type per client, in order; implies --types given."),
]
Groups = Annotated[
    int | None,
    typer.Option(
        "--groups", "-g", help="G, the number of groups, for every method; default: found."
    ),
]
Seed = Annotated[int | None, typer.Option(help="All randomness is derived from it.")]
Workers = Annotated[int | None, typer.Option(help="Worker processes; default one per core.", min=1)]
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
    from carvyfl.config import load_config, preset, updated

    dataset = flags.get("dataset")
    base = preset(preset_name, dataset) if preset_name is not None else None
    if config is not None:
        base = load_config(config, base)
    elif base is None:
        base = preset("default")
    changes = {name: value for name, value in flags.items() if value is not None}
    groups = changes.pop("groups", None)
    if groups is not None:
        changes |= {"groups": groups, "baseline_groups": groups}
    types_file = changes.pop("types_file", None)
    if types_file is not None:
        changes |= {"types": "given", "given_types": read_types(types_file)}
    if "partition_options" in changes:
        changes["partition_options"] = dict(_pair(text) for text in changes["partition_options"])
    elif changes.get("partition", base.partition) != base.partition:
        changes["partition_options"] = {}  # they belonged to the other partition
    if "data_dir" in changes:
        changes["data_dir"] = str(changes["data_dir"])
    if changes.get("groups") is not None:
        base = dataclasses.replace(base, literal=False)  # Appendix A takes over from Algorithm 2
    return updated(base, changes, "command line")


def read_types(path: Path) -> list[int]:
    """Read one type per client: whole numbers, separated by white space or commas."""
    try:
        words = path.read_text(encoding="utf-8").replace(",", " ").split()
    except (OSError, UnicodeDecodeError) as error:
        raise CarvyError(f"cannot read the types in {path}: {error}") from error
    try:
        return [int(word) for word in words]
    except ValueError as error:
        raise CarvyError(
            f"{path}: types must be whole numbers, one per client ({error})"
        ) from error


def _pair(text: str) -> tuple[str, Any]:
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise CarvyError(f"--partition-option takes NAME=VALUE, such as alpha=0.3, not '{text}'")
    return name.strip().replace("-", "_"), yaml.safe_load(value)
