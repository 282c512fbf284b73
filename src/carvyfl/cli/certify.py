"""`carvy certify`: a certificate for the votes of any ensemble."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import typer
from msgspec.structs import asdict

from carvyfl.cli import options
from carvyfl.cli.answers import CertifiedVotes, CollectiveShare, UnlabelledVotes
from carvyfl.cli.output import print_curves, print_items, print_json, screen, warn
from carvyfl.core.errors import CarvyError
from carvyfl.groups.basis import FOREIGN_VOTES, READINGS, Basis
from carvyfl.runs.folder import RunFolder
from carvyfl.runs.record import certified
from carvyfl.voting.certificate import Certificate
from carvyfl.voting.certificate import certify as certify_votes
from carvyfl.voting.collective import Collective
from carvyfl.voting.collective import collective as collective_share
from carvyfl.voting.files import load_members, load_votes


def certify(
    votes: Path = typer.Argument(help="Votes as .npz or .csv."),
    json: bool = options.JSON,
    labels_column: str | None = options.option(
        "The csv's column with the true classes. Default: `label`, if there is one."
    ),
    confidence: float = options.option(
        "Of the interval for a finite test set, between 0 and 1.", default=0.95
    ),
    collective: bool = options.option(
        "Also count against one set of m groups for all inputs.", "--collective", default=False
    ),
) -> None:
    """Certify the votes of any ensemble.

    Groups are taken to share no client, unless the file lists their members.

    [bold]npz[/bold]: `votes` (integers, groups × inputs), optional `labels`, `num_classes` and
    `members` (0 or 1, clients × groups).
    [bold]csv[/bold]: a header, one row per input, an optional column of labels and one column
    per group. -1, nan, or an empty cell, is a group that casts no vote.

    With labels: certified accuracy CA(m). Without: every input's prediction and
    its radius, the number of malicious clients that cannot change it. Malicious
    clients sit in the same groups whatever is asked: with --collective, the share
    of the whole test set that is left by the worst m groups, beside CA(m).

    [bold]Examples[/bold]

      carvy certify votes.csv

      carvy certify runs/demo/votes/carvy.npz --json
    """
    if not 0 < confidence < 1:
        raise CarvyError(f"confidence {confidence}: give a number between 0 and 1")
    ballots, labels = load_votes(votes, labels_column)
    members = load_members(votes)
    if collective and (labels is None or members is not None):
        needs = "--collective needs labels, and groups that share no client; leave it out"
        raise CarvyError(f"{votes}: {needs}")
    basis, budget = _known(votes)
    certificate = replace(certify_votes(ballots, labels, basis, members), budget=budget)
    for warning in certificate.warnings:
        warn(warning)
    if collective and not certificate.basis.readings:
        raise CarvyError(f"{votes}: nothing is certified: {certificate.basis.because}")
    together = collective_share(ballots, labels) if collective else None
    if json:
        print_json(summary(certificate, confidence, together))
    else:
        _print(certificate, confidence, together)


def _known(votes: Path) -> tuple[Basis, tuple[float, float] | None]:
    """Return what is known of the grouping, and of privacy, where votes lie in a run folder."""
    file, method = votes.resolve(), votes.stem
    run = RunFolder(file.parent.parent)
    if run.votes_file(method) != file or not run.record_file.exists():
        return FOREIGN_VOTES, None
    return run.grouping(method).basis, run.record().budget


def summary(
    certificate: Certificate, confidence: float, together: Collective | None = None
) -> CertifiedVotes | UnlabelledVotes:
    """Return what is printed of a certificate; without labels, input by input."""
    names = ("num_inputs", "num_classes", "assumptions")
    voted_on = {name: getattr(certificate, name) for name in names}
    voted_on["privacy"] = certificate.privacy or None
    if certificate.labels is None:
        return UnlabelledVotes(
            num_groups=certificate.num_groups,
            **voted_on,
            certified_share=tuple(_shares(certificate)),
            prediction=tuple(certificate.prediction.tolist()),
            radius=tuple(certificate.radius.tolist()),
        )
    share = None
    if together is not None:
        share = CollectiveShare(tuple(together.ca.tolist()), tuple(together.exact.tolist()))
    whole = asdict(certified(certificate, confidence)) | voted_on
    return CertifiedVotes(**whole, confidence=confidence, collective=share)


def _shares(certificate: Certificate) -> list[float]:
    """Return the share of inputs that m malicious clients cannot change, up to the first zero."""
    length = int(certificate.radius.max()) + 2 if certificate.basis.readings else 1
    return [certificate.certified_share(m) for m in range(length)]


def _print(certificate: Certificate, confidence: float, together: Collective | None) -> None:
    size = f"{certificate.num_groups} groups, {certificate.num_inputs} inputs"
    if certificate.labels is None:
        curves = {"cannot change": [_shares(certificate)]}
        print_curves(f"Share of predictions in %: {size}", curves)
        if certificate.basis.readings:
            screen.print(f"Row m: {READINGS['given_groups'].same_as}.")
        screen.print("--json gives every input's prediction and radius.")
    else:
        low, high = certificate.ca_interval(confidence)
        columns = {"CA(m)": certificate.ca(), "from": low, "to": high}
        columns |= {"collective": together.ca} if together else {}
        print_curves(
            f"Certified accuracy CA(m) in %: {size}, {100 * confidence:g} % interval",
            {name: [curve.tolist()] for name, curve in columns.items()},
        )
        screen.print(certificate.meaning)
        if together:
            exact = "exact" if together.exact.all() else "a lower bound for some m"
            screen.print(
                "Collective: of this test set, so much is certain to be answered correctly, "
                f"whichever m groups are malicious ({exact}); no single input is meant."
            )
        if certificate.basis.readings:
            screen.print(f"AUC {certificate.auc():.1f}")
    screen.print("This rests on:")
    print_items(certificate.assumptions)
    if certificate.privacy:
        screen.print(certificate.privacy, soft_wrap=True)
