"""How long the whole paper takes, from the measured time of a client-step.

Counts of client-steps are exact but for the rounds that early stopping makes:
the means below were measured (``results/fidelity``, MNIST with 50 samples); until
the full run exists the other sizes are taken to need as many.
"""

from __future__ import annotations

from collections.abc import Mapping

ROUNDS = {"carvy": 38, "flcert": 35, "cluster": 21, "single": 103}
SAMPLES = (50, 100, 200, 500)
GROUP_COUNTS = 18
BATCH, CLIENTS = 16, 100


def client_steps(samples: int, rounds: float) -> float:
    """Return the client-steps of one federation of 100 clients."""
    return CLIENTS * -(-samples // BATCH) * rounds


def figures() -> dict[str, float]:
    """Return the client-steps behind every table and figure, both data sets together."""
    voting = ROUNDS["carvy"] + ROUNDS["flcert"] + ROUNDS["cluster"]
    accuracy = sum(
        2 * (10 * client_steps(s, voting) + 3 * client_steps(s, ROUNDS["single"])) for s in SAMPLES
    )
    # Every group is trained benign (above) and attacked once; any m is composed of the two.
    attacked = 2 * (10 * client_steps(500, voting) + 3 * 5 * client_steps(500, ROUNDS["single"]))
    sweep = (
        2
        * GROUP_COUNTS
        * (
            3 * client_steps(500, ROUNDS["carvy"])
            + 6 * client_steps(500, ROUNDS["flcert"])
            + 3 * client_steps(500, ROUNDS["cluster"])
        )
    )
    types = sum(2 * 10 * client_steps(s, 1) for s in SAMPLES)
    return {
        "certified accuracy (two figures)": accuracy,
        "attack success rate (figure and table)": attacked,
        "group-count sweep (six figures, two tables)": sweep,
        "type estimation (three figures)": types,
    }


def seconds_per_figure(us_per_client_step: float) -> Mapping[str, float]:
    """Return the seconds that each table and figure takes, and their sum."""
    parts = {name: steps * us_per_client_step * 1e-6 for name, steps in figures().items()}
    return parts | {"everything": sum(parts.values())}
