"""Evidence that private messages are private: an audit that can fail, and two attacks.

A message is a function of vectors and labels that returns noisy class sums and noisy counts.
:func:`audit` bounds the ε of one from below, :func:`membership` guesses whether a sample is in a
client's data, and :func:`reconstruction` draws images from what a client sent.
"""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import expit
from scipy.stats import beta, norm, rankdata

from carvyfl.core.randomness import generator
from carvyfl.data.datasets import load
from carvyfl.learning.one_shot.features import features_for
from carvyfl.learning.private.map import make_map
from carvyfl.privacy.class_sums import (
    COUNT_WEIGHT,
    NoisySums,
    class_sums,
    noise_for_sums,
    noisy_sums,
)
from carvyfl.privacy.noise import STEP, simulated_noise, spent_epsilon, to_units
from reproduction.studies.common import provenance, write_record

DELTA = 1e-5
CONFIDENCE = 0.999
LEVELS = expit(np.linspace(-8.5, 8.5, 400))  # dense towards 0 and 1: large ε shows in the tails
Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]
Message = Callable[[Floats, Labels], tuple[Floats, Floats]]
"""A function of vectors, shape (n, d), and labels, shape (n,): noisy sums and noisy counts."""


def private(epsilon: float, num_classes: int) -> Message:
    """Return the message of a client as it is."""
    noise = noise_for_sums(epsilon, DELTA)

    def message(vectors: Floats, labels: Labels) -> tuple[Floats, Floats]:
        sent = noisy_sums(vectors, labels, num_classes, noise, simulated_noise)
        return sent.sums, sent.counts

    return message


def exact(num_classes: int) -> Message:
    """Return the message of a client without noise."""

    def message(vectors: Floats, labels: Labels) -> tuple[Floats, Floats]:
        sums = class_sums(to_units(vectors), labels, num_classes)
        sent = NoisySums(sums.astype(np.int32))
        return sent.sums, sent.counts

    return message


def broken(what: str, epsilon: float, num_classes: int) -> Message:
    """Return the message of a client whose program has a fault that :func:`audit` must find."""
    noise = noise_for_sums(epsilon, DELTA)
    part = 0.5 if what == "noise halved" else 1.0

    def message(vectors: Floats, labels: Labels) -> tuple[Floats, Floats]:
        clipped = what != "clipping off"
        units = to_units(vectors) if clipped else np.rint(vectors / STEP).astype(np.int64)
        exact = class_sums(units, labels, num_classes)
        noisy = noise.add(exact, lambda count, scale: simulated_noise(count, part * scale))
        if what == "counts without noise":
            noisy[:, -1] = exact[:, -1]
        sent = NoisySums(noisy.astype(np.int32))
        return sent.sums, sent.counts

    return message


FAULTS = "noise halved", "counts without noise", "clipping off"


@dataclass(frozen=True)
class Bounds:
    """What a message costs at least, each with probability :data:`CONFIDENCE`.

    ``epsilon`` holds for any mechanism, at δ = :data:`DELTA`. ``signal`` is a bound on sensitivity
    by scale if the noise is Gaussian (Nasr et al., 2023), and ``gaussian_epsilon`` the ε of it.
    """

    epsilon: float
    signal: float

    @property
    def gaussian_epsilon(self) -> float:
        """The ε of noise of this signal."""
        return spent_epsilon(self.signal, DELTA) if self.signal > 0 else 0.0


def audit(
    message: Message, vectors: Floats, labels: Labels, canary: Floats, label: int, trials: int
) -> Bounds:
    """Bound ε from below by telling messages with a canary from messages without it.

    Half of the trials choose how to tell them apart; the other half count the errors, whose rates
    are bounded by Clopper and Pearson (1934).
    """
    worlds = [
        _scores(
            message, np.vstack([vectors, canary]), np.append(labels, label), canary, label, trials
        ),
        _scores(message, vectors, labels, canary, label, trials),
    ]
    choosing, counting = ([world[:, part::2] for world in worlds] for part in (0, 1))
    return Bounds(*(_best(bound, choosing, counting) for bound in (_epsilon, _signal)))


def _scores(
    message: Message, vectors: Floats, labels: Labels, canary: Floats, label: int, trials: int
) -> Floats:
    """Return what points to the canary, shape (3, trials): its class's sum, count, and both."""
    direction = canary / max(1.0, float(np.linalg.norm(canary)))
    scores = np.empty((3, trials))
    for trial in range(trials):
        sums, counts = message(vectors, labels)
        scores[0, trial], scores[1, trial] = sums[label] @ direction, counts[label]
    scores[2] = scores[0] + COUNT_WEIGHT**2 * scores[1]
    return scores


def _best(
    bound: Callable[[int, int, int], float], choosing: list[Floats], counting: list[Floats]
) -> float:
    """Return the bound of the score and threshold that did best on other trials."""
    best, at = -np.inf, (0, 0.0)
    for score in range(len(choosing[0])):
        both = np.concatenate([world[score] for world in choosing])
        for threshold in np.quantile(both, LEVELS):
            here = bound(*_hits(choosing, score, threshold))
            if here > best:
                best, at = here, (score, float(threshold))
    return bound(*_hits(counting, *at))


def _hits(worlds: list[Floats], score: int, threshold: float) -> tuple[int, int, int]:
    """Return in how many trials the canary was seen: rightly, wrongly; and how many there were."""
    right, wrong = (int((world[score] > threshold).sum()) for world in worlds)
    return right, wrong, worlds[0].shape[1]


def _epsilon(right: int, wrong: int, trials: int) -> float:
    """Return ln((p - δ) / q) at the bounds of the rates p and q; of hits, or of both worlds' rest.

    Two sides share the probability of an error.
    """
    seen = (_at_least(right, trials, 4) - DELTA) / _at_most(wrong, trials, 4)
    unseen = (_at_least(trials - wrong, trials, 4) - DELTA) / _at_most(trials - right, trials, 4)
    return float(np.log(max(seen, unseen, 1.0)))


def _signal(right: int, wrong: int, trials: int) -> float:
    low, high = _at_least(right, trials, 2), _at_most(wrong, trials, 2)
    return max(0.0, float(norm.ppf(low) - norm.ppf(high)))


def _at_least(hits: int, trials: int, bounds: int) -> float:
    """Return a rate that is exceeded, one of so many bounds that hold at once."""
    return float(beta.ppf((1 - CONFIDENCE) / bounds, hits, trials - hits + 1)) if hits else 0.0


def _at_most(hits: int, trials: int, bounds: int) -> float:
    return 1 - _at_least(trials - hits, trials, bounds)


def audits(epsilon: float, trials: int, length: int = 32, num_classes: int = 10) -> dict[str, Any]:
    """Audit the message and each fault, with 50 random samples and a canary five times too long."""
    rng = np.random.default_rng(0)
    vectors, labels = rng.normal(size=(50, length)) / np.sqrt(length), rng.integers(0, 10, 50)
    canary = 5 * np.eye(length)[0]
    messages = {"as it is": private(epsilon, num_classes)}
    messages |= {what: broken(what, epsilon, num_classes) for what in FAULTS}
    record = {}
    for what, message in messages.items():
        found = audit(message, vectors, labels, canary, 0, trials)
        record[what] = {"epsilon": found.epsilon, "gaussian_epsilon": found.gaussian_epsilon}
    return {"claim": epsilon, "trials": trials, "confidence": CONFIDENCE, "bounds": record}


def privacy_audit(args: Namespace) -> None:
    """Bound ε of private messages from below, as they are and with a fault in each part.

    Writes audit.json. A claim is refuted where a bound is above it.
    """
    claims = [audits(epsilon, args.trials) for epsilon in args.epsilons]
    about = provenance(args) | {"command": "python -m reproduction.studies privacy-audit"}
    write_record(args.out / "audit.json", {**about, "delta": DELTA, "audits": claims})
    for record in claims:
        for what, bounds in record["bounds"].items():
            print(
                f"ε = {record['claim']:g}, {what}: at least {bounds['epsilon']:.2f}; if the noise"
            )
            print(f"  is Gaussian, {bounds['gaussian_epsilon']:.2f}")


KNOWN, HIDDEN, CLIENT_SIZE = 2800, 1000, 50
ATTACKED = 6000  # samples of the data set that are used
SHARES = 1, 5
"""How many samples of its class a client has whose image is drawn."""


def privacy_attacks(args: Namespace) -> None:
    """Attack private messages: draw images from them, and tell members from other samples.

    Scattering features and the map from synthetic images. Images are drawn by somebody who knows
    2,800 others; clients of 50 samples hold a member or another sample in its place. Writes
    attacks.json.
    """
    dataset = load(args.dataset, data_dir=args.data_dir)
    shape, num_classes = dataset.train.inputs.shape[1:], dataset.num_classes
    features = features_for("scattering", shape)
    private_map = make_map(features, shape, num_classes)
    order = generator(0, "privacy attacks").permutation(len(dataset.train))[:ATTACKED]
    taken = dataset.train.take(order)
    images = taken.inputs.reshape(len(taken), -1).astype(np.float64) / 255
    pool = Samples(private_map.vectors(features.of(taken.inputs)), images, taken.labels)
    known, hidden = pool.part(slice(0, KNOWN)), pool.part(slice(KNOWN, KNOWN + HIDDEN))
    rows = []
    for epsilon in (None, *args.epsilons):
        noise = None if epsilon is None else noise_for_sums(epsilon, DELTA)
        message = exact(num_classes) if epsilon is None else private(epsilon, num_classes)
        scale = 0.0 if noise is None else noise.scale * STEP
        drawn = {n: reconstruction(message, scale, known, hidden, n) for n in SHARES}
        told = membership(message, pool, CLIENT_SIZE, args.clients)
        proved = 1.0 if noise is None else float(norm.cdf(noise.signal / np.sqrt(2)))
        rows.append({"epsilon": epsilon, "images": drawn, "membership": told, "proved": proved})
        print(json.dumps(rows[-1]), flush=True)
    record = provenance(args) | {"command": "python -m reproduction.studies privacy-attacks"}
    record |= {"dataset": dataset.name, "clients": args.clients, "client_size": CLIENT_SIZE}
    record |= {"known": KNOWN, "hidden": HIDDEN, "class_alone": class_alone(known, hidden)}
    write_record(args.out / "attacks.json", record | {"map": private_map.digest, "rows": rows})


@dataclass(frozen=True)
class Samples:
    """Samples as vectors, shape (n, d), with their images, shape (n, pixels), and labels."""

    vectors: Floats
    images: Floats
    labels: Labels

    def part(self, rows: slice) -> Samples:
        """Return the samples of these rows."""
        return Samples(self.vectors[rows], self.images[rows], self.labels[rows])


def clients_with_and_without(
    pool: Samples, size: int, clients: int, rng: np.random.Generator
) -> Iterator[tuple[int, Labels]]:
    """Draw targets, each with other samples of one client; half of these have its class."""
    for _ in range(clients):
        target = int(rng.integers(len(pool.labels)))
        same = np.flatnonzero(pool.labels == pool.labels[target])
        others = np.flatnonzero(pool.labels != pool.labels[target])
        half = rng.choice(same[same != target], (size - 1) // 2, replace=False)
        yield target, np.append(half, rng.choice(others, size - 1 - len(half), replace=False))


def membership(
    message: Message, pool: Samples, size: int, clients: int, seed: int = 0
) -> dict[str, float]:
    """Return how well messages tell members: the AUC of two attackers, 0.5 by chance.

    One knows all other samples of the client; the best attack then has the AUC Φ(signal/√2) at
    most. The other one knows the mean vector of each class.
    """
    rng = np.random.default_rng(seed)
    means = _class_means(pool.vectors, pool.labels)
    scores: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    for target, others in clients_with_and_without(pool, size, clients, rng):
        vector, label = pool.vectors[target], int(pool.labels[target])
        known = pool.vectors[others][pool.labels[others] == label]
        for member in scores:
            rows = np.append(others, target) if member else others
            sums, counts = message(pool.vectors[rows], pool.labels[rows])
            rest = (sums[label] - known.sum(axis=0)) @ vector
            rest += COUNT_WEIGHT**2 * (counts[label] - len(known))
            best = rest - (vector @ vector + COUNT_WEIGHT**2) / 2
            centred = sums[label] - counts[label] * means[label]
            scores[member].append((float(best), float(centred @ (vector - means[label]))))
    knows_all, knows_means = (
        auc(*(np.array(scores[member])[:, k] for member in (True, False))) for k in (0, 1)
    )
    return {"knows all others": knows_all, "knows the classes": knows_means}


def auc(positive: Floats, negative: Floats) -> float:
    """Return the probability that a positive score is above a negative one; ties count half."""
    ranks = rankdata(np.concatenate([positive, negative]))[: len(positive)]
    return float((ranks.mean() - (len(positive) + 1) / 2) / len(negative))


def reconstruction(
    message: Message, scale: float, known: Samples, hidden: Samples, share: int
) -> float:
    """Return the share of the pixels' variance that is recovered from clients' messages.

    Every hidden image is drawn once, from the message of a client that has ``share`` hidden samples
    of its class. The attacker knows ``scale``, the noise's standard deviation in the sums, and
    other samples; linear regression within classes is then the best linear estimate.
    """
    means = _class_means(known.vectors, known.labels)
    mean_images = _class_means(known.images, known.labels)
    x = known.vectors - means[known.labels]
    y = known.images - mean_images[known.labels]
    covariance, cross = x.T @ x / len(x), x.T @ y / len(x)
    ridge = scale**2 + 1e-3 * np.trace(covariance) / len(covariance)
    weights = np.linalg.solve(share * covariance + ridge * np.eye(len(covariance)), cross)
    lost = 0.0
    for target, label in enumerate(hidden.labels):
        same = np.flatnonzero(hidden.labels == label)
        rows = np.append(same[same != target][: share - 1], target)
        sums, _ = message(hidden.vectors[rows], hidden.labels[rows])
        drawn = mean_images[label] + (sums[label] - share * means[label]) @ weights
        lost += float(np.square(drawn - hidden.images[target]).sum())
    return 1 - lost / float(np.square(hidden.images - known.images.mean(axis=0)).sum())


def class_alone(known: Samples, hidden: Samples) -> float:
    """Return the share that is recovered by somebody who knows an image's class, and no message."""
    drawn = _class_means(known.images, known.labels)[hidden.labels]
    rest = np.square(hidden.images - known.images.mean(axis=0)).sum()
    return float(1 - np.square(drawn - hidden.images).sum() / rest)


def _class_means(rows: Floats, labels: Labels) -> Floats:
    return np.array([rows[labels == c].mean(axis=0) for c in range(int(labels.max()) + 1)])
