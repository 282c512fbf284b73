"""A client's ledger: what private messages have cost its data, and the messages themselves.

One folder per client: ``ledger.jsonl``, whose first line states the limit and every other one a
message, and one ``.npz`` file per message. Noise is drawn once for the same data and settings; a
repeated request gets the message that is stored. A message is on disk, and counted, before it is
returned, so a crash can cost ε but never hide any.

All messages are counted together, whatever the data were at the time: a sample that is there
today may have been there before.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec
import numpy as np
import numpy.typing as npt
from filelock import FileLock

from carvyfl.core.archives import read_npz, write_npz
from carvyfl.core.checks import positive
from carvyfl.core.errors import CarvyError, refusal
from carvyfl.core.files import write_text
from carvyfl.privacy.noise import GaussianNoise, spent_epsilon

Arrays = Mapping[str, npt.NDArray[Any]]
Composition = Literal["basic", "gaussian"]
PRIVATE = 0o600


@dataclass(frozen=True)
class Limit:
    """What all messages together may cost, and how their costs are added up.

    ``basic``: ε and δ are summed. ``gaussian``: the exact guarantee of all noise together, which
    is less for several messages; ε is stated at the limit's δ.
    """

    epsilon: float | None = None
    delta: float = 1e-4
    composition: Composition = "basic"
    version: Literal[1] = 1


@dataclass(frozen=True)
class Spending:
    """One private message: of which data, with which settings, and what it cost.

    ``signal`` is sensitivity by scale of the noise; ``names`` are the arrays of the message and
    ``message`` is their digest.
    """

    data: str
    settings: str
    epsilon: float
    delta: float
    signal: float
    when: str
    message: str
    names: tuple[str, ...]


class LimitError(CarvyError):
    """A message would cost more than the client's limit leaves."""


class Ledger:
    """The ledger in a client's folder, which is made if it is not there."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.path = self.folder / "ledger.jsonl"
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise CarvyError(f"cannot make a ledger in {folder}: {refusal(error)}") from error
        with self._lock():
            if not self.path.exists():
                if any(self.folder.glob("*.npz")):
                    raise CarvyError(
                        f"{self.path} is missing, but messages that it counted are there; put it "
                        "back, or start in an empty folder"
                    )
                self._write(Limit(), ())

    @property
    def limit(self) -> Limit:
        """What all messages together may cost."""
        return self._read()[0]

    @property
    def spendings(self) -> tuple[Spending, ...]:
        """All messages so far, oldest first."""
        return self._read()[1]

    def set_limit(
        self, epsilon: float, delta: float = 1e-4, composition: Composition = "basic"
    ) -> None:
        """Refuse messages from now on that would cost more than this together."""
        if composition not in get_args(Composition):
            raise CarvyError(f"composition is 'basic' or 'gaussian', not {composition!r}")
        if not positive(delta, "`delta`") < 1:
            raise CarvyError(f"`delta` must be below 1, not {delta:g}")
        limit = Limit(positive(epsilon, "`epsilon`"), delta, composition)
        with self._lock():
            self._write(limit, self.spendings)

    def message(
        self,
        data: Arrays,
        settings: Mapping[str, Any],
        noise: GaussianNoise,
        draw: Callable[[], Arrays],
    ) -> dict[str, npt.NDArray[Any]]:
        """Return the message of these data and settings, drawn now or stored before.

        Parameters
        ----------
        data
            All of the client's data that the message is made of.
        settings
            All else that it depends on but the noise, as JSON has it: digest of the map, classes ….
        noise
            The noise in it, with ε and δ.
        draw
            Makes the message: arrays by name.
        """
        with_noise = _json({"noise": dataclasses.asdict(noise), "settings": dict(settings)})
        keys = digest(data), hashlib.sha256(with_noise.encode()).hexdigest()
        with self._lock():
            limit, spendings = self._read()
            for spending in spendings:
                if keys == (spending.data, spending.settings) and (old := self._stored(spending)):
                    return old
            when = datetime.now(UTC).isoformat(timespec="seconds")
            costs = noise.epsilon, noise.delta, noise.signal
            spending = Spending(*keys, *costs, when, message="", names=())
            self._check(limit, spendings, spending)
            message = dict(draw())
            spending = dataclasses.replace(spending, message=digest(message), names=tuple(message))
            write_npz(self._file(spending), message)
            self._write(limit, (*spendings, spending))
        return message

    def _lock(self) -> FileLock:
        return FileLock(self.folder / ".ledger.lock")

    def _file(self, spending: Spending) -> Path:
        return self.folder / f"{spending.message}.npz"

    def _stored(self, spending: Spending) -> dict[str, npt.NDArray[Any]] | None:
        """Return a stored message, or nothing if its file is damaged or missing."""
        with contextlib.suppress(CarvyError):
            arrays = read_npz(self._file(spending), spending.names)
            if digest(arrays) == spending.message:
                return arrays
        return None

    def _check(self, limit: Limit, before: Sequence[Spending], new: Spending) -> None:
        if limit.epsilon is None:
            return
        epsilon, delta = total((*before, new), limit.composition, limit.delta)
        if epsilon > limit.epsilon * (1 + 1e-9) or delta > limit.delta * (1 + 1e-9):
            spent, _ = total(before, limit.composition, limit.delta)
            raise LimitError(
                f"refused by the client's ledger in {self.folder}: its limit is ε = "
                f"{limit.epsilon:g}, δ = {limit.delta:g}; ε = {spent:.4g} is spent, and with this "
                f"message it would be ε = {epsilon:.4g}, δ = {delta:.2g} ({limit.composition} "
                "composition)"
            )

    def _read(self) -> tuple[Limit, tuple[Spending, ...]]:
        try:
            first, *lines = self.path.read_bytes().splitlines()
            limit = msgspec.json.decode(first, type=Limit)
            return limit, tuple(msgspec.json.decode(line, type=Spending) for line in lines)
        except (OSError, ValueError, msgspec.DecodeError) as error:
            raise CarvyError(
                f"{self.path} cannot be read, so what was spent is not known; nothing is sent "
                f"({error})"
            ) from error

    def _write(self, limit: Limit, spendings: Sequence[Spending]) -> None:
        """Replace the ledger, and have the system write folder and files to the disk."""
        rows = [dataclasses.asdict(limit), *map(dataclasses.asdict, spendings)]
        write_text(self.path, "".join(f"{_json(row)}\n" for row in rows), PRIVATE)
        folder = os.open(self.folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def total(
    spendings: Sequence[Spending], composition: Composition = "basic", delta: float = 1e-4
) -> tuple[float, float]:
    """Return ε and δ of messages together.

    ``basic`` sums both. ``gaussian`` gives ε at ``delta``: signals add up in squares, even where
    later settings depend on earlier messages (Dong, Roth and Su, 2022).
    """
    if composition == "basic":
        return sum(s.epsilon for s in spendings), sum(s.delta for s in spendings)
    if not spendings:
        return 0.0, 0.0
    return spent_epsilon(math.hypot(*(s.signal for s in spendings)), delta), delta


def digest(arrays: Arrays) -> str:
    """Return a digest of arrays: their names, types, shapes and values."""
    state = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        state.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        state.update(np.ascontiguousarray(array).tobytes())
    return state.hexdigest()


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False)
