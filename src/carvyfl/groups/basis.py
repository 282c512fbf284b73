"""What a certificate may take for granted about the grouping."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Literal, get_args

from carvyfl.core.errors import CarvyError

Kind = Literal["conditional", "end-to-end", "unknown"]

CONDITIONAL: Final[Kind] = "conditional"
"""The guarantee takes the grouping as given: malicious clients could have influenced it."""

END_TO_END: Final[Kind] = "end-to-end"
"""The guarantee covers the grouping as well."""

UNKNOWN: Final[Kind] = "unknown"
"""Nothing is known of how the groups were formed."""


@dataclass(frozen=True)
class Basis:
    """How far a guarantee reaches back, and why."""

    kind: Kind
    """How far it reaches into the grouping."""
    because: str
    """The reason, as one plain sentence without a full stop; it is printed after a colon."""
    honest_only: int = 1
    """If the kind is end-to-end: how many groups one malicious client can change, compared with a
    run of the honest clients only."""
    all_honest: int = 1
    """The same, compared with the run in which all N clients behave: there it may leave one group
    and enter another."""

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):  # it may have been read from a file
            raise CarvyError(f"basis '{self.kind}': must be one of {', '.join(get_args(Kind))}")
        for groups in (self.honest_only, self.all_honest):
            if type(groups) is not int or groups < 1:
                raise CarvyError(f"basis: a client changes 1 group or more, not {groups!r}")

    def to_json(self) -> dict[str, Any]:
        """Return the basis as plain JSON values."""
        return asdict(self)


OPEN: Final = (
    "the SuperNodes were not authenticated: anybody could join any number of times, so no number "
    "m of malicious clients means anything"
)
"""What a federation without registered keys has to say of itself."""


def deployed(
    basis: Basis, *, authenticated: bool, lost: int, groups: int, aside: int, clients: int
) -> Basis:
    """Return what the certificate of a real federation rests on.

    Parameters
    ----------
    basis
        What its grouping gives.
    authenticated
        Whether clients are known by registered keys; otherwise nothing is certain.
    lost, groups
        How many of how many groups cast no vote.
    aside, clients
        How many of how many clients were set aside, in Step 1 or since.
    """
    own = basis if authenticated else Basis(UNKNOWN, OPEN)
    notes = [
        f"{lost} of {groups} groups were lost and cast no vote" if lost else "",
        f"{aside} of {clients} clients were set aside" if aside else "",
    ]
    return replace(own, because="; ".join([own.because, *filter(None, notes)]))


FOREIGN_VOTES: Final = Basis(
    UNKNOWN,
    "the votes came without their grouping; if malicious clients could influence it, "
    "the guarantee takes it as given",
)
"""The basis of votes that were not cast by groups formed here."""

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
