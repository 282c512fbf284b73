"""End to end: what attacks on Step 1 do to every grouping.

For every attack and grouping: G, the share of the true types that a group has, whether the
honest clients' types are exact, the groups that are as if nobody had attacked, CA(m) as the
undisturbed and the attacked run state it, and the accuracy if every group with a malicious member
votes against the truth. A certificate that covers Step 1 is never above that accuracy; others
may be.
"""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass
from typing import Any

import numpy as np

from carvyfl.attacks.step_one import STEP_ONE_ATTACKS, Numbers, attacked
from carvyfl.core.errors import CarvyError
from carvyfl.core.randomness import generator
from carvyfl.groups.grouping import Grouping
from carvyfl.groups.methods import GROUPINGS
from carvyfl.paper.experiment import TYPES, Experiment, Groups, members, with_malicious
from carvyfl.paper.studies.certified import remove_in_order
from carvyfl.pipeline import GroupingSettings, form_method
from carvyfl.profiles.messages import Messages
from carvyfl.profiles.methods import Profiles, read_profiles

END_TO_END = ("slots", "wrap", "flcert", "balanced")
"""Groupings with a G set beforehand, whose certificates must hold under every attack."""

VARIANTS = {
    "paper": ("carvy", GroupingSettings("xmeans", literal=True)),
    "xmeans": ("carvy", GroupingSettings("xmeans")),
    "anticlustering": ("carvy", GroupingSettings(TYPES)),
}
"""Groupings that find their G: name → method, and how Steps 1 and 2 are done."""

NAMES = (*VARIANTS, *END_TO_END)
"""All that is attacked; the paper's comes first."""

CHANGED_GROUPS = {"wrap": 2}
"""How many groups a client can change, if that is not one."""

Formed = dict[str, tuple[Profiles | None, Grouping]]
"""What Steps 1 and 2 gave, by grouping; profiles are None if nobody was asked."""


@dataclass(frozen=True)
class Case:
    """One grouping under one attack.

    Attributes
    ----------
    name, attack, malicious
        The grouping, the attack and its clients.
    profiles
        What Step 1 gave, if clients were asked.
    groups, trained, reference
        The groups; those of their members that train; and the groups of a run that nobody
        attacked. None of them if the attack made groups impossible.
    """

    name: str
    attack: str
    malicious: Numbers
    profiles: Profiles | None
    groups: Groups
    trained: Groups
    reference: Groups


def measure(experiment: Experiment, args: Namespace) -> dict[str, Any]:
    """Attack every grouping in every way and return a row for each."""
    seed, updates = experiment.setup.seed, experiment.updates
    undisturbed = _form_all(updates, args.groups, seed)
    nobody: Numbers = np.empty(0, dtype=np.int64)
    cases = [_case(name, "none", nobody, undisturbed, undisturbed) for name in NAMES]
    for attack in args.attacks:
        for m in args.m:
            chosen = generator(seed, "malicious", m).choice(len(updates), m, replace=False)
            sent = attacked(updates, attack, chosen, generator(seed, attack, m))
            formed = _form_all(sent, args.groups, seed)
            cases += [_case(name, attack, chosen, formed, undisturbed) for name in NAMES]
    cases.sort(key=lambda case: NAMES.index(case.name))
    experiment.train(group for case in cases for group in case.trained + case.reference)
    rows = [_row(experiment, case) for case in cases]
    for row in rows:
        print(row)
    return {"rows": rows}


def _form_all(updates: Messages, num_groups: int, seed: int) -> Formed:
    """Run Steps 1 and 2 of every grouping, but those that an attack made impossible."""
    fixed = GroupingSettings(TYPES, groups=num_groups, baseline_groups=num_groups)
    read: dict[str, Profiles] = {}
    formed: Formed = {}
    for name in NAMES:
        method, steps = VARIANTS.get(name, (name, fixed))
        try:
            profiles = None
            if GROUPINGS[method].needs_profiles:
                if steps.profiles not in read:
                    read[steps.profiles] = read_profiles(steps.profiles, updates, seed=seed)
                profiles = read[steps.profiles]
            formed[name] = (
                profiles,
                form_method(method, steps, num_clients=len(updates), seed=seed, profiles=profiles),
            )
        except CarvyError as error:
            print(f"  {name}: {error}", flush=True)
    return formed


def _case(name: str, attack: str, malicious: Numbers, formed: Formed, undisturbed: Formed) -> Case:
    """Return which groups a case needs."""
    if name not in formed:
        return Case(name, attack, malicious, None, [], [], [])
    profiles, grouping = formed[name]
    groups = members(grouping)
    gone = set(malicious.tolist()) if attack != "none" and STEP_ONE_ATTACKS[attack].leaves else ()
    trained = [tuple(client for client in group if client not in gone) for group in groups]
    if grouping.coins is not None and profiles is not None:
        # The draw of random slots changes with the messages: a run without the malicious
        # clients, by the coupling of the proof, which has the right distribution.
        reference = remove_in_order(grouping, profiles.types, malicious.tolist())
    else:
        reference = members(undisturbed[name][1])
    return Case(name, attack, malicious, profiles, groups, trained, reference)


def _row(experiment: Experiment, case: Case) -> dict[str, Any]:
    """Describe one grouping under one attack; "broken" where no groups could be formed."""
    m = len(case.malicious)
    row: dict[str, Any] = {"grouping": case.name, "attack": case.attack, "m": m}
    if not case.groups:
        return row | {"broken": True}
    federation = experiment.setup.federation
    truth, honest = federation.types, np.setdiff1d(np.arange(len(federation)), case.malicious)
    if case.profiles is not None and truth is not None:
        row["types_exact"] = case.profiles.types.agree_with(truth, among=honest)
    hit = with_malicious(case.groups, case.malicious.tolist())
    clean = {group for group, lost in zip(case.groups, hit, strict=True) if not lost}
    row |= {
        "num_groups": len(case.groups),
        "types_covered": None if truth is None else _coverage(case.groups, truth, honest),
        "groups_touched": int(hit.sum()),
        "groups_unchanged": len(clean & set(case.reference)),
        "accuracy": experiment.ca(case.trained, 0),
        "ca": experiment.ca(case.trained, m),
        "accuracy_worst": experiment.accuracy_against(case.trained, hit),
        # What the run that nobody attacked certifies.
        "ca_promised": experiment.ca(case.reference, m, CHANGED_GROUPS.get(case.name, 1)),
    }
    row["kept"] = row["accuracy_worst"] >= row["ca_promised"]
    assert row["kept"] or case.name not in END_TO_END, row
    return row


def _coverage(groups: Groups, truth: Numbers, honest: Numbers) -> float:
    """Return the mean share of the true types among a group's honest members."""
    among = set(honest.tolist())
    present = [len({int(truth[client]) for client in among.intersection(g)}) for g in groups]
    return float(np.mean(present)) / len(np.unique(truth))
