"""Step 4: group models, or any ensemble, vote; the plurality decides (Algorithm 5, Eqs. 3 to 5).

Votes are counted a slice of inputs at a time, which takes little more memory than the votes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from carvyfl.core.arrays import plain_array
from carvyfl.core.checks import are_whole
from carvyfl.core.errors import CarvyError

if TYPE_CHECKING:
    from torch import Tensor

NO_VOTE: Final = -1
"""What stands in place of a class where a group casts no vote (diverged or lost)."""
MAX_CLASSES: Final = 1_000_000
"""A larger class number is taken for a mistake: counting it would only exhaust the memory."""

_CELLS_AT_ONCE: Final = 1 << 17  # 8 bytes each: the working set of a slice stays in the cache
_INT16: Final = 2**15 - 1

Ballots = npt.NDArray[np.integer[Any]]
Counts = npt.NDArray[np.int32]
Classes = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Votes:
    """What every group votes on every input; made by :func:`votes`, which checks it.

    ``groups`` are integers of any type, shape (G, n): the class group g votes for on input i, or
    :data:`NO_VOTE`; ``num_classes`` is C.
    """

    groups: Ballots
    num_classes: int

    @property
    def num_groups(self) -> int:
        """G, the number of groups, those without a vote included."""
        return int(self.groups.shape[0])

    @property
    def num_inputs(self) -> int:
        """n, the number of inputs."""
        return int(self.groups.shape[1])


def votes(array: Any, num_classes: int | None = None) -> Votes:
    """Check an array of votes, which is not copied; an error names the first offending vote.

    Parameters
    ----------
    array
        Integers of shape (G, n), 0 … C - 1 or :data:`NO_VOTE`.
    num_classes
        C; by default the largest class voted for plus one, and at least 2. A
        class above all others that nobody votes for changes no margin.
    """
    groups = plain_array(array, "votes")
    if groups.ndim != 2 or 0 in groups.shape:
        raise CarvyError(
            f"votes of shape {groups.shape}: give one row per group and one column per input, "
            "at least one of each"
        )
    if groups.dtype.kind not in "iu":
        wanted = f"class numbers as integers ({NO_VOTE} for no vote)"
        raise CarvyError(f"votes of type {groups.dtype}: give {wanted}")
    limit = MAX_CLASSES if num_classes is None else num_classes
    if not 2 <= limit <= MAX_CLASSES:
        raise CarvyError(f"{num_classes} classes: voting needs 2 to {MAX_CLASSES:,} classes")
    if int(groups.min()) < NO_VOTE or int(groups.max()) >= limit:
        g, i = np.argwhere((groups < NO_VOTE) | (groups >= limit))[0]
        raise CarvyError(
            f"group {g} votes {groups[g, i]} on input {i}; "
            f"classes are 0 to {limit - 1}, {NO_VOTE} is no vote"
        )
    return Votes(groups, max(int(groups.max()) + 1, 2) if num_classes is None else int(num_classes))


def check_labels(labels: Any, num_inputs: int, num_classes: int) -> Classes:
    """Return true classes, n whole numbers from 0 to C - 1 of any type, as int64."""
    array = plain_array(labels, "labels")
    if array.ndim != 1 or len(array) != num_inputs:
        given = f"labels of shape {array.shape} for {num_inputs} inputs"
        raise CarvyError(f"{given}: give one label per input")
    if not are_whole(array):
        raise CarvyError(f"labels of type {array.dtype}: give class numbers as whole numbers")
    bad = np.flatnonzero((array < 0) | (array >= num_classes))
    if len(bad):
        label = array[bad[0]]
        more = "; if there are more, set num_classes" if 0 <= label < MAX_CLASSES else ""
        raise CarvyError(
            f"the label of input {bad[0]} is {label}; classes are 0 to {num_classes - 1}{more}"
        )
    return array.astype(np.int64, copy=False)


def argmax_votes(logits: Any) -> Votes:
    """Turn scores (G, n, C), or (n, C) of a single group, into votes (Eq. 3), int16 where C allows.

    The smallest class wins a tie. A group casts no vote on an input for which any of its scores is
    NaN or infinite.
    """
    import torch

    if isinstance(logits, torch.Tensor):
        tensor = logits.detach().cpu()
        # NumPy has no bfloat16; float32 holds all its values.
        logits = (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
    scores = plain_array(logits, "logits")
    if scores.ndim == 2:
        scores = scores[None]
    if scores.ndim != 3 or scores.shape[2] < 2:
        wanted = "(groups, inputs, classes), at least 2 classes"
        raise CarvyError(f"logits of shape {scores.shape}: give {wanted}")
    if scores.dtype.kind not in "fiu":
        raise CarvyError(f"logits of type {scores.dtype}: give real numbers")
    num_classes = scores.shape[2]
    groups = np.empty(scores.shape[:2], np.int16 if num_classes <= _INT16 else np.int32)
    for g, rows in enumerate(scores):  # one group at a time: the mask stays small
        groups[g] = np.where(np.isfinite(rows).all(axis=1), rows.argmax(axis=1), NO_VOTE)
    return votes(groups, num_classes)


def argmax_ballots(logits: Tensor) -> Tensor:
    """Compute :func:`argmax_votes` on the device of the scores, (…, C) → (…), without checks."""
    import torch

    smallest = torch.int16 if logits.shape[-1] <= _INT16 else torch.int32
    ballots = logits.argmax(dim=-1).to(smallest)  # the first of equal ones
    return ballots.masked_fill_(~logits.isfinite().all(dim=-1), NO_VOTE)


def tally(votes: Votes, start: int = 0, stop: int | None = None) -> Counts:
    """Count the votes on the inputs ``start`` … ``stop`` - 1: v_c of Eq. 4, (stop - start, C)."""
    ballots = votes.groups[:, start:stop]
    # Every input gets its own run of C + 1 counters, the first for NO_VOTE: one pass whatever C is.
    width = votes.num_classes + 1
    first = np.arange(ballots.shape[1], dtype=np.int64) * width - NO_VOTE
    counters = np.add(ballots, first, dtype=np.int64, casting="same_kind").ravel("K")
    counts = np.bincount(counters, minlength=len(first) * width).reshape(-1, width)
    return counts[:, 1:].astype(np.int32)


def tallies(votes: Votes) -> Iterator[tuple[slice, Counts]]:
    """Yield the inputs of one slice after another, and the :func:`tally` of each slice."""
    step = max(1, _CELLS_AT_ONCE // max(votes.num_groups, votes.num_classes + 1))
    for start in range(0, votes.num_inputs, step):
        stop = min(start + step, votes.num_inputs)
        yield slice(start, stop), tally(votes, start, stop)


def plurality(counts: Counts) -> Classes:
    """Return the class with most votes, the smallest on a tie (Eq. 5), or :data:`NO_VOTE`."""
    return np.where(counts.any(axis=1), np.argmax(counts, axis=1).astype(np.int64), NO_VOTE)


def predict(votes: Votes) -> Classes:
    """Return the ensemble's label for every input (Algorithm 5), as :func:`plurality` has it."""
    return np.concatenate([plurality(counts) for _, counts in tallies(votes)])
