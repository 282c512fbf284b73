"""What a certificate on some groups may claim: against which run, and why."""

from __future__ import annotations

from collections.abc import Iterable
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
        "the same as a run without the (at most m) malicious clients gives, groups and all",
    ),
    "all_honest": ReadingWords(
        "all honest", "the same as the run gives in which all clients behave"
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


_PLACES: Final = (
    "the N registered clients and their ids are fixed, and one that takes no part leaves its "
    "place empty"
)

BLIND: Final = Basis(f"no client's message has any say in the grouping; {_PLACES}", 1, 1, 1)
HASHED: Final = Basis(
    f"the hash of an id that the operator issued decides, and no client's message does; {_PLACES}",
    1,
    1,
    1,
)
KNOWN: Final = Basis(
    f"the operator knew the types before any client sent anything; {_PLACES}", 1, 1, 1
)
INFERRED: Final = Basis(
    "the groups were formed from what clients sent, so malicious clients may have chosen which "
    "honest clients sit together"
)
FOUND: Final = Basis(
    "the number of groups was found from what clients sent, so malicious clients may have chosen "
    "which honest clients sit together; set it beforehand, with `slots` in place of `carvy`, for a "
    "certificate that covers Step 1"
)
FOREIGN_VOTES: Final = Basis("the votes came without their grouping, so nothing is known of it")
"""The basis of votes that were not cast by groups formed here."""

OPEN: Final = (
    "the SuperNodes were not authenticated: anybody could join any number of times, so no number "
    "m of malicious clients means anything"
)
"""What a federation without registered keys has to say of itself."""


def slots_basis(coins: str) -> Basis:
    """Return what random slots give, drawn from these coins (in words)."""
    return Basis(
        "each type is its client's own, the number of groups was set beforehand, and the slots "
        f"were drawn from {coins}, so whatever a malicious client sends, it changes one group of a "
        "run without it",
        1,
        1,
        2,
    )


def derived_constants(names: Iterable[str]) -> Basis:
    """Return what is left where constants of all groups were taken from clients' data: nothing."""
    listed = " and ".join(names)
    return Basis(
        f"{listed} came from the clients' own data, so one client reaches every group's model; "
        "fix them beforehand",
        None,
    )


def deployed(
    basis: Basis,
    *,
    authenticated: bool,
    lost: int,
    late: int,
    groups: int,
    aside: int,
    clients: int,
) -> Basis:
    """Return what the certificate of a real federation rests on, whose grouping gives ``basis``.

    Nothing is certified unless clients are ``authenticated`` by registered keys, as one attacker
    can be any number of clients. Nor is it where the deadline stopped ``late`` groups: all groups
    share it, so the time that one client costs the server, in Step 1 or by a flood, decides how
    many rounds, or members, the models of others have. ``lost`` groups cast no vote; ``aside``
    clients were set aside, in Step 1 or since.
    """
    certain = Basis(basis.because if authenticated else OPEN, None)
    if authenticated and not late:
        certain = basis
    notes = [
        f"{lost} of {groups} groups were lost and cast no vote" if lost else "",
        f"the deadline stopped {late} of {groups} groups, and one client can cost all groups time, "
        "so nothing is certified; run again with a longer deadline"
        if late
        else "",
        f"{aside} of {clients} clients were set aside" if aside else "",
    ]
    return replace(certain, because="; ".join([certain.because, *filter(None, notes)]))
