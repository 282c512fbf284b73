"""From votes to guarantees: margin, certified radius, certified accuracy, AUC.

A client sits in one group only, so m malicious clients rewrite at most m votes. Each takes at most
one vote from the leading class and gives at most one to a rival; a margin of 2m survives (Eq. 8).
The bound is tight: one more rewritten vote than the radius can always change the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from carvyfl.core.arrays import data_frame
from carvyfl.core.errors import CarvyError
from carvyfl.groups.basis import FOREIGN_VOTES, READINGS, Basis, Reading
from carvyfl.privacy.statement import guarantee
from carvyfl.voting.overlap import Whole, check_members, overlap_radius
from carvyfl.voting.votes import NO_VOTE, Classes, Counts, Votes, check_labels, plurality, tallies

if TYPE_CHECKING:
    from pandas import DataFrame

Percent = npt.NDArray[np.float64]
_ROUNDING: Final = 1e-9  # percent; shares of one test set differ by far more, or not at all
_ASSUMED: Final = (
    "A group's model depends on its own members, and on constants fixed before any was heard.",
    "The test inputs are drawn from the distribution met in deployment.",
    "At most m clients are malicious; they may do anything within their groups.",
    "The server is honest.",
)


def margin(counts: Counts, labels: Any) -> Whole:
    """Return the vote margin Δ of the given classes (Eqs. 6 and 7).

    The votes of the class, less those of its strongest rival, less one if that rival would win a
    tie: of equally strong rivals the smallest is the worst. From int32 counts of shape (n, C)
    (:func:`carvyfl.voting.votes.tally`) and n labels to int32 of shape (n,); negative exactly where
    the plurality is another class, or nobody votes.
    """
    return _margin(counts, check_labels(labels, *counts.shape))


def _margin(counts: Counts, classes: Classes) -> Whole:
    """Return the margin of classes that were checked, or of the predicted ones."""
    rows = np.arange(len(counts))
    rivals = counts.copy()
    rivals[rows, classes] = -1
    rival = np.argmax(rivals, axis=1)
    delta: Whole = counts[rows, classes] - rivals[rows, rival] - (classes > rival)
    return np.where(counts.any(axis=1), delta, np.int32(-1))


def radius(counts: Counts, labels: Any = None) -> Whole:
    """Return how many malicious clients each answer is certain to survive: ⌊Δ/2⌋.

    It takes what :func:`margin` takes, and is -1 where the plurality is not the label; without
    labels the predicted classes take their place.
    """
    delta = _margin(counts, plurality(counts)) if labels is None else margin(counts, labels)
    return np.maximum(delta // 2, -1)


def unanswered(prediction: Classes) -> list[str]:
    """Return a sentence that says on how many inputs no group votes, if there are any."""
    silent = int(np.count_nonzero(prediction == NO_VOTE))
    what = f"no group votes on {silent} of {len(prediction)} inputs"
    return [f"{what}: they have no answer, and nothing is certified for them"] if silent else []


def undercut(accuracy: Sequence[float], certified: Sequence[float]) -> list[int]:
    """Return where accuracy under attack is below CA(m), in percent: nowhere, if it holds."""
    pairs = zip(accuracy, certified, strict=True)
    return [i for i, (under_attack, ca) in enumerate(pairs) if under_attack < ca - _ROUNDING]


@dataclass(frozen=True, eq=False)
class Certificate:
    """What an ensemble guarantees, input by input; made by :func:`certify`.

    Attributes
    ----------
    prediction
        int64 of shape (n,): the ensemble's label; -1 where no group votes.
    stability
        int32 of shape (n,): how many malicious clients cannot change the prediction, right or
        wrong; -1 where no group votes.
    margin, radius
        int32 of shape (n,): Δ of the true label, and how many malicious clients cannot make the
        answer wrong, -1 where it is wrong already; of the prediction where labels are unknown.
    num_groups, num_classes
        G and C.
    basis
        What is known of the grouping, hence how far the guarantee reaches.
    labels
        int64 of shape (n,), the true classes, or None.
    reading
        Which run the guarantee compares with: ``stability``, ``radius`` and CA(m) state it.
    overlapping
        Whether clients may sit in several groups
        (:func:`carvyfl.voting.overlap.overlap_radius`).
    budget
        ε and δ of what every client sent, where that was private; :attr:`privacy` says it in words.
    """

    prediction: Classes
    stability: Whole
    margin: Whole
    radius: Whole
    num_groups: int
    num_classes: int
    basis: Basis
    labels: Classes | None = None
    reading: Reading = "given_groups"
    overlapping: bool = False
    budget: tuple[float, float] | None = None

    def __repr__(self) -> str:
        accuracy, reach = "no labels", "nothing certified"
        if self.labels is not None:
            accuracy = f"CA(0) {self.ca()[0]:.1f} %"
        if self.certifies:
            reach = READINGS[self.reading].label
            accuracy += "" if self.labels is None else f", AUC {self.auc():.1f}"
        size = f"{self.num_inputs:,} inputs, {self.num_groups} groups"
        private = "" if self.budget is None else ", private with ε = {:g}, δ = {:g}"
        return f"Certificate({size}, {accuracy}, {reach}{private.format(*self.budget or ())})"

    def to_frame(self, rows: str = "inputs") -> DataFrame:
        """Return the certificate as a pandas data frame.

        ``rows='inputs'``: a row per input, with ``prediction``, ``stability``, ``margin``,
        ``radius`` and, where they are known, ``label``. ``rows='curve'``: a row per m, with ``m``,
        ``ca``, ``ca_low`` and ``ca_high`` (95 % interval) in percent.
        """
        if rows == "inputs":
            names = ("prediction", "stability", "margin", "radius")
            columns = {name: getattr(self, name) for name in names}
            return data_frame(columns if self.labels is None else {**columns, "label": self.labels})
        if rows != "curve":
            raise CarvyError(f"rows are 'inputs' or the points of the 'curve', not {rows!r}")
        ca, (low, high) = self.ca(), self.ca_interval()
        return data_frame({"m": np.arange(len(ca)), "ca": ca, "ca_low": low, "ca_high": high})

    def under(self, reading: Reading) -> Certificate:
        """Return the certificate that compares with another run, or say why there is none.

        Against that run one malicious client changes at most c groups, so m of them take at most
        2cm from the margin: radius ⌊Δ/2c⌋, with the c of the basis. The readings are
        ``given_groups``: the same groups without their malicious members; ``honest_only``: a run
        without the malicious clients, grouping included; ``all_honest``: the run in which all N
        clients behave. Those for which something is proved are ``basis.readings``.
        """
        if reading not in READINGS:
            raise CarvyError(f"unknown reading '{reading}'; known: {', '.join(READINGS)}")
        if self.reading != "given_groups":
            raise CarvyError(f"this certificate is read '{self.reading}'; ask the one certify made")
        c: int | None = getattr(self.basis, reading)
        if c is None:
            proved, because = self.basis.readings, self.basis.because
            if not proved:
                raise CarvyError(f"nothing is certified in any reading: {because}")
            raise CarvyError(
                f"nothing is certified '{READINGS[reading].label}': {because}; "
                f"ask for {' or '.join(proved)}"
            )
        stability, radius = self.stability // c, self.radius // c  # ⌊⌊Δ/2⌋/c⌋ = ⌊Δ/2c⌋; -1 stays
        return replace(self, stability=stability, radius=radius, reading=reading)

    @property
    def certifies(self) -> bool:
        """Whether anything is certified for any malicious client."""
        return self.basis.given_groups is not None

    @property
    def privacy(self) -> str:
        """The differential privacy of what clients sent, in sentences; empty where there is none.

        It holds beside the guarantee against malicious clients, and is independent of it.
        """
        return "" if self.budget is None else guarantee(*self.budget)

    @property
    def meaning(self) -> str:
        """What row m of CA(m) counts, as a sentence."""
        if not self.certifies:
            return "Nothing is certified for any malicious client: only row 0 counts, the accuracy."
        return f"Row m: answered correctly, and {READINGS[self.reading].same_as}."

    @property
    def num_inputs(self) -> int:
        """n, the number of inputs."""
        return len(self.prediction)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the user should know of the votes, in sentences."""
        return tuple(unanswered(self.prediction))

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Everything the guarantee rests on, as plain sentences; the basis comes last."""
        membership = "Every client belongs to one group at most."
        if self.overlapping:
            membership = "A client belongs to the groups listed for it, and to no other."
        reach = f"The guarantee is read '{READINGS[self.reading].label}'"
        if not self.certifies:
            reach = "Nothing is guaranteed against malicious clients"
        return (membership, *_ASSUMED, f"{reach}: {self.basis.because.rstrip('.')}.")

    def certified_share(self, m: int) -> float:
        """Return the percentage of inputs whose prediction m malicious clients cannot change."""
        if m < 0:
            raise CarvyError(f"{m} malicious clients: give 0 or more")
        return 100.0 * int(np.count_nonzero(self.stability >= m)) / self.num_inputs

    def ca(self) -> Percent:
        """Return the certified accuracy CA(m) in percent for m = 0, 1, … (Eqs. 9 and 11).

        The curve ends with the first m at which it is zero; where nothing is certified, with m = 0.
        """
        return 100.0 * self._survivors() / self.num_inputs

    def auc(self) -> float:
        """Return the area under CA(m), by the trapezoid rule, in percent × clients."""
        curve = self.ca()  # unit steps, and the last point is zero
        return float(curve.sum() - curve[0] / 2) if len(curve) > 1 else 0.0

    def ca_interval(self, confidence: float = 0.95) -> tuple[Percent, Percent]:
        """Return a confidence interval around every CA(m), for the finite number of inputs.

        Clopper and Pearson's exact interval for a share of n independent draws: its lower and
        upper ends in percent, each as long as :meth:`ca`. It holds for each m by itself.
        """
        from scipy.special import betaincinv

        if not 0 < confidence < 1:
            raise CarvyError(f"confidence {confidence}: give a number between 0 and 1")
        hits = self._survivors()
        misses, tail = self.num_inputs - hits, (1 - confidence) / 2
        # At either end the interval is one-sided; there the maximum keeps beta's parameters legal.
        low = np.where(hits == 0, 0.0, betaincinv(np.maximum(hits, 1), misses + 1, tail))
        high = np.where(misses == 0, 1.0, betaincinv(hits + 1, np.maximum(misses, 1), 1 - tail))
        return 100.0 * low, 100.0 * high

    def per_class_ca(self) -> Percent:
        """Return CA(m) among the inputs of each class, (C, points), in percent, or NaN."""
        table = np.full((self.num_classes, len(self.ca())), np.nan)
        for c in np.unique(np.asarray(self.labels)):
            chosen = self.labels == c
            table[c] = 100.0 * self._survivors(chosen) / np.count_nonzero(chosen)
        return table

    def largest_m(self, percent: float) -> int | None:
        """Return the largest m with CA(m) > ``percent``, or None where even CA(0) is not."""
        if not 0 <= percent <= 100:
            raise CarvyError(f"{percent} percent: give a number from 0 to 100")
        above = int(np.count_nonzero(self.ca() > percent))  # CA never rises with m
        return above - 1 if above else None

    def _survivors(self, chosen: Any = slice(None)) -> npt.NDArray[np.int64]:
        """Count the chosen inputs with radius ≥ m, for every m on the curve."""
        if self.labels is None:
            raise CarvyError(
                "certified accuracy needs the true labels; "
                "without them ask for certified_share, prediction and radius"
            )
        # One counter for each radius from -1 to the first m at which no input is left.
        exactly = np.bincount(self.radius[chosen] + 1, minlength=int(self.radius.max()) + 3)
        at_least = exactly[::-1].cumsum()[-2::-1]
        return at_least if self.certifies else at_least[:1]


def certify(
    votes: Votes, labels: Any = None, basis: Basis = FOREIGN_VOTES, members: Any = None
) -> Certificate:
    """Certify an ensemble from its votes.

    Parameters
    ----------
    votes
        What every group votes on every input.
    labels
        The true class of every input; None leaves out everything about accuracy.
    basis
        What is known of the grouping; by default, nothing.
    members
        Which groups each client can change, of shape (clients, G): needed where clients share
        groups. None says that every client sits in one group at most.
    """
    reach = None if members is None else check_members(members, votes.num_groups)
    truth = None if labels is None else check_labels(labels, votes.num_inputs, votes.num_classes)
    slices = []
    for part, counts in tallies(votes):
        prediction = plurality(counts)
        lead = _margin(counts, prediction)
        slices.append((prediction, lead, lead if truth is None else _margin(counts, truth[part])))
    prediction, lead, delta = (np.concatenate(parts) for parts in zip(*slices, strict=True))
    stability, survived = np.maximum(lead // 2, -1), np.maximum(delta // 2, -1)
    if basis.given_groups is None:  # nothing survives even one malicious client
        stability, survived = np.minimum(stability, 0), np.minimum(survived, 0)
    elif reach is not None:
        stability = overlap_radius(votes, prediction, reach)
        survived = stability if truth is None else overlap_radius(votes, truth, reach)
    what = prediction, stability, delta, survived, votes.num_groups, votes.num_classes
    return Certificate(*what, basis, truth, overlapping=reach is not None)
