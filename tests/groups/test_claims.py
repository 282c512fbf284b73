"""What a certificate may claim: every combination of facts, against a table and against deeds."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from carvyfl.groups.basis import (
    OPEN,
    Basis,
    Circumstances,
    Decider,
    Deployment,
    Knowledge,
    NumGroups,
    claim,
)
from carvyfl.groups.methods import GROUPINGS, Beforehand, form_groups
from carvyfl.profiles.methods import Profiles
from carvyfl.profiles.types import ClientTypes

Reach = tuple[int | None, int | None, int | None]
NOTHING: Reach = (None, None, None)
THESE: Reach = (1, None, None)
WHOLE: Reach = (1, 1, 1)
PAGE = Path(__file__).parents[2] / "docs" / "concepts" / "certificate.md"

PROVED: dict[tuple[Decider, Knowledge], Reach] = {
    **{
        (decider, k): WHOLE
        for decider in ("nobody", "ids", "operator")
        for k in get_args(Knowledge)
    },
    ("coins", "known"): WHOLE,
    ("coins", "local"): (1, 1, 2),
    ("messages", "known"): WHOLE,
}
"""Where more than *given these groups* is proved, G set beforehand."""

WENT = Deployment(authenticated=True, groups=5, lost=0, late=0, clients=20, aside=0)
DEPLOYMENTS = [
    None,
    *(
        replace(WENT, authenticated=keys, lost=lost, late=late, aside=aside)
        for keys, lost, late, aside in itertools.product([True, False], [0, 2], [0, 1], [0, 3])
    ),
]
EVERYTHING = [
    Circumstances(*facts)
    for facts in itertools.product(
        get_args(Decider),
        get_args(Knowledge),
        get_args(NumGroups),
        [(), ("the number of classes",)],
        ["committed coins"],
        DEPLOYMENTS,
    )
]


def reach(basis: Basis) -> Reach:
    return basis.given_groups, basis.honest_only, basis.all_honest


def test_every_combination_claims_what_is_proved_and_no_more() -> None:
    assert len(EVERYTHING) == 5 * 4 * 3 * 2 * 17
    for facts in EVERYTHING:
        assert not isinstance(facts.decided_by, Basis)
        went = facts.deployment
        if facts.derived or (went and (not went.authenticated or went.late)):
            expected = NOTHING
        elif facts.num_groups == "messages":
            expected = THESE
        else:
            expected = PROVED.get((facts.decided_by, facts.knowledge), THESE)
        assert reach(claim(facts)) == expected, facts


def test_every_reason_names_the_facts_that_count() -> None:
    for facts in EVERYTHING:
        because, went = claim(facts).because, facts.deployment
        if went is None or went.authenticated:
            assert ("number of classes came from" in because) == bool(facts.derived)
        if went is not None:
            assert (OPEN in because) == (not went.authenticated)
            assert ("2 of 5 groups were lost" in because) == (went.lost == 2)
            assert ("deadline stopped 1 of 5 groups" in because) == (went.late == 1)
            assert ("3 of 20 clients were set aside" in because) == (went.aside == 3)


def test_a_proof_of_somebody_else_goes_through_the_same_rules() -> None:
    proof = Basis("a theorem of mine", 1, 2, 4)
    assert claim(Circumstances(proof)) == proof
    assert reach(claim(Circumstances(proof, num_groups="messages"))) == THESE
    assert reach(claim(Circumstances(proof, derived=("C",)))) == NOTHING
    late = replace(WENT, late=1)
    assert reach(claim(Circumstances(proof, deployment=late))) == NOTHING


@pytest.mark.parametrize("num_groups", [3, None])
@pytest.mark.parametrize("method", list(GROUPINGS))
@pytest.mark.parametrize("types", ["local", "xmeans", "given", "oracle"])
def test_step_2_states_the_facts(method: str, types: str, num_groups: int | None) -> None:
    """What is claimed of formed groups is that of their method, types and number of groups."""
    labels, entry = [0, 0, 0, 1, 1, 1], GROUPINGS[method]
    names = ("type 0", "type 1")
    sent = ClientTypes(np.array(labels), "bias-profile", True, names)
    if types != "local":
        sent = replace(sent, method=types, local=types != "xmeans")
    if num_groups is None and entry.needs_groups:
        return
    options: dict[str, Any] = {"num_clients": 6, "seed": 1, "profiles": Profiles(sent)}
    options["num_groups"] = num_groups if entry.takes_groups else None
    formed = form_groups(method, **options, beforehand=Beforehand(truth=labels))
    assert formed.num_groups == (3 if entry.takes_groups else 1)
    assert (formed.coins is not None) == (method == "slots")
    expected = WHOLE
    if entry.needs_profiles and types in {"local", "xmeans"}:
        expected = (1, 1, 2) if (method, types) == ("slots", "local") else THESE
    assert reach(formed.basis) == expected
    counted = expected == THESE and num_groups is None
    assert ("number of groups was found" in formed.basis.because) == counted
    if entry.takes_groups and num_groups:
        known = Beforehand(truth=labels)
        heard = form_groups(method, **options, found_from="messages", beforehand=known)
        assert reach(heard.basis) == THESE
    known = Beforehand(truth=labels, derived=("the number of classes",))
    assert reach(form_groups(method, **options, beforehand=known).basis) == NOTHING


@pytest.mark.parametrize("method", list(GROUPINGS))
@pytest.mark.parametrize("local", [True, False])
def test_where_whole_runs_are_claimed_no_message_moves_anybody(method: str, local: bool) -> None:
    """One client says everything it could say of its type; the others stay where they are."""
    truth, clients, client = [0, 0, 1, 1, 2, 2], 6, 0
    groups = set()
    for said in (-1, 0, 1, 2, 3):
        labels = np.unique([said, *truth[1:]], return_inverse=True)[1] - (said == -1)
        names = tuple(f"type {number}" for number in np.unique(labels[labels >= 0]))
        aside = {client: "said nothing"} if said == -1 else {}
        sent = ClientTypes(labels, "bias-profile", local, names, set_aside=aside)
        formed = form_groups(
            method,
            num_clients=clients,
            seed=4,
            profiles=Profiles(sent),
            num_groups=1 if method == "single" else 2,
            beforehand=Beforehand(truth=truth),
        )
        groups.add(tuple(formed.assignment.tolist()))
        whole = formed.basis.all_honest == 1
        assert whole == (not GROUPINGS[method].needs_profiles)
    assert not whole or len(groups) == 1


# --- the table of the page -----------------------------------------------------------------------

DECIDES: dict[Decider, str] = {
    "nobody": "nothing of the clients",
    "ids": "the hash of issued ids",
    "operator": "what the operator knew",
    "coins": "coins, each type by itself",
    "messages": "anticlustering",
}
KNOWS: dict[Knowledge, str] = {
    "none": "none",
    "known": "known to the operator",
    "local": "each from its client's message",
    "relative": "each from all messages",
}


def cells(basis: Basis) -> str:
    numbers = [None if c is None else 2 * c for c in reach(basis)]
    return " | ".join("none" if c is None else f"Δ ≥ {c}m" for c in numbers)


def table() -> list[str]:
    """The rows of the page, from the function that decides."""
    rows = [
        "| groups are decided by | methods | types | G | given these groups | honest only "
        "| all honest |",
        "|---|---|---|---|---|---|---|",
    ]
    for decider, words in DECIDES.items():
        methods = [f"`{name}`" for name in GROUPINGS if GROUPINGS[name].decided_by == decider]
        uses_types = decider in {"coins", "messages"}
        for knowledge in ("known", "local", "relative") if uses_types else ("none",):
            facts = Circumstances(decider, knowledge)
            assert claim(facts) == claim(replace(facts, num_groups="operator"))
            start = f"| {words} | {', '.join(methods)} | {KNOWS[knowledge]} | set"
            rows.append(f"{start} | {cells(claim(facts))} |")
    every = {claim(Circumstances(d, num_groups="messages")) for d in DECIDES}
    (counted,) = every
    rows.append(f"| any of these | | | found from what clients sent | {cells(counted)} |")
    nothing = claim(Circumstances("nobody", derived=("C",)))
    rows.append(f"| any, the number of classes from clients' labels | | | any | {cells(nothing)} |")
    for words, went in {
        "a federation without registered keys": replace(WENT, authenticated=False),
        "a federation whose deadline stopped groups": replace(WENT, late=1),
    }.items():
        nothing = claim(Circumstances("nobody", deployment=went))
        rows.append(f"| any, {words} | | | any | {cells(nothing)} |")
    return rows


def test_the_table_of_the_page_is_what_the_function_decides() -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("| groups are decided by"))
    shown = list(itertools.takewhile(lambda line: line.startswith("|"), lines[start:]))
    assert shown == table(), "the table should be:\n" + "\n".join(table())
