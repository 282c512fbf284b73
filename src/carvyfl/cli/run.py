"""`carvy run`: all four steps, every method, one folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from carvyfl.cli import options
from carvyfl.cli.output import note, stopping_cleanly
from carvyfl.cli.show import print_run


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
    engine: options.Engine = "auto",
    precision: options.Precision = None,
    cluster: options.Cluster = None,
    seed: options.Seed = None,
    workers: options.Workers = None,
    store: options.Store = None,
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
    """
    given = locals()
    from carvyfl.groups.coins import load_coins
    from carvyfl.runs.execute import execute

    training: dict[str, Any] = {"rounds": rounds, "lr": lr, "algorithm": algorithm}
    changes = {name: value for name, value in training.items() if value is not None}
    if patience is not None:
        changes["patience"] = patience or None
    drawn = None if coins is None else load_coins(coins)
    commitment = None if drawn is None else drawn.commitment
    resolved = options.resolve({**given, "training": changes, "commitment": commitment})
    compute = options.compute(engine, precision, workers, store, cluster)
    folder = execute(resolved, out, compute, drawn)
    print_run(folder, as_json=json)
    note(f"Saved in {out}: picture in {folder.picture.name}, settings in {folder.config_file.name}")
    note(f"As one page: carvy report {out}")
