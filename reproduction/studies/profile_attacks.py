"""Attacks on profiles: what liars in Step 1 do to groups of balanced profiles."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from carvyfl.attacks.step_one import Numbers
from carvyfl.core.files import write_text
from carvyfl.core.schema import plain
from carvyfl.groups.exchange import random_imbalance
from carvyfl.groups.grouping import Grouping
from carvyfl.groups.methods import form_groups
from carvyfl.pipeline import asked_groups
from carvyfl.profiles.asking import all_class_means
from carvyfl.profiles.messages import Messages
from carvyfl.profiles.methods import read_profiles
from carvyfl.runs.config import updated
from reproduction.experiment import Experiment, members, with_malicious
from reproduction.markdown import markdown
from reproduction.studies.attacks import lies, without_clients
from reproduction.studies.common import computing, on_heads, provenance, write_record
from reproduction.studies.heterogeneity import config_of

PARTITIONS = ("class-disjoint", "Dirichlet 0.3", "feature shift")
COLUMNS = {
    "accuracy left": ("accuracy_worst", "{:.1f}"),
    "CA(m), these groups": ("ca_given_groups", "{:.1f}"),
    "CA(m), all honest": ("ca_all_honest", "{:.1f}"),
    **{f"F {part}": (f"imbalance_{part}", "{:.3f}") for part in ("seen", "honest", "bound")},
}
"""What is tabulated: the column's name, and how it is written; F over that of chance."""
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Balance:
    """How balanced groups are, as the server sees it and among the honest clients alone.

    Both are Σ_g ‖S_g - S̄‖², with S_g the sum of the vectors in group g, S̄ the mean of the S_g.
    Besides R, the length of the liars' longest vector; how many liars were grouped, m; and how many
    of them sit in one group at most, s.
    """

    seen: float
    honest: float
    longest: float
    liars: int
    together: int

    @property
    def bound(self) -> float:
        """What ``honest`` is proved not to exceed: (√seen + R √(m min(m, s)))²."""
        reach = np.sqrt(self.liars * min(self.liars, self.together))
        return float((np.sqrt(self.seen) + self.longest * reach) ** 2)


def balance(vectors: Floats, assignment: Numbers, malicious: Numbers, num_groups: int) -> Balance:
    """Measure groups of vectors, shape (N, d); clients assigned to -1 are in no group."""
    lies = np.isin(np.arange(len(vectors)), malicious) & (assignment >= 0)
    counts = np.bincount(assignment[lies], minlength=num_groups)
    return Balance(
        seen=_spread(vectors, assignment, num_groups),
        honest=_spread(vectors, np.where(lies, -1, assignment), num_groups),
        longest=float(np.linalg.norm(vectors[lies], axis=1).max(initial=0.0)),
        liars=int(counts.sum()),
        together=int(counts.max()),
    )


def _spread(vectors: Floats, assignment: Numbers, num_groups: int) -> float:
    sums = np.zeros((num_groups, vectors.shape[1]))
    np.add.at(sums, assignment[assignment >= 0], vectors[assignment >= 0])
    return float(((sums - sums.mean(axis=0)) ** 2).sum())


def profile_attacks(args: Namespace) -> None:
    """Attacks on profiles: what liars in Step 1 do to groups of balanced profiles.

    Malicious clients send other class means than theirs, and `carvy` forms its groups. A group's
    head is found from its honest members' sums, and every group with a malicious member votes as
    badly as it can. For every partition, seed, attack and m: the accuracy that is left; CA(m) given
    these groups, which it is never below; CA(m) of the run in which all are honest; and the
    imbalance of the honest clients, with the bound that is proved for it.
    """
    compute = computing(args)
    record, rows = provenance(args, compute.engine), []
    for name in args.partitions:
        for seed in args.seeds:
            asked = {"groups": args.groups, "types": "class-means"}
            config = updated(config_of(args, name, seed), asked)
            found = _measure(on_heads(config, compute), args)
            rows += [{"partition": name, "seed": seed, **row} for row in found]
            print(f"{name}, seed {seed}: {len(rows)} rows", flush=True)
    path: Path = args.out / "attacks.json"
    write_record(path, record | {"config": plain(replace(config, data_dir=None)), "rows": rows})
    write_text(path.with_suffix(".md"), table(rows))


def _measure(experiment: Experiment, args: Namespace) -> list[dict[str, Any]]:
    """Attack the profiles of one federation in every way."""
    setup, seed = experiment.setup, experiment.setup.seed
    messages = all_class_means(setup.federation, setup.module, setup.recipe, seed)
    undisturbed = members(_form(experiment, messages)[0])
    cases = []
    for attack, chosen, sent in lies(messages, args, seed):
        grouping, vectors = _form(experiment, _at_full_weight(sent, messages))
        honest = without_clients(members(grouping), chosen)
        cases.append((attack, chosen, grouping, vectors, honest))
    experiment.train([*undisturbed, *(group for *_, honest in cases for group in honest)])
    rows = []
    for attack, chosen, grouping, vectors, honest in cases:
        m, found = len(chosen), balance(vectors, grouping.assignment, chosen, grouping.num_groups)
        hit = with_malicious(members(grouping), chosen.tolist())
        rest = vectors.copy()
        rest[chosen] = 0.0  # they bring nothing, as in the honest clients' imbalance
        row: dict[str, Any] = {
            "attack": attack,
            "m": m,
            "groups_touched": int(hit.sum()),
            "accuracy_worst": experiment.accuracy_against(honest, hit),
            "ca_given_groups": experiment.ca(honest, m),
            "ca_all_honest": experiment.ca(undisturbed, m),
            "imbalance_seen": found.seen,
            "imbalance_honest": found.honest,
            "imbalance_bound": found.bound,
            "imbalance_random": random_imbalance(rest, grouping.num_groups),
            "longest": found.longest,
            "together": found.together,
        }
        assert row["accuracy_worst"] >= row["ca_given_groups"], row
        assert found.honest <= found.bound * (1 + 1e-9), row  # but for rounding
        rows.append(row)
    return rows


def _at_full_weight(sent: Messages, messages: Messages) -> Messages:
    """Have liars claim no fewer samples than they hold.

    Attacks that know nothing of the form of a message may put anything in the place of the number
    of samples, and a client with hardly any moves nobody.
    """
    values = sent.values.copy()
    values[:, -1] = np.maximum(values[:, -1], messages.values[:, -1])
    return replace(sent, values=values)


def _form(experiment: Experiment, sent: Messages) -> tuple[Grouping, Floats]:
    """Do Step 2 on what was sent; return the groups and what was compared."""
    profiles = read_profiles(experiment.config.types, sent)
    assert profiles.vectors is not None
    seed, asked = experiment.setup.seed, asked_groups("carvy", experiment.config, profiles)
    grouping = form_groups("carvy", num_clients=len(sent), seed=seed, profiles=profiles, **asked)
    return grouping, profiles.vectors.rows.astype(np.float64)


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return means over seeds, a line for every partition, m and attack."""
    cells: dict[tuple[str, int, str], list[Mapping[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: (row["partition"], row["m"])):
        cells.setdefault((row["partition"], row["m"], row["attack"]), []).append(row)
    body = []
    for cell, own in cells.items():
        line = list(map(str, cell))
        for head, (name, form) in COLUMNS.items():
            units = [row["imbalance_random"] if head.startswith("F") else 1.0 for row in own]
            values = [row[name] / unit for row, unit in zip(own, units, strict=True)]
            line.append(form.format(np.mean(values)))
        body.append(line)
    return markdown(["partition", "m", "attack", *COLUMNS], body)
