from __future__ import annotations

from itertools import combinations, product
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.integrate import trapezoid
from scipy.stats import binomtest

from carvyfl.core.errors import CarvyError
from carvyfl.groups.basis import FOREIGN_VOTES, Basis, Reading
from carvyfl.voting import votes as voting
from carvyfl.voting.certificate import Certificate, certify, margin, radius
from carvyfl.voting.votes import NO_VOTE, predict, tally, votes

CLASSES = 4


def ballots(max_groups: int, max_inputs: int, num_classes: int) -> st.SearchStrategy[np.ndarray]:
    return hnp.arrays(
        np.int8,
        st.tuples(st.integers(1, max_groups), st.integers(1, max_inputs)),
        elements=st.integers(NO_VOTE, num_classes - 1),
    )


def winner(column: tuple[int, ...], num_classes: int) -> int:
    """Count by hand: the most votes, the smallest class on a tie; no answer without a vote."""
    best = max(range(num_classes), key=lambda c: (column.count(c), -c))
    return best if best in column else NO_VOTE


def rewrites_needed(column: tuple[int, ...], answer: int, num_classes: int) -> int:
    """Try every way to rewrite m votes, m rising, until the answer is lost."""
    for m in range(len(column) + 1):
        for chosen in combinations(range(len(column)), m):
            for new in product(range(NO_VOTE, num_classes), repeat=m):
                changed = list(column)
                for at, vote in zip(chosen, new, strict=True):
                    changed[at] = vote
                if winner(tuple(changed), num_classes) != answer:
                    return m
    raise AssertionError("rewriting all votes must be able to change the answer")


@settings(max_examples=150)
@given(st.data())
def test_radius_is_exact_against_all_rewrites(data: st.DataObject) -> None:
    num_classes = data.draw(st.integers(2, 3))
    groups = data.draw(ballots(6 if num_classes == 2 else 5, 1, num_classes))
    column = tuple(groups[:, 0].tolist())
    counts = tally(votes(groups, num_classes))

    predicted = winner(column, num_classes)
    if predicted == NO_VOTE:
        assert radius(counts).tolist() == [-1]
        assert certify(votes(groups, num_classes), [0]).ca().tolist() == [0]
        return
    assert radius(counts).tolist() == [rewrites_needed(column, predicted, num_classes) - 1]
    for label in range(num_classes):
        expected = rewrites_needed(column, label, num_classes) - 1
        assert radius(counts, [label]).tolist() == [expected]
        assert certify(votes(groups, num_classes), [label]).radius.tolist() == [expected]
        assert (expected == -1) == (label != predicted)


@given(ballots(12, 6, CLASSES), st.data())
def test_margin_is_the_worst_over_all_rivals(groups: np.ndarray, data: st.DataObject) -> None:
    counts = tally(votes(groups, CLASSES))
    labels = data.draw(hnp.arrays(np.int64, len(counts), elements=st.integers(0, CLASSES - 1)))
    expected = [
        min(int(row[y]) - int(row[c]) - (y > c) for c in range(CLASSES) if c != y)
        if row.any()
        else -1
        for row, y in zip(counts, labels.tolist(), strict=True)
    ]
    assert margin(counts, labels).tolist() == expected


@given(ballots(8, 8, CLASSES))
def test_a_class_above_all_others_changes_nothing(groups: np.ndarray) -> None:
    few, many = certify(votes(groups, CLASSES)), certify(votes(groups, CLASSES + 3))
    assert few.prediction.tolist() == many.prediction.tolist()
    assert few.margin.tolist() == many.margin.tolist()


@given(ballots(10, 20, CLASSES), st.data())
def test_certificate_against_direct_counting(groups: np.ndarray, data: st.DataObject) -> None:
    cast = votes(groups, CLASSES)
    n = cast.num_inputs
    labels = data.draw(hnp.arrays(np.uint8, n, elements=st.integers(0, CLASSES - 1)))
    certificate = certify(cast, labels)
    deltas = margin(tally(cast), labels)

    def ca(m: int, chosen: list[int]) -> float:
        return 100 * sum(deltas[i] >= 2 * m for i in chosen) / len(chosen)

    curve = certificate.ca()
    assert curve.tolist() == pytest.approx([ca(m, [*range(n)]) for m in range(len(curve))])
    assert curve[-1] == 0
    assert (curve[:-1] > 0).all()
    assert certificate.prediction.tolist() == predict(cast).tolist()
    assert curve[0] == pytest.approx(100 * np.mean(predict(cast) == labels))
    assert certificate.auc() == pytest.approx(trapezoid(curve))

    table = certificate.per_class_ca()
    assert table.shape == (CLASSES, len(curve))
    for c in range(CLASSES):
        mine = [i for i in range(n) if labels[i] == c]
        if mine:
            assert table[c].tolist() == pytest.approx([ca(m, mine) for m in range(len(curve))])
        else:
            assert np.isnan(table[c]).all()

    low, high = certificate.ca_interval(0.9)
    for m in range(len(curve)):
        hits = int(np.count_nonzero(deltas >= 2 * m))
        exact = binomtest(hits, n).proportion_ci(0.9, method="exact")
        assert low[m] == pytest.approx(100 * exact.low)
        assert high[m] == pytest.approx(100 * exact.high)


@given(ballots(9, 12, CLASSES), st.integers(1, 60), st.booleans())
def test_slices_do_not_change_the_certificate(
    groups: np.ndarray, cells: int, labelled: bool
) -> None:
    cast = votes(groups, CLASSES)
    labels = np.arange(cast.num_inputs) % CLASSES if labelled else None
    whole = certify(cast, labels)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(voting, "_CELLS_AT_ONCE", cells)
        parts = certify(cast, labels)
    for field in ("prediction", "stability", "margin", "radius"):
        assert getattr(parts, field).tolist() == getattr(whole, field).tolist()


def hand_made() -> Certificate:
    """Four groups, five inputs; margins worked out below by hand."""
    groups = [
        # class 0 by 4-0 | 1 by 3-1, rival 0 | 2 by 2-2 against 1: lost | 0-2-2 true 1 | no vote
        [0, 1, 1, 1, -1],
        [0, 1, 1, 1, -1],
        [0, 1, 2, 2, -1],
        [0, 0, 2, 2, -1],
    ]
    return certify(votes(groups, 3), [0, 1, 2, 1, 0])


def test_worked_example() -> None:
    certificate = hand_made()
    assert certificate.prediction.tolist() == [0, 1, 1, 1, NO_VOTE]
    assert certificate.margin.tolist() == [4, 1, -1, 0, -1]
    assert certificate.radius.tolist() == [2, 0, -1, 0, -1]
    assert certificate.stability.tolist() == [2, 0, 0, 0, -1]
    assert certificate.ca().tolist() == [60, 20, 20, 0]
    assert certificate.auc() == 70  # (60+20)/2 + (20+20)/2 + (20+0)/2
    assert certificate.per_class_ca().tolist() == [[50, 50, 50, 0], [100, 0, 0, 0], [0, 0, 0, 0]]
    assert (certificate.num_groups, certificate.num_inputs, certificate.num_classes) == (4, 5, 3)
    assert [certificate.certified_share(m) for m in range(4)] == [80, 20, 20, 0]
    assert certificate.warnings[0].startswith("no group votes on 1 of 5 inputs")


def test_largest_m_is_strictly_above() -> None:
    certificate = hand_made()
    assert certificate.largest_m(0) == 2
    assert certificate.largest_m(19.9) == 2
    assert certificate.largest_m(20) == 0
    assert certificate.largest_m(80) is None
    assert certificate.largest_m(100) is None


def test_one_group_is_worth_half_its_accuracy() -> None:
    # The single global model of the paper: any one client can turn it.
    certificate = certify(votes([[0, 1, 2, 2]]), [0, 1, 2, 0])
    assert certificate.ca().tolist() == [75, 0]
    assert certificate.auc() == 37.5


def test_all_wrong_gives_zero() -> None:
    certificate = certify(votes([[0, 0], [0, 0]]), [1, 1])
    assert certificate.ca().tolist() == [0]
    assert certificate.auc() == 0
    assert certificate.largest_m(0) is None
    assert certificate.per_class_ca().tolist()[1] == [0]
    low, high = certificate.ca_interval()
    assert low.tolist() == [0]
    assert high[0] == pytest.approx(100 * (1 - 0.025**0.5))  # solves (1 - p)^2 = 0.025


def test_wrong_but_stable_predictions_count_as_stable_only() -> None:
    certificate = certify(votes([[1, 0]] * 9), [0, 0])
    assert certificate.radius.tolist() == [-1, 4]
    assert certificate.stability.tolist() == [4, 4]
    assert certificate.certified_share(4) == 100
    assert certificate.ca()[4] == 50


def test_whole_labels_may_be_floats() -> None:
    cast = votes([[1, 0]] * 9)
    assert certify(cast, [1.0, 1.0]).radius.tolist() == certify(cast, [1, 1]).radius.tolist()
    assert certify(cast, [1.0, 1.0]).per_class_ca()[1, 0] == 50


def test_without_labels() -> None:
    certificate = certify(votes([[0, 1], [0, 1], [0, 1], [0, 0]], 2))
    assert certificate.labels is None
    assert certificate.margin.tolist() == [4, 1]
    assert certificate.radius.tolist() == certificate.stability.tolist() == [2, 0]
    assert certificate.certified_share(1) == 50
    for ask in (
        certificate.ca,
        certificate.auc,
        certificate.ca_interval,
        certificate.per_class_ca,
        lambda: certificate.largest_m(50),
    ):
        with pytest.raises(CarvyError, match="needs the true labels"):
            ask()


def test_bad_requests_are_refused() -> None:
    certificate = hand_made()
    with pytest.raises(CarvyError, match="-1 malicious clients"):
        certificate.certified_share(-1)
    for confidence in (0, 1, 95):
        with pytest.raises(CarvyError, match="between 0 and 1"):
            certificate.ca_interval(confidence)
    for percent in (-1, 101):
        with pytest.raises(CarvyError, match="from 0 to 100"):
            certificate.largest_m(percent)
    with pytest.raises(CarvyError, match=r"the label of input 1 is 7; .* set num_classes"):
        certify(votes([[0, 1]]), [0, 7])
    assert certify(votes([[0, 1]], num_classes=8), [0, 7]).radius.tolist() == [0, -1]
    with pytest.raises(CarvyError, match="the label of input 0 is -1"):
        margin(tally(votes([[0, 1]])), [-1, 0])


# --- readings -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reading", "words"),
    [
        ("given_groups", "'given these groups'"),
        ("honest_only", "'honest only'"),
        ("all_honest", "'all honest'"),
    ],
)
def test_reading_and_basis_are_among_the_assumptions(reading: Reading, words: str) -> None:
    certificate = certify(votes([[0, 1]]), basis=Basis("the reason", 1, 1, 2)).under(reading)
    assert words in certificate.assumptions[-1]
    assert certificate.assumptions[-1].endswith("the reason.")
    assert len(certificate.assumptions) > 1


def test_each_reading_divides_by_the_groups_that_a_client_changes() -> None:
    one = votes([[1] * 2] * 9 + [[1, 0]] * 4)  # margins 12 (label 1, no vote for 0) and 4
    certificate = certify(one, [1, 1], Basis("the test says so", 1, 2, 4))
    assert certificate.reading == "given_groups"
    for reading, c in (("given_groups", 1), ("honest_only", 2), ("all_honest", 4)):
        found = certificate.under(cast(Any, reading))
        assert found.reading == reading
        # The margin itself, and how much of it m clients can take: 2cm.
        assert found.radius.tolist() == [delta // (2 * c) for delta in (12, 4)]
        assert found.stability.tolist() == found.radius.tolist()
        assert found.margin.tolist() == [12, 4]
        if reading != "given_groups":
            with pytest.raises(CarvyError, match="ask the one certify made"):
                found.under("honest_only")
    with pytest.raises(CarvyError, match="unknown reading 'end_to_end'; known: given_groups"):
        certificate.under(cast(Any, "end_to_end"))


def test_a_wrong_answer_stays_wrong_in_every_reading() -> None:
    certificate = certify(votes([[0]] * 5), [1], Basis("the test says so", 1, 2, 4))
    for reading in ("given_groups", "honest_only", "all_honest"):
        found = certificate.under(cast(Any, reading))
        assert found.radius.tolist() == [-1]


def test_foreign_votes_are_read_given_their_groups_only() -> None:
    certificate = certify(votes([[0, 1]]))
    assert certificate.basis is FOREIGN_VOTES
    assert certificate.basis.readings == ["given_groups"]
    for reading, label in (("honest_only", "honest only"), ("all_honest", "all honest")):
        with pytest.raises(CarvyError) as caught:
            certificate.under(cast(Any, reading))
        assert str(caught.value) == (
            f"nothing is certified '{label}': {FOREIGN_VOTES.because}; ask for given_groups"
        )


def test_where_nothing_is_certified_no_malicious_client_is_withstood() -> None:
    ballots = votes([[0, 1, 1]] * 7)
    certificate = certify(
        ballots, [0, 1, 0], Basis("the number of classes came from clients", None)
    )
    assert certificate.basis.readings == []
    assert certificate.radius.tolist() == [0, 0, -1]
    assert certificate.stability.tolist() == [0, 0, 0]
    assert certificate.ca().tolist() == pytest.approx([200 / 3])  # and no number for m = 1
    assert certificate.per_class_ca().tolist() == [[50.0], [100.0]]
    assert certificate.auc() == 0
    assert "Nothing is certified" in certificate.meaning
    assert "Nothing is guaranteed" in certificate.assumptions[-1]
    with pytest.raises(CarvyError, match="nothing is certified in any reading: the number of"):
        certificate.under("given_groups")


def test_the_short_form_says_what_is_certified() -> None:
    ballots = votes([[0, 1, 1]] * 7)
    nothing = Basis("the number of classes came from clients", None)
    shown = {
        basis: [repr(certify(ballots, labels, basis)) for labels in ([0, 1, 0], None)]
        for basis in (FOREIGN_VOTES, nothing)
    }
    # Unanimous: margin 7, less 1 against a smaller class; CA(m) is 2/3 for m = 0 … 3.
    area = 200 / 3 * 3.5
    assert shown[FOREIGN_VOTES] == [
        f"Certificate(3 inputs, 7 groups, CA(0) 66.7 %, AUC {area:.1f}, given these groups)",
        "Certificate(3 inputs, 7 groups, no labels, given these groups)",
    ]
    assert shown[nothing] == [
        "Certificate(3 inputs, 7 groups, CA(0) 66.7 %, nothing certified)",
        "Certificate(3 inputs, 7 groups, no labels, nothing certified)",
    ]


@pytest.mark.parametrize("groups", [0, -1, 1.0, "1", True])
def test_a_basis_that_says_nonsense_is_refused(groups: Any) -> None:
    with pytest.raises(CarvyError, match="changes 1 group or more"):
        Basis("trust me", 1, groups)


@settings(max_examples=60)
@given(st.data())
def test_given_these_groups_any_m_of_them_rewritten_leave_the_label(data: st.DataObject) -> None:
    """The first reading, by trying everything: which groups, and what these vote instead.

    The rewritten votes stand for what the honest members of those groups alone would vote; nothing
    is known of them, so all are tried.
    """
    num_classes = data.draw(st.integers(2, 3))
    groups = data.draw(ballots(6 if num_classes == 2 else 5, 1, num_classes))
    column = tuple(groups[:, 0].tolist())
    m = data.draw(st.integers(0, min(2, len(column))))
    certificate = certify(votes(groups, num_classes))
    if certificate.margin[0] < 2 * m:
        return
    for chosen in combinations(range(len(column)), m):
        for new in product(range(NO_VOTE, num_classes), repeat=m):
            honest = list(column)
            for at, vote in zip(chosen, new, strict=True):
                honest[at] = vote
            assert winner(tuple(honest), num_classes) == certificate.prediction[0]


def test_given_these_groups_the_margin_is_used_up() -> None:
    """With Δ = 2m - 1 there is a rewriting of m votes that changes the label: 2m is needed."""
    column: tuple[int, ...] = (1, 1, 1, 0, 0)  # label 1 leads by one, and a tie goes to 0: Δ = 0
    assert certify(votes([[v] for v in column])).margin.tolist() == [0]
    assert rewrites_needed(column, 1, 2) == 1
    column = (0, 0, 0, 1)  # Δ = 2: one rewritten vote is withstood, a second is not
    assert certify(votes([[v] for v in column])).margin.tolist() == [2]
    assert rewrites_needed(column, 0, 2) == 2
