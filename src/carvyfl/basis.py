"""What a certificate may take for granted about the grouping."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

from carvyfl.errors import CarvyError

Kind = Literal["conditional", "end-to-end", "unknown"]

CONDITIONAL: Final[Kind] = "conditional"
"""The guarantee takes the grouping as given: malicious clients could have influenced it."""

END_TO_END: Final[Kind] = "end-to-end"
"""The guarantee covers the grouping as well."""

UNKNOWN: Final[Kind] = "unknown"
"""Nothing is known of how the groups were formed."""


@dataclass(frozen=True)
class Basis:
    """How far a guarantee reaches back, and why.

    Attributes
    ----------
    kind
        :data:`CONDITIONAL`, :data:`END_TO_END` or :data:`UNKNOWN`.
    because
        The reason, as one plain sentence without a full stop; it is printed after a colon.
    """

    kind: Kind
    because: str

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):  # it may have been read from a file
            raise CarvyError(f"basis '{self.kind}': must be one of {', '.join(get_args(Kind))}")


FOREIGN_VOTES: Final = Basis(
    UNKNOWN,
    "the votes came without their grouping; if malicious clients could influence it, "
    "the guarantee takes it as given",
)
"""The basis of votes that were not cast by groups formed here."""
