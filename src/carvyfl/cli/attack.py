"""`carvy attack`: real attacks on a finished run, beside what its certificate promised."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from carvyfl.cli import options
from carvyfl.cli.output import note, phase, print_json, screen, stopping_cleanly
from carvyfl.config import fields_of
from carvyfl.errors import CarvyError, pick


@stopping_cleanly("trained groups are kept: run the same command to go on")
def attack(
    run: Annotated[Path, typer.Argument(help="Folder that 'carvy run' wrote.")],
    name: Annotated[
        str,
        typer.Option(
            "--attack",
            "-a",
            help="badnets, dba, constrain-and-scale, label-flip, sign-flip, noise, alie, min-max.",
        ),
    ] = "badnets",
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option", help="The attack's own setting, e.g. control=none.", metavar="NAME=VALUE"
        ),
    ] = None,
    placement: Annotated[
        str | None,
        typer.Option(
            help="dispersed, concentrated, hash, random, worst, or clients such as 3,17,20; "
            "default: the paper's for each method."
        ),
    ] = None,
    method: Annotated[
        list[str] | None, typer.Option(help="Only these methods of the run; default: all.")
    ] = None,
    malicious: Annotated[
        str, typer.Option("--malicious", "-m", help="Numbers of malicious clients: 0-10 or 1,5,9.")
    ] = "0-10",
    data_dir: options.DataDir = None,
    engine: options.Engine = "auto",
    precision: options.Precision = None,
    workers: options.Workers = None,
    store: options.Store = None,
    json: options.Json = False,
) -> None:
    """Attack a finished run, and check its certificate against what happens.

    Malicious clients train and send what the attack says; groups without one stay
    as they were. Printed for every number m of malicious clients: the attack success
    rate (ASR) of a backdoor, the accuracy on clean inputs, and CA(m), below which
    that accuracy must never fall. Results are kept in RUN/attacks.json, where
    'carvy report' finds them.

    [bold]Examples[/bold]

      carvy attack runs/demo

      carvy attack runs/demo --attack sign-flip --placement worst -m 0-5
    """
    from carvyfl.attacks.campaign import Battlefield, attack_method
    from carvyfl.attacks.placement import paper_placement
    from carvyfl.attacks.registry import ATTACKS
    from carvyfl.environment import commit, environment
    from carvyfl.federation.datasets import cache_folder
    from carvyfl.runs.execute import prepare
    from carvyfl.runs.folder import RunFolder
    from carvyfl.training.engines import device_of, make_engine
    from carvyfl.training.planner import train_groups
    from carvyfl.training.store import GroupStore

    folder = RunFolder(run)
    record = folder.record()
    config = folder.config()
    if data_dir is not None:
        config = dataclasses.replace(config, data_dir=str(data_dir))
    kind = pick(ATTACKS, name, "attack")
    chosen = _configured(kind, option or [])
    ms = numbers(malicious)
    names = [folder.method(one) for one in method] if method else list(record["methods"])
    trainer = make_engine(engine, workers=workers, precision=precision)
    kept = GroupStore(store or cache_folder() / "groups")
    setting = prepare(config)

    def train(jobs: Any) -> Any:
        with phase(f"training {len(jobs)} groups") as progress:
            return train_groups(jobs, store=kept, engine=trainer, progress=progress)

    device = device_of(trainer)
    field = Battlefield(config, setting, workers, device)
    results = []
    for one in names:
        started = time.monotonic()
        where = placement or paper_placement(one)
        clients = _clients(where)
        found = attack_method(field, one, folder.grouping(one), chosen, clients or where, ms, train)
        results.append(
            {
                "attack": name,
                "settings": chosen.value(),
                "placement": where,
                "method": one,
                **dataclasses.asdict(found),
                "promise_kept": found.promise_kept,
                "seconds": round(time.monotonic() - started, 1),
                "environment": {"commit": commit(), **environment(trainer)},
            }
        )
    folder.add_attacks(results)
    if json:
        print_json({"attacks": results})
    else:
        for result in results:
            _print(result)
    note(f"Kept in {folder.attacks_file}; 'carvy report {run}' shows it")


def numbers(text: str) -> list[int]:
    """Read numbers of malicious clients: ``0-10``, ``1,5,9`` or both mixed."""
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        try:
            found.update(range(int(first), int(last if dash else first) + 1))
        except ValueError:
            raise CarvyError(
                f"--malicious takes numbers such as 0-10 or 1,5,9, not '{text}'"
            ) from None
    if not found:
        raise CarvyError(f"--malicious {text} names no number; give some such as 0-10")
    return sorted(found)


def _clients(placement: str) -> list[int] | None:
    """Return the clients that a placement lists, None if it is a name."""
    parts = [part.strip() for part in placement.split(",")]
    return [int(part) for part in parts] if all(part.isdecimal() for part in parts) else None


def _configured(kind: Any, settings: list[str]) -> Any:
    """Make an attack of NAME=VALUE settings."""
    values = dict(options.pair(text, "--option") for text in settings)
    names = {field.name: field for field in dataclasses.fields(kind) if field.name != "trigger"}
    for name in values:
        pick(names, name, f"setting of attack '{kind.name}'")
    return kind(**fields_of(kind, values, "--option"))


def _print(result: dict[str, Any]) -> None:
    table = Table()
    for heading in ("m", "ASR", "accuracy", "CA(m)", "groups hit", "lost"):
        table.add_column(heading, justify="right")
    columns = zip(
        result["m"],
        result["asr"] or [None] * len(result["m"]),
        result["accuracy"],
        result["certified"],
        result["groups_hit"],
        result["groups_lost"],
        strict=True,
    )
    for m, asr, accuracy, certified, hit, lost in columns:
        shown = "-" if asr is None else f"{asr:.1f}"
        table.add_row(str(m), shown, f"{accuracy:.1f}", f"{certified:.1f}", str(hit), str(lost))
    screen.print(f"{result['method']} under {result['attack']}, malicious {result['placement']}")
    screen.print(table)
    if max(result["dropped"]):
        screen.print(
            f"Up to {max(result['dropped'])} malicious clients were set aside: what they sent "
            "could not be used, so the attack is weaker than their number says."
        )
    if result["promise_kept"]:
        screen.print("Accuracy under attack never fell below CA(m).")
    else:
        screen.print("ACCURACY UNDER ATTACK FELL BELOW CA(m): an assumption does not hold.")
