"""`carvy run`: all four steps, every method, one folder."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from carvyfl.cli import options
from carvyfl.cli.output import note, saved, stopping_cleanly
from carvyfl.cli.show import print_run, print_seeds
from carvyfl.core.errors import CarvyError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from carvyfl.pipeline import Compute
    from carvyfl.runs.config import RunConfig
    from carvyfl.runs.folder import RunFolder


@stopping_cleanly("finished groups are kept: run the same command to go on")
def run(
    out: Annotated[Path, typer.Option("--out", "-o", help="The run folder to write.")] = Path(
        "runs/latest"
    ),
    config: options.Config = None,
    preset: options.Preset = None,
    dataset: options.Dataset = None,
    data_dir: options.DataDir = None,
    num_classes: options.NumClasses = None,
    mean: options.Mean = None,
    std: options.Std = None,
    partition: options.Partition = None,
    partition_options: options.PartitionOptions = None,
    clients: options.Clients = None,
    samples: options.Samples = None,
    learner: options.Learner = None,
    model: options.Model = None,
    features: options.Features = None,
    projection: options.Projection = None,
    ridge: options.Ridge = None,
    keep_sums: options.KeepSums = None,
    methods: Annotated[str | None, options.grouping("Comma-separated: {groupings}.")] = None,
    types: options.Types = None,
    types_file: options.TypesFile = None,
    covariates_file: options.CovariatesFile = None,
    epsilon: options.Epsilon = None,
    groups: options.Groups = None,
    aim: options.Aim = None,
    least_accuracy: options.LeastAccuracy = None,
    coins: options.CoinsFile = None,
    rounds: Annotated[int | None, options.training("Largest number of rounds.")] = None,
    lr: Annotated[float | None, options.training("Learning rate of the first round.")] = None,
    patience: Annotated[
        int | None, options.training("Rounds without improvement before a group stops; 0: never.")
    ] = None,
    algorithm: Annotated[str | None, options.training("scaffold or fedavg.")] = None,
    aggregation: Annotated[
        str | None, options.training("How a group's server combines updates: {aggregation_rules}.")
    ] = None,
    tolerated: Annotated[
        int | None,
        options.training("f, the malicious members that krum and trimmed-mean are built for."),
    ] = None,
    engine: options.Engine = "auto",
    precision: options.Precision = None,
    cluster: options.Cluster = None,
    seed: options.Seed = None,
    seeds: Annotated[
        str | None,
        typer.Option(help="Several seeds, such as 0-9 or 1,5: runs in OUT/seed-0 and so on."),
    ] = None,
    workers: options.Workers = None,
    store: options.Store = None,
    plugin: options.Plugin = None,
    json: options.Json = False,
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
    given = locals()
    from carvyfl.groups.coins import load_coins
    from carvyfl.runs.finished import finished_run

    training: dict[str, Any] = {
        "rounds": rounds,
        "lr": lr,
        "algorithm": algorithm,
        "aggregation": aggregation,
        "tolerated": tolerated,
    }
    changes = {name: value for name, value in training.items() if value is not None}
    if patience is not None:
        changes["patience"] = patience or None
    drawn = None if coins is None else load_coins(coins)
    commitment = None if drawn is None else drawn.commitment
    settings = options.resolve_settings({**given, "training": changes, "commitment": commitment})
    if seeds is None:
        folder = None
        if not plugin and settings.commitment == commitment:  # a plugin's code may have changed
            folder = finished_run(settings, out, "ray" if cluster else engine, precision)
        if folder is None:
            from carvyfl.runs.config import RunConfig
            from carvyfl.runs.execute import execute

            resolved = RunConfig(**vars(settings))
            compute = options.compute(engine, precision, workers, store, cluster)
            folder = execute(resolved, out, compute, drawn)
        print_run(folder, as_json=json)
        saved(f"{out}: picture in {folder.picture.name}, settings in {folder.config_file.name}")
    else:
        if seed is not None or drawn is not None:
            other = "--seed" if drawn is None else "--coins, which are drawn for one run"
            raise CarvyError(f"--seeds is given, and so is {other}; leave one out")
        from carvyfl.runs.config import RunConfig

        resolved = RunConfig(**vars(settings))
        compute = options.compute(engine, precision, workers, store, cluster)
        folders = _run_seeds(resolved, out, compute, options.whole_numbers(seeds, "--seeds"))
        print_seeds(folders, as_json=json)
        saved(f"{out}: a folder for each seed, picture in {folders[0].picture.name}")
    note(f"As one page: carvy report {out}")


def _run_seeds(
    config: RunConfig, out: Path, compute: Compute, seeds: Sequence[int]
) -> list[RunFolder]:
    """Run a configuration with each seed, and draw the means with their spread."""
    from carvyfl.plots.pictures import plot
    from carvyfl.runs.execute import execute
    from carvyfl.runs.folder import RunFolder
    from carvyfl.runs.ownership import refuse_taken
    from carvyfl.runs.seeds import seed_folder, spreads

    if RunFolder(out).config_file.exists():
        raise CarvyError(f"{out} holds a run; choose another folder for --seeds with --out")
    configs = {seed: dataclasses.replace(config, seed=seed) for seed in seeds}
    for seed, own in configs.items():  # before the first of them takes its hours
        refuse_taken(seed_folder(out, seed), own.to_dict())
    folders = []
    for position, (seed, own) in enumerate(configs.items(), 1):
        note(f"Seed {seed} ({position} of {len(configs)})")
        folders.append(execute(own, seed_folder(out, seed), compute))
    found = spreads([folder.record() for folder in folders])
    curves = {method: own["given_groups"] for method, own in found.items() if own}
    if curves:
        title = f"{config.dataset}, {config.clients} clients, {len(seeds)} seeds"
        plot(curves, title=title).save(RunFolder(out).picture)
    return folders
