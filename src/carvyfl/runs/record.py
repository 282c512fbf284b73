"""The record of a run: what it claims of each method, and the seal that shows any later change."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from carvyfl.core.errors import CarvyError
from carvyfl.data.datasets import DataSet
from carvyfl.profiles.types import ClientTypes
from carvyfl.voting.certificate import READINGS, Certificate

DIGEST = "digest"
"""The field that closes a sealed record."""


def certificate_record(certificate: Certificate) -> dict[str, Any]:
    """Return everything that a record says of a method's certificate, as plain data."""
    low, high = certificate.ca_interval()
    classes = certificate.per_class_ca()
    return {
        "num_groups": certificate.num_groups,
        "ca": certificate.ca().tolist(),
        "ca_low": low.tolist(),
        "ca_high": high.tolist(),
        "auc": certificate.auc(),
        "per_class_ca": [None if np.isnan(row).any() else row.tolist() for row in classes],
        "certificate": {
            "kind": certificate.basis.kind,
            "because": certificate.basis.because,
            "assumptions": list(certificate.assumptions),
        },
        "end_to_end": end_to_end_record(certificate),
    }


def end_to_end_record(certificate: Certificate) -> dict[str, Any] | None:
    """Return both readings of the end-to-end certificate as plain data; None if there is none."""
    readings: dict[str, Any] = {}
    for reading in READINGS:
        found = certificate.end_to_end(reading)
        if found is None:
            return None
        readings[reading] = {
            "groups_per_client": getattr(certificate.basis, reading),
            "ca": found.ca().tolist(),
            "auc": found.auc(),
        }
    return readings


def data_record(dataset: DataSet) -> dict[str, Any]:
    """Return what a record says of the data, as plain data."""
    return {
        "name": dataset.name,
        "input_shape": list(dataset.test.inputs.shape[1:]),
        "input_type": str(dataset.test.inputs.dtype),
        "num_classes": dataset.num_classes,
        "class_names": list(dataset.class_names),
        "mean": dataset.mean,
        "std": dataset.std,
        "test_inputs": len(dataset.test),
    }


def types_record(types: ClientTypes) -> dict[str, Any]:
    """Return what a record says of Step 1, as plain data."""
    return {
        "method": types.method,
        "num_types": types.num_types,
        "sizes": types.sizes.tolist(),
        "names": list(types.names),
        "warnings": list(types.warnings),
        "set_aside": {str(client): reason for client, reason in types.set_aside.items()},
    }


def hashes(folder: Path, files: Iterable[Path]) -> dict[str, str]:
    """Return the SHA-256 of files, by their names relative to the folder."""
    return {file.relative_to(folder).as_posix(): sha256(file) for file in files}


def sealed(record: dict[str, Any]) -> str:
    """Return the text of a record, such as ``run.json``, closed by the SHA-256 of all before.

    The text is a function of the record, so that :func:`unsealed` notices any changed byte,
    even one that means nothing in JSON.
    """
    digest = hashlib.sha256(_text(record).encode()).hexdigest()
    return _text({**record, DIGEST: digest})


def unsealed(text: str) -> dict[str, Any]:
    """Return the record in a sealed text, without its digest.

    Raises
    ------
    CarvyError
        If the text was changed after it was sealed, or never was.
    """
    try:
        record = json.loads(text)
        record.pop(DIGEST)
        intact = sealed(record) == text
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError):
        raise CarvyError("the record is damaged, or was written without a digest") from None
    if not intact:
        raise CarvyError("the record was changed after it was written")
    return dict(record)


def _text(record: dict[str, Any]) -> str:
    return json.dumps(record, indent=1, allow_nan=False)


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal digits."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise CarvyError(f"cannot read {path}: {error.strerror}") from error
