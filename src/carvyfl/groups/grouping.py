"""The value that Step 2 hands on: who trains with whom."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import numpy.typing as npt

from carvyfl.core.errors import CarvyError
from carvyfl.core.files import replacing, write_text
from carvyfl.groups.basis import Basis, Kind
from carvyfl.groups.coins import Coins

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Ints = npt.NDArray[np.int64]

_LISTED = 16  # clients named in a row of the table before the rest is only counted
_NUMBERED = 45  # up to so many tiles across, they carry the client's number
# Okabe and Ito's palette, distinguishable with every common colour blindness.
_PALETTE = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#F0E442", "#000000")
_NO_TYPE = "#BBBBBB"


@dataclass(frozen=True, eq=False)
class Grouping:
    """A partition of the clients, or of some of them, into groups.

    Attributes
    ----------
    assignment
        int64 of shape (N,), read-only: the group 0 … G-1 of every client; -1 for
        a client in no group.
    num_groups
        G, the number of groups and therefore of votes. No group is empty, unless the groups
        were drawn with coins: an empty one casts no vote.
    method
        The name of the method that formed it.
    basis
        Whether a certificate on these groups holds end to end or only given the
        groups, and why.
    coins
        What the groups were drawn from, where a certificate asks for it; None elsewhere.

    Raises
    ------
    CarvyError
        If there are more groups than clients, a group is empty, or a client sits
        in a group that does not exist.
    """

    assignment: Ints
    num_groups: int
    method: str
    basis: Basis
    coins: Coins | None = None

    def __post_init__(self) -> None:
        assignment = _read_only(_whole_numbers(self.assignment, "assignment"))
        object.__setattr__(self, "assignment", assignment)
        check_num_groups(self.num_groups, len(assignment), "clients")
        wrong = np.flatnonzero((assignment < -1) | (assignment >= self.num_groups))
        if len(wrong):
            raise CarvyError(
                f"client {wrong[0]} is assigned to group {assignment[wrong[0]]}, but groups are "
                f"0 to {self.num_groups - 1} (-1 for none)"
            )
        empty = np.flatnonzero(self.sizes == 0)
        if len(empty) and self.coins is None:
            raise CarvyError(
                f"group {empty[0]} of {self.num_groups} has no client; "
                "use fewer groups or another grouping"
            )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Grouping):
            return NotImplemented
        same = (self.num_groups, self.method, self.basis, self.coins)
        return same == (
            other.num_groups,
            other.method,
            other.basis,
            other.coins,
        ) and np.array_equal(self.assignment, other.assignment)

    def __hash__(self) -> int:
        return hash((self.assignment.tobytes(), self.num_groups, self.method))

    def __str__(self) -> str:
        return self.table()

    @cached_property
    def sizes(self) -> Ints:
        """The number of clients in each group, shape (G,)."""
        grouped = self.assignment[self.assignment >= 0]
        return _read_only(np.bincount(grouped, minlength=self.num_groups))

    @cached_property
    def groups(self) -> tuple[Ints, ...]:
        """Each group's clients, ascending."""
        ends = np.cumsum(self.sizes).tolist()
        by_group = np.argsort(self.assignment, kind="stable")[len(self.assignment) - ends[-1] :]
        _read_only(by_group)  # and with it every piece
        return tuple(by_group[a:b] for a, b in itertools.pairwise([0, *ends]))

    @cached_property
    def benched(self) -> Ints:
        """The clients that sit in no group, ascending."""
        return _read_only(np.flatnonzero(self.assignment == -1))

    def members(self, group: int) -> Ints:
        """Return one group's clients, ascending."""
        if not 0 <= group < self.num_groups:
            raise CarvyError(f"there is no group {group}; groups are 0 to {self.num_groups - 1}")
        return self.groups[group]

    def diversity(self, types: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Return the share of all types that is present in each group.

        Parameters
        ----------
        types
            The type of every client, shape (N,), grouped or not; -1 counts as no
            type.

        Returns
        -------
        ndarray
            Shape (G,), from 0 to 1.
        """
        labels = check_labels(types, len(self.assignment))
        typed = labels >= 0
        kinds, numbers = np.unique(labels[typed], return_inverse=True)
        if not len(kinds):
            raise CarvyError("no client has a type, so the groups' diversity is undefined")
        groups = self.assignment[typed]
        pairs = np.unique((groups * len(kinds) + numbers)[groups >= 0])  # of group and type
        return np.bincount(pairs // len(kinds), minlength=self.num_groups) / len(kinds)

    def mean_diversity(self, types: npt.ArrayLike) -> float:
        """Return the mean of :meth:`diversity` over the groups; 1 is the best."""
        return float(self.diversity(types).mean())

    def table(self, types: npt.ArrayLike | None = None) -> str:
        """Return the groups as lines of text.

        Parameters
        ----------
        types
            The type of every client, shape (N,); adds what each group holds,
            "2×3" standing for three clients of type 2 and "?" for no type.
        """
        labels = None if types is None else check_labels(types, len(self.assignment))
        rows = [("group", "size", "clients", "" if labels is None else "types")]
        named = [(str(g), members) for g, members in enumerate(self.groups)]
        if len(self.benched):
            named.append(("none", self.benched))
        for name, members in named:
            kinds = "" if labels is None else _count_types(labels[members])
            rows.append((name, str(len(members)), _shorten(members), kinds))
        wide = [max(len(row[column]) for row in rows) for column in range(3)]
        lines = [
            f"grouping '{self.method}': {len(self.assignment)} clients, G = {self.num_groups}",
            f"certificate: {self.basis.kind}, because {self.basis.because}",
            *(
                f"{name:>{wide[0]}}  {size:>{wide[1]}}  {clients:<{wide[2]}}  {kinds}".rstrip()
                for name, size, clients, kinds in rows
            ),
        ]
        if labels is not None and (labels >= 0).any():
            lines.append(f"mean diversity {self.mean_diversity(labels):.3f}")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Return the grouping as plain JSON values."""
        return {
            "method": self.method,
            "num_groups": self.num_groups,
            "basis": self.basis.to_json(),
            "coins": None if self.coins is None else self.coins.to_json(),
            "assignment": self.assignment.tolist(),
        }

    @staticmethod
    def from_json(data: Any, where: str = "grouping") -> Grouping:
        """Rebuild a grouping from :meth:`to_json`, checking everything.

        Parameters
        ----------
        data
            What a JSON parser returned.
        where
            Where it came from, for the error message.
        """
        try:
            basis, coins = data["basis"], data["coins"]
            kind, because = basis["kind"], basis["because"]
            reach = basis["honest_only"], basis["all_honest"]
            assignment, num_groups, method = data["assignment"], data["num_groups"], data["method"]
        except (KeyError, TypeError) as error:
            raise CarvyError(f"{where}: no complete grouping; form the groups again") from error
        if kind not in get_args(Kind) or not all(isinstance(t, str) for t in (because, method)):
            raise CarvyError(f"{where}: method or basis is damaged; form the groups again")
        if type(num_groups) is not int:
            raise CarvyError(f"{where}: num_groups is {num_groups!r}, not a whole number")
        try:
            drawn = None if coins is None else Coins.from_json(coins, "coins")
            return Grouping(assignment, num_groups, method, Basis(kind, because, *reach), drawn)
        except CarvyError as error:
            raise CarvyError(f"{where}: {error}") from error

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the grouping as JSON; the file is complete or unchanged."""
        write_text(Path(path), json.dumps(self.to_json()) + "\n")

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Grouping:
        """Read a grouping that :meth:`save` wrote; a damaged file is refused."""
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise CarvyError(f"{path}: cannot read the grouping: {error.strerror}") from error
        except (ValueError, RecursionError) as error:  # neither UTF-8 nor JSON
            raise CarvyError(f"{path}: damaged, form the groups again: {error}") from error
        return Grouping.from_json(data, str(path))

    def plot(self, types: npt.ArrayLike, path: str | os.PathLike[str]) -> None:
        """Draw who goes where: every client a tile, by type above, by group below.

        Parameters
        ----------
        types
            The type of every client, shape (N,); the colour of its tile, grey for -1.
        path
            The image to write; the ending chooses the format.
        """
        from matplotlib import colormaps
        from matplotlib.colors import ListedColormap
        from matplotlib.figure import Figure

        labels = check_labels(types, len(self.assignment))
        kinds = np.unique(labels[labels >= 0])
        shade = np.searchsorted(kinds, labels)
        shade[labels < 0] = len(kinds)
        # Beyond the palette neighbouring types, which are alike, get neighbouring colours.
        ramp = colormaps["viridis"](np.linspace(0, 1, len(kinds)))
        few = len(kinds) <= len(_PALETTE)
        colours = ListedColormap([*(_PALETTE[: len(kinds)] if few else ramp), _NO_TYPE])

        by_type = [(str(kind), np.flatnonzero(labels == kind)) for kind in kinds]
        by_type += _leftover(np.flatnonzero(labels < 0), by_type)
        by_group = [(str(g), m[np.argsort(shade[m])]) for g, m in enumerate(self.groups)]
        by_group += _leftover(self.benched, by_group)
        panels = [("type", "Clients by type", by_type), ("group", "Clients by group", by_group)]

        heights = [_panel_inches(stacks) for _, _, stacks in panels]
        figure = Figure(figsize=(11, sum(heights) + 1.6), layout="constrained")
        axes = figure.subplots(2, 1, height_ratios=heights)
        for ax, (what, title, stacks) in zip(axes, panels, strict=True):
            _draw_tiles(ax, what, stacks, shade, colours)
            ax.set_title(title, loc="left", fontweight="bold")
        diversity = self.mean_diversity(labels)
        summary = f"'{self.method}', G = {self.num_groups}, mean diversity {diversity:.2f}"
        axes[1].set_title(summary, loc="right", fontsize="medium")
        format_ = Path(path).suffix.lstrip(".")
        if format_ not in figure.canvas.get_supported_filetypes():
            raise CarvyError(f"{path}: cannot draw into '.{format_}' files; use .png, .svg or .pdf")
        with replacing(Path(path)) as file:
            figure.savefig(file, format=format_, dpi=150)


def check_num_groups(num_groups: int, num_clients: int, whom: str) -> None:
    """Refuse a number of groups that would leave a group empty, or none at all."""
    if not 1 <= num_groups <= num_clients:
        raise CarvyError(
            f"{num_groups} groups cannot be formed of {num_clients} {whom}; "
            f"choose from 1 to {num_clients}"
        )


def check_labels(labels: npt.ArrayLike, num_clients: int | None = None) -> Ints:
    """Return types as int64 of shape (N,), refusing anything but numbers from -1 up."""
    checked = _whole_numbers(labels, "types")
    if len(checked) and checked.min() < -1:
        raise CarvyError(f"types run from 0 up, with -1 for none, but one is {checked.min()}")
    if num_clients is not None and len(checked) != num_clients:
        raise CarvyError(f"{len(checked)} types were given for {num_clients} clients")
    return checked


def _whole_numbers(values: npt.ArrayLike, what: str) -> Ints:
    try:
        array = np.asarray(values)
    except ValueError as error:  # rows of different lengths
        raise CarvyError(f"{what} must be a flat list of whole numbers") from error
    whole = np.issubdtype(array.dtype, np.integer) and np.can_cast(array.dtype, np.int64)
    if array.ndim != 1 or (len(array) and not whole):
        raise CarvyError(
            f"{what} must be a flat list of whole numbers, not {array.dtype} of shape {array.shape}"
        )
    return array.astype(np.int64)


def _read_only(array: Ints) -> Ints:
    array.flags.writeable = False
    return array


def _shorten(members: Ints) -> str:
    listed = " ".join(map(str, members[:_LISTED]))
    more = len(members) - _LISTED
    return f"{listed} … {more} more" if more > 0 else listed


def _count_types(labels: Ints) -> str:
    kinds, counts = np.unique(labels, return_counts=True)
    names = ["?" if kind < 0 else str(kind) for kind in kinds]
    return " ".join(n if c == 1 else f"{n}×{c}" for n, c in zip(names, counts, strict=True))


def _leftover(clients: Ints, stacks: Sequence[tuple[str, Ints]]) -> list[tuple[str, Ints]]:
    """Stack clients without a type or group no higher than the others."""
    depth = max(len(members) for _, members in stacks)
    pieces = np.split(clients, range(depth, len(clients), depth)) if len(clients) else []
    return [("" if position else "none", piece) for position, piece in enumerate(pieces)]


def _panel_inches(stacks: Sequence[tuple[str, Ints]]) -> float:
    """Return a panel's height: a third of an inch a row, within reason."""
    rows = min(len(stacks), max(len(members) for _, members in stacks))
    return float(np.clip(rows / 3, 1, 6))


def _draw_tiles(
    ax: Axes,
    what: str,
    stacks: Sequence[tuple[str, Ints]],
    shade: Ints,
    colours: Any,
) -> None:
    """Draw one stack of tiles per type or group, along whichever side is longer."""
    depth = max(len(members) for _, members in stacks)
    grid = np.full((len(stacks), depth), -1)
    for row, (_, members) in enumerate(stacks):
        grid[row, : len(members)] = members
    upright = len(stacks) > depth
    grid = grid.T if upright else grid
    tiles = np.ma.masked_array(shade[grid], mask=grid < 0)
    ax.pcolormesh(
        tiles,
        cmap=colours,
        vmin=-0.5,
        vmax=colours.N - 0.5,
        edgecolors="white",
        linewidth=min(1.0, 40 / grid.shape[1]),
    )
    if max(grid.shape) <= _NUMBERED:
        for (row, column), client in np.ndenumerate(grid):
            if client >= 0:
                red, green, blue, _ = colours(int(shade[client]))
                dark = 0.3 * red + 0.6 * green + 0.1 * blue < 0.55
                ax.text(
                    column + 0.5,
                    row + 0.5,
                    str(client),
                    ha="center",
                    va="center",
                    fontsize=7,
                    color="white" if dark else "black",
                )
    if not upright:
        ax.invert_yaxis()
    step = -(-len(stacks) // (40 if upright else 25))
    named_at = [(p, name) for p, (name, _) in enumerate(stacks) if name]
    shown = [p for p, name in named_at if p % step == 0 or name == "none"]
    if stacks[shown[-1]][0] == "none" and len(shown) > 1 and shown[-1] - shown[-2] < step:
        del shown[-2]  # the two names would overlap
    names = [stacks[position][0] for position in shown]
    named, counted = (ax.xaxis, ax.yaxis) if upright else (ax.yaxis, ax.xaxis)
    named.set_ticks([position + 0.5 for position in shown], names)
    named.set_label_text(what)
    counted.set_ticks([])
    counted.set_label_text("clients")
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
