"""`carvy groups`: Steps 1 and 2 alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from carvyfl.cli import options
from carvyfl.cli.output import phase, print_json, saved, screen, stopping_cleanly
from carvyfl.cli.show import print_group_count


@stopping_cleanly()
def groups(
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
    model: options.Model = None,
    method: Annotated[str, options.grouping("{groupings}.")] = "carvy",
    types: options.Types = None,
    types_file: options.TypesFile = None,
    covariates_file: options.CovariatesFile = None,
    epsilon: options.Epsilon = None,
    groups: options.Groups = None,
    aim: options.Aim = None,
    least_accuracy: options.LeastAccuracy = None,
    coins: options.CoinsFile = None,
    seed: options.Seed = None,
    workers: options.Workers = None,
    plot: Annotated[Path | None, typer.Option(help="Draw types and groups into this PNG.")] = None,
    plugin: options.Plugin = None,
    json: options.Json = False,
) -> None:
    """Find the clients' types and form the groups, without training them.

    Types are found for every method, since they tell how diverse its groups
    are: the share of all types that a group holds.

    [bold]Examples[/bold]

      carvy groups --samples 100 --plot groups.png

      carvy groups --partition dirichlet -p alpha=0.3 --method balanced -g 20

      carvy groups --types xmeans --json
    """
    given = locals()
    from carvyfl.cli.answers import CoinsShown, Groups
    from carvyfl.groups.coins import load_coins
    from carvyfl.learning.engines import make_engine
    from carvyfl.pipeline import Compute, check_methods, choose_groups, find_profiles, form_methods
    from carvyfl.plots.pictures import plot_grouping
    from carvyfl.runs.execute import prepare

    drawn = None if coins is None else load_coins(coins)
    commitment = None if drawn is None else drawn.commitment
    resolved = options.resolve({**given, "methods": [method], "commitment": commitment})
    resolved.check_coins(drawn)
    setup, settings = prepare(resolved).setup, resolved.grouping
    check_methods(resolved.methods, settings, setup)
    compute = Compute(make_engine(workers=workers), workers, phase=phase)
    profiles = find_profiles(setup, settings, compute)
    count = choose_groups([method], setup, settings, profiles, compute)
    chosen = None if count is None else count.groups
    grouping = form_methods(resolved.methods, settings, setup, profiles, drawn, chosen)[method]
    found = profiles.types
    if plot is not None:
        plot_grouping(grouping, found.labels, plot)
        saved(str(plot))
    if json:
        print_json(
            Groups(
                types=tuple(found.labels.tolist()),
                type_names=tuple(found.names),
                num_types=found.num_types,
                groups=tuple(grouping.assignment.tolist()),
                num_groups=grouping.num_groups,
                method=method,
                diversity=tuple(grouping.diversity(found.labels).tolist()),
                certificate=grouping.basis,
                coins=None if grouping.coins is None else CoinsShown(**grouping.coins.to_json()),
                group_count=count,
                warnings=tuple(found.warnings),
                set_aside={str(client): reason for client, reason in found.set_aside.items()},
            )
        )
        return
    screen.print(str(found), soft_wrap=True)
    screen.print()
    if count is not None:
        print_group_count(count)
        screen.print()
    screen.print(grouping.table(found.labels), soft_wrap=True)
    if grouping.coins is not None:
        screen.print(f"drawn from {grouping.coins}", soft_wrap=True)
