"""`carvy show`: what a run found."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from carvyfl.cli import options
from carvyfl.cli.output import ca_table, print_json, screen, warn

if TYPE_CHECKING:
    from carvyfl.runs.folder import RunFolder


def show(
    run: Annotated[Path, typer.Argument(help="A folder that 'carvy run' wrote.")],
    json: options.Json = False,
) -> None:
    """Print what a finished run found: CA(m), rounds, groups, and what it rests on."""
    from carvyfl.runs.folder import RunFolder

    print_run(RunFolder(run), as_json=json)


def print_run(folder: RunFolder, *, as_json: bool) -> None:
    """Print a finished run, for people or for machines."""
    from carvyfl.report.plots import STYLE

    record = folder.record()
    if as_json:
        print_json({"run": str(folder.path), **record})
        return
    config, methods = record["config"], record["methods"]
    curves = {STYLE[name][0]: entry["ca"] for name, entry in methods.items()}
    screen.print(
        ca_table(
            curves,
            title=f"Certified accuracy CA(m) in %, {record['data']['name']}, "
            f"{config['clients']} clients with {config['samples']} samples",
        )
    )
    screen.print(
        "Every prediction counted in row m stays right with up to m malicious clients.",
        highlight=False,
    )
    for name, entry in methods.items():
        screen.print(f"{STYLE[name][0]}: {_summary(entry)}", highlight=False, soft_wrap=True)
    _print_types(record["types"])
    for name, entry in methods.items():
        for client, reason in entry["set_aside"].items():
            warn(f"{name}: client {client} was set aside ({reason})")


def _summary(entry: dict[str, Any]) -> str:
    rounds = entry["rounds"]
    spread = f"{min(rounds)}" if min(rounds) == max(rounds) else f"{min(rounds)}-{max(rounds)}"
    lost = sum(why in {"diverged", "empty"} for why in entry["stopped"])
    return (
        f"{entry['num_groups']} groups, {spread} rounds, AUC {entry['auc']:.1f}, "
        f"95 % interval of CA(0) {entry['ca_low'][0]:.1f}-{entry['ca_high'][0]:.1f}"
        + (f", {lost} groups cast no vote" if lost else "")
        + f"\n  certificate {entry['certificate']['kind']}: {entry['certificate']['because']}"
    )


def _print_types(types: dict[str, Any] | None) -> None:
    if types is None:
        return
    sizes = ", ".join(str(size) for size in types["sizes"][:12])
    more = ", …" if len(types["sizes"]) > 12 else ""
    screen.print(
        f"Types ({types['method']}): {types['num_types']} found, of {sizes}{more} clients",
        highlight=False,
    )
    for warning in types["warnings"]:
        warn(warning)
    for client, reason in types["set_aside"].items():
        warn(f"client {client} was set aside in Step 1 ({reason})")
