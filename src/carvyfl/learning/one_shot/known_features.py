"""Features that were computed once: kept in memory and, where there is a store, on disk."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file, save
from torch import Tensor

from carvyfl.core.environment import usable_cores
from carvyfl.core.errors import CarvyError
from carvyfl.core.files import replacing
from carvyfl.core.parts import in_parts
from carvyfl.core.progress import Report
from carvyfl.data.clients import Inputs
from carvyfl.learning.learners import UNSCALED
from carvyfl.learning.scaffold.local import one_thread, prepared

Rows = npt.NDArray[np.float32]

AT_ONCE = 256
"""Inputs in a batch of one client's."""
AT_ONCE_ON_DEVICE = 512
"""The same of a map of ours on a device, where a batch is many small pieces of work; a network of
somebody else's may need much memory."""
PER_THREAD = 32
"""Inputs that a thread takes, one at a time, before it says that they are done."""
PER_FILE = 8192
"""Inputs whose features share a file."""


ARITHMETIC = f"{torch.__version__}-{torch.backends.cpu.get_cpu_capability()}"
"""What else the last bits of features depend on: part of the name of their folder."""


class KnownFeatures:
    """The features of inputs, by the inputs' content.

    The last bits of a product depend on the rows beside it and on the number of threads. So that
    no client reaches another one through a batch:

    - On a CPU a map of ours (``by_input``) is given one input at a time, on one thread. What it
      gives is a function of that input, and is computed once for each distinct input.
    - Any other map, and every map on a GPU, is given batches of one array, which are a client's
      inputs or those to predict. Their features are kept together, by the content of the whole
      array.
    """

    def __init__(
        self,
        features: Callable[[Tensor], Tensor],
        width: int,
        fingerprint: str,
        *,
        by_input: bool,
    ) -> None:
        self.features, self.width, self.fingerprint = features, width, fingerprint
        self.by_input = by_input
        self._rows: dict[bytes, Rows] = {}
        self._read: set[Path] = set()

    def of(self, inputs: Inputs, device: str | None = None) -> Rows:
        """Return the features of stored inputs, float32 of shape (n, d)."""
        keys = self._keys(inputs, device)
        self._compute_each(self._compute(inputs, keys, device), lambda left: None)
        if len(keys) == 1:
            return self._rows[keys[0]].reshape(-1, self.width)
        found = np.empty((len(keys), self.width), dtype=np.float32)
        for i, key in enumerate(keys):
            found[i] = self._rows[key]
        return found

    def together(self, arrays: Sequence[Inputs], device: str, *, learned: bool) -> Tensor:
        """Return the features of all inputs of some arrays, shape (Σ n, d), on a device.

        Where :meth:`learn` was not called for them, they are computed in batches that may hold
        inputs of several arrays, in less time, and are not kept: for estimates.
        """
        if learned:
            known = np.concatenate([self.of(inputs, device) for inputs in arrays])
            return torch.from_numpy(known).to(device)
        inputs = torch.cat([prepared(array, *UNSCALED, device) for array in arrays])
        with torch.no_grad():
            batches = torch.split(inputs, self._size(device))
            return torch.cat([self.features(batch).float() for batch in batches])

    def learn(
        self,
        arrays: Iterable[Inputs],
        *,
        device: str | None,
        folder: Path | None,
        progress: Report,
    ) -> None:
        """Compute the features of many inputs, or find them in the folder where they are kept."""
        several = list(arrays)
        total, done = sum(map(len, several)), 0
        place = None if folder is None else folder / f"{self.fingerprint}-{ARITHMETIC}"
        if place is not None:
            self._load(place)
        progress(0, total)
        for part in in_parts(several, PER_FILE):
            new: dict[bytes, Inputs] = {}
            for inputs in part:
                new |= self._compute(inputs, self._keys(inputs, device), device)
            done += sum(map(len, part))

            def report(left: int, done: int = done) -> None:
                progress(done - left, total)

            self._compute_each(new, report)
            progress(done, total)
            if place is not None and new:
                self._save(place, list(new))

    def _keys(self, inputs: Inputs, device: str | None) -> list[bytes]:
        """Return a key for every input, or a single one for all together."""
        head = f"{inputs.dtype}{inputs.shape[1:]}".encode()
        content = np.ascontiguousarray(inputs)
        if not self._each(device):
            head += f"{device} {torch.get_num_threads()}".encode()
            digest = hashlib.blake2b(head, digest_size=16)
            digest.update(content.data)  # not joined to the head: that would copy a client's data
            return [digest.digest()]
        return [hashlib.blake2b(head + item.tobytes(), digest_size=16).digest() for item in content]

    def _size(self, device: str | None) -> int:
        """Return how many inputs are in a batch."""
        return AT_ONCE_ON_DEVICE if self.by_input and device is not None else AT_ONCE

    def _each(self, device: str | None) -> bool:
        """Whether features are kept input by input."""
        return self.by_input and device is None

    def _compute(
        self, inputs: Inputs, keys: list[bytes], device: str | None
    ) -> dict[bytes, Inputs]:
        """Compute what is computed in batches; return what is left to compute, one by one."""
        if self._each(device):
            unknown = ((i, key) for i, key in enumerate(keys) if key not in self._rows)
            return {key: inputs[i : i + 1] for i, key in unknown}
        if keys[0] not in self._rows:
            size = self._size(device)
            batches = [
                self._batch(inputs[i : i + size], device) for i in range(0, len(inputs), size)
            ]
            self._rows[keys[0]] = np.concatenate(batches)
        return {}  # what is of one client, in one batching, is not worth a place on disk

    def _compute_each(self, inputs: Mapping[bytes, Inputs], report: Callable[[int], None]) -> None:
        """Compute the features of inputs, each alone; report how many are left."""
        keys = list(inputs)
        parts = [keys[i : i + PER_THREAD] for i in range(0, len(keys), PER_THREAD)]

        def alone(part: list[bytes]) -> Rows:
            scaled = prepared(np.concatenate([inputs[key] for key in part]), *UNSCALED)
            with torch.no_grad():  # copied, so that none lies in memory other than another would
                each = [self.features(row.clone()).float() for row in torch.split(scaled, 1)]
                rows: Rows = torch.cat(each).numpy()
            return rows

        with (
            one_thread(),
            ThreadPoolExecutor(usable_cores(), "features", torch.set_num_threads, (1,)) as threads,
        ):
            left = len(keys)
            for part, rows in zip(parts, threads.map(alone, parts), strict=True):
                self._rows.update(zip(part, rows, strict=True))
                left -= len(part)
                report(left)

    def _batch(self, inputs: Inputs, device: str | None) -> Rows:
        if device == "cuda":  # a stacked net may have set it otherwise
            torch.backends.cuda.matmul.allow_tf32 = False
        with torch.no_grad():
            rows: Rows = self.features(prepared(inputs, *UNSCALED, device)).float().cpu().numpy()
        return rows

    def _load(self, folder: Path) -> None:
        """Read the files of a folder that were not read yet; a damaged one counts for nothing."""
        for path in sorted(folder.glob("*.safetensors")):
            if path in self._read:
                continue
            self._read.add(path)
            try:
                found = load_file(path)
                keys, rows = found["keys"], found["features"]
                if path.stem != _name(keys, rows) or rows.shape[1:] != (self.width,):
                    raise ValueError
            except (SafetensorError, OSError, KeyError, ValueError):
                with contextlib.suppress(OSError):
                    path.unlink()
                continue
            self._rows.update(zip(map(bytes, keys), rows, strict=True))

    def _save(self, folder: Path, keys: list[bytes]) -> None:
        names = np.frombuffer(b"".join(keys), dtype=np.uint8).reshape(len(keys), 16)
        rows = np.stack([self._rows[key] for key in keys])
        path = folder / f"{_name(names, rows)}.safetensors"
        self._read.add(path)
        # They only save time: a run goes on in a folder that cannot be written.
        with contextlib.suppress(CarvyError), replacing(path) as file:
            file.write(save({"keys": names.copy(), "features": rows}))


def _name(keys: npt.NDArray[np.uint8], rows: Rows) -> str:
    """Return the name of a file of features: a hash of what it holds."""
    digest = hashlib.blake2b(keys.tobytes(), digest_size=16)
    digest.update(rows.tobytes())
    return digest.hexdigest()
