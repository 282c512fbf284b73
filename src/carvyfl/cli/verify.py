"""`carvy verify` and `carvy sign`: a run folder as evidence."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from carvyfl.cli import options
from carvyfl.cli.flags import in_flags
from carvyfl.cli.output import print_items, print_json, screen, stopping_cleanly
from carvyfl.core.errors import CarvyError

MISMATCH = 1
"""Exit code where a claim does not hold."""


@stopping_cleanly()
def verify(
    run: options.RunPath,
    commitment: Annotated[
        str | None, typer.Option(help="The hash of the coins, as published before the reports.")
    ] = None,
    key: Annotated[
        Path | None, typer.Option(help="The signer's public key, a PEM file (Ed25519).")
    ] = None,
    data_dir: options.DataDir = None,
    workers: options.Workers = None,
    json: options.Json = False,
) -> None:
    """Derive again, without training, every number that a run folder claims.

    Bytes against the recorded hashes, groups from types and coins, votes from
    models where the data is at hand, margins and CA(m) from votes. Says what was
    checked and what could not be; exit code 1 on the first mismatch.

    [bold]Examples[/bold]

      carvy verify runs/demo

      carvy verify runs/demo --key public.pem --json
    """
    from carvyfl.cli.answers import Audit
    from carvyfl.runs.audit import Evidence, audit
    from carvyfl.runs.folder import RunFolder

    checks = []
    for check in audit(RunFolder(run), Evidence(commitment, key, data_dir, workers)):
        checks.append(check)
        if not json:
            print_items([in_flags(f"{check.what}: {check.state}. {check.detail}")])
    failed = checks[-1].state == "mismatch"
    if json:
        print_json(Audit(str(run), "mismatch" if failed else "ok", tuple(checks)))
    else:
        screen.print(f"MISMATCH in {checks[-1].what}" if failed else "All claims checked hold.")
    if failed:
        raise typer.Exit(MISMATCH)


@stopping_cleanly()
def sign(
    run: options.RunPath,
    key: Annotated[Path, typer.Option(help="Your private key, a PEM file (Ed25519).")],
) -> None:
    """Sign a run's record, which holds the hashes of all its files.

    The run is verified first. Make a key with
    'openssl genpkey -algorithm ed25519 -out key.pem', and the public key to hand out with
    'openssl pkey -in key.pem -pubout -out public.pem'.

    [bold]Example[/bold]

      carvy sign runs/demo --key key.pem
    """
    from carvyfl.runs.audit import Evidence, audit
    from carvyfl.runs.folder import RunFolder
    from carvyfl.runs.signing import sign_file

    folder = RunFolder(run)
    for check in audit(folder, Evidence()):
        if check.state == "mismatch":
            raise CarvyError(f"{run} is not signed, since it fails: {check.what}: {check.detail}")
    sign_file(folder.record_file, folder.signature_file, key)
    screen.print(f"Signed: {folder.signature_file}")
