"""What a certificate on some groups may claim, against which run, and why: :func:`claim`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from carvyfl.core.errors import CarvyError

Reading = Literal["given_groups", "honest_only", "all_honest"]
"""Which run a certificate compares with."""


@dataclass(frozen=True)
class ReadingWords:
    """A reading in words: its name in print, and what an answer is the same as."""

    label: str
    same_as: str


READINGS: Final[dict[Reading, ReadingWords]] = {
    "given_groups": ReadingWords(
        "given these groups",
        "the same as these groups give without their (at most m) malicious members",
    ),
    "honest_only": ReadingWords(
        "honest only",
        "the same as a run without the (at most m) malicious clients gives, groups and all; with "
        "random slots, as one draw of it gives, paired with yours",
    ),
    "all_honest": ReadingWords(
        "all honest",
        "the same as the run gives in which all clients behave; with random slots, as one draw of "
        "it gives, paired with yours",
    ),
}
"""The readings, the one that needs the fewest assumptions first."""


@dataclass(frozen=True)
class Basis:
    """How many groups one malicious client can change, against each of three runs."""

    because: str
    """The reason, as one plain sentence without a full stop; it is printed after a colon."""
    given_groups: int | None = 1
    """Against the same groups without their malicious members: 1 for any grouping, whatever was
    sent in Step 1; null if nothing is certified."""
    honest_only: int | None = None
    """Against a run without the malicious clients, its grouping included; null if nothing is
    proved."""
    all_honest: int | None = None
    """Against the run in which all clients behave; null if nothing is proved."""

    def __post_init__(self) -> None:
        if not isinstance(self.because, str):  # it may have been read from a file
            raise CarvyError(f"basis: the reason must be a text, not {self.because!r}")
        for reading in READINGS:
            groups = getattr(self, reading)
            if groups is not None and (type(groups) is not int or groups < 1):
                raise CarvyError(f"basis: a client changes 1 group or more, not {groups!r}")

    @property
    def readings(self) -> list[Reading]:
        """The readings for which something is proved, the weakest first."""
        return [reading for reading in READINGS if getattr(self, reading) is not None]

    def to_json(self) -> dict[str, Any]:
        """Return the basis as plain JSON values."""
        return {"because": self.because, **{name: getattr(self, name) for name in READINGS}}


Decider = Literal["nobody", "ids", "operator", "coins", "messages"]
"""What decides who sits with whom: nothing of the clients, the hash of issued ids, what the
operator knew beforehand, coins drawn for every type by itself, or the clients' messages."""
Knowledge = Literal["none", "known", "local", "relative"]
"""What a grouping knows of clients: nothing, what the operator knew before anybody was heard, a
type that follows from a client's own message alone, or one that hangs on other clients' too."""
NumGroups = Literal["set", "operator", "messages"]
"""How the number of groups came about: set beforehand, found from types that the operator knew, or
found from what clients sent."""


@dataclass(frozen=True)
class Deployment:
    """How a real federation of N ``clients`` in G ``groups`` went.

    Whether only holders of registered keys took part, how many groups cast no vote (``lost``) or
    were stopped by the deadline (``late``), and how many clients were set ``aside``.
    """

    authenticated: bool
    groups: int
    lost: int
    late: int
    clients: int
    aside: int


@dataclass(frozen=True)
class Circumstances:
    """All that the claim of a certificate follows from.

    A grouping method with a proof of its own brings its basis. ``knowledge`` counts for the
    deciders coins and messages; ``derived`` are constants of all groups that were taken from
    clients' data; ``coins`` says what the coins are; ``deployment`` is None before training.
    """

    decided_by: Decider | Basis
    knowledge: Knowledge = "none"
    num_groups: NumGroups = "set"
    derived: tuple[str, ...] = ()
    coins: str = "coins"
    deployment: Deployment | None = None


_PLACES: Final = (
    "the N registered clients and their ids are fixed, and one that takes no part leaves its "
    "place empty"
)
BLIND: Final = Basis(f"no client's message has any say in the grouping; {_PLACES}", 1, 1, 1)
_HASH = "the hash of an id that the operator issued decides, and no client's message does"
_HASHED: Final = replace(BLIND, because=f"{_HASH}; {_PLACES}")
_BEFORE = "the operator knew the types before any client sent anything"
_KNOWN: Final = replace(BLIND, because=f"{_BEFORE}; {_PLACES}")
_CHOSEN = "so malicious clients may have chosen which honest clients sit together"
_INFERRED: Final = Basis(f"the groups were formed from what clients sent, {_CHOSEN}")
_FOUND: Final = Basis(
    f"the number of groups was found from what clients sent, {_CHOSEN}; set it beforehand, with "
    "`slots` in place of `carvy`, for a certificate that covers Step 1"
)
FOREIGN_VOTES: Final = Basis("the votes came without their grouping, so nothing is known of it")
"""The basis of votes that were not cast by groups formed here."""

OPEN: Final = (
    "the SuperNodes were not authenticated: anybody could join any number of times, so no number "
    "m of malicious clients means anything"
)
"""What a federation without registered keys has to say of itself."""


def claim(facts: Circumstances) -> Basis:
    """Decide against which runs a certificate holds, and why.

    Constants that came from clients' data reach every group's model, so nothing is certified. A
    number of groups that hangs on what clients sent leaves *given these groups*, as one client can
    change it, and so do groups that were formed from messages. Groups that no message has a say in
    leave all readings. Slots drawn for every type by itself, where a type is its client's own, give
    a bound of one group against a run without the client and of two against one in which it behaves
    (the page "Certified from the first message on" has the proof). In a federation nothing is
    certified without registered keys, as one attacker could be any number of clients, or where the
    deadline stopped groups, as one client can cost all groups time.
    """
    if facts.derived:
        basis = Basis(
            f"{' and '.join(facts.derived)} came from the clients' own data, so one client reaches "
            "every group's model; fix them beforehand",
            None,
        )
    elif facts.num_groups == "messages":
        basis = _FOUND
    else:
        basis = _of_grouping(facts)
    return basis if facts.deployment is None else _deployed(basis, facts.deployment)


def _of_grouping(facts: Circumstances) -> Basis:
    match facts.decided_by:
        case Basis() as proved:
            return proved
        case "nobody":
            return BLIND
        case "ids":
            return _HASHED
        case "operator":
            return _KNOWN
        case "coins" | "messages" if facts.knowledge == "known":
            return _KNOWN
        case "coins" if facts.knowledge == "local":
            return Basis(
                "each type is its client's own, the number of groups was set beforehand, and the "
                f"slots were drawn from {facts.coins}, so whatever a malicious client sends, it "
                "changes one group of a run without it",
                1,
                1,
                2,
            )
    return _INFERRED


def _deployed(basis: Basis, went: Deployment) -> Basis:
    """Return what is left of a basis in a real federation."""
    if not went.authenticated or went.late:
        basis = Basis(basis.because if went.authenticated else OPEN, None)
    notes = {
        f"{went.lost} of {went.groups} groups were lost and cast no vote": went.lost,
        f"the deadline stopped {went.late} of {went.groups} groups, and one client can cost all "
        "groups time, so nothing is certified; run again with a longer deadline": went.late,
        f"{went.aside} of {went.clients} clients were set aside": went.aside,
    }
    happened = [note for note, number in notes.items() if number]
    return replace(basis, because="; ".join([basis.because, *happened]))
