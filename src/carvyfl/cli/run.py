"""`carvy run`: all four steps, every method, one folder."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from carvyfl.cli import options
from carvyfl.cli.output import note, saved, stopping_cleanly
from carvyfl.cli.show import print_runs
from carvyfl.core.errors import CarvyError

if TYPE_CHECKING:
    from carvyfl.pipeline import Compute
    from carvyfl.runs.config import RunConfig
    from carvyfl.runs.record import RunRecord
    from carvyfl.settings import RunSettings


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
    from carvyfl.runs.config import updated
    from carvyfl.runs.folder import RunFolder
    from carvyfl.runs.resume import finished_run

    chosen, coins = options.resolve({**settings, "data_dir": data_dir})
    if seeds is not None and (settings["seed"] is not None or coins is not None):
        other = "--seed" if coins is None else "--coins, which are drawn for one run"
        raise CarvyError(f"--seeds is given, and so is {other}; leave one out")

    def finished(config: RunSettings, place: Path) -> RunRecord | None:
        # A plugin's code may have changed; a record does not tell a cluster's cores from its GPUs.
        unknown = plugin or (cluster and engine == "batched")
        if unknown or config.commitment != (coins and coins.commitment):
            return None
        return finished_run(config, place, "ray" if cluster else engine, precision)

    record = finished(chosen, out) if seeds is None else None
    if record is not None:
        records = {out: record}
    else:
        config = updated(chosen)
        from carvyfl.runs.execute import execute

        compute = options.compute(engine, precision, workers, store, cluster)
        if seeds is None:
            records = {out: execute(config, out, compute, coins)}
        else:
            numbers = options.whole_numbers(seeds, "--seeds")
            records = _run_seeds(config, out, compute, numbers, finished)
    folder = RunFolder(out)
    what = f"picture in {folder.picture.name}, settings in {folder.config_file.name}"
    if seeds is not None:
        what = f"a folder for each seed, picture in {folder.picture.name}"
    print_runs(records, as_json=json)
    saved(f"{out}: {what}")
    note(f"As one page: carvy report {out}")


def _run_seeds(
    config: RunConfig,
    out: Path,
    compute: Compute,
    seeds: list[int],
    finished: Callable[[RunSettings, Path], RunRecord | None],
) -> dict[Path, RunRecord]:
    """Run a configuration with each seed not yet finished; draw the means with their spread."""
    from carvyfl.plots.pictures import plot
    from carvyfl.runs.config import load_data
    from carvyfl.runs.execute import execute
    from carvyfl.runs.folder import RunFolder, seed_folder
    from carvyfl.runs.record import spreads
    from carvyfl.runs.resume import refuse_other
    from carvyfl.runs.save import described

    if RunFolder(out).config_file.exists():
        raise CarvyError(f"{out} holds a run; choose another folder for --seeds with --out")
    configs = {seed_folder(out, seed): dataclasses.replace(config, seed=seed) for seed in seeds}
    for place, of_seed in configs.items():  # before the first of them takes its hours
        refuse_other(place, of_seed.to_dict())
    records = {}
    dataset = None  # read once for all seeds that are not finished
    for position, (place, of_seed) in enumerate(configs.items(), 1):
        note(f"Seed {of_seed.seed} ({position} of {len(configs)})")
        record = finished(of_seed, place)
        if record is None:
            dataset = dataset or load_data(config)
            record = execute(of_seed, place, compute, dataset=dataset)
        records[place] = record
    by_method = spreads(list(records.values()))
    curves = {method: by["given_groups"] for method, by in by_method.items() if by}
    if curves:
        title = f"{described(next(iter(records.values())))}; {len(seeds)} seeds"
        plot(curves, title=title).save(RunFolder(out).picture)
    return records
