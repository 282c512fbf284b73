"""`carvy coins`: the random number from which groups are drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from carvyfl.cli.output import note, screen, stopping_cleanly


@stopping_cleanly()
def coins(
    file: Annotated[Path, typer.Argument(help="The file to write; it must not exist.")],
) -> None:
    """Draw the coins of one run, and print the commitment to publish.

    The coins come from the operating system's secure source and go into a file that only
    you can read. Publish the commitment before clients send anything: it shows later
    that the coins were not chosen to suit the messages. A run reveals its coins, so
    draw others for the next.

    [bold]Example[/bold]

      carvy coins secret.json

      carvy run --groups 20 --coins secret.json --out runs/drawn
    """
    from carvyfl.groups.coins import draw_coins, save_coins

    drawn = draw_coins()
    save_coins(drawn, file)
    screen.print(drawn.commitment, soft_wrap=True)
    note(f"Publish this commitment. The coins are in {file}: keep them secret until the run.")
