"""Time the private learner for up to 1,000,000 clients: every step from vectors to certificates.

Clients hold 20 samples of two classes each, made-up features around ten centres. All of their work
is done here, too, many clients at once, by the functions that a client calls; noise is drawn by
``simulated_noise``, as in any simulation. Each size runs in a fresh process on two cores. Run with
``python -m benchmarks.private_scale --out results/bench/private-scale.json``.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

from benchmarks.machine import CORES, alone, begun, peak_gigabytes, write
from carvyfl.groups.exchange import anticluster_profiles
from carvyfl.learning.private.head import head, profiles
from carvyfl.learning.private.map import plain_map
from carvyfl.learning.private.message import Messages
from carvyfl.privacy.class_sums import noise_for_sums, noisy_sums
from carvyfl.privacy.noise import STEP, simulated_noise
from carvyfl.profiles.vectors import weighed
from carvyfl.voting.certificate import certify
from carvyfl.voting.votes import NO_VOTE, votes

CLASSES, FEATURES, WIDTH = 10, 128, 64
SAMPLES, HELD = 20, 2  # of a client, and their classes
EPSILON, DELTA = 4.0, 1e-5
INPUTS = 3000  # that are voted on
SPREAD = 2.0  # of features around a class's centre, which has length 1
SIZES = [(10_000, 500), (100_000, 5_000), (1_000_000, 50_000)]
AT_ONCE = 2_000  # clients whose samples are in memory at a time, by core; a multiple of all sizes

Floats32 = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
T = TypeVar("T")


def made_up(size: int, seed: int, *, held: int = CLASSES) -> tuple[Floats32, Ints]:
    """Draw features and labels; every 20 of them in a row are of ``held`` classes."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(0).standard_normal((CLASSES, FEATURES), dtype=np.float32)
    centres /= np.linalg.norm(centres, axis=1, keepdims=True)
    mine = rng.random((-(-size // SAMPLES), CLASSES)).argsort(axis=1)[:, :held]
    labels = np.take_along_axis(mine, rng.integers(held, size=(len(mine), SAMPLES)), axis=1)
    noise = rng.standard_normal((size, FEATURES), dtype=np.float32) * (SPREAD / FEATURES**0.5)
    labels = labels.reshape(-1)[:size]
    return centres[labels] + noise, labels


class Laps:
    """Seconds of every step, added up over the threads that do it, and over its parts."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def timed(self, step: str, work: Callable[[], T]) -> T:
        """Do some work and add its time to a step's."""
        clock = time.perf_counter()
        result = work()
        self.seconds[step] = self.seconds.get(step, 0.0) + time.perf_counter() - clock
        return result


def messages(clients: int, laps: Laps) -> Messages:
    """Return what all clients send."""
    noise, mapped = noise_for_sums(EPSILON, DELTA), plain_map(FEATURES, WIDTH)
    units = np.empty((clients, CLASSES, WIDTH + 1), np.int32)
    first = np.repeat(np.arange(AT_ONCE) * CLASSES, SAMPLES)  # of every sample's client

    def fill(start: int) -> Laps:
        """Fill in some clients' messages: sums over classes of all of them together."""
        part, each = Laps(), slice(start, start + AT_ONCE)
        drawn = part.timed(
            "features are made up", lambda: made_up(len(first), start + 1, held=HELD)
        )
        vectors = part.timed("vectors", lambda: mapped.vectors(drawn[0]))
        rows = drawn[1] + first
        sent = part.timed(
            "messages, with noise",
            lambda: noisy_sums(vectors, rows, AT_ONCE * CLASSES, noise, simulated_noise).units,
        )
        units[each] = sent.reshape(AT_ONCE, CLASSES, WIDTH + 1)
        return part

    with ThreadPoolExecutor(CORES) as threads:
        for part in threads.map(fill, range(0, clients, AT_ONCE)):
            for step, seconds in part.seconds.items():  # cores work side by side
                laps.seconds[step] = laps.seconds.get(step, 0.0) + seconds / CORES
    return Messages(units, noise.scale * STEP)


def grouped(private: Messages, groups: int, laps: Laps) -> Ints:
    """Return the group of every client."""
    shares, sizes, _ = laps.timed("profiles", lambda: profiles(private))
    rows = weighed(shares.astype(np.float64), np.maximum(sizes, 1.0)).astype(np.float32)
    return laps.timed("groups", lambda: anticluster_profiles(rows, groups, seed=0))


def heads(private: Messages, assignment: Ints, groups: int) -> tuple[Floats32, Floats32]:
    """Return the weights (G, C, d) and biases (G, C) of all groups."""
    order = np.argsort(assignment, kind="stable")
    members = np.split(order, np.cumsum(np.bincount(assignment, minlength=groups))[:-1])
    weights = np.empty((groups, CLASSES, WIDTH), np.float32)
    biases = np.empty((groups, CLASSES), np.float32)

    def fill(group: int) -> None:
        weights[group], biases[group] = head(private.of_clients(members[group]))

    with ThreadPoolExecutor(CORES) as threads:
        list(threads.map(fill, range(groups), chunksize=100))
    return weights, biases


def ballots(weights: Floats32, biases: Floats32, vectors: Floats32) -> npt.NDArray[np.int8]:
    """Return what all groups vote, (G, n)."""
    cast = np.empty((len(weights), len(vectors)), np.int8)

    def fill(group: int) -> None:
        scores = weights[group] @ vectors.T
        scores += biases[group, :, None]
        usable = np.isfinite(biases[group]).all()
        cast[group] = scores.argmax(axis=0) if usable else NO_VOTE

    with ThreadPoolExecutor(CORES) as threads:
        list(threads.map(fill, range(len(weights)), chunksize=100))
    return cast


def measure(clients: int, groups: int) -> dict[str, Any]:
    """Do every step once and return its seconds, the peak of memory and what came out."""
    laps, clock = Laps(), time.perf_counter()
    with threadpool_limits(1):  # small products: threads are ours
        private = messages(clients, laps)
        assignment = grouped(private, groups, laps)
        voters = laps.timed("heads", lambda: heads(private, assignment, groups))
        inputs, labels = made_up(INPUTS, 0)
        vectors = plain_map(FEATURES, WIDTH).vectors(inputs).astype(np.float32)
        cast = laps.timed("votes", lambda: ballots(*voters, vectors))
        certificate = laps.timed("certificate", lambda: certify(votes(cast, CLASSES), labels))
    seconds = {step: round(each, 2) for step, each in laps.seconds.items()}
    ca = certificate.ca()
    result = {
        "clients": clients,
        "groups": groups,
        "seconds": seconds | {"total": round(time.perf_counter() - clock, 2)},
        "peak_gb": round(peak_gigabytes(), 2),
        "message_bytes": private.units[0].nbytes,
        "ca0": round(float(ca[0]), 2),
        "ca_at_1_percent": round(float(ca[min(clients // 100, len(ca) - 1)]), 2),
    }
    print(result, flush=True)
    return result


def main() -> None:
    """Measure every size, print the figures and write them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, help="only this size; a multiple of 2,000")
    parser.add_argument("--out", type=Path, help="JSON file to write; default none")
    options = parser.parse_args()
    sizes = [size for size in SIZES if options.clients in (None, size[0])]
    about: dict[str, Any] = {
        "samples": SAMPLES,
        "classes": CLASSES,
        "classes_held": HELD,
        "features": FEATURES,
    }
    about |= {"width": WIDTH, "epsilon": EPSILON, "delta": DELTA, "inputs": INPUTS}
    before = os.getloadavg()[0]
    figures = begun("private-scale") | about | {"sampler": "simulated_noise"}
    figures["sizes"] = [alone(measure, *size) for size in sizes]
    write(options.out, figures | {"load": [before, os.getloadavg()[0]]})


if __name__ == "__main__":
    main()
