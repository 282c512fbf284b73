"""The grouping methods by name, each with what its certificate may claim."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy.typing as npt

from carvyfl.core.errors import CarvyError, pick
from carvyfl.groups.anticluster import anticluster
from carvyfl.groups.baselines import balanced_random, cluster_groups, single
from carvyfl.groups.basis import CONDITIONAL, END_TO_END, Basis
from carvyfl.groups.coins import Coins, coins_from_seed
from carvyfl.groups.grouping import Grouping
from carvyfl.groups.hashing import client_ids, hash_groups
from carvyfl.groups.slots import random_slots

if TYPE_CHECKING:
    from carvyfl.profiles.types import ClientTypes

BLIND = Basis(END_TO_END, "no client's message has any say in the grouping")
KNOWN = Basis(END_TO_END, "the types were known before any client sent anything")
INFERRED = Basis(
    CONDITIONAL,
    "the groups were formed from what clients sent, so a malicious client may have moved others",
)
FOUND = Basis(
    CONDITIONAL,
    "the number of groups was found from what clients sent, so a malicious client may have moved "
    "others; set it beforehand (--groups) for an end-to-end certificate",
)
SLOTS = Basis(
    END_TO_END,
    "each type is its client's own, the number of groups was set beforehand, and the slots were "
    "drawn after the reports, so a malicious client changes one group whatever it reports",
    honest_only=1,
    all_honest=2,
)
WRAPPED = Basis(
    END_TO_END,
    "each type is its client's own, the number of groups was set beforehand, and the slots were "
    "drawn after the reports; a type with more clients than groups fills slots more than once, so "
    "a malicious client changes two groups at most",
    honest_only=2,
    all_honest=4,
)

TYPED = {"carvy", "slots", "wrap"}
"""The methods that ask for types; G is theirs where the configuration sets ``groups``.

A method of yours that does is added here, beside :data:`GROUPINGS`: only then Step 1 is run."""


@dataclass(frozen=True)
class Ingredients:
    """All that a grouping method may use; the parameters of :func:`form_groups`."""

    num_clients: int
    seed: int
    types: ClientTypes | None
    oracle: npt.ArrayLike | None
    num_groups: int | None
    ids: Iterable[int] | None
    rule: str
    literal: bool
    coins: Coins | None


def _carvy(given: Ingredients) -> Grouping:
    types = _typed(given, "carvy")
    if given.num_groups is not None and types.local and not types.known:
        return _dealt(given, "carvy", SLOTS)
    assignment = anticluster(
        types.labels,
        seed=given.seed,
        num_groups=given.num_groups,
        rule=given.rule,
        literal=given.literal,
    )
    inferred = FOUND if types.local and given.num_groups is None else INFERRED
    basis = KNOWN if types.known else inferred
    return Grouping(assignment, int(assignment.max()) + 1, "carvy", basis)


def _dealt(given: Ingredients, method: str, promise: Basis) -> Grouping:
    """Draw random slots; ``promise`` is what holds if every type is its client's own."""
    types, num_groups = _typed(given, method), _needed(given.num_groups, method)
    coins = given.coins or coins_from_seed(given.seed)
    assignment = random_slots(
        types.labels,
        types.names,
        num_groups=num_groups,
        coins=coins,
        wrap=promise is WRAPPED,
    )
    basis = KNOWN if types.known else promise if types.local else INFERRED
    return Grouping(assignment, num_groups, method, basis, coins)


def _slots(given: Ingredients) -> Grouping:
    return _dealt(given, "slots", SLOTS)


def _wrap(given: Ingredients) -> Grouping:
    return _dealt(given, "wrap", WRAPPED)


def _flcert(given: Ingredients) -> Grouping:
    num_groups = _needed(given.num_groups, "flcert")
    ids = client_ids(given.num_clients, given.seed) if given.ids is None else given.ids
    return Grouping(hash_groups(ids, num_groups), num_groups, "flcert", BLIND)


def _cluster(given: Ingredients) -> Grouping:
    num_groups = _needed(given.num_groups, "cluster")
    if given.oracle is None:
        raise CarvyError("grouping 'cluster' needs the clients' true types; give oracle labels")
    assignment = cluster_groups(given.oracle, num_groups, given.seed)
    return Grouping(assignment, num_groups, "cluster", KNOWN)


def _balanced(given: Ingredients) -> Grouping:
    num_groups = _needed(given.num_groups, "balanced")
    assignment = balanced_random(given.num_clients, num_groups, given.seed)
    return Grouping(assignment, num_groups, "balanced", BLIND)


def _single(given: Ingredients) -> Grouping:
    if given.num_groups not in (None, 1):
        raise CarvyError(
            f"grouping 'single' is one group, not {given.num_groups}; leave out the number"
        )
    return Grouping(single(given.num_clients), 1, "single", BLIND)


def _typed(given: Ingredients, method: str) -> ClientTypes:
    if given.types is None:
        raise CarvyError(f"grouping '{method}' needs the clients' types; run Step 1 or give them")
    return given.types


def _needed(num_groups: int | None, method: str) -> int:
    if num_groups is None:
        raise CarvyError(
            f"grouping '{method}' does not choose its number of groups; give num_groups"
        )
    return num_groups


GROUPINGS: dict[str, Callable[[Ingredients], Grouping]] = {
    "carvy": _carvy,
    "slots": _slots,
    "wrap": _wrap,
    "flcert": _flcert,
    "cluster": _cluster,
    "balanced": _balanced,
    "single": _single,
}
"""Every grouping method: name → how it forms a :class:`Grouping`."""


def form_groups(
    method: str,
    *,
    num_clients: int,
    seed: int,
    types: ClientTypes | None = None,
    oracle: npt.ArrayLike | None = None,
    num_groups: int | None = None,
    ids: Iterable[int] | None = None,
    rule: str = "largest",
    literal: bool = False,
    coins: Coins | None = None,
) -> Grouping:
    """Form the groups of one run (Step 2).

    Parameters
    ----------
    method
        ``carvy`` (random slots where ``num_groups`` is set and every client's type is
        inferred from its own report alone, else anticlustering of ``types``), ``slots``
        and ``wrap`` (random slots in any case; clients beyond G sit out or share slots),
        ``flcert`` (hash of ``ids``), ``cluster`` (oracle clustering of ``oracle``),
        ``balanced`` (random, equal sizes) or ``single`` (one group).
    num_clients
        N.
    seed
        The run's seed.
    types
        What Step 1 found, or types the operator gave; for :data:`TYPED` methods.
    oracle
        The true type of every client, shape (N,); for ``cluster``.
    num_groups
        G. Only ``carvy`` can do without (it then follows ``rule``), and ``single``,
        whose G is 1.
    ids
        A different 64-bit number for each client, for ``flcert``; None derives them from
        the seed, for simulations.
    rule, literal
        See :func:`~carvyfl.groups.anticluster.anticluster`; for ``carvy``.
    coins
        What random slots are drawn from: in deployment, coins that were committed to before
        the reports (:func:`~carvyfl.groups.coins.draw_coins`); None derives them from the
        seed, for simulations.

    Raises
    ------
    CarvyError
        If the method is unknown, lacks what it needs, or gets it for another
        number of clients.
    """
    form = pick(GROUPINGS, method, "grouping")
    grouping = form(
        Ingredients(num_clients, seed, types, oracle, num_groups, ids, rule, literal, coins)
    )
    if len(grouping.assignment) != num_clients:
        raise CarvyError(
            f"grouping '{method}' got types or ids of {len(grouping.assignment)} clients, "
            f"but there are {num_clients}; give one for every client"
        )
    return grouping
