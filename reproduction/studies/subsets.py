"""A certificate for the vote of all groups of k clients, from a sample of such groups (FLCert-P).

Cao, Jia and Gong (AAAI 2021) and Cao, Zhang, Jia and Gong (FLCert) let all subsets of k of the N
clients vote, each with a model of its own; subsets overlap. Let p_c be the share of the subsets
that vote for class c. Of all subsets, C(N - m, k) have none of m malicious clients, so these
change every p_c by at most δ = 1 - C(N - m, k) / C(N, k). Class A wins whatever they do if
p_A - δ > p_B + δ for every other class B; p_B is at most 1 - p_A, so p_A > 1/2 + δ is enough.

There are too many subsets to train them all: p_A is bounded from below, with confidence, from a
sample. True shares are multiples of 1 / C(N, k), and a lower bound could be rounded up to the next
one. That gains less than 1e-7 for 5 of 100 clients and is not done.
"""

from __future__ import annotations

from fractions import Fraction
from math import comb

import numpy as np
import numpy.typing as npt

from carvyfl.core.errors import CarvyError
from carvyfl.voting.votes import Votes, tallies

Radii = npt.NDArray[np.int64]

SLACK = 1e-9
"""Taken from every bound: more than the error of a beta quantile."""


def touched_share(num_clients: int, size: int, m: int) -> Fraction:
    """Return δ, the share of the subsets of ``size`` clients that hold one of m clients."""
    return 1 - Fraction(comb(num_clients - m, size), comb(num_clients, size))


def certified_clients(shares: npt.ArrayLike, num_clients: int, size: int) -> Radii:
    """Return the largest m with p_A > 1/2 + δ for every input, shape (n,); -1 where there is none.

    ``shares`` is p_A or a lower bound of it, shape (n,); ``num_clients`` and ``size`` are N and k.
    """
    if not 1 <= size <= num_clients:
        raise CarvyError(f"subsets of {size} of {num_clients} clients: give 1 to {num_clients}")
    deltas = (touched_share(num_clients, size, m) for m in range(num_clients + 1))
    needed = [float(Fraction(1, 2) + delta) for delta in deltas]
    return np.searchsorted(needed, np.asarray(shares), side="left").astype(np.int64) - 1


def sampled_radius(votes: Votes, num_clients: int, size: int, confidence: float) -> Radii:
    """Return how many malicious clients cannot change what the vote of all subsets answers.

    The answer is the class with the most votes of the sample. Clopper and Pearson's bound of its
    share is at the level α = (1 - confidence) / 2n, and all n statements hold together. For the
    class is chosen after the votes are known, and α doubles at most. Nothing is claimed unless
    the bound is above 1/2, that is, from a certain number t > G/2 of votes on. As a function of
    p ≤ 1/2, the chance f(p) of t votes or more is convex with f(0) = 0 and f(1/2) ≤ α:
    f(p) ≤ 2pα. So classes of shares p_c ≤ 1/2 fail with chance 2α Σ p_c at most in all, and a
    class of more than 1/2, which leaves less than 1/2 to the others, adds at most α.

    Parameters
    ----------
    votes
        Of G subsets that were drawn independently and uniformly; a subset that casts no vote
        counts against every class.
    num_clients, size
        N and k.
    confidence
        Above 0 and below 1: the chance, over the draw of the subsets, that everything is true.

    Returns
    -------
    Radii
        The largest m that is certified, shape (n,); -1 where the sample leaves the winner open.
    """
    from scipy.special import betaincinv

    if not 0 < confidence < 1:
        raise CarvyError(f"confidence {confidence}: give a number between 0 and 1")
    level = (1 - confidence) / (2 * votes.num_inputs)
    most = np.concatenate([counts.max(axis=1) for _, counts in tallies(votes)])
    hits = np.arange(1, votes.num_groups + 1)
    lower = np.append(0.0, betaincinv(hits, votes.num_groups - hits + 1, level))
    return certified_clients(lower[most] - SLACK, num_clients, size)
