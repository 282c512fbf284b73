"""The grouping methods (Step 2) by name, each with all that is known of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from carvyfl.core.checks import check_length
from carvyfl.core.errors import CarvyError
from carvyfl.core.registry import NamedFields, NamedParameters, Registry
from carvyfl.groups.anticluster import anticluster, cluster_groups
from carvyfl.groups.basis import Basis, Circumstances, Decider, Knowledge, NumGroups, claim
from carvyfl.groups.coins import Coins, coins_from_seed
from carvyfl.groups.exchange import anticluster_profiles
from carvyfl.groups.grouping import Grouping, Ints, check_num_groups, whole_numbers
from carvyfl.groups.hashing import balanced_random, client_ids, hash_groups
from carvyfl.groups.slots import random_slots
from carvyfl.profiles.methods import Profiles
from carvyfl.profiles.types import ClientTypes
from carvyfl.profiles.vectors import Vectors


@dataclass(frozen=True)
class GroupingInputs(NamedFields):
    """All that a grouping method may use; see :func:`form_groups`."""

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
            need = f"grouping '{self.method}' needs the clients' types"
            raise CarvyError(f"{need}; run Step 1 or give them")
        return self.profiles.types

    @property
    def vectors(self) -> Vectors | None:
        """What anticlustering compares, where more than types is known."""
        return None if self.profiles is None else self.profiles.vectors

    @property
    def needed_groups(self) -> int:
        """G, for a method with ``needs_groups``."""
        if self.num_groups is None:
            fault = f"grouping '{self.method}' does not choose its number of groups"
            raise CarvyError(f"{fault}; give num_groups")
        return self.num_groups


@dataclass(frozen=True)
class GroupingMethod:
    """A way to form groups, and everything that is known of it.

    ``label`` is its name in print, ``colour`` (of :data:`carvyfl.plots.style.NAMED`, or
    ``#RRGGBB``) and ``marker`` (matplotlib's) are how its curves are drawn.

    Attributes
    ----------
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
    assignment, rows = np.full(len(types), -1, dtype=np.int64), vectors.rows[clients]
    assignment[clients] = anticluster_profiles(rows, given.num_groups, seed=given.seed)
    return assignment


def _slots(given: GroupingInputs) -> Ints:
    types = given.types
    assert given.coins is not None
    return random_slots(
        types.labels, types.names, num_groups=given.needed_groups, coins=given.coins
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
        fault = f"grouping 'single' is one group, not {given.num_groups}"
        raise CarvyError(f"{fault}; leave num_groups out")
    return np.zeros(given.num_clients, dtype=np.int64)


GROUPINGS: Registry[GroupingMethod] = Registry("grouping method", "carvyfl.groupings", [
    GroupingMethod("carvy", "CARVY-FL", "anticlustering: every group a cross-section of all "
                   "clients", _carvy, needs_profiles=True, needs_groups=False,
                   colour="blue", marker="o"),
    GroupingMethod("slots", "random slots", "every type dealt out by itself, at random; clients "
                   "beyond G sit out", _slots, "coins", needs_profiles=True, marker="p"),
    GroupingMethod("flcert", "FLCert", "the hash of a client's id decides (Cao et al.)", _flcert,
                   "ids", placement="hash", colour="vermillion", marker="s"),
    GroupingMethod("cluster", "FLCert + clustering", "alike clients together, by their true types",
                   _cluster, "operator", needs_truth=True, simulation_only=True,
                   colour="green", marker="^"),
    GroupingMethod("balanced", "balanced random", "at random, all groups of equal size", _balanced,
                   "nobody", placement="hash", colour="purple", marker="D"),
    GroupingMethod("single", "single global model", "everybody in one group", _single, "nobody",
                   needs_groups=False, takes_groups=False, simulation_only=True,
                   colour="black", marker="x"),
])  # fmt: skip


@dataclass(frozen=True)
class Beforehand(NamedParameters):
    """What Step 2 starts from beside the clients' profiles.

    ``truth`` are the true types of the clients, shape (N,), for methods with ``needs_truth``.
    ``ids`` are a different 64-bit number for each client, for ``flcert``, and ``coins`` what random
    slots are drawn from: in deployment, coins that were committed to before the clients' messages
    (:func:`~carvyfl.groups.coins.draw_coins`). None derives them from the seed, for simulations.
    ``derived`` are constants of all groups that were taken from clients' data
    (``Federation.derived``).
    """

    truth: npt.ArrayLike | None = None
    ids: Iterable[int] | None = None
    coins: Coins | None = None
    derived: tuple[str, ...] = ()


def form_groups(
    method: str,
    *,
    num_clients: int,
    seed: int,
    profiles: Profiles | None = None,
    num_groups: int | None = None,
    found_from: NumGroups = "set",
    beforehand: Beforehand | None = None,
) -> Grouping:
    """Form the groups of one run (Step 2), and say what a certificate on them may claim.

    Parameters
    ----------
    method
        A name in :data:`GROUPINGS`. ``carvy`` anticlusters the profiles' vectors where there are
        any and ``num_groups`` is set; else the types (Algorithm 2).
    profiles
        What Step 1 found, for methods with ``needs_profiles``.
    num_groups
        G, for methods with ``needs_groups``; ``carvy`` takes the size of the largest type where
        it is None.
    found_from
        How ``num_groups`` came about.
    beforehand
        What else is known; None stands for nothing.
    """
    entry, known = GROUPINGS.pick(method), beforehand or Beforehand()
    ids = None if known.ids is None else list(known.ids)
    lengths = {
        "profiles": None if profiles is None else len(profiles),
        "truth": None if known.truth is None else np.size(known.truth),
        "ids": None if ids is None else len(ids),
    }
    for name, length in lengths.items():
        check_length(name, num_clients if length is None else length, num_clients)
    coins = (known.coins or coins_from_seed(seed)) if entry.draws_coins else None
    given = GroupingInputs(method, num_clients, seed, profiles, known.truth, num_groups, ids, coins)
    assignment = whole_numbers(entry.form(given), f"grouping '{method}'")
    if len(assignment) != num_clients:
        fault = f"returned groups of {len(assignment)} clients, but there are {num_clients}"
        raise CarvyError(f"grouping '{method}' {fault}; give every client a group, or -1 for none")
    knowledge: Knowledge = "none"
    if profiles is not None and entry.needs_profiles:
        types = profiles.types
        knowledge = "known" if types.known else "local" if types.local else "relative"
    if num_groups is None and entry.needs_profiles:
        found_from = "operator" if knowledge == "known" else "messages"
    words = coins.words if coins else ""
    facts = Circumstances(entry.decided_by, knowledge, found_from, known.derived, words)
    if not (entry.needs_groups and num_groups):
        num_groups = int(assignment.max(initial=-1)) + 1
    return Grouping(assignment, num_groups, method, claim(facts), coins)
