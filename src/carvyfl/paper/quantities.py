"""What the paper picks from its trials and reads off them; all from records of one preset."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from carvyfl.attacks.placement import paper_placement
from carvyfl.paper.published import SWEEP_SAMPLES, group_counts
from carvyfl.paper.records import AsrRecord, CaRecord, Record, select
from carvyfl.paper.summaries import Spread, asr_auc, largest_m, mean_ca, methods_in, spread
from carvyfl.paper.targets import PAPER_ATTACK
from carvyfl.plots.style import method_style

HIT_M = 10
"""The paper counts the groups that FLCert's hash exposes to ten malicious clients."""
REDUCTION_M = (6, 8)
"""Where the paper compares the ASR of CARVY-FL and FLCert."""


R = TypeVar("R", bound=Record)


def paper_size(records: Sequence[R]) -> list[R]:
    """Return the trials with as many samples a client as the paper's attacks and sweep have."""
    return [record for record in records if record.samples == SWEEP_SAMPLES]


def largest_size(records: Sequence[R]) -> list[R]:
    """Return the trials with the most samples a client: the paper's, once they were run."""
    most = max((record.samples for record in records), default=0)
    return [record for record in records if record.samples == most]


def size_note(records: Sequence[Record]) -> str:
    """Say so if there are only trials smaller than the paper's."""
    if paper_size(records) or not records:
        return ""
    return (
        f"{records[0].samples} samples a client; the paper's numbers are for {SWEEP_SAMPLES} and "
        "left out."
    )


def sweep_records(records: Sequence[Record], *methods: str) -> list[CaRecord]:
    """Return these methods' trials of the sweep over the paper's values of G."""
    found = [r for method in methods for r in select(records, CaRecord, method=method)]
    return [record for record in found if record.groups in group_counts()]


def paper_attack(records: Sequence[Record], attack: str = PAPER_ATTACK) -> list[AsrRecord]:
    """Return the trials under the paper's attack, in one reading, placed as the paper does."""
    found = select(records, AsrRecord, attack=attack)
    return [r for r in found if r.placement == paper_placement(r.method)]


def attack_stem(attack: str) -> str:
    """Return how the files of an attack's figures and tables begin: as its target is called."""
    return attack.replace(PAPER_ATTACK, "asr")


def failed_types_records(
    records: Sequence[Record],
) -> tuple[list[CaRecord], list[CaRecord], list[CaRecord]]:
    """Return the trials of CARVY-FL with the right types, with wrong ones, and FLCert's."""
    here = largest_size(select(records, CaRecord, dataset="fashion-mnist", groups=None))
    return (
        select(here, CaRecord, method="carvy", types_exact=True),
        select(here, CaRecord, method="carvy", types_exact=False),
        select(here, CaRecord, method="flcert"),
    )


def attack_note(records: Sequence[AsrRecord]) -> str:
    """Say where the malicious clients sat, method by method, and if trials are small."""
    parts = []
    for method in methods_in(records):
        found = sorted({record.placement for record in records if record.method == method})
        parts.append(f"{method_style(method).label} {', '.join(found)}")
    placed = f"Placement of the malicious clients: {'; '.join(parts)}." if parts else ""
    return f"{size_note(records)} {placed}".strip()


def asr_reduction(
    records: Sequence[Record], dataset: str, m: int, reading: str = "asr"
) -> Spread | None:
    """Return FLCert's ASR at m less CARVY-FL's, over the seeds that both have."""
    both = [_by_seed(records, dataset, method, m, reading) for method in ("flcert", "carvy")]
    return spread(both[0][seed] - both[1][seed] for seed in sorted(both[0].keys() & both[1].keys()))


def groups_hit(records: Sequence[Record], dataset: str) -> Spread | None:
    """Return in how many groups FLCert's hash puts ten malicious clients."""
    return spread(_by_seed(records, dataset, "flcert", HIT_M, "groups_hit").values())


def ca_area(
    records: Sequence[Record], dataset: str, samples: int, method: str, groups: int | None = None
) -> Spread | None:
    """Return the AUC of CA at a G of the sweep, or (None) at the method's own G."""
    trials = select(
        records, CaRecord, dataset=dataset, samples=samples, method=method, groups=groups
    )
    return spread(r.auc for r in trials)


def asr_area(
    records: Sequence[AsrRecord], dataset: str, method: str, reading: str = "asr"
) -> Spread | None:
    """Return the AUC of 100 − ASR, of the trials that have m = 0 … 20."""
    return spread(asr_areas(records, dataset, method, reading))


def asr_areas(
    records: Sequence[AsrRecord], dataset: str, method: str, reading: str = "asr"
) -> list[float]:
    """Return the same of every single trial."""
    trials = select(records, AsrRecord, dataset=dataset, method=method)
    return [area for r in trials if (area := asr_auc(r, reading)) is not None]


def tolerated(
    records: Sequence[Record], dataset: str, samples: int, method: str, level: float
) -> Spread | None:
    """Return the largest m at which the mean of CA(m) is over ``level`` %; −1 for none."""
    trials = select(records, CaRecord, dataset=dataset, samples=samples, method=method, groups=None)
    curve = mean_ca(trials)
    return None if curve is None else Spread(largest_m(curve.mean, level), None, curve.n)


def max_sd(records: Sequence[Record], dataset: str, samples: int, method: str) -> Spread | None:
    """Return the largest standard deviation of CA(m) over m; None for fewer than two trials."""
    trials = select(records, CaRecord, dataset=dataset, samples=samples, method=method, groups=None)
    curve = mean_ca(trials)
    if curve is None or curve.sd is None:
        return None
    return Spread(float(curve.sd.max()), None, curve.n)


def _by_seed(
    records: Sequence[Record], dataset: str, method: str, m: int, name: str
) -> dict[int, float]:
    trials = select(records, AsrRecord, dataset=dataset, method=method)
    return {r.seed: getattr(r, name)[r.m.index(m)] for r in trials if m in r.m}
