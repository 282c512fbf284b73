"""Parts of a run's record, made up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from carvyfl.core.environment import environment
from carvyfl.runs.record import AttackResult, Environment


def attack_result(
    method: str, accuracy: Sequence[float], certified: Sequence[float], **more: Any
) -> AttackResult:
    """An attack's result at m = 0, 1, …; without a backdoor unless ``more`` says otherwise."""
    none = (0,) * len(accuracy)
    plain: dict[str, Any] = {
        "attack": "badnets",
        "settings": {},
        "placement": "dispersed",
        "m": tuple(range(len(accuracy))),
        "groups_hit": none,
        "groups_lost": none,
        "dropped": none,
        "asr": None,
        "asr_if_lost_votes_target": None,
        "promise_kept": True,
        "seconds": 1.0,
        "environment": Environment(**environment(), engine="loop", precision="fp32"),
    }
    return AttackResult(
        method=method, accuracy=tuple(accuracy), certified=tuple(certified), **plain | more
    )
