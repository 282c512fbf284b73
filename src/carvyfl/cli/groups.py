"""`carvy groups` and `carvy coins`: Steps 1 and 2 alone, and what random groups are drawn from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from carvyfl.cli import options
from carvyfl.cli.answers import CoinsShown, Groups
from carvyfl.cli.output import phase, print_json, saved, screen
from carvyfl.cli.show import print_group_count
from carvyfl.groups.coins import draw_coins, save_coins
from carvyfl.runs.config import updated


@options.with_settings(training=False)
def groups(
    *,
    method: str = options.option("{groupings}.", default="carvy", panel=options.GROUPS),
    data_dir: Path | None = options.DATA_DIR,
    workers: int | None = options.WORKERS,
    plot: Path | None = options.option("Draw what clients and groups consist of into this PNG."),
    plugin: list[Path] | None = options.PLUGIN,
    json: bool = options.JSON,
    **settings: Any,
) -> None:
    """Find the clients' types and form the groups, without training them.

    Types are found for every method, since they tell how diverse its groups
    are: the share of all types that a group holds.

    [bold]Examples[/bold]

      carvy groups --samples 100 --plot groups.png

      carvy groups --partition dirichlet -p alpha=0.3 --method balanced -g 20

      carvy groups --types xmeans --json
    """
    from carvyfl.learning.backends import make_backend
    from carvyfl.pipeline import Compute, check_methods, find_profiles, form_all, hear
    from carvyfl.plots.pictures import plot as draw
    from carvyfl.runs.execute import prepare

    chosen, coins = options.resolve({**settings, "data_dir": data_dir, "methods": [method]})
    config = updated(chosen)
    config.check_coins(coins)
    compute = Compute(make_backend(workers=workers), phase=phase)
    setup = prepare(config, phase=phase).setup
    check_methods(config.methods, config, setup)
    setup = hear(setup, compute)
    profiles = find_profiles(setup, config, compute)
    formed = form_all(config.methods, config, setup, compute, coins, profiles)
    grouping, count = formed.groupings[method], formed.count
    types, drawn_from = profiles.types, grouping.coins
    if plot is not None:
        amounts = profiles.class_amounts(setup.federation.num_classes)
        draw(grouping, types=types.labels, shares=amounts).save(plot)
        saved(str(plot))
    if json:
        answer = Groups(
            types=tuple(types.labels.tolist()),
            type_names=tuple(types.names),
            num_types=types.num_types,
            groups=tuple(grouping.assignment.tolist()),
            num_groups=grouping.num_groups,
            method=method,
            diversity=tuple(grouping.diversity(types.labels).tolist()),
            certificate=grouping.basis,
            coins=CoinsShown(**drawn_from.to_json()) if drawn_from else None,
            group_count=count,
            warnings=tuple(types.warnings),
            set_aside={str(client): reason for client, reason in types.set_aside.items()},
        )
        print_json(answer)
        return
    screen.print(f"{types}\n", soft_wrap=True)
    if count is not None:
        print_group_count(count)
        screen.print()
    screen.print(options.in_flags(grouping.table(types.labels)), soft_wrap=True)
    if drawn_from is not None:
        screen.print(f"drawn from {drawn_from}", soft_wrap=True)


def coins(file: Path = typer.Argument(help="The file to write; it must not exist.")) -> None:
    """Draw the coins of one run, and print the commitment to publish.

    The coins come from the operating system's secure source and go into a file that only
    you can read. Publish the commitment before clients send anything: it shows later
    that the coins were not chosen to suit the messages. A run reveals its coins, so
    draw others for the next.

    [bold]Example[/bold]

      carvy coins secret.json

      carvy run --groups 20 --coins secret.json --out runs/drawn
    """
    drawn = draw_coins()
    save_coins(drawn, file)
    screen.print(drawn.commitment, soft_wrap=True)
    saved(f"{file}: keep it secret until the run, and publish the commitment above")
