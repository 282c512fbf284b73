"""The grouping methods (Step 2) by name, each with all that is known of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from carvyfl.core.checks import check_length
from carvyfl.core.errors import CarvyError
from carvyfl.core.registry import NamedFields, Registry
from carvyfl.groups.anticluster import anticluster
from carvyfl.groups.baselines import balanced_random, cluster_groups
from carvyfl.groups.basis import Basis, Circumstances, Decider, Knowledge, NumGroups, claim
from carvyfl.groups.coins import Coins, coins_from_seed
from carvyfl.groups.exchange import anticluster_profiles
from carvyfl.groups.grouping import Grouping, Ints, check_num_groups, whole_numbers
from carvyfl.groups.hashing import client_ids, hash_groups
from carvyfl.groups.slots import random_slots
from carvyfl.profiles.methods import Profiles
from carvyfl.profiles.types import ClientTypes
from carvyfl.profiles.vectors import Vectors


@dataclass(frozen=True)
class GroupingInputs(NamedFields):
    """All that a grouping method may use; the parameters of :func:`form_groups`."""

    method: str
    num_clients: int
    seed: int
    profiles: Profiles | None = None
    truth: npt.ArrayLike | None = None
    num_groups: int | None = None
    ids: Iterable[int] | None = None
    coins: Coins | None = None

    @property
    def types(self) -> ClientTypes:
        """The clients' types, for a method with ``needs_profiles``."""
        if self.profiles is None:
            raise CarvyError(
                f"grouping '{self.method}' needs the clients' types; run Step 1 or give them"
            )
        return self.profiles.types

    @property
    def vectors(self) -> Vectors | None:
        """What anticlustering compares, where more than types is known."""
        return None if self.profiles is None else self.profiles.vectors

    @property
    def needed_groups(self) -> int:
        """G, for a method with ``needs_groups``."""
        if self.num_groups is None:
            raise CarvyError(
                f"grouping '{self.method}' does not choose its number of groups; give num_groups"
            )
        return self.num_groups


@dataclass(frozen=True)
class GroupingMethod:
    """A way to form groups, and everything that is known of it.

    Attributes
    ----------
    label
        Its name in print.
    form
        Returns the group 0 … G-1 of every client, -1 for none, shape (N,).
    decided_by
        What decides who sits with whom, which is what a certificate's claim follows from
        (:func:`~carvyfl.groups.basis.claim`); a method with a proof of its own gives a basis.
    needs_profiles
        Whether Step 1 is run for it. Its G is then the run's ``groups``.
    needs_groups
        Whether G must be set (or, for a method that asks no client, found by ``carvy``).
    takes_groups
        False for a method whose number of groups is its own.
    needs_truth
        Whether it needs the clients' true types, which only a simulation knows.
    simulation_only
        Whether a real federation cannot use it.
    placement
        Where the paper's attackers sit (a name of ``PLACEMENTS``).
    colour, marker
        How its curves are drawn: a colour of the palette (:data:`carvyfl.plots.style.NAMED`) or
        ``#RRGGBB``, and one of matplotlib's markers.
    """

    name: str
    label: str
    help: str
    form: Callable[[GroupingInputs], npt.ArrayLike]
    decided_by: Decider | Basis = "messages"
    needs_profiles: bool = False
    needs_groups: bool = True
    takes_groups: bool = True
    needs_truth: bool = False
    simulation_only: bool = False
    placement: str = "dispersed"
    colour: str = "sky"
    marker: str = "v"

    @property
    def draws_coins(self) -> bool:
        """Whether groups are drawn from coins, which a real federation then commits to."""
        return self.decided_by == "coins"


def _carvy(given: GroupingInputs) -> Ints:
    types, vectors = given.types, given.vectors
    if vectors is None or given.num_groups is None:
        return anticluster(types.labels, seed=given.seed, num_groups=given.num_groups)
    clients = np.flatnonzero(types.labels >= 0)
    check_num_groups(given.num_groups, len(clients), "clients with a profile")
    assignment = np.full(len(types), -1, dtype=np.int64)
    assignment[clients] = anticluster_profiles(
        vectors.rows[clients], given.num_groups, seed=given.seed
    )
    return assignment


def _slots(given: GroupingInputs) -> Ints:
    assert given.coins is not None
    return random_slots(
        given.types.labels,
        given.types.names,
        num_groups=given.needed_groups,
        coins=given.coins,
    )


def _flcert(given: GroupingInputs) -> Ints:
    ids = client_ids(given.num_clients, given.seed) if given.ids is None else given.ids
    return hash_groups(ids, given.needed_groups)


def _cluster(given: GroupingInputs) -> Ints:
    if given.truth is None:
        raise CarvyError("grouping 'cluster' needs the clients' true types; give them as truth")
    return cluster_groups(given.truth, given.needed_groups, given.seed)


def _balanced(given: GroupingInputs) -> Ints:
    return balanced_random(given.num_clients, given.needed_groups, given.seed)


def _single(given: GroupingInputs) -> Ints:
    if given.num_groups not in (None, 1):
        raise CarvyError(
            f"grouping 'single' is one group, not {given.num_groups}; leave num_groups out"
        )
    return np.zeros(given.num_clients, dtype=np.int64)


GROUPINGS: Registry[GroupingMethod] = Registry(
    "grouping method",
    "carvyfl.groupings",
    [
        GroupingMethod(
            "carvy",
            "CARVY-FL",
            "anticlustering: every group a cross-section of all clients",
            _carvy,
            needs_profiles=True,
            needs_groups=False,
            colour="blue",
            marker="o",
        ),
        GroupingMethod(
            "slots",
            "random slots",
            "every type dealt out by itself, at random; clients beyond G sit out",
            _slots,
            decided_by="coins",
            needs_profiles=True,
            colour="sky",
            marker="p",
        ),
        GroupingMethod(
            "flcert",
            "FLCert",
            "the hash of a client's id decides (Cao et al.)",
            _flcert,
            decided_by="ids",
            placement="hash",
            colour="vermillion",
            marker="s",
        ),
        GroupingMethod(
            "cluster",
            "FLCert + clustering",
            "alike clients together, by their true types",
            _cluster,
            decided_by="operator",
            needs_truth=True,
            simulation_only=True,
            colour="green",
            marker="^",
        ),
        GroupingMethod(
            "balanced",
            "balanced random",
            "at random, all groups of equal size",
            _balanced,
            decided_by="nobody",
            placement="hash",
            colour="purple",
            marker="D",
        ),
        GroupingMethod(
            "single",
            "single global model",
            "everybody in one group",
            _single,
            decided_by="nobody",
            needs_groups=False,
            takes_groups=False,
            simulation_only=True,
            colour="black",
            marker="x",
        ),
    ],
)
"""Every grouping method."""


def form_groups(
    method: str,
    *,
    num_clients: int,
    seed: int,
    profiles: Profiles | None = None,
    truth: npt.ArrayLike | None = None,
    num_groups: int | None = None,
    found_from: NumGroups = "set",
    derived: tuple[str, ...] = (),
    ids: Iterable[int] | None = None,
    coins: Coins | None = None,
) -> Grouping:
    """Form the groups of one run (Step 2), and say what a certificate on them may claim.

    Parameters
    ----------
    method
        A name in :data:`GROUPINGS`. ``carvy`` anticlusters the profiles' vectors where there are
        any and ``num_groups`` is set; else the types (Algorithm 2).
    profiles
        What Step 1 found, for methods with ``needs_profiles``.
    truth
        The true type of every client, shape (N,), for methods with ``needs_truth``.
    num_groups
        G, for methods with ``needs_groups``; ``carvy`` takes the size of the largest type where
        it is None.
    found_from
        How ``num_groups`` came about.
    derived
        Constants of all groups that were taken from clients' data (``Federation.derived``).
    ids
        A different 64-bit number for each client, for ``flcert``; None derives them from
        the seed, for simulations.
    coins
        What random slots are drawn from: in deployment, coins that were committed to before
        the clients' messages (:func:`~carvyfl.groups.coins.draw_coins`); None derives them from
        the seed, for simulations.
    """
    entry = GROUPINGS.pick(method)
    ids = None if ids is None else list(ids)
    lengths = {
        "profiles": num_clients if profiles is None else len(profiles),
        "truth": num_clients if truth is None else np.size(truth),
        "ids": num_clients if ids is None else len(ids),
    }
    for name, length in lengths.items():
        check_length(name, length, num_clients)
    coins = (coins or coins_from_seed(seed)) if entry.draws_coins else None
    given = GroupingInputs(method, num_clients, seed, profiles, truth, num_groups, ids, coins)
    assignment = whole_numbers(entry.form(given), f"grouping '{method}'")
    if len(assignment) != num_clients:
        raise CarvyError(
            f"grouping '{method}' returned groups of {len(assignment)} clients, but there "
            f"are {num_clients}; give every client a group, or -1 for none"
        )
    knowledge = _knowledge(entry, profiles)
    if num_groups is None and entry.needs_profiles:
        found_from = "operator" if knowledge == "known" else "messages"
    facts = Circumstances(
        entry.decided_by, knowledge, found_from, derived, coins.words if coins else ""
    )
    groups = (
        num_groups if entry.needs_groups and num_groups else int(assignment.max(initial=-1)) + 1
    )
    return Grouping(assignment, groups, method, claim(facts), coins)


def _knowledge(entry: GroupingMethod, profiles: Profiles | None) -> Knowledge:
    """Return what a method knows of the clients."""
    if profiles is None or not entry.needs_profiles:
        return "none"
    types = profiles.types
    return "known" if types.known else "local" if types.local else "relative"
