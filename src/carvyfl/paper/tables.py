"""The paper's tables beside ours: one function each, from records of one preset."""

from __future__ import annotations

from collections.abc import Sequence

from carvyfl.paper.grid import Cell, Table
from carvyfl.paper.published import (
    BEST_GROUPS,
    DATASETS,
    LEVELS,
    METHODS,
    SAMPLES,
    SWEEP_SAMPLES,
    group_counts,
    paper,
)
from carvyfl.paper.quantities import (
    HIT_M,
    REDUCTION_M,
    asr_area,
    asr_reduction,
    attack_note,
    attack_stem,
    ca_area,
    failed_types_records,
    groups_hit,
    largest_size,
    max_sd,
    paper_attack,
    size_note,
    sweep_records,
    tolerated,
)
from carvyfl.paper.records import AsrRecord, CaRecord, Record, TypesRecord, select
from carvyfl.paper.summaries import (
    Spread,
    largest_m,
    mean_attacked,
    methods_in,
    spread,
)
from carvyfl.paper.targets import PAPER_ATTACK
from carvyfl.plots.style import method_style

PROMISE_M = (0, 1, 2, 3, 4, 6, 8, 10, 12, 16, 20)
"""Where the accuracy under attack is tabulated; its figure has every m."""
READINGS = {"asr": "", "asr_if_lost_votes_target": ", lost groups vote for the target"}
"""Both readings of a vote that an attack destroyed, and what they add to a method's name."""


def groups_auc(records: Sequence[Record], dataset: str) -> Table:
    """AUC of CA for every G, 500 samples a client."""
    every = largest_size(sweep_records(records, *METHODS))
    used = [record for record in every if record.dataset == dataset]
    columns = paper()["ca_auc_by_groups"][dataset]
    cells = {}
    for method in METHODS:
        for printed, groups in zip(columns[method], group_counts(), strict=True):
            trials = select(used, CaRecord, method=method, groups=groups)
            ours = spread(r.auc for r in trials)
            cells[str(groups), method_style(method).label] = Cell(_if_alike(used, printed), ours)
    return Table(
        f"groups-{dataset}",
        f"AUC of certified accuracy for each number of groups on {DATASETS[dataset]}",
        "G",
        tuple(map(str, group_counts())),
        _names(METHODS),
        cells,
        tuple(used),
        note=size_note(used),
    )


def _if_alike(used: Sequence[Record], printed: float | None) -> float | None:
    """Return a number of the paper's unless our trials have fewer samples than its own."""
    return None if size_note(used) else printed


def asr_areas(records: Sequence[Record], attack: str = PAPER_ATTACK) -> Table:
    """AUC of 100 − ASR over m = 0 … 20, under both readings of a lost vote."""
    used = largest_size(paper_attack(records, attack))
    cells = {}
    rows = []
    for method in [*METHODS, *(m for m in methods_in(used) if m not in METHODS)]:
        for reading, addition in READINGS.items():
            row = method_style(method).label + addition
            rows.append(row)
            for dataset, name in DATASETS.items():
                printed = paper()["asr_auc"][dataset].get(method)
                ours = asr_area(used, dataset, method, reading)
                cells[row, name] = Cell(_if_alike(used, printed), ours)
    return Table(
        f"{attack_stem(attack)}-auc",
        "AUC of 100 − ASR over m = 0 … 20",
        "method",
        tuple(rows),
        tuple(DATASETS.values()),
        cells,
        tuple(used),
        note="A group whose model an attack drives to NaN is lost: it casts no vote, or under the "
        f"second reading one for the attacker's target. {attack_note(used)}".rstrip(),
    )


def asr_details(records: Sequence[Record], attack: str = PAPER_ATTACK) -> Table:
    """ASR at m = 6 and 8 against FLCert, and the groups that FLCert's hash exposes at m = 10."""
    used = largest_size(paper_attack(records, attack))
    cells = {}
    hit = f"groups hit at m = {HIT_M}, FLCert"
    for dataset, name in DATASETS.items():
        for m in REDUCTION_M:
            for reading, addition in READINGS.items():
                reduction = asr_reduction(used, dataset, m, reading)
                printed = paper()["asr_reduction_vs_flcert"][str(m)][dataset]
                cells[_reduction(m) + addition, name] = Cell(_if_alike(used, printed), reduction)
        # The hash knows no data: this number does not depend on the samples.
        printed = paper()["flcert_groups_hit_at_m10"]["mean"]
        cells[hit, name] = Cell(printed, groups_hit(used, dataset))
    rows = [_reduction(m) + addition for m in REDUCTION_M for addition in READINGS.values()]
    return Table(
        f"{attack_stem(attack)}-details",
        "Points by which CARVY-FL's ASR is below FLCert's, and how many groups are hit",
        "quantity",
        (*rows, hit),
        tuple(DATASETS.values()),
        cells,
        tuple(r for r in used if r.method in ("carvy", "flcert")),
        note="The paper's reductions are approximate, read here as points of the mean ASR; its "
        f"groups hit are 8.7 ± {paper()['flcert_groups_hit_at_m10']['sd']}. Reductions are "
        "taken seed by seed.",
    )


def _reduction(m: int) -> str:
    return f"ASR reduction at m = {m}"


def promise(records: Sequence[Record], dataset: str) -> Table:
    """CA(m) promised, and the accuracy that was left under attack."""
    used = [r for r in largest_size(paper_attack(records)) if r.dataset == dataset]
    methods = methods_in(used)
    cells = {}
    shown: set[int] = set()
    for method in methods:
        trials = select(used, AsrRecord, method=method)
        promised, real = mean_attacked(trials, "ca"), mean_attacked(trials, "accuracy")
        if promised is None or real is None:
            continue
        for position, m in enumerate(map(int, real.m)):
            if m not in PROMISE_M:
                continue
            shown.add(m)
            sd = None if real.sd is None else float(real.sd[position])
            ours = Spread(float(real.mean[position]), sd, real.n)
            cells[str(m), method_style(method).label] = Cell(float(promised.mean[position]), ours)
    return Table(
        f"promise-{dataset}",
        f"Certified accuracy and accuracy under attack on {DATASETS[dataset]}, in %",
        "m",
        tuple(map(str, sorted(shown))),
        _names(methods),
        cells,
        tuple(used),
        note=f"{size_note(used)} The difference must never be negative.".lstrip(),
        parts=("CA(m)", "under attack", "difference"),
    )


def mnist_50(records: Sequence[Record]) -> Table:
    """MNIST with 50 samples: CA(0), and the largest m with CA over 80, 60, 40 and 20 %."""
    used = select(records, CaRecord, dataset="mnist", samples=50, groups=None)
    methods = list(dict.fromkeys([*METHODS, *methods_in(used)]))
    printed = paper()["ca_mnist_50"]
    cells = {}
    for method in methods:
        trials = select(used, CaRecord, method=method)
        name = method_style(method).label
        cells["CA(0) in %", name] = Cell(
            printed["ca0"].get(method), spread(r.ca[0] for r in trials)
        )
        for level in LEVELS:
            whole = printed["largest_m_with_ca_over"][str(level)].get(method)
            cells[_level(level), name] = Cell(whole, tolerated(used, "mnist", 50, method, level))
            each = spread(float(largest_m(r.ca, level)) for r in trials)
            cells[f"{_level(level)}, by trial", name] = Cell(None, each)
    rows = [_level(level) for level in LEVELS]
    return Table(
        "ca-mnist-50",
        "Certified accuracy on MNIST with 50 training samples",
        "quantity",
        ("CA(0) in %", *rows, *(f"{row}, by trial" for row in rows)),
        _names(methods),
        cells,
        tuple(used),
        note="m over 80 %: the largest m at which CA(m) is over 80 %, of the mean curve (the "
        "paper's whole numbers suggest this) and by trial; −1 where not even CA(0) is.",
    )


def _level(level: int) -> str:
    return f"m over {level} %"


def ca_areas(records: Sequence[Record], dataset: str) -> Table:
    """AUC of CA of every method at its own G, for every number of samples.

    The paper prints the area for 500 samples and G = 20 only.
    """
    used = select(records, CaRecord, dataset=dataset, groups=None)
    methods = list(dict.fromkeys([*METHODS, *methods_in(used)]))
    at_20 = group_counts().index(BEST_GROUPS)
    cells = {}
    for method in methods:
        for samples in SAMPLES:
            sweep = paper()["ca_auc_by_groups"][dataset].get(method)
            printed = sweep[at_20] if sweep and samples == SWEEP_SAMPLES else None
            ours = ca_area(used, dataset, samples, method)
            cells[str(samples), method_style(method).label] = Cell(printed, ours)
    return Table(
        f"ca-auc-{dataset}",
        f"AUC of certified accuracy on {DATASETS[dataset]}",
        "samples a client",
        tuple(map(str, SAMPLES)),
        _names(methods),
        cells,
        tuple(used),
        note="The paper's number for 500 samples is that of its sweep at G = 20.",
    )


def largest_sd(records: Sequence[Record], dataset: str) -> Table:
    """Largest standard deviation of CA(m) over m, for every number of samples."""
    used = [
        r
        for method in METHODS
        for r in select(records, CaRecord, method=method, groups=None)
        if r.dataset == dataset
    ]
    printed = paper()["max_sd_of_ca_fashion_mnist"] if dataset == "fashion-mnist" else {}
    cells = {
        (str(samples), method_style(method).label): Cell(
            printed.get(str(samples), {}).get(method), max_sd(used, dataset, samples, method)
        )
        for samples in SAMPLES
        for method in METHODS
    }
    return Table(
        f"ca-sd-{dataset}",
        f"Largest standard deviation of CA(m) on {DATASETS[dataset]}, in points",
        "samples a client",
        tuple(map(str, SAMPLES)),
        _names(METHODS),
        cells,
        tuple(used),
        digits=2,
    )


def type_failures(records: Sequence[Record]) -> Table:
    """How often Step 1 did not find exactly the true types, in ten trials."""
    used = select(records, TypesRecord)
    printed = paper()["type_estimation_failures_of_10"]
    cells = {}
    for dataset, name in DATASETS.items():
        for samples in SAMPLES:
            trials = select(used, TypesRecord, dataset=dataset, samples=samples)
            failed = sum(not r.exact for r in trials)
            ours = Spread(10 * failed / len(trials), None, len(trials)) if trials else None
            cells[str(samples), name] = Cell(printed[dataset][str(samples)], ours)
    return Table(
        "types",
        "Failed type estimations in ten trials",
        "samples a client",
        tuple(map(str, SAMPLES)),
        tuple(DATASETS.values()),
        cells,
        tuple(used),
        note="Our count is scaled to ten trials.",
    )


def failed_types(records: Sequence[Record]) -> Table:
    """CARVY-FL on Fashion-MNIST when Step 1 succeeds and when it fails; the largest size."""
    right, wrong, flcert = failed_types_records(records)
    parts = {
        "CARVY-FL, types found": right,
        "CARVY-FL, types not found": wrong,
        "FLCert": flcert,
    }
    failed = paper()["type_estimation_failures_of_10"]["groups_when_failed"]
    cells = {}
    for name, trials in parts.items():
        printed = failed if trials is wrong else BEST_GROUPS
        cells["groups", name] = Cell(printed, spread(float(r.num_groups) for r in trials))
        cells["CA(0) in %", name] = Cell(None, spread(r.ca[0] for r in trials))
        cells["AUC of CA", name] = Cell(None, spread(r.auc for r in trials))
    return Table(
        "failed-types",
        "CARVY-FL on Fashion-MNIST by the outcome of type estimation",
        "quantity",
        ("groups", "CA(0) in %", "AUC of CA"),
        tuple(parts),
        cells,
        (*right, *wrong, *flcert),
        note=size_note([*right, *wrong, *flcert]),
    )


def _names(methods: Sequence[str]) -> tuple[str, ...]:
    return tuple(method_style(method).label for method in methods)
