"""`carvy certify`: a certificate for the votes of any ensemble."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from carvyfl.certificate import Certificate
from carvyfl.certificate import certify as certify_votes
from carvyfl.cli import options
from carvyfl.cli.output import ca_table, print_json, screen
from carvyfl.votes_io import load_votes


def certify(
    votes: Annotated[Path, typer.Argument(help="Votes as .npz or .csv.")],
    json: options.Json = False,
    confidence: Annotated[
        float, typer.Option(help="Of the interval for a finite test set, between 0 and 1.")
    ] = 0.95,
) -> None:
    """Certify the votes of any ensemble whose members share no client.

    [bold]npz[/bold]: `votes` (integers, groups × inputs), optional `labels` and `num_classes`.
    [bold]csv[/bold]: a header, one row per input, an optional `label` column and one column
    per group. -1, or an empty cell, is a group that casts no vote.

    With labels: certified accuracy CA(m). Without: every input's prediction and
    its radius, the number of malicious clients that cannot change it.
    """
    ballots, labels = load_votes(votes)
    certificate = certify_votes(ballots, labels)
    if json:
        print_json(summary(certificate, confidence))
    else:
        _print(certificate, confidence)


def summary(certificate: Certificate, confidence: float) -> dict[str, Any]:
    """Return the certificate as plain data; without labels, input by input."""
    result: dict[str, Any] = {
        "num_groups": certificate.num_groups,
        "num_inputs": certificate.num_inputs,
        "num_classes": certificate.num_classes,
        "assumptions": list(certificate.assumptions),
    }
    if certificate.labels is None:
        most = int(certificate.radius.max())
        return result | {
            "certified_share": [certificate.certified_share(m) for m in range(most + 2)],
            "prediction": certificate.prediction.tolist(),
            "radius": certificate.radius.tolist(),
        }
    low, high = certificate.ca_interval(confidence)
    classes = certificate.per_class_ca()
    return result | {
        "ca": certificate.ca().tolist(),
        "ca_low": low.tolist(),
        "ca_high": high.tolist(),
        "confidence": confidence,
        "auc": certificate.auc(),
        "per_class_ca": [None if (row != row).any() else row.tolist() for row in classes],
    }


def _print(certificate: Certificate, confidence: float) -> None:
    size = f"{certificate.num_groups} groups, {certificate.num_inputs} inputs"
    if certificate.labels is None:
        most = int(certificate.radius.max())
        share = [certificate.certified_share(m) for m in range(most + 2)]
        screen.print(ca_table({"cannot change": share}, title=f"Predictions in %, {size}"))
        screen.print("Predictions in row m cannot be changed by m malicious clients.")
        screen.print("Use --json for every input's prediction and radius.")
    else:
        low, high = certificate.ca_interval(confidence)
        curves = {"CA(m)": certificate.ca().tolist(), "from": low.tolist(), "to": high.tolist()}
        title = f"Certified accuracy in %, {size}, {100 * confidence:g} % interval"
        screen.print(ca_table(curves, title=title))
        screen.print(f"AUC {certificate.auc():.1f}", highlight=False)
        screen.print(
            "Every prediction counted in row m stays right with up to m malicious clients."
        )
    screen.print("This rests on:", highlight=False)
    for sentence in certificate.assumptions:
        screen.print(f"- {sentence}", highlight=False, markup=False)
