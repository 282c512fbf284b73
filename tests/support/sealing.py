"""Changing a finished run as a forger would: all hashes are made anew."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from carvyfl.runs.folder import RunFolder
from carvyfl.runs.record import hashes, sealed


def reseal(folder: Path, change: Callable[[dict[str, Any]], object] = lambda record: None) -> None:
    """Change a run's record, note what its files are like now, and seal it again."""
    run = RunFolder(folder)
    record = json.loads(run.record_file.read_text())
    record.pop("digest")
    change(record)
    files = run.files(
        record["methods"],
        record["config"]["types"],
        typed=record["types"] is not None,
        counted="group_count" in record,
        summed=record["config"]["keep_sums"],
    )
    record["files"] = hashes(folder, [file for file in files if file.is_file()])
    run.record_file.write_text(sealed(record))
