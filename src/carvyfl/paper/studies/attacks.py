"""End to end: what attacks on Step 1 do to every grouping.

For every attack and grouping: G, the share of the true types that a group has, whether the
honest clients' types are exact, the groups that are as if nobody had attacked, CA(m) as the
undisturbed and the attacked run state it, and the accuracy if every group with a malicious member
votes against the truth. A certificate that covers Step 1 is never above that accuracy; others
may be.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import dataclass
from typing import Any

import numpy as np

from carvyfl.attacks.step_one import STEP_ONE_ATTACKS, Numbers, attacked
from carvyfl.core.errors import CarvyError
from carvyfl.core.randomness import generator
from carvyfl.groups.grouping import Grouping
from carvyfl.groups.methods import GROUPINGS
from carvyfl.paper.studies.certified import remove_in_order
from carvyfl.paper.studies.experiment import (
    Experiment,
    Groups,
    add_experiment_options,
    members,
    run_part,
    with_malicious,
)
from carvyfl.pipeline import GroupingSettings, form_method
from carvyfl.profiles.messages import Messages
from carvyfl.profiles.methods import Profiles, read_profiles
from carvyfl.profiles.one_epoch import one_epoch_updates

END_TO_END = ("slots", "wrap", "flcert", "balanced")
"""Groupings with a G set beforehand, whose certificates must hold under every attack."""

VARIANTS = {
    "paper": ("carvy", GroupingSettings("xmeans", literal=True)),
    "xmeans": ("carvy", GroupingSettings("xmeans")),
    "anticlustering": ("carvy", GroupingSettings()),
}
"""Groupings that find their G: name → method, and how Steps 1 and 2 are done."""

NAMES = (*VARIANTS, *END_TO_END)
"""All that is attacked; the paper's comes first."""

CHANGED_GROUPS = {"wrap": 2}
"""How many groups a client can change, if that is not one."""


@dataclass(frozen=True)
class Formed:
    """What Steps 1 and 2 gave for one grouping; ``profiles`` is None if nobody was asked."""

    profiles: Profiles | None
    grouping: Grouping


@dataclass(frozen=True)
class Case:
    """One grouping under one attack.

    Attributes
    ----------
    name, attack, malicious
        The grouping, the attack and its clients.
    formed
        What Steps 1 and 2 gave; None if the attack made groups impossible.
    groups, trained, reference
        The groups; those of their members that train; and the groups of a run that nobody
        attacked.
    """

    name: str
    attack: str
    malicious: Numbers
    formed: Formed | None
    groups: Groups
    trained: Groups
    reference: Groups


def options(parser: ArgumentParser) -> None:
    """Add the options of this part."""
    add_experiment_options(parser)
    parser.add_argument("--m", type=int, nargs="+", default=[1, 5], help="default: 1 5")
    parser.add_argument("--attacks", nargs="+", default=list(STEP_ONE_ATTACKS), help="default: all")


def run(args: Namespace) -> None:
    """Measure and write."""
    run_part("attacks", args, measure)


def measure(experiment: Experiment, args: Namespace) -> dict[str, Any]:
    """Attack every grouping in every way and return a row for each."""
    setup, compute = experiment.prepared.setup, experiment.compute
    # The whole updates: they serve every type inference.
    updates = one_epoch_updates(
        setup.federation,
        setup.module,
        setup.recipe,
        setup.seed,
        workers=compute.workers,
        device=compute.device,
    )
    undisturbed = _form_all(experiment, updates, args.groups)
    cases = {name: [_case(name, "none", _NOBODY, own, own)] for name, own in undisturbed.items()}
    for attack in args.attacks:
        for m in args.m:
            chosen = generator(setup.seed, "malicious", m).choice(len(updates), m, replace=False)
            sent = attacked(updates, attack, chosen, generator(setup.seed, attack, m))
            for name, formed in _form_all(experiment, sent, args.groups).items():
                cases[name].append(_case(name, attack, chosen, formed, undisturbed[name]))
    ordered = [case for own in cases.values() for case in own]
    experiment.train(group for case in ordered for group in case.trained + case.reference)
    rows = [_row(experiment, case) for case in ordered]
    for row in rows:
        print(row)
    return {"rows": rows}


_NOBODY: Numbers = np.empty(0, dtype=np.int64)


def _form_all(
    experiment: Experiment, updates: Messages, num_groups: int
) -> dict[str, Formed | None]:
    """Run Steps 1 and 2 of every grouping; None for groups that an attack made impossible."""
    setup = experiment.prepared.setup
    fixed = GroupingSettings(groups=num_groups, baseline_groups=num_groups)
    variants = VARIANTS | {name: (name, fixed) for name in END_TO_END}
    read: dict[str, Profiles] = {}
    formed: dict[str, Formed | None] = {}
    for name, (method, steps) in variants.items():
        try:
            profiles = None
            if GROUPINGS[method].needs_profiles:
                if steps.profiles not in read:
                    read[steps.profiles] = read_profiles(steps.profiles, updates, seed=setup.seed)
                profiles = read[steps.profiles]
            grouping = form_method(
                method, steps, num_clients=len(updates), seed=setup.seed, profiles=profiles
            )
            formed[name] = Formed(profiles, grouping)
        except CarvyError as error:
            print(f"  {name}: {error}", flush=True)
            formed[name] = None
    return formed


def _case(
    name: str, attack: str, malicious: Numbers, formed: Formed | None, undisturbed: Formed | None
) -> Case:
    """Return which groups a case needs."""
    if formed is None:
        return Case(name, attack, malicious, None, [], [], [])
    groups = members(formed.grouping)
    gone = set(malicious.tolist()) if attack != "none" and STEP_ONE_ATTACKS[attack].leaves else ()
    trained = [tuple(client for client in group if client not in gone) for group in groups]
    if formed.grouping.coins is not None and formed.profiles is not None:
        # The draw of random slots changes with the messages: a run without the malicious
        # clients, by the coupling of the proof, which has the right distribution.
        types = formed.profiles.types
        reference = remove_in_order(formed.grouping, types, malicious.tolist())
    else:
        assert undisturbed is not None
        reference = members(undisturbed.grouping)
    return Case(name, attack, malicious, formed, groups, trained, reference)


def _row(experiment: Experiment, case: Case) -> dict[str, Any]:
    """Describe one grouping under one attack; "broken" where no groups could be formed."""
    m = len(case.malicious)
    row: dict[str, Any] = {"grouping": case.name, "attack": case.attack, "m": m}
    if case.formed is None:
        return row | {"broken": True}
    truth, profiles = experiment.prepared.setup.federation.types, case.formed.profiles
    honest = np.setdiff1d(np.arange(len(case.formed.grouping.assignment)), case.malicious)
    if profiles is not None and truth is not None:
        row["types_exact"] = profiles.types.agree_with(truth, among=honest)
    hit = with_malicious(case.groups, case.malicious.tolist())
    clean = {group for group, lost in zip(case.groups, hit, strict=True) if not lost}
    cast = experiment.cast(case.trained)
    row |= {
        "num_groups": len(case.groups),
        "types_covered": None if truth is None else _coverage(case.groups, truth, honest),
        "groups_touched": int(hit.sum()),
        "groups_unchanged": len(clean & set(case.reference)),
        "accuracy": experiment.ca(cast, 0),
        "ca": experiment.ca(cast, m),
        "accuracy_worst": experiment.accuracy_against(cast, hit),
    }
    # What the run that nobody attacked certifies.
    reference = experiment.cast(case.reference)
    row["ca_promised"] = experiment.ca(reference, m, CHANGED_GROUPS.get(case.name, 1))
    row["kept"] = row["accuracy_worst"] >= row["ca_promised"]
    assert row["kept"] or case.name not in END_TO_END, row
    return row


def _coverage(groups: Groups, truth: Numbers, honest: Numbers) -> float:
    """Return the mean share of the true types among a group's honest members."""
    among = set(honest.tolist())
    present = [len({int(truth[client]) for client in among.intersection(g)}) for g in groups]
    return float(np.mean(present)) / len(np.unique(truth))
