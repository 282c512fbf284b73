"""The ways to find types, by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy.typing as npt

from carvyfl.core.errors import CarvyError, pick
from carvyfl.profiles.class_sets import bias_profile_types
from carvyfl.profiles.messages import Updates
from carvyfl.profiles.types import ClientTypes, given_types
from carvyfl.profiles.xmeans import xmeans_types

Known = Sequence[int | str] | npt.NDArray[Any] | None


def _bias_profile(updates: Updates | None, seed: int, oracle: Known, given: Known) -> ClientTypes:
    return bias_profile_types(_need(updates, "bias-profile"))


def _xmeans(updates: Updates | None, seed: int, oracle: Known, given: Known) -> ClientTypes:
    return xmeans_types(_need(updates, "xmeans"), seed=seed)


def _given(updates: Updates | None, seed: int, oracle: Known, given: Known) -> ClientTypes:
    if given is None:
        raise CarvyError("types 'given': no types were given; list one label per client")
    return given_types(given)


def _oracle(updates: Updates | None, seed: int, oracle: Known, given: Known) -> ClientTypes:
    if oracle is None:
        raise CarvyError(
            "types 'oracle': these clients have no known true types; use bias-profile or given"
        )
    return given_types(oracle, "oracle")


def _need(updates: Updates | None, method: str) -> Updates:
    if updates is None:
        raise CarvyError(f"types '{method}' need one-epoch updates; collect them first")
    return updates


TYPE_METHODS: dict[str, Callable[[Updates | None, int, Known, Known], ClientTypes]] = {
    "bias-profile": _bias_profile,
    "xmeans": _xmeans,
    "given": _given,
    "oracle": _oracle,
}


def infer_types(
    method: str,
    updates: Updates | None = None,
    *,
    seed: int = 0,
    oracle: Known = None,
    given: Known = None,
) -> ClientTypes:
    """Find a type for every client (Step 1).

    Parameters
    ----------
    method
        A name of ``TYPE_METHODS``; those in ``WITHOUT_UPDATES`` need no updates.
    updates
        One-epoch updates of all clients.
    seed
        The run's seed; only X-means draws.
    oracle
        A simulation's true types (``Federation.types``), for "oracle".
    given
        The operator's own types, for "given".
    """
    return pick(TYPE_METHODS, method, "type method")(updates, seed, oracle, given)
