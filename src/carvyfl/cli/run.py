"""`carvy run`: all four steps, every method, one folder."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from carvyfl.cli import options
from carvyfl.cli.output import note, saved, stopping_cleanly
from carvyfl.cli.show import print_runs
from carvyfl.core.errors import CarvyError
from carvyfl.runs.config import load_data, updated
from carvyfl.runs.folder import RunFolder, seed_folder
from carvyfl.runs.record import spreads
from carvyfl.runs.resume import finished_run, refuse_other


@stopping_cleanly("finished groups are kept: run the same command to go on")
@options.with_settings(training=True)
def run(
    out: Path = options.option(
        "The run folder to write.", "--out", "-o", default=Path("runs/latest")
    ),
    *,
    engine: str = options.ENGINE,
    precision: str | None = options.PRECISION,
    cluster: str | None = options.CLUSTER,
    seeds: str | None = options.option(
        "Several seeds, such as 0-9 or 1,5: runs in OUT/seed-0 and so on."
    ),
    data_dir: Path | None = options.DATA_DIR,
    workers: int | None = options.WORKERS,
    store: Path | None = options.STORE,
    plugin: list[Path] | None = options.PLUGIN,
    json: bool = options.JSON,
    **settings: Any,
) -> None:
    """Train, vote and certify: CARVY-FL and its baselines.

    Clients' types are found, groups formed and trained, and the certified
    accuracy CA(m) of every method is printed: the share of test inputs that are
    answered correctly with up to m malicious clients, and as without them. The
    folder keeps the configuration, groups, models and votes.

    Interrupted? Run the same command again: finished groups are not trained twice.

    [bold]Examples[/bold]

      carvy run --preset demo --out runs/demo

      carvy run --dataset mnist --samples 50 --methods carvy,flcert,single

      carvy run --learner one-shot --groups 20 --dataset fashion-mnist --samples 500

      carvy run --config runs/demo/config.yaml --seed 1 --out runs/demo-1

      carvy run --preset demo --seeds 0-9 --out runs/demo-seeds
    """
    chosen, coins = options.resolve({**settings, "data_dir": data_dir})
    several, folder, places = seeds is not None, RunFolder(out), {out: chosen}
    if seeds is not None:
        if settings["seed"] is not None or coins is not None:
            other = "--seed" if coins is None else "--coins, which are drawn for one run"
            raise CarvyError(f"--seeds is given, and so is {other}; leave one out")
        numbers = options.whole_numbers(seeds, "--seeds")
        if folder.config_file.exists():
            raise CarvyError(f"{out} holds a run; choose another folder for --seeds with --out")
        places = {seed_folder(out, n): dataclasses.replace(chosen, seed=n) for n in numbers}
        for place, of_seed in places.items():  # before the first of them takes its hours
            refuse_other(place, of_seed.to_dict())
    # A plugin's code may have changed; a record does not tell a cluster's cores from its GPUs.
    comparable = not (plugin or (cluster and engine == "batched"))
    comparable = comparable and chosen.commitment == (coins and coins.commitment)
    records, compute, dataset = {}, None, None
    for position, (place, of_seed) in enumerate(places.items(), 1):
        if several:
            note(f"Seed {of_seed.seed} ({position} of {len(places)})")
        where = "ray" if cluster else engine
        record = finished_run(of_seed, place, where, precision) if comparable else None
        if record is None:
            config = updated(of_seed)
            from carvyfl.runs.execute import execute

            compute = compute or options.compute(engine, precision, workers, store, cluster)
            if several:  # which share it
                dataset = dataset or load_data(config)
            record = execute(config, place, compute, coins, dataset)
        records[place] = record
    what = f"picture in {folder.picture.name}, settings in {folder.config_file.name}"
    if several:
        what = f"a folder for each seed, picture in {folder.picture.name}"
        drawn = list(records.values())
        curves = {method: by["given_groups"] for method, by in spreads(drawn).items() if by}
        if curves:
            from carvyfl.plots.pictures import plot
            from carvyfl.runs.save import described

            title = f"{described(drawn[0])}; {len(drawn)} seeds"
            plot(curves, title=title).save(folder.picture)
    print_runs(records, as_json=json)
    saved(f"{out}: {what}")
    note(f"As one page: carvy report {out}")
