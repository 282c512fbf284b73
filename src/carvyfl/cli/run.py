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
    from carvyfl.runs.folder import RunFolder
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
    from carvyfl.runs.finished import finished_run

    chosen, coins = options.resolve({**settings, "data_dir": data_dir})
    if seeds is not None and (settings["seed"] is not None or coins is not None):
        other = "--seed" if coins is None else "--coins, which are drawn for one run"
        raise CarvyError(f"--seeds is given, and so is {other}; leave one out")

    def finished(own: RunSettings, place: Path) -> RunFolder | None:
        # A plugin's code may have changed; a record does not tell a cluster's cores from its GPUs.
        unknown = plugin or (cluster and engine == "batched")
        if unknown or own.commitment != (coins and coins.commitment):
            return None
        kept = options.store_folder(store)
        return finished_run(own, place, kept, "ray" if cluster else engine, precision)

    folder = finished(chosen, out) if seeds is None else None
    if folder is not None:
        folders = [folder]
    else:
        config = updated(chosen)
        from carvyfl.runs.execute import execute

        compute = options.compute(engine, precision, workers, store, cluster)
        if seeds is None:
            folders = [execute(config, out, compute, coins)]
        else:
            numbers = options.whole_numbers(seeds, "--seeds")
            folders = _run_seeds(config, out, compute, numbers, finished)
    picture, config_file = folders[0].picture.name, folders[0].config_file.name
    what = f"picture in {picture}, settings in {config_file}"
    if seeds is not None:
        what = f"a folder for each seed, picture in {picture}"
    print_runs(folders, as_json=json)
    saved(f"{out}: {what}")
    note(f"As one page: carvy report {out}")


def _run_seeds(
    config: RunConfig,
    out: Path,
    compute: Compute,
    seeds: list[int],
    finished: Callable[[RunSettings, Path], RunFolder | None],
) -> list[RunFolder]:
    """Run a configuration with each seed not yet finished; draw the means with their spread."""
    from carvyfl.plots.pictures import plot
    from carvyfl.runs.config import load_data
    from carvyfl.runs.execute import execute
    from carvyfl.runs.folder import RunFolder
    from carvyfl.runs.ownership import refuse_taken
    from carvyfl.runs.pictures import described
    from carvyfl.runs.seeds import seed_folder, spreads

    if RunFolder(out).config_file.exists():
        raise CarvyError(f"{out} holds a run; choose another folder for --seeds with --out")
    configs = {seed: dataclasses.replace(config, seed=seed) for seed in seeds}
    for seed, own in configs.items():  # before the first of them takes its hours
        refuse_taken(seed_folder(out, seed), own.to_dict())
    folders = []
    dataset = None  # read once for all seeds that are not finished
    for position, (seed, own) in enumerate(configs.items(), 1):
        note(f"Seed {seed} ({position} of {len(configs)})")
        place = seed_folder(out, seed)
        folder = finished(own, place)
        if folder is None:
            dataset = dataset or load_data(config)
            folder = execute(own, place, compute, dataset=dataset)
        folders.append(folder)
    found = spreads([folder.record() for folder in folders])
    curves = {method: own["given_groups"] for method, own in found.items() if own}
    if curves:
        title = f"{described(folders[0].record())}; {len(seeds)} seeds"
        plot(curves, title=title).save(RunFolder(out).picture)
    return folders
