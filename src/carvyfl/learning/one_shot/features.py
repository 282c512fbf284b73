"""Fixed features: a map from inputs to vectors that was fixed before any client was heard."""

from __future__ import annotations

import functools
import hashlib
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from carvyfl.core.errors import CarvyError
from carvyfl.core.fingerprint import Fingerprinted, describe
from carvyfl.core.registry import Registry
from carvyfl.learning.models.registry import Shape
from carvyfl.learning.one_shot.known_features import KnownFeatures
from carvyfl.learning.one_shot.scattering import scattering_features

Function = Callable[[Tensor], Tensor]
"""Prepared inputs, float32 of shape (n, …) → features, shape (n, d)."""

CLOSE = 1e-3
"""Features differ by rounding only if they differ by less than this, as a share of the largest."""

WIDEST = 8192
"""The largest d: a client's message and the work for a head grow with its square."""


@dataclass(frozen=True)
class FeatureMap:
    """A registered feature map.

    ``build`` gives the map for inputs of a shape. ``by_input`` says that the features of an input
    are the same, bit for bit, whatever else is in its batch; they are then kept input by input.
    """

    name: str
    help: str
    build: Callable[[Shape], Function]
    by_input: bool = False


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
        FeatureMap("scattering", "wavelet scattering of images: data-free", _scattering, True),
        FeatureMap(
            "none",
            "the inputs themselves, such as embeddings made elsewhere",
            lambda shape: lambda x: x.flatten(1),
            True,
        ),
    ],
)
"""Every registered feature map."""


@dataclass(frozen=True, eq=False)
class Features(Fingerprinted):
    """A feature map for inputs of one shape.

    Attributes
    ----------
    name
        Its registered name, or the name of a user's own.
    function
        What computes it.
    width
        d, the number of features.
    fingerprint
        A hash of the map, the weights of a frozen network included: part of every key.
    by_input
        See :class:`FeatureMap`.
    """

    name: str
    function: Function
    width: int
    fingerprint: str
    by_input: bool

    def __call__(self, x: Tensor) -> Tensor:
        """Return the features of prepared inputs, float32 of shape (n, d)."""
        with torch.no_grad():
            return self.function(x).float()

    @functools.cached_property
    def known(self) -> KnownFeatures:
        """What was computed with it in this process."""
        return KnownFeatures(self, self.width, self.fingerprint, by_input=self.by_input)

    def __deepcopy__(self, memo: object) -> Features:
        """Return itself: it never changes, and what is known need not be computed again."""
        return self


def features_for(features: str | nn.Module | Function, shape: Shape) -> Features:
    """Return a feature map for inputs of a shape, checked on some.

    Parameters
    ----------
    features
        A registered name; a frozen ``torch.nn.Module``, which is used in evaluation mode; or a
        function of prepared inputs.
    shape
        The shape of one input.

    Raises
    ------
    CarvyError
        If it does not give one finite vector per input, the same every time and in any company.
    """
    if isinstance(features, str):
        return _registered(features, shape)
    if not callable(features):
        raise CarvyError(
            f"features must be a name, a torch module or a function, not {type(features).__name__}"
        )
    name = getattr(features, "__name__", type(features).__name__)
    own = features.eval() if isinstance(features, nn.Module) else features
    return _described(name, own, describe(own), shape, by_input=False)


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
    source = inspect.getsource(sys.modules[own.__module__])  # it may call other functions
    return _described(name, own, f"{source} {describe(own)}", shape, by_input=entry.by_input)


def _described(
    name: str, function: Function, description: str, shape: Shape, *, by_input: bool
) -> Features:
    digest = hashlib.blake2b(f"{name} {shape} {description}".encode(), digest_size=16).hexdigest()
    return Features(name, function, _checked_width(function, name, shape), digest, by_input)


def _checked_width(function: Function, name: str, shape: Shape) -> int:
    """Try a feature map on a few inputs and return its width."""
    example = _example(shape, 3)
    where = f"feature map '{name}'"
    try:
        with torch.no_grad():
            first, again = function(example), function(example)
            alone = torch.cat([function(example[i : i + 1]) for i in range(len(example))])
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise CarvyError(f"{where} does not accept inputs of shape {shape}: {reason}") from error
    if not isinstance(first, Tensor) or first.ndim != 2 or len(first) != len(example):
        found = tuple(first.shape) if isinstance(first, Tensor) else type(first).__name__
        raise CarvyError(
            f"{where} must give one vector per input, shape (n, d), but gave {found} for "
            f"{len(example)} inputs"
        )
    if not torch.isfinite(first).all():
        raise CarvyError(f"{where} gives NaN or infinity")
    if not 0 < first.shape[1] <= WIDEST:
        raise CarvyError(
            f"{where} gives {first.shape[1]} features; 1 to {WIDEST} can be used: add a projection"
        )
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
    return first.shape[1]
