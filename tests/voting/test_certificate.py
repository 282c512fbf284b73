from __future__ import annotations

import re
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
from support.elections import winner

CLASSES = 4


def ballots(max_groups: int, max_inputs: int, num_classes: int) -> st.SearchStrategy[np.ndarray]:
    return hnp.arrays(
        np.int8,
        st.tuples(st.integers(1, max_groups), st.integers(1, max_inputs)),
        elements=st.integers(NO_VOTE, num_classes - 1),
    )


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
    points = range(len(curve))
    assert curve.tolist() == pytest.approx([ca(m, [*range(n)]) for m in points])
    assert curve[-1] == 0
    assert (curve[:-1] > 0).all()
    assert certificate.prediction.tolist() == predict(cast).tolist()
    assert certificate.auc() == pytest.approx(trapezoid(curve))
    for c, row in enumerate(certificate.per_class_ca()):
        inputs = [i for i in range(n) if labels[i] == c]
        expected = [ca(m, inputs) if inputs else np.nan for m in points]
        assert row.tolist() == pytest.approx(expected, nan_ok=True)
    for m, low, high in zip(points, *certificate.ca_interval(0.9), strict=True):
        hits = int(np.count_nonzero(deltas >= 2 * m))
        exact = binomtest(hits, n).proportion_ci(0.9, method="exact")
        assert (low, high) == pytest.approx((100 * exact.low, 100 * exact.high))


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
    largest = {0: 2, 19.9: 2, 20: 0, 59.9: 0, 60: None, 100: None}  # strictly above
    assert {percent: certificate.largest_m(percent) for percent in largest} == largest


def test_wrong_but_stable_predictions_count_as_stable_only() -> None:
    cast = votes([[1, 0]] * 9)
    for certificate in (certify(cast, [0, 0]), certify(cast, [0.0, 0.0])):  # whole labels
        assert certificate.radius.tolist() == [-1, 4]
        assert certificate.stability.tolist() == [4, 4]
        assert certificate.certified_share(4) == 100
        assert certificate.ca()[4] == certificate.per_class_ca()[0, 4] == 50
    assert certify(votes([[0, 1]], num_classes=8), [0, 7]).radius.tolist() == [0, -1]


def test_without_labels() -> None:
    certificate = certify(votes([[0, 1], [0, 1], [0, 1], [0, 0]], 2))
    assert certificate.labels is None
    assert certificate.margin.tolist() == [4, 1]
    assert certificate.radius.tolist() == certificate.stability.tolist() == [2, 0]
    assert certificate.certified_share(1) == 50


def unlabelled() -> Certificate:
    return certify(votes([[0, 1]]))


TWO, PROVED = votes([[0, 1]]), Basis("the test says so", 1, 2, 4)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: hand_made().certified_share(-1), "-1 malicious clients"),
        *((lambda c=c: hand_made().ca_interval(c), "between 0 and 1") for c in (0, 1, 95)),
        *((lambda p=p: hand_made().largest_m(p), "from 0 to 100") for p in (-1, 101)),
        (lambda: unlabelled().largest_m(50), "the true labels"),
        (lambda: hand_made().to_frame("points"), "not 'points'"),
        (lambda: certify(TWO, [0, 7]), "the label of input 1 is 7; "),
        (lambda: margin(tally(TWO), [-1, 0]), "the label of input 0 is -1"),
        *(
            (lambda name=name: getattr(unlabelled(), name)(), "the true labels")
            for name in ("ca", "auc", "ca_interval", "per_class_ca")
        ),
        (
            lambda: unlabelled().under(cast(Any, "end_to_end")),
            "unknown reading 'end_to_end'; known: given_groups",
        ),
        (
            lambda: certify(TWO, basis=PROVED).under("all_honest").under("honest_only"),
            "ask the one certify made",
        ),
        (
            lambda: unlabelled().under("honest_only"),
            f"nothing is certified 'honest only': {FOREIGN_VOTES.because}; ask for given_groups",
        ),
        (
            lambda: certify(TWO, basis=Basis("so it is", None)).under("given_groups"),
            "nothing is certified in any reading: so it is",
        ),
        *(
            (lambda c=c: Basis("trust me", 1, c), "1 group or more")
            for c in (0, -1, 1.0, "1", True)
        ),
    ],
)
def test_what_means_nothing_is_refused(ask: Any, message: str) -> None:
    with pytest.raises(CarvyError, match=re.escape(message)):
        ask()


# --- readings -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reading", "c", "words"),
    [
        ("given_groups", 1, "'given these groups': the test says so."),
        ("honest_only", 2, "'honest only': the test says so."),
        ("all_honest", 4, "'all honest': the test says so."),
    ],
)
def test_each_reading_divides_by_the_groups_that_a_client_changes(
    reading: Reading, c: int, words: str
) -> None:
    one = votes([[1] * 2] * 9 + [[1, 0]] * 4)  # margins 12 (label 1, no vote for 0) and 4
    certificate = certify(one, [1, 1], PROVED).under(reading)
    # The margin itself, and how much of it m clients can take: 2cm.
    assert certificate.radius.tolist() == [delta // (2 * c) for delta in (12, 4)]
    assert certificate.stability.tolist() == certificate.radius.tolist()
    assert certificate.margin.tolist() == [12, 4]
    assert certify(votes([[0]] * 5), [1], PROVED).under(reading).radius.tolist() == [-1]
    assert certificate.assumptions[-1].endswith(words)
    assert len(certificate.assumptions) > 1


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
