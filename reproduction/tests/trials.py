"""Hand-made records of a reproduction; every test says itself what they hold."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from reproduction.records import AsrRecord, CaRecord, Record, TypesRecord

ENVIRONMENT = {
    "hardware": "one core",
    "torch": "2.13",
    "commit": "abc1234",
    "command": "python -m reproduction all",
    "engine": "loop",
    "precision": "fp32",
}


R = TypeVar("R", bound=Record)


def select(records: Iterable[Record], kind: type[R], **fields: object) -> list[R]:
    """Return the records of a kind whose named fields have these values."""
    return [
        record
        for record in records
        if isinstance(record, kind)
        and all(getattr(record, name) == value for name, value in fields.items())
    ]


def common(
    dataset: str = "mnist", samples: int = 500, seed: int = 0, preset: str = "paper"
) -> dict[str, Any]:
    return {
        "dataset": dataset,
        "samples": samples,
        "seed": seed,
        "preset": preset,
        "seconds": 30.0,
        "environment": ENVIRONMENT,
    }


def ca_trial(
    method: str,
    curve: Sequence[float],
    *,
    groups: int | None = None,
    num_groups: int = 20,
    exact: bool | None = None,
    **where: Any,
) -> CaRecord:
    """Return a trial with this CA(m); its area by counting trapezoids one by one."""
    return CaRecord(
        **common(**where),
        method=method,
        groups=groups,
        num_groups=num_groups,
        ca=tuple(map(float, curve)),
        auc=sum((a + b) / 2 for a, b in itertools.pairwise(curve)),
        rounds=(7,) * num_groups,
        stopped=("patience",) * num_groups,
        types_found=None if exact is None else 5,
        types_exact=exact,
    )


def asr_trial(
    method: str,
    asr: Sequence[float],
    *,
    m: Sequence[int] | None = None,
    attack: str = "badnets",
    placement: str | None = None,
    accuracy: Sequence[float] | None = None,
    promised: Sequence[float] | None = None,
    hit: Sequence[int] | None = None,
    lost: Sequence[float] | None = None,
    kept: bool = True,
    **where: Any,
) -> AsrRecord:
    points = tuple(range(len(asr)) if m is None else m)
    return AsrRecord(
        **common(**where),
        method=method,
        attack=attack,
        placement=placement or ("hash" if method == "flcert" else "dispersed"),
        num_groups=20,
        m=points,
        asr=tuple(map(float, asr)),
        asr_if_lost_votes_target=tuple(map(float, asr if lost is None else lost)),
        accuracy=tuple(map(float, accuracy or [90] * len(points))),
        ca=tuple(map(float, promised or [0] * len(points))),
        groups_hit=tuple(hit or points),
        promise_kept=kept,
    )


def types_trial(labels: Sequence[int], true: Sequence[int], **where: Any) -> TypesRecord:
    return TypesRecord(
        **common(**where),
        num_types=len(set(labels)),
        exact=len(set(zip(labels, true, strict=True))) == len(set(true)) == len(set(labels)),
        labels=tuple(labels),
        true=tuple(true),
        points=tuple((float(t), float(i)) for i, t in enumerate(true)),
    )


def a_little_of_everything(preset: str = "paper") -> list[Record]:
    """Return two seeds of every kind of trial: enough for each figure and table."""
    trials: list[Record] = []
    for dataset in ("mnist", "fashion-mnist"):
        for seed in (0, 1):
            where: dict[str, Any] = {"dataset": dataset, "seed": seed, "preset": preset}
            for samples in (50, 500):
                size = where | {"samples": samples}
                top = 90 - seed
                trials += [
                    ca_trial("carvy", (top, 85, 70, 30, 0), exact=seed == 0, **size),
                    ca_trial("flcert", (top, 50, 10 + 20 * seed, 0), **size),
                    ca_trial("cluster", (25, 0), **size),
                    ca_trial("single", (95, 0), num_groups=1, **size),
                    types_trial([0, 0, 1, 1 - seed], [0, 0, 1, 1], **size),
                ]
            for groups, height in ((10, 60), (20, 90), (25, 70)):
                for method in ("carvy", "flcert", "cluster"):
                    curve = (height, height - seed, 0)
                    trials.append(
                        ca_trial(method, curve, groups=groups, num_groups=groups, **where)
                    )
            trials += [
                asr_trial("carvy", [0] * 10 + [100] * 11, **where),
                asr_trial("flcert", [0] * 8 + [100] * 13, hit=[9] * 21, **where),
                asr_trial("cluster", [0] * 2 + [100] * 19, **where),
                asr_trial("single", [0, 99, 100], m=[0, 1, 20], **where),
                asr_trial("carvy", [0] * 9 + [100] * 12, attack="badnets-scaled", **where),
            ]
    return trials
