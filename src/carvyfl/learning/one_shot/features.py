"""Fixed features: a map from inputs to vectors that was fixed before any client was heard."""

from __future__ import annotations

import copy
import functools
import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from carvyfl.core.checks import whole_number
from carvyfl.core.errors import CarvyError, reason
from carvyfl.core.fingerprint import Fingerprinted, describe
from carvyfl.core.parts import in_parts
from carvyfl.core.registry import Registry
from carvyfl.data.clients import Inputs
from carvyfl.learning.models.registry import Shape
from carvyfl.learning.one_shot.known_features import KnownFeatures, Rows
from carvyfl.learning.one_shot.scattering_features import feature_width, scattering_features

Function = Callable[[Tensor], Tensor]
"""Inputs, float32 of shape (n, …) → features, shape (n, d).

Inputs are as they are stored: bytes scaled to 0…1, floats as they are. What else a network wants,
such as a normalisation, belongs to the map.
"""

CLOSE = 1e-3
"""Features differ by rounding only if they differ by less than this, as a share of the largest."""

WIDEST = 8192
"""The largest d: a client's message and the work for a head grow with its square."""

PROJECTED_AT_ONCE = 8192
"""Inputs whose features are computed together on a device, unless one array has more."""


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
"""Every registered feature map."""


@dataclass(frozen=True, eq=False)
class Features(Fingerprinted):
    """A feature map for inputs of one shape.

    Attributes
    ----------
    fingerprint
        A hash of the map, the weights of a frozen network included: part of every key.
    known
        What computes it, and what was computed with it in this process.
    projection
        What its vectors are multiplied with, float32 of shape (their length, d); None if they are
        the features themselves.
    width
        d, the number of features.
    """

    name: str
    fingerprint: str
    known: KnownFeatures
    projection: Tensor | None
    width: int

    def __call__(self, x: Tensor) -> Tensor:
        """Return the features of inputs, float32 of shape (n, d)."""
        with torch.no_grad():
            return self._projected(self.known.features(x).float())

    def of(self, inputs: Inputs, device: str | None = None) -> Rows:
        """Return the features of stored inputs, float32 of shape (n, d), computed once."""
        found: Rows = self._projected(torch.from_numpy(self.known.of(inputs, device))).numpy()
        return found

    def of_each(
        self, arrays: Sequence[Inputs], device: str | None = None, *, learned: bool = True
    ) -> Iterator[Rows]:
        """Yield the features of several arrays of stored inputs.

        On a device, where one small array takes as long as many, they are projected together and,
        unless they were ``learned`` before, computed together. An array's features may hang on the
        others by rounding: for estimates.
        """
        if device is None or self.projection is None:
            for inputs in arrays:
                yield self.of(inputs, device)
            return
        onto = self.projection.to(device)
        if onto.is_cuda:  # a stacked net may have set it otherwise
            torch.backends.cuda.matmul.allow_tf32 = False
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
    found = _described(
        name, _on_any_device(function), describe(function), shape, width, by_input=False
    )
    return projected_to(projection, found)


def _on_any_device(function: nn.Module | Function) -> Function:
    """Return a map that takes inputs on any device: copies of a module move there.

    Another function sees inputs on the CPU, where it was tried; it may move them itself.
    """
    if not isinstance(function, nn.Module):
        return lambda inputs: function(inputs.cpu()).to(inputs.device)
    copies = {torch.device("cpu"): function}

    def features(inputs: Tensor) -> Tensor:
        if inputs.device not in copies:
            copies[inputs.device] = copy.deepcopy(function).to(inputs.device)
        rows: Tensor = copies[inputs.device](inputs)
        return rows

    return features


def probe(features: Features, shape: Shape) -> npt.NDArray[np.float32]:
    """Return the features of a made-up input, shape (d,), by which machines compare their maps.

    Every machine computes them by itself. With another map, such as a network with other weights,
    a client would spoil its group's sums without any sign.
    """
    found: npt.NDArray[np.float32] = features(_example(shape, 1)).numpy()[0]
    return found


def is_same(probe: npt.NDArray[np.float32], other: npt.NDArray[np.float32]) -> bool:
    """Whether two probes come from the same map, but for rounding."""
    return bool(np.allclose(probe, other, rtol=0, atol=CLOSE * float(np.abs(other).max())))


def _example(shape: Shape, size: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(0).random((size, *shape), dtype=np.float32))


@functools.cache  # so that runs one after another share what is known
def _registered(name: str, shape: Shape) -> Features:
    entry = FEATURES.pick(name)
    own = entry.build(shape)
    description = f"{entry.version} {describe(own)}"
    if entry.width is None:
        width = _tried_width(own, name, shape)
    else:
        width = _usable_width(entry.width(shape), name)
    return _described(name, own, description, shape, width, by_input=entry.by_input)


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
    digest = hashlib.blake2b(features.fingerprint.encode() + matrix.tobytes(), digest_size=16)
    onto = torch.from_numpy(matrix)
    return replace(
        features,
        fingerprint=digest.hexdigest(),
        projection=onto if features.projection is None else features.projection @ onto,
        width=width,
    )


def _tried_width(function: Function, name: str, shape: Shape) -> int:
    """Try a feature map on a few inputs and return its width."""
    example = _example(shape, 3)
    where = f"feature map '{name}'"
    try:
        with torch.no_grad():
            first = function(example)
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        raise CarvyError(
            f"{where} does not accept inputs of shape {shape}: {reason(error)}"
        ) from error
    if not isinstance(first, Tensor) or first.ndim != 2 or len(first) != len(example):
        found = tuple(first.shape) if isinstance(first, Tensor) else type(first).__name__
        raise CarvyError(
            f"{where} must give one vector per input, shape (n, d), but gave {found} for "
            f"{len(example)} inputs"
        )
    if not torch.isfinite(first).all():
        raise CarvyError(f"{where} gives NaN or infinity")
    width = _usable_width(first.shape[1], name)
    with torch.no_grad():
        again = function(example)
        alone = torch.cat([function(one[None]) for one in example])
    close = CLOSE * float(first.abs().max())
    if not torch.allclose(first, again, rtol=0, atol=close):
        raise CarvyError(
            f"{where} gives other features for the same inputs a second time; switch off dropout "
            "and everything random in it"
        )
    if not torch.allclose(first, alone, rtol=0, atol=close):
        raise CarvyError(
            f"{where} gives an input other features in a batch than alone, as BatchNorm does in "
            "training; one client could reach another through it: call .eval() on it"
        )
    return width


def _usable_width(width: int, name: str) -> int:
    if not 0 < width <= WIDEST:
        raise CarvyError(f"feature map '{name}' gives {width} features; 1 to {WIDEST} can be used")
    return width
