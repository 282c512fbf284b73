"""How long the whole paper takes, from the measured time of a client-step.

Counts of client-steps are exact but for the rounds that early stopping makes: those are
means over the trials of the reproduction (``results/paper.jsonl``), both data sets, each
trial the mean of its groups. Attacked groups are taken to need as many as benign ones.
"""

from __future__ import annotations

from collections.abc import Mapping

ROUNDS = {
    50: {"carvy": 30, "flcert": 37, "cluster": 22, "single": 139},
    100: {"carvy": 40, "flcert": 38, "cluster": 20, "single": 118},
    200: {"carvy": 44, "flcert": 40, "cluster": 19, "single": 108},
    500: {"carvy": 48, "flcert": 40, "cluster": 17, "single": 73},
}
"""Samples → method → rounds, at each method's own number of groups."""

SWEEP_ROUNDS = {"carvy": 49, "flcert": 47, "cluster": 27}
"""Method → rounds, over all 18 numbers of groups, with 500 samples."""

GROUP_COUNTS = 18
BATCH, CLIENTS = 16, 100
VOTING = ("carvy", "flcert", "cluster")


def client_steps(samples: int, rounds: float) -> float:
    """Return the client-steps of one federation of 100 clients."""
    return CLIENTS * -(-samples // BATCH) * rounds


def figures() -> dict[str, float]:
    """Return the client-steps behind every table and figure, both data sets together."""
    voting = {s: sum(rounds[name] for name in VOTING) for s, rounds in ROUNDS.items()}
    single = {s: rounds["single"] for s, rounds in ROUNDS.items()}
    accuracy = sum(
        2 * (10 * client_steps(s, voting[s]) + 3 * client_steps(s, single[s])) for s in ROUNDS
    )
    # Every group is trained benign (above) and attacked once; any m is composed of the two.
    attacked = 2 * (10 * client_steps(500, voting[500]) + 3 * 5 * client_steps(500, single[500]))
    seeds = {"carvy": 3, "flcert": 6, "cluster": 3}
    trained = sum(seeds[name] * client_steps(500, SWEEP_ROUNDS[name]) for name in VOTING)
    sweep = 2 * GROUP_COUNTS * trained
    types = sum(2 * 10 * client_steps(s, 1) for s in ROUNDS)
    return {
        "certified accuracy (two figures)": accuracy,
        "attack success rate (figure and table)": attacked,
        "attack success rate, second reading": attacked,
        "group-count sweep (six figures, two tables)": sweep,
        "type estimation (three figures)": types,
    }


def seconds_per_figure(us_per_client_step: float) -> Mapping[str, float]:
    """Return the seconds that each table and figure takes, and their sum."""
    parts = {name: steps * us_per_client_step * 1e-6 for name, steps in figures().items()}
    return parts | {"everything": sum(parts.values())}
