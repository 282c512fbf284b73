"""What attacks on Step 1 do to every grouping."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from lab import Groups, Lab, Members, members, without_some

from carvyfl.attacks.step_one import GONE, attacked
from carvyfl.core.errors import CarvyError
from carvyfl.core.randomness import generator
from carvyfl.groups.grouping import Grouping
from carvyfl.groups.methods import TYPED, form_groups
from carvyfl.profiles.methods import infer_types
from carvyfl.profiles.types import ClientTypes
from carvyfl.runs.config import RunConfig

GROUPINGS = {
    "paper": ("xmeans", "carvy", True),
    "xmeans": ("xmeans", "carvy", False),
    "anticlustering": ("bias-profile", "carvy", False),
    "slots": ("bias-profile", "slots", False),
    "wrap": ("bias-profile", "wrap", False),
    "flcert": ("bias-profile", "flcert", False),
    "balanced": ("bias-profile", "balanced", False),
}
"""What is attacked: name → types, method, Algorithm 2 word for word. The paper's is the first."""

FIXED = {"slots", "wrap", "flcert", "balanced"}
"""Groupings whose G is set beforehand; their certificates must hold under every attack."""

PROMISED = {"wrap": 2}
"""How many groups a client can change, where that is not one."""


def attacks(lab: Lab, num_groups: int, numbers: list[int], names: list[str]) -> list[Any]:
    """Attack every grouping in every way and return a row for each."""
    federation, config = lab.setting.federation, lab.config
    updates = lab.updates()
    undisturbed = _form(updates, config, num_groups)
    nobody = np.empty(0, dtype=np.int64)
    plans = [(g, "none", nobody, *formed, formed[1]) for g, formed in undisturbed.items()]
    for name in names:
        for m in numbers:
            chosen = generator(config.seed, "malicious", m).choice(
                len(federation), m, replace=False
            )
            sent = attacked(updates, name, chosen, generator(config.seed, name, m))
            plans += [
                (g, name, chosen, *formed, undisturbed[g][1])
                for g, formed in _form(sent, config, num_groups).items()
            ]
    plans.sort(key=lambda plan: list(GROUPINGS).index(plan[0]))  # stable: attacks keep their order
    rows: list[tuple[Any, ...]] = []
    wanted: list[Members] = []
    for grouping, name, chosen, types, formed, undisturbed_groups in plans:
        if formed is None:
            rows.append((grouping, name, chosen, types, None, None, None))
            continue
        groups = members(formed.assignment, formed.num_groups)
        reference = _reference(grouping, types, formed, chosen, undisturbed_groups)
        taking_part = [_remaining(g, chosen) if name in GONE else g for g in groups]
        rows.append((grouping, name, chosen, types, groups, taking_part, reference))
        wanted += taking_part + reference
    lab.train(wanted)
    return [_row(lab, *row) for row in rows]


def _form(
    updates: Any, config: RunConfig, num_groups: int
) -> dict[str, tuple[ClientTypes | None, Grouping | None]]:
    """Run Steps 1 and 2 of every grouping; None for groups that an attack made impossible."""
    found: dict[str, ClientTypes] = {}
    formed: dict[str, tuple[ClientTypes | None, Grouping | None]] = {}
    for grouping, (method, name, literal) in GROUPINGS.items():
        try:
            if method not in found:
                found[method] = infer_types(method, updates, seed=config.seed)
            groups = form_groups(
                name,
                num_clients=len(updates),
                seed=config.seed,
                types=found[method],
                num_groups=num_groups if grouping in FIXED else None,
                literal=literal,
            )
            formed[grouping] = found[method], groups
        except CarvyError as error:
            print(f"  {grouping}: {error}", flush=True)
            formed[grouping] = None, None
    return formed


def _reference(
    grouping: str,
    types: ClientTypes | None,
    formed: Grouping,
    malicious: npt.NDArray[np.int64],
    undisturbed: Grouping | None,
) -> Groups:
    """Return the groups that nobody attacked: the undisturbed run's.

    For random slots, whose draw changes with the reports, those of the proof's coupling: a run
    without the malicious clients that has the right distribution.
    """
    if formed.coins is not None and types is not None:
        return without_some(grouping, formed, types, malicious.tolist())[-1]
    assert undisturbed is not None
    return members(undisturbed.assignment, undisturbed.num_groups)


def _remaining(group: Members, gone: npt.NDArray[np.int64]) -> Members:
    return tuple(client for client in group if client not in gone)


def _row(
    lab: Lab,
    grouping: str,
    attack: str,
    malicious: npt.NDArray[np.int64],
    types: ClientTypes | None,
    groups: Groups | None,
    taking_part: Groups | None,
    reference: Groups | None,
) -> dict[str, Any]:
    """Describe one grouping under one attack; "broken" where no groups could be formed."""
    m = len(malicious)
    row: dict[str, Any] = {"grouping": grouping, "attack": attack, "m": m}
    if groups is None or taking_part is None or reference is None:
        return row | {"broken": True}
    truth = lab.setting.federation.types
    if GROUPINGS[grouping][1] in TYPED and types is not None and truth is not None:
        honest = np.setdiff1d(np.arange(len(types)), malicious)
        row["types_exact"] = types.agree_with(truth, among=honest)
    touched = np.array([bool(set(group) & set(malicious.tolist())) for group in groups])
    clean = {group for group, t in zip(groups, touched, strict=True) if not t}
    cast = lab.cast(taking_part)
    row |= {
        "num_groups": len(groups),
        "types_covered": _coverage(groups, truth, malicious),
        "groups_touched": int(touched.sum()),
        "groups_unchanged": len(clean & set(reference)),
        "accuracy": lab.ca(cast, 0),
        "ca": lab.ca(cast, m),
        "accuracy_worst": lab.held(cast, touched),
    }
    # What was promised: by the undisturbed run, or for random slots by one without the malicious.
    row["ca_promised"] = lab.ca(lab.cast(reference), m, PROMISED.get(grouping, 1))
    row["kept"] = row["accuracy_worst"] >= row["ca_promised"]
    assert row["kept"] or grouping not in FIXED, row
    return row


def _coverage(
    groups: Groups, truth: npt.NDArray[np.int64] | None, malicious: npt.NDArray[np.int64]
) -> float | None:
    """Return the mean share of the true types that a group holds, honest members only."""
    if truth is None:
        return None
    shares = [len({int(truth[c]) for c in _remaining(group, malicious)}) for group in groups]
    return float(np.mean(shares)) / len(np.unique(truth))
