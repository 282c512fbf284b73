"""Attacks on profiles: what liars in Step 1 do to groups of balanced profiles.

Malicious clients send other class means than theirs, and `carvy` forms its groups. A group's head
is found from its honest members' sums, and every group with a malicious member votes as badly as it
can. For every partition, seed, attack and m: the accuracy that is left; CA(m) given these groups,
which it is never below; CA(m) of the run in which all are honest; and the imbalance of the honest
clients, with the bound that is proved for it.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from carvyfl.attacks.step_one import Numbers, attacked
from carvyfl.core.files import write_text
from carvyfl.core.randomness import generator
from carvyfl.core.schema import plain
from carvyfl.groups.exchange import random_imbalance
from carvyfl.groups.grouping import Grouping
from carvyfl.paper.experiment import Experiment, Groups, members, with_malicious
from carvyfl.paper.markdown import markdown
from carvyfl.paper.studies.common import computing, provenance, write_record
from carvyfl.paper.studies.heterogeneity import config_of
from carvyfl.pipeline import Compute, compute_features, form_method
from carvyfl.profiles.asking import all_class_means
from carvyfl.profiles.messages import Messages
from carvyfl.profiles.methods import read_profiles
from carvyfl.runs.config import updated

PARTITIONS = ("class-disjoint", "Dirichlet 0.3", "feature shift")
Floats = npt.NDArray[np.float64]
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Balance:
    """How balanced groups are, as the server sees it and among the honest clients.

    Both are Σ_g ‖S_g - S̄‖², with S_g the sum of the vectors in group g, S̄ the mean of the S_g.

    Attributes
    ----------
    seen, honest
        With all vectors as they were claimed; with those of the honest clients alone.
    longest, liars, together
        R, the length of the liars' longest vector; how many liars were grouped, m; and how many
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


def run(args: Namespace) -> None:
    """Measure all partitions and seeds, and write attacks.json and its table."""
    compute = computing(args)
    record, rows = provenance(args, compute.engine), []
    for name in args.partitions:
        for seed in args.seeds:
            asked = {"groups": args.groups, "types": "class-means"}
            config = updated(config_of(args, name, seed), asked)
            rows += [
                {"partition": name, "seed": seed, **row}
                for row in measure(Experiment(config, replace(compute, store=None)), args, compute)
            ]
            print(f"{name}, seed {seed}: {len(rows)} rows", flush=True)
    path: Path = args.out / "attacks.json"
    write_record(path, record | {"config": plain(replace(config, data_dir=None)), "rows": rows})
    write_text(path.with_suffix(".md"), table(rows))


def measure(experiment: Experiment, args: Namespace, compute: Compute) -> Rows:
    """Attack the profiles of one federation in every way; ``compute`` keeps its features."""
    setup, seed = experiment.setup, experiment.setup.seed
    compute_features(setup, compute, experiment.prepared.dataset.test.inputs)
    messages = all_class_means(setup.federation, setup.module, setup.recipe, seed)
    undisturbed = members(_form(experiment, messages)[0])
    cases = []
    for attack in args.attacks:
        for m in args.m:
            chosen = generator(seed, "malicious", m).choice(len(messages), m, replace=False)
            sent = attacked(messages, attack, chosen, generator(seed, attack, m))
            grouping, vectors = _form(experiment, _at_full_weight(sent, messages))
            cases.append((attack, chosen, grouping, vectors))
    honest = [_without(members(grouping), chosen) for _, chosen, grouping, _ in cases]
    experiment.train([*undisturbed, *(group for groups in honest for group in groups)])
    rows = []
    for (attack, chosen, grouping, vectors), trained in zip(cases, honest, strict=True):
        m, found = len(chosen), balance(vectors, grouping.assignment, chosen, grouping.num_groups)
        hit = with_malicious(members(grouping), chosen.tolist())
        rest = vectors.copy()
        rest[chosen] = 0.0  # they bring nothing, as in the honest clients' imbalance
        row = {
            "attack": attack,
            "m": m,
            "groups_touched": int(hit.sum()),
            "accuracy_worst": experiment.accuracy_against(trained, hit),
            "ca_given_groups": experiment.ca(trained, m),
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
    grouping = form_method(
        "carvy",
        experiment.config.grouping,
        num_clients=len(sent),
        seed=experiment.setup.seed,
        profiles=profiles,
    )
    return grouping, profiles.vectors.rows.astype(np.float64)


def _without(groups: Groups, malicious: Numbers) -> Groups:
    gone = set(malicious.tolist())
    return [tuple(client for client in group if client not in gone) for group in groups]


def table(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return means over seeds, a line for every partition, m and attack; F over that of chance."""
    cells: dict[tuple[str, int, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        cells.setdefault((row["partition"], row["m"], row["attack"]), []).append(row)
    head = ["partition", "m", "attack", "accuracy left", "CA(m), these groups"]
    head += ["CA(m), all honest", "F seen", "F honest", "F bound"]
    body = []
    for (name, m, attack), own in sorted(cells.items(), key=lambda cell: cell[0][:2]):
        line = [name, str(m), attack]
        for key in ("accuracy_worst", "ca_given_groups", "ca_all_honest"):
            line.append(f"{np.mean([row[key] for row in own]):.1f}")
        for key in ("imbalance_seen", "imbalance_honest", "imbalance_bound"):
            line.append(f"{np.mean([row[key] / row['imbalance_random'] for row in own]):.3f}")
        body.append(line)
    return markdown(head, body)
