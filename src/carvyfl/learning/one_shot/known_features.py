"""Features that were computed once: kept in memory and, where there is a store, on disk."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file, save
from torch import Tensor

from carvyfl.core.files import replacing
from carvyfl.core.progress import Report
from carvyfl.data.clients import Inputs
from carvyfl.learning.learners import UNSCALED
from carvyfl.learning.scaffold.local import prepared

Rows = npt.NDArray[np.float32]

AT_ONCE = 256
"""Inputs in a batch on a CPU."""
AT_ONCE_ON_DEVICE = 512
"""The same of a map of ours on a device, where a batch is many small pieces of work; a network of
somebody else's may need much memory."""
PER_FILE = 8192
"""Inputs whose features share a file."""


class KnownFeatures:
    """The features of inputs, by the inputs' content.

    On a CPU, a map that depends on nothing but the input is computed once for each distinct input.
    Of any other map, and on a GPU, last bits may depend on the batch. There the features of a
    client's inputs are computed together and kept together: no other client's inputs are ever in
    their batches. What :meth:`together` computes is for estimates, and not kept.
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
        self._compute(inputs, keys, device, lambda done: None)
        if len(keys) == 1:
            return self._rows[keys[0]].reshape(-1, self.width)
        found = np.empty((len(keys), self.width), dtype=np.float32)
        for i, key in enumerate(keys):
            found[i] = self._rows[key]
        return found

    def together(self, arrays: Sequence[Inputs], device: str) -> Tensor:
        """Return the features of all inputs of some arrays, shape (Σ n, d), on a device.

        If nothing is known yet they are computed in batches that may hold inputs of several
        arrays, in less time, and are not kept.
        """
        if self._rows:
            known = np.concatenate([self.of(inputs, device) for inputs in arrays])
            return torch.from_numpy(known).to(device)
        inputs = torch.cat([prepared(own, *UNSCALED, device) for own in arrays])
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
        place = None if folder is None else folder / self.fingerprint
        if place is not None:
            self._load(place)
        new: list[bytes] = []
        progress(0, total)
        for inputs in several:
            keys = self._keys(inputs, device)

            def report(more: int, before: int = done) -> None:
                progress(before + more, total)

            new += self._compute(inputs, keys, device, report)
            done += len(inputs)
            progress(done, total)
            if place is not None and len(new) >= PER_FILE:
                self._save(place, new)
                new = []
        if place is not None and new:
            self._save(place, new)

    def _keys(self, inputs: Inputs, device: str | None) -> list[bytes]:
        """Return a key for every input, or a single one for all together."""
        head = f"{inputs.dtype}{inputs.shape[1:]}".encode()
        content = np.ascontiguousarray(inputs)
        if not self._each(device):
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
        self,
        inputs: Inputs,
        keys: list[bytes],
        device: str | None,
        report: Callable[[int], None],
    ) -> list[bytes]:
        """Compute what is not known yet and return its keys."""
        if not self._each(device):
            if keys[0] in self._rows:
                return []
            size = self._size(device)
            batches = [
                self._batch(inputs[i : i + size], device) for i in range(0, len(inputs), size)
            ]
            self._rows[keys[0]] = np.concatenate(batches)
            return []  # of one client, in one batching: not worth a place on disk
        places = {key: i for i, key in enumerate(keys) if key not in self._rows}
        missing = list(places)
        for i in range(0, len(missing), AT_ONCE):
            some = missing[i : i + AT_ONCE]
            rows = self._batch(inputs[[places[key] for key in some]], device)
            self._rows.update(zip(some, rows, strict=True))
            report(i + len(some))
        return missing

    def _batch(self, inputs: Inputs, device: str | None) -> Rows:
        with torch.no_grad():
            found: Rows = self.features(prepared(inputs, *UNSCALED, device)).float().cpu().numpy()
        return found

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
                path.unlink(missing_ok=True)
                continue
            self._rows.update(zip(map(bytes, keys), rows, strict=True))

    def _save(self, folder: Path, keys: list[bytes]) -> None:
        names = np.frombuffer(b"".join(keys), dtype=np.uint8).reshape(len(keys), 16)
        rows = np.stack([self._rows[key] for key in keys])
        path = folder / f"{_name(names, rows)}.safetensors"
        with replacing(path) as file:
            file.write(save({"keys": names.copy(), "features": rows}))
        self._read.add(path)


def _name(keys: npt.NDArray[np.uint8], rows: Rows) -> str:
    """Return the name of a file of features: a hash of what it holds."""
    digest = hashlib.blake2b(keys.tobytes(), digest_size=16)
    digest.update(rows.tobytes())
    return digest.hexdigest()
