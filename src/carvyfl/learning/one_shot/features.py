"""Fixed features: a map from inputs to vectors that was fixed before any client was heard.

What was computed once is held in memory and, where there is a store, on disk.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file, save
from torch import Tensor, nn

from carvyfl.core.arrays import in_parts
from carvyfl.core.checks import whole_number
from carvyfl.core.environment import usable_cores
from carvyfl.core.errors import CarvyError, reason
from carvyfl.core.files import replacing
from carvyfl.core.fingerprint import Fingerprinted, describe
from carvyfl.core.progress import Report
from carvyfl.core.registry import Registry
from carvyfl.data.clients import Inputs
from carvyfl.learning.learners import UNSCALED
from carvyfl.learning.models import Shape
from carvyfl.learning.one_shot.scattering import feature_width, scattering_features
from carvyfl.learning.scaffold.client import one_thread, prepared

Rows = npt.NDArray[np.float32]
# Inputs, float32 of shape (n, …) → features, shape (n, d). Inputs are as they are stored: bytes
# scaled to 0…1, floats as they are.
Function = Callable[[Tensor], Tensor]
CLOSE = 1e-3  # Smaller differences, as a share of the largest feature, are rounding
WIDEST = 8192  # The largest d: a client's message and the work for a head grow with its square
PROJECTED_AT_ONCE = 8192  # Inputs, of several arrays, that are projected together on a device
# Inputs in a batch; a map of ours on a device takes more, a network of others' may need much memory
AT_ONCE, AT_ONCE_ON_DEVICE = 256, 512
# Inputs that a thread takes before it says that they are done; inputs whose features share a file
PER_THREAD, PER_FILE = 32, 8192
# What else the last bits of features depend on: part of the name of their folder
ARITHMETIC = f"{torch.__version__}-{torch.backends.cpu.get_cpu_capability()}"


@dataclass(frozen=True)
class FeatureMap:
    """A registered feature map.

    ``build`` gives the map for inputs of a shape. ``by_input`` has a CPU compute one input at a
    time, on several threads at once, and keep features input by input; without it they are computed
    in batches of one client's inputs and kept client by client (:class:`KnownFeatures`).
    ``version`` is raised whenever the same input gets other features. ``width`` gives the number of
    features for inputs of a shape; a map without it is tried on a few inputs first.
    """

    name: str
    help: str
    build: Callable[[Shape], Function]
    by_input: bool = False
    version: int = 1
    width: Callable[[Shape], int] | None = None


def _scattering(shape: Shape) -> Function:
    if len(shape) != 3 or min(shape[1:]) < 8:
        raise CarvyError(
            "feature map 'scattering' needs images (channels, height, width) of at least 8×8, not "
            f"inputs of shape {shape}; use features 'none' or a map of your own"
        )
    return scattering_features


# Every registered feature map
FEATURES: Registry[FeatureMap] = Registry(
    "feature map",
    "carvyfl.features",
    [
        FeatureMap(
            "scattering",
            "wavelet scattering of images: data-free",
            _scattering,
            by_input=True,
            version=3,
            width=lambda shape: feature_width(*shape),
        ),
        FeatureMap(
            "none",
            "the inputs themselves, such as embeddings made elsewhere",
            lambda shape: lambda x: x.flatten(1),
            width=math.prod,
        ),
    ],
)


class KnownFeatures:
    """The features of inputs, by the inputs' content.

    The last bits of a product depend on the rows beside it and on the number of threads. So that no
    client reaches another through a batch, a map of ours (``by_input``) gets one input at a time on
    a CPU, and its features are computed once for each distinct input. Any other map, and every map
    on a GPU, gets batches of one array: a client's inputs, or those to predict.
    """

    def __init__(self, features: Function, width: int, fingerprint: str, *, by_input: bool) -> None:
        self.features, self.width, self.fingerprint = features, width, fingerprint
        self.by_input = by_input
        self._rows: dict[bytes, Rows] = {}  # one vector, or those of a whole array
        self._read: set[Path] = set()

    def of(self, inputs: Inputs, device: str | None = None) -> Rows:
        """Return the features of stored inputs, float32 of shape (n, d)."""
        keys = self._keys(inputs, device)
        list(self._compute(self._unknown(inputs, keys, device), device))
        rows = [self._rows[key] for key in keys] or [np.empty(0, dtype=np.float32)]
        return np.concatenate(rows).reshape(-1, self.width)

    def together(self, arrays: Sequence[Inputs], device: str, *, learned: bool) -> Tensor:
        """Return the features of all inputs of arrays, (Σ n, d), on a device; for estimates."""
        if learned:
            known = np.concatenate([self.of(inputs, device) for inputs in arrays])
            return torch.from_numpy(known).to(device)
        inputs = torch.cat([prepared(array, *UNSCALED, device) for array in arrays])
        with torch.no_grad():
            batches = torch.split(inputs, self._batch_size(device))
            return torch.cat([self.features(batch).float() for batch in batches])

    def learn(
        self, arrays: Iterable[Inputs], *, device: str | None, folder: Path | None, progress: Report
    ) -> None:
        """Compute the features of many inputs, or find them in the folder where they are kept."""
        parts, done = list(in_parts(arrays, PER_FILE)), 0
        total = sum(len(inputs) for part in parts for inputs in part)
        place = None if folder is None else folder / f"{self.fingerprint}-{ARITHMETIC}"
        if place is not None:
            self._load(place)
        progress(0, total)
        for part in parts:
            unknown: dict[bytes, Inputs] = {}
            for inputs in part:
                unknown |= self._unknown(inputs, self._keys(inputs, device), device)
            done += sum(map(len, part))
            for left in self._compute(unknown, device):
                progress(done - left, total)
            progress(done, total)
            # What is of one client, in one batching, is not worth a place on disk.
            if place is not None and unknown and self._each(device):
                self._save(place, list(unknown))

    def _each(self, device: str | None) -> bool:
        return self.by_input and device is None

    def _batch_size(self, device: str | None) -> int:
        return AT_ONCE_ON_DEVICE if self.by_input and device is not None else AT_ONCE

    def _keys(self, inputs: Inputs, device: str | None) -> list[bytes]:
        """Return a key for every input, or a single one for all together."""
        head = f"{inputs.dtype}{inputs.shape[1:]}".encode()
        content = np.ascontiguousarray(inputs)
        if self._each(device):
            texts = (head + item.tobytes() for item in content)
            return [hashlib.blake2b(text, digest_size=16).digest() for text in texts]
        head += f"{device} {torch.get_num_threads()}".encode()
        digest = hashlib.blake2b(head, digest_size=16)
        digest.update(content.data)  # not joined to the head: that would copy a client's data
        return [digest.digest()]

    def _unknown(
        self, inputs: Inputs, keys: list[bytes], device: str | None
    ) -> dict[bytes, Inputs]:
        """Return what is left to compute, by key."""
        parts = [inputs[i : i + 1] for i in range(len(keys))] if self._each(device) else [inputs]
        return {key: part for key, part in zip(keys, parts, strict=True) if key not in self._rows}

    def _compute(self, unknown: Mapping[bytes, Inputs], device: str | None) -> Iterator[int]:
        """Compute the features of each key's inputs; yield how many are left."""
        keys = list(unknown)
        if not self._each(device):
            size = self._batch_size(device)
            for key, inputs in unknown.items():
                starts = range(0, len(inputs), size)
                batches = [self._batch(inputs[i : i + size], device) for i in starts]
                self._rows[key] = np.concatenate(batches)
            return
        parts = [keys[i : i + PER_THREAD] for i in range(0, len(keys), PER_THREAD)]

        def alone(part: list[bytes]) -> Rows:
            scaled = prepared(np.concatenate([unknown[key] for key in part]), *UNSCALED)
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
                yield left

    def _batch(self, inputs: Inputs, device: str | None) -> Rows:
        _multiply_exactly(device)
        with torch.no_grad():
            rows: Rows = self.features(prepared(inputs, *UNSCALED, device)).float().cpu().numpy()
        return rows

    def _load(self, folder: Path) -> None:
        """Read the files of a folder that were not read yet; a damaged one counts for nothing."""
        for path in sorted({*folder.glob("*.safetensors")} - self._read):
            self._read.add(path)
            try:
                keys, rows = itemgetter("keys", "features")(load_file(path))
                if path.stem != _name(keys, rows) or rows.shape[1:] != (self.width,):
                    raise ValueError
            except (SafetensorError, OSError, KeyError, ValueError):
                with contextlib.suppress(OSError):
                    path.unlink()
            else:
                self._rows.update(zip(map(bytes, keys), rows, strict=True))

    def _save(self, folder: Path, keys: list[bytes]) -> None:
        names = np.array([list(key) for key in keys], dtype=np.uint8)
        rows = np.stack([self._rows[key] for key in keys])
        path = folder / f"{_name(names, rows)}.safetensors"
        self._read.add(path)
        # They only save time: a run goes on in a folder that cannot be written.
        with contextlib.suppress(CarvyError), replacing(path) as file:
            file.write(save({"keys": names, "features": rows}))


def _multiply_exactly(device: str | None) -> None:
    if device == "cuda":  # a stacked net may have set it otherwise
        torch.backends.cuda.matmul.allow_tf32 = False


def _name(keys: npt.NDArray[np.uint8], rows: Rows) -> str:
    return hashlib.blake2b(keys.tobytes() + rows.tobytes(), digest_size=16).hexdigest()


@dataclass(frozen=True, eq=False)
class Features(Fingerprinted):
    """A feature map for inputs of one shape.

    ``digest`` hashes the map, the weights of a frozen network included. ``known`` computes it.
    ``projection``, if any, is what its vectors are multiplied with, float32 of shape (their length,
    d); ``width`` is d, the number of features.
    """

    name: str
    digest: str
    known: KnownFeatures
    projection: Tensor | None
    width: int

    @property
    def fingerprint(self) -> str:
        """The digest, and all else that the last bits of features hang on: part of every key."""
        if self.known.by_input and self.projection is None:
            return self.digest
        return f"{self.digest} {torch.get_num_threads()}"

    def __call__(self, x: Tensor) -> Tensor:
        """Return the features of inputs, float32 of shape (n, d)."""
        with torch.no_grad():
            return self._projected(self.known.features(x).float())

    def of(self, inputs: Inputs, device: str | None = None) -> Rows:
        """Return the features of stored inputs, float32 of shape (n, d), computed once."""
        rows: Rows = self._projected(torch.from_numpy(self.known.of(inputs, device))).numpy()
        return rows

    def of_each(
        self, arrays: Sequence[Inputs], device: str | None = None, *, learned: bool = True
    ) -> Iterator[Rows]:
        """Yield the features of arrays; on a device projected together: for estimates."""
        if device is None or self.projection is None:
            yield from (self.of(inputs, device) for inputs in arrays)
            return
        onto = self.projection.to(device)
        _multiply_exactly(device)
        for part in in_parts(arrays, PROJECTED_AT_ONCE):
            rows = self.known.together(part, device, learned=learned) @ onto
            yield from np.split(rows.cpu().numpy(), np.cumsum([len(array) for array in part])[:-1])

    def _projected(self, rows: Tensor) -> Tensor:
        return rows if self.projection is None else rows @ self.projection.to(rows.device)

    def __deepcopy__(self, memo: object) -> Features:
        """Return itself: it never changes, and what is known need not be computed again."""
        return self


def features_for(
    features: str | nn.Module | Function, shape: Shape, projection: int | None = None
) -> Features:
    """Return a feature map for inputs of a shape; one that users bring is checked on some.

    Parameters
    ----------
    features
        A registered name; a frozen ``torch.nn.Module``, which is used in evaluation mode; or a
        function of inputs. It must give one finite vector per input, the same every time and in
        any company.
    projection
        d: project the vectors to so many numbers, by a fixed random matrix; None leaves them.
    """
    if isinstance(features, str):
        return projected_to(projection, _registered(features, shape))
    if not callable(features):
        raise CarvyError(
            f"features must be a name, a torch module or a function, not {type(features).__name__}"
        )
    name = getattr(features, "__name__", type(features).__name__)
    function = features.eval() if isinstance(features, nn.Module) else features
    width = _tried_width(function, name, shape)
    if isinstance(function, nn.Module):
        on_any_device: Function = _Network(function, name)
        # After large inputs a running mean differs by more than rounding; what else comes of
        # them does not matter.
        with torch.no_grad(), contextlib.suppress(RuntimeError, ValueError, IndexError, TypeError):
            on_any_device(1e4 * _example(shape, 3))
    else:  # it sees inputs on the CPU, where it was tried; it may move them itself

        def on_any_device(inputs: Tensor) -> Tensor:
            return function(inputs.cpu()).to(inputs.device)

    described = _described(name, on_any_device, describe(function), shape, width, by_input=False)
    return projected_to(projection, described)


class _Network:
    """A frozen network that takes inputs on any device: copies of it move there.

    One that changes while it computes features, as a running mean does, is refused.
    """

    def __init__(self, network: nn.Module, name: str) -> None:
        self.name, self._network = name, network
        self._copies = {torch.device("cpu"): (network, _state(network))}

    def __call__(self, inputs: Tensor) -> Tensor:
        if inputs.device not in self._copies:
            moved = copy.deepcopy(self._network).to(inputs.device)
            self._copies[inputs.device] = moved, _state(moved)
        network, before = self._copies[inputs.device]
        rows: Tensor = network(inputs)
        after = _state(network, cloned=False)
        if len(after) != len(before) or not all(map(_same_bits, after, before)):
            raise CarvyError(
                f"feature map '{self.name}' changes its parameters or buffers as it computes "
                "features; one client could reach another through them: leave them alone in "
                "`forward`"
            )
        return rows


def _state(network: nn.Module, *, cloned: bool = True) -> list[Tensor]:
    """Return all parameters and buffers, those that are not saved with the network, too."""
    tensors = [tensor.detach() for tensor in (*network.parameters(), *network.buffers())]
    return [tensor.clone() for tensor in tensors] if cloned else tensors


def _same_bits(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors hold the same numbers; NaN is the same as itself."""
    as_bytes = (tensor.reshape(-1).view(torch.uint8) for tensor in (one, other))
    return one.dtype == other.dtype and torch.equal(*as_bytes)


def one_by_one(features: Features) -> Features:
    """Return the same features, computed one input at a time wherever the CPU computes them."""
    known = features.known
    if not known.by_input:
        digest = f"{known.fingerprint}-each"
        known = KnownFeatures(known.features, known.width, digest, by_input=True)
    return replace(features, known=known)


def probe(features: Features, shape: Shape) -> npt.NDArray[np.float32]:
    """Return the features of a made-up input, (d,), by which machines compare their maps."""
    vector: npt.NDArray[np.float32] = features(_example(shape, 1)).numpy()[0]
    return vector


def is_same(probe: npt.NDArray[np.float32], other: npt.NDArray[np.float32]) -> bool:
    """Whether two probes come from the same map, but for rounding."""
    return bool(np.allclose(probe, other, rtol=0, atol=CLOSE * float(np.abs(other).max())))


def _example(shape: Shape, size: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(0).random((size, *shape), dtype=np.float32))


@functools.cache  # so that runs one after another share what is known
def _registered(name: str, shape: Shape) -> Features:
    entry = FEATURES.pick(name)
    function = entry.build(shape)
    if entry.width is None:
        width = _tried_width(function, name, shape)
    else:
        width = _usable_width(entry.width(shape), name)
    description = f"{entry.version} {describe(function)}"
    return _described(name, function, description, shape, width, by_input=entry.by_input)


def _described(
    name: str, function: Function, description: str, shape: Shape, width: int, *, by_input: bool
) -> Features:
    digest = hashlib.blake2b(f"{name} {shape} {description}".encode(), digest_size=16).hexdigest()
    known = KnownFeatures(function, width, digest, by_input=by_input)
    return Features(name, digest, known, None, width)


def projected_to(width: int | None, features: Features) -> Features:
    """Return features of another width: times a Gaussian matrix that depends on both widths."""
    if width is None:
        return features
    if not 1 <= whole_number(width, "projection") < features.width:
        raise CarvyError(
            f"`projection` to {width} numbers: feature map '{features.name}' gives "
            f"{features.width}; choose fewer, or leave it out"
        )
    draw = np.random.default_rng([features.width, width])
    matrix = draw.standard_normal((features.width, width), dtype=np.float32) / np.sqrt(width)
    matrix = matrix.astype(np.float32)
    digest = hashlib.blake2b(features.digest.encode() + matrix.tobytes(), digest_size=16)
    onto = torch.from_numpy(matrix)
    onto = onto if features.projection is None else features.projection @ onto
    return replace(features, digest=digest.hexdigest(), projection=onto, width=width)


def _tried_width(function: Function, name: str, shape: Shape) -> int:
    example, where = _example(shape, 3), f"feature map '{name}'"
    try:
        with torch.no_grad():
            first = function(example)
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        raise CarvyError(
            f"{where} does not accept inputs of shape {shape}: {reason(error)}"
        ) from error
    if not isinstance(first, Tensor) or first.ndim != 2 or len(first) != len(example):
        given = tuple(first.shape) if isinstance(first, Tensor) else type(first).__name__
        raise CarvyError(
            f"{where} must give one vector per input, shape (n, d), but gave {given} for "
            f"{len(example)} inputs"
        )
    if not torch.isfinite(first).all():
        raise CarvyError(f"{where} gives NaN or infinity")
    width = _usable_width(first.shape[1], name)
    with torch.no_grad():
        again = function(example)
        alone = torch.cat([function(one[None]) for one in example])
    close = functools.partial(torch.allclose, first, rtol=0, atol=CLOSE * float(first.abs().max()))
    if not close(again):
        raise CarvyError(
            f"{where} gives other features for the same inputs a second time; switch off dropout "
            "and everything random in it"
        )
    if not close(alone):
        raise CarvyError(
            f"{where} gives an input other features in a batch than alone, as BatchNorm does in "
            "training; one client could reach another through it: call .eval() on it"
        )
    return width


def _usable_width(width: int, name: str) -> int:
    if not 0 < width <= WIDEST:
        raise CarvyError(f"feature map '{name}' gives {width} features; 1 to {WIDEST} can be used")
    return width
