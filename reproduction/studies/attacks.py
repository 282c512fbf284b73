"""End to end: what attacks on Step 1 do to every grouping."""

from __future__ import annotations

import itertools
from argparse import Namespace
from collections.abc import Iterator
from typing import Any

import numpy as np

from carvyfl.attacks.step_one import STEP_ONE_ATTACKS, Numbers, attacked
from carvyfl.core.errors import CarvyError
from carvyfl.core.randomness import generator
from carvyfl.groups.grouping import Grouping
from carvyfl.groups.methods import GROUPINGS, form_groups
from carvyfl.pipeline import asked_groups
from carvyfl.profiles.messages import Messages
from carvyfl.profiles.methods import Profiles, read_profiles
from carvyfl.settings import GroupingSettings
from reproduction.experiment import (
    TYPES,
    Experiment,
    Groups,
    dealt_literally,
    members,
    with_malicious,
)
from reproduction.studies.certified import remove_in_order

END_TO_END = ("slots", "flcert", "balanced")
"""Groupings with a G set beforehand, whose certificates must hold under every attack."""
VARIANTS = {
    "paper": ("carvy", GroupingSettings(types="xmeans")),
    "xmeans": ("carvy", GroupingSettings(types="xmeans")),
    "anticlustering": ("carvy", GroupingSettings(types=TYPES)),
}
"""Groupings that find their G: name → method, and how Steps 1 and 2 are done; the paper's deals
clients out as Algorithm 2 says word for word."""
NAMES = (*VARIANTS, *END_TO_END)
"""All that is attacked; the paper's comes first."""

Formed = dict[str, tuple[Profiles | None, Grouping]]
"""What Steps 1 and 2 gave, by grouping; profiles are None if nobody was asked."""
Case = tuple[Numbers, Profiles | None, Groups, Groups, Groups]
"""The malicious clients, what Step 1 gave, the groups, those of their members that train, and the
groups of a run that nobody attacked."""


def attacks(experiment: Experiment, args: Namespace) -> dict[str, Any]:
    """End to end: what attacks on Step 1 do to every grouping.

    For every attack and grouping: G, the share of the true types that a group has, whether the
    honest clients' types are exact, the groups that are as if nobody had attacked, CA(m) as the
    undisturbed and the attacked run state it, and the accuracy if every group with a malicious
    member votes against the truth. A certificate that covers Step 1 is never above that accuracy;
    others may be.
    """
    seed, updates = experiment.setup.seed, experiment.updates
    undisturbed = _form_all(updates, args.groups, seed)
    nobody: Numbers = np.empty(0, dtype=np.int64)
    runs = [("none", nobody, undisturbed)]
    for attack, chosen, sent in lies(updates, args, seed):
        runs.append((attack, chosen, _form_all(sent, args.groups, seed)))
    cases: list[tuple[dict[str, Any], Case | None]] = []
    for name in NAMES:
        for attack, malicious, formed in runs:
            row = {"grouping": name, "attack": attack, "m": len(malicious)}
            if name not in formed:
                cases.append((row, None))
                continue
            profiles, grouping = formed[name]
            groups, reference = members(grouping), members(undisturbed[name][1])
            if grouping.coins is not None and profiles is not None:
                # The draw of random slots changes with the messages: a run without the malicious
                # clients, by the coupling of the proof, which has the right distribution.
                reference = remove_in_order(grouping, profiles.types, malicious.tolist())
            leave = attack != "none" and STEP_ONE_ATTACKS[attack].leaves
            trained = without_clients(groups, malicious if leave else nobody)
            cases.append((row, (malicious, profiles, groups, trained, reference)))
    experiment.train(group for _, case in cases if case for groups in case[-2:] for group in groups)
    rows = [
        row | (_measure(experiment, row["grouping"], case) if case else {"broken": True})
        for row, case in cases
    ]
    for row in rows:
        print(row)
    return {"rows": rows}


def lies(messages: Messages, args: Namespace, seed: int) -> Iterator[tuple[str, Numbers, Messages]]:
    """Yield every attack on what clients send: its name, the liars, and what is sent then."""
    for attack, m in itertools.product(args.attacks, args.m):
        chosen = generator(seed, "malicious", m).choice(len(messages), m, replace=False)
        yield attack, chosen, attacked(messages, attack, chosen, generator(seed, attack, m))


def without_clients(groups: Groups, clients: Numbers) -> Groups:
    """Return groups without some of their members."""
    gone = set(clients.tolist())
    return [tuple(client for client in group if client not in gone) for group in groups]


def _form_all(updates: Messages, num_groups: int, seed: int) -> Formed:
    """Run Steps 1 and 2 of every grouping, but those that an attack made impossible."""
    fixed = GroupingSettings(types=TYPES, groups=num_groups)
    read: dict[str, Profiles] = {}
    formed: Formed = {}
    for name in NAMES:
        method, steps = VARIANTS.get(name, (name, fixed))
        try:
            profiles = None
            if GROUPINGS[method].needs_profiles:
                if steps.types not in read:
                    read[steps.types] = read_profiles(steps.types, updates, seed=seed)
                profiles = read[steps.types]
            asked = asked_groups(method, steps, profiles)
            grouping = form_groups(
                method, num_clients=len(updates), seed=seed, profiles=profiles, **asked
            )
            if name == "paper" and profiles is not None:
                grouping = dealt_literally(grouping, profiles, seed)
            formed[name] = profiles, grouping
        except CarvyError as error:
            print(f"  {name}: {error}", flush=True)
    return formed


def _measure(experiment: Experiment, name: str, case: Case) -> dict[str, Any]:
    """Describe one grouping under one attack."""
    malicious, profiles, groups, trained, reference = case
    row: dict[str, Any] = {}
    m = len(malicious)
    federation = experiment.setup.federation
    truth, honest = federation.types, np.setdiff1d(np.arange(len(federation)), malicious)
    if profiles is not None and truth is not None:
        row["types_exact"] = profiles.types.agree_with(truth, among=honest)
    hit = with_malicious(groups, malicious.tolist())
    clean = {group for group, lost in zip(groups, hit, strict=True) if not lost}
    worst = experiment.accuracy_against(trained, hit)
    # What the run that nobody attacked certifies.
    promised = experiment.ca(reference, m)
    assert worst >= promised or name not in END_TO_END, (name, worst, promised)
    return row | {
        "num_groups": len(groups),
        "types_covered": None if truth is None else _coverage(groups, truth, honest),
        "groups_touched": int(hit.sum()),
        "groups_unchanged": len(clean & set(reference)),
        "accuracy": experiment.ca(trained, 0),
        "ca": experiment.ca(trained, m),
        "accuracy_worst": worst,
        "ca_promised": promised,
        "kept": worst >= promised,
    }


def _coverage(groups: Groups, truth: Numbers, honest: Numbers) -> float:
    """Return the mean share of the true types among a group's honest members."""
    among = set(honest.tolist())
    present = [len({int(truth[client]) for client in among.intersection(g)}) for g in groups]
    return float(np.mean(present)) / len(np.unique(truth))
