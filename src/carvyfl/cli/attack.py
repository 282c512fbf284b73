"""`carvy attack`: attacks on a finished run, compared with its certificate."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from carvyfl.cli import options
from carvyfl.cli.answers import Attacked
from carvyfl.cli.output import print_json, print_table, saved, screen, stopping_cleanly
from carvyfl.core.environment import commit, environment
from carvyfl.core.registry import pick
from carvyfl.core.schema import settings as checked_settings
from carvyfl.runs.folder import RunFolder
from carvyfl.runs.record import AttackResult, Environment


@stopping_cleanly("trained groups are kept: run the same command to go on")
def attack(
    run: Path = options.RUN,
    name: str = options.option("{attacks}.", "--attack", "-a", default="badnets"),
    option: list[str] | None = options.option(
        "The attack's own setting, e.g. control=none.", "--option", metavar="NAME=VALUE"
    ),
    placement: str | None = options.option(
        "{placements}, or clients such as 3,17,20; default: the paper's for each method."
    ),
    method: list[str] | None = options.option("Only these methods of the run; default: all."),
    malicious: str | None = options.option(
        "Numbers of malicious clients: 0-10 or 1,5,9; default: 0 to 10, or to as many as there "
        "are, or as --placement lists.",
        "--malicious",
        "-m",
    ),
    data_dir: Path | None = options.DATA_DIR,
    engine: str = options.ENGINE,
    precision: str | None = options.PRECISION,
    workers: int | None = options.WORKERS,
    store: Path | None = options.STORE,
    plugin: list[Path] | None = options.PLUGIN,
    json: bool = options.JSON,
) -> None:
    """Attack a finished run, and check its certificate against what happens.

    Malicious clients train and send what the attack says; groups without one stay
    as they were, and honest clients whose messages the run kept are not asked
    again. Printed for every number m of malicious clients: the attack success
    rate (ASR) of a backdoor, the accuracy on clean inputs, and CA(m), below which
    that accuracy must never fall. Results are kept in RUN/attacks.json, where
    'carvy report' finds them.

    [bold]Examples[/bold]

      carvy attack runs/demo

      carvy attack runs/demo --attack sign-flip --placement worst -m 0-5
    """
    from carvyfl.attacks.campaign import AttackedRun, attack_grouping, reuse_trained
    from carvyfl.attacks.placement import paper_placement
    from carvyfl.attacks.registry import ATTACKS
    from carvyfl.pipeline import compute_features
    from carvyfl.runs.execute import prepare, regrouping

    chosen = _configured(ATTACKS.pick(name), option or [])
    folder = RunFolder(run)
    config = folder.config()
    if data_dir is not None:
        config = dataclasses.replace(config, data_dir=str(data_dir))
    names = [folder.method(one) for one in method] if method else list(folder.record().methods)
    groupings = {one: folder.grouping(one) for one in names}
    parts = [part.strip() for part in (placement or "-").split(",")]
    listed = list(map(int, parts)) if all(part.isdecimal() for part in parts) else None
    if malicious is None:
        there = min(int(grouping.sizes.sum()) for grouping in groupings.values())
        ms = list(range(min(10, there if listed is None else len(listed)) + 1))
    else:
        ms = options.whole_numbers(malicious, "--malicious", config.clients, "clients")
    folder.attacks()  # what cannot be added to is refused before anything is trained
    compute = options.compute(engine, precision, workers, store)
    prepared = prepare(config, folder=folder)
    attacked = AttackedRun(prepared.dataset, prepared.setup, compute)
    attacked.check_attack(chosen)
    compute_features(prepared.setup, compute, prepared.dataset.test.inputs)
    results = []
    for one, grouping in groupings.items():
        started = time.monotonic()
        where = placement or paper_placement(one)
        outcome = attack_grouping(
            attacked,
            grouping,
            chosen,
            listed or where,
            ms,
            reuse_trained(grouping, folder.results(one), attacked.train),
            regrouping(one, config, prepared.setup, compute, grouping.coins, folder.profiles()),
        )
        results.append(
            AttackResult(
                **dataclasses.asdict(outcome),
                attack=name,
                settings=chosen.value(),
                placement=where,
                method=one,
                promise_kept=outcome.promise_kept,
                seconds=round(time.monotonic() - started, 1),
                environment=Environment(commit=commit(), **environment(compute.engine)),
            )
        )
    if json:
        print_json(Attacked(tuple(results)))
    else:
        for result in results:
            _print(result)
    folder.add_attacks(results)
    saved(f"{folder.attacks_file}; 'carvy report {run}' shows it")


def _configured(kind: Any, settings: list[str]) -> Any:
    values = options.pairs(settings, "--option")
    names = {field.name: field for field in dataclasses.fields(kind) if field.name != "trigger"}
    for name in values:
        pick(names, name, f"setting of attack '{kind.name}'")
    return kind(**checked_settings(kind, values, "--option"))


def _print(result: AttackResult) -> None:
    columns: dict[str, Sequence[object]] = {"m": result.m}
    columns["ASR"] = result.asr or ["-"] * len(result.m)
    if result.asr_if_lost_votes_target != result.asr:
        columns["ASR *"] = result.asr_if_lost_votes_target or ()
    columns |= {"accuracy": result.accuracy, "CA(m)": result.certified}
    columns |= {"groups hit": result.groups_hit, "lost": result.groups_lost}
    title = f"{result.method} under {result.attack}, malicious {result.placement}"
    print_table(list(columns), zip(*columns.values(), strict=True), title)
    if "ASR *" in columns:
        screen.print("*: if groups that were lost, and cast no vote, voted for the target.")
    if dropped := max(result.dropped):
        weaker = "what they sent could not be used, so the attack is weaker than their number says."
        screen.print(f"Up to {dropped} malicious clients were set aside: {weaker}")
    fell = "ACCURACY UNDER ATTACK FELL BELOW CA(m): an assumption does not hold."
    screen.print("Accuracy under attack never fell below CA(m)." if result.promise_kept else fell)
