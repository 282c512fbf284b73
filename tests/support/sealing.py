"""Changing a finished run as a forger would: all hashes are made anew."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from carvyfl.learning.learners import LEARNERS
from carvyfl.profiles.methods import PROFILE_METHODS
from carvyfl.runs.folder import RunFolder
from carvyfl.runs.record import hashes, sealed


def reseal(folder: Path, change: Callable[[dict[str, Any]], object] = lambda record: None) -> None:
    """Change a run's record, note what its files are like now, and seal it again."""
    run = RunFolder(folder)
    record = json.loads(run.record_file.read_text())
    record.pop("digest")
    change(record)
    files = [run.config_file, run.picture]
    if record.get("types") is not None:
        compared = getattr(PROFILE_METHODS.get(record["config"]["types"]), "read_vectors", None)
        files += [run.types_file, *([run.profiles_file] if compared else [])]
    files += [run.choice_picture] if "group_count" in record else []
    files += [run.sums_file] if record["config"]["keep_sums"] else []
    learner = LEARNERS.get(record["config"]["learner"])
    if learner is not None and learner.sends == "message":
        files += [run.messages_file, *(folder / name for name in learner.files)]
    for method in record["methods"]:
        files += [run.grouping_file(method), run.models_file(method), run.votes_file(method)]
    record["files"] = hashes(folder, [file for file in files if file.is_file()])
    run.record_file.write_text(sealed(record))
