"""`carvy run`: all four steps, every method, one folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from carvyfl.cli import options
from carvyfl.cli.output import note, phase, stopping_cleanly
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
    partition_option: options.PartitionOption = None,
    clients: options.Clients = None,
    samples: options.SamplesPerClient = None,
    model: options.Model = None,
    methods: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated: {groupings}.",
            rich_help_panel=options.GROUPING,
        ),
    ] = None,
    types: options.Types = None,
    types_file: options.TypesFile = None,
    groups: options.Groups = None,
    rounds: Annotated[
        int | None,
        typer.Option(help="Largest number of rounds.", rich_help_panel=options.TRAINING),
    ] = None,
    lr: Annotated[
        float | None,
        typer.Option(help="Learning rate of the first round.", rich_help_panel=options.TRAINING),
    ] = None,
    patience: Annotated[
        int | None,
        typer.Option(
            help="Stop a group after so many stale rounds; 0: never.",
            rich_help_panel=options.TRAINING,
        ),
    ] = None,
    algorithm: Annotated[
        str | None, typer.Option(help="scaffold or fedavg.", rich_help_panel=options.TRAINING)
    ] = None,
    engine: options.Engine = "auto",
    precision: options.Precision = None,
    cluster: options.Cluster = None,
    seed: options.Seed = None,
    workers: options.Workers = None,
    store: options.Store = None,
    json: options.Json = False,
) -> None:
    """Train, vote and certify: CARVY-FL beside its baselines.

    Clients' types are found, groups formed and trained, and the certified
    accuracy CA(m) of every method is printed: the share of test inputs that are
    answered correctly with up to m malicious clients, and as without them. The
    folder keeps the configuration, groups, models and votes.

    Interrupted? Run the same command again: finished groups are not trained twice.

    [bold]Examples[/bold]

      carvy run --preset demo --out runs/demo

      carvy run --dataset mnist --samples 50 --methods carvy,flcert,single

      carvy run --config runs/demo/config.yaml --seed 1 --out runs/demo-1
    """
    from carvyfl.data.datasets import cache_folder
    from carvyfl.learning.engines import cluster_engine, make_engine
    from carvyfl.learning.store import GroupStore
    from carvyfl.pipeline import Compute
    from carvyfl.runs.execute import execute

    training: dict[str, Any] = {"rounds": rounds, "lr": lr, "algorithm": algorithm}
    changes = {name: value for name, value in training.items() if value is not None}
    if patience is not None:
        changes["patience"] = patience or None
    resolved = options.resolve(
        config,
        preset,
        {
            "dataset": dataset,
            "data_dir": data_dir,
            "num_classes": num_classes,
            "mean": mean,
            "std": std,
            "partition": partition,
            "partition_options": partition_option,
            "clients": clients,
            "samples": samples,
            "model": model,
            "methods": methods,
            "types": types,
            "types_file": types_file,
            "groups": groups,
            "seed": seed,
            "training": changes,
        },
    )
    trainer = (
        cluster_engine(cluster, engine, precision)
        if cluster
        else make_engine(engine, workers=workers, precision=precision)
    )
    kept = GroupStore(store or cache_folder() / "groups")
    folder = execute(resolved, out, Compute(trainer, workers, kept, phase))
    print_run(folder, as_json=json)
    note(f"Saved in {out}: picture in {folder.picture.name}, settings in {folder.config_file.name}")
    note(f"As one page: carvy report {out}")
