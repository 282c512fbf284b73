"""Clients that share groups: the bound against every set of clients and every rewrite."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carvyfl.core.errors import CarvyError
from carvyfl.voting import votes as voting
from carvyfl.voting.certificate import certify
from carvyfl.voting.overlap import check_members
from carvyfl.voting.votes import votes
from support.cli import assert_refused, assert_valid, carvy
from support.elections import winner

MEMBERS = st.lists(st.lists(st.integers(0, 1), min_size=4, max_size=4), min_size=1, max_size=4).map(
    np.array
)
CAST = st.lists(st.integers(-1, 2), min_size=4, max_size=4)


def survives(cast: list[int], label: int, members: np.ndarray, m: int) -> bool:
    """Whether no m clients, voting anything in all their groups, make the label lose."""
    for chosen in itertools.combinations(range(len(members)), min(m, len(members))):
        touched = np.flatnonzero(members[list(chosen)].any(axis=0))
        for new in itertools.product(range(-1, 3), repeat=len(touched)):
            changed = np.array(cast)
            changed[touched] = new
            if winner(changed.tolist(), 3) != label:
                return False
    return True


@settings(max_examples=60)
@given(cast=CAST, label=st.integers(0, 2), members=MEMBERS)
def test_what_is_certified_survives_everything(cast: list[int], label: int, members: np.ndarray):
    column = votes(np.array(cast)[:, None], 3)
    certificate = certify(column, [label], members=members)
    radius = int(certificate.radius[0])
    if radius >= 0:
        assert survives(cast, label, members, radius)
    else:
        assert winner(cast, 3) != label
    # Never worse than dividing the margin by the most groups of a client.
    plain = int(certify(column, [label]).radius[0])
    most = max(1, int(members.sum(axis=1).max()))
    assert radius >= min(plain // most, len(members))


def by_definition(cast: list[int], y: int, members: np.ndarray) -> int:
    """The radius by the formula, rival by rival, in plain Python."""
    if winner(cast, 3) != y:
        return -1
    radii = []
    for r in {0, 1, 2} - {y}:
        level = cast.count(y) - cast.count(r) - (y > r)
        worth = [2 if vote == y else 0 if vote == r else 1 for vote in cast]
        sums = sorted((sum(np.array(worth)[row == 1]) for row in members), reverse=True)
        radii.append(max(m for m in range(len(members) + 1) if sum(sums[:m]) <= level))
    return min(radii)


@settings(max_examples=300)
@given(st.lists(st.tuples(CAST, st.integers(0, 2)), min_size=1, max_size=4), MEMBERS)
def test_every_input_has_the_radius_of_the_definition(
    inputs: list[tuple[list[int], int]], members: np.ndarray
):
    ballots = votes(np.array([cast for cast, _ in inputs]).T, 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(voting, "_CELLS_AT_ONCE", 8)  # two inputs at a time
        certificate = certify(ballots, [label for _, label in inputs], members=members)
    expected = [by_definition(cast, label, members) for cast, label in inputs]
    assert certificate.radius.tolist() == expected
    stable = [by_definition(cast, max(winner(cast, 3), 0), members) for cast, _ in inputs]
    assert certificate.stability.tolist() == stable
    one_each = certify(ballots, members=np.eye(4, dtype=int)).radius
    assert one_each.tolist() == np.minimum(certify(ballots).radius, 4).tolist()


@pytest.mark.parametrize(
    "members", [np.ones(4, int), np.ones((2, 3), int), np.full((1, 4), 2), np.ones((1, 4))]
)
def test_members_must_fit(members: np.ndarray):
    with pytest.raises(CarvyError, match="members"):
        check_members(members, 4)


def test_the_command_reads_members(tmp_path: Path):
    path = tmp_path / "votes.npz"
    members = np.ones((3, 5), np.int8)
    np.savez(path, votes=np.zeros((5, 2), int), labels=np.zeros(2, int), members=members)
    found = carvy("certify", path, "--json").json
    assert_valid(found, "certify")
    assert found["ca"] == [100.0, 0.0]
    assert "listed" in found["assumptions"][0]
    np.savez(path, votes=np.zeros((5, 2), int), members=members[:, 1:])
    assert_refused(carvy("certify", path), "members")
