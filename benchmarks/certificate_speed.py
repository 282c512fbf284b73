"""Time the certificate of a large ensemble on random votes.

Run with ``python -m benchmarks.certificate_speed --groups 1000 --inputs 1000000``.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from benchmarks.machine import peak_gigabytes
from carvyfl.voting.certificate import certify
from carvyfl.voting.votes import votes


def main() -> None:
    """Draw votes, certify them, print seconds, inputs per second and memory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, default=1000)
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--classes", type=int, default=10, help="2 to 256: votes are uint8")
    options = parser.parse_args()
    shape = (options.groups, options.inputs)

    rng = np.random.default_rng(0)
    labels = rng.integers(0, options.classes, options.inputs, dtype=np.uint8)
    ballots = rng.integers(0, options.classes, shape, dtype=np.uint8)
    for row in ballots:  # a third of the votes are right, so that there is something to certify
        np.copyto(row, labels, where=rng.random(options.inputs, dtype=np.float32) < 1 / 3)
    before = peak_gigabytes()

    start = time.perf_counter()
    certificate = certify(votes(ballots, options.classes), labels)
    auc = certificate.auc()
    seconds = time.perf_counter() - start

    print(f"groups {options.groups:,}  inputs {options.inputs:,}  classes {options.classes}")
    print(f"seconds            {seconds:.2f}")
    print(f"inputs per second  {options.inputs / seconds:,.0f}")
    print(f"votes              {ballots.nbytes / 1e9:.2f} GB")
    print(f"peak memory        {peak_gigabytes():.2f} GB ({before:.2f} GB before certifying)")
    print(f"CA(0)              {certificate.ca()[0]:.2f} %   AUC {auc:.1f}")


if __name__ == "__main__":
    main()
