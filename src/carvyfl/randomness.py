"""Randomness by key: the one place where seeds are derived.

Every random choice is a function of a key such as *(seed, purpose, client,
round)* and of nothing else. No stream is shared, so what one group draws, or
how early it stops, cannot shift what another group draws. The certificate
rests on this isolation.

Two tools share the keys. :func:`generator` gives a NumPy generator for the
server's choices. :func:`hash_bits` is a counter-based hash written in
elementary tensor operations: it gives the same numbers on every device and for
one client or a thousand stacked ones, so that all engines shuffle and drop
alike.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from torch import Tensor

MULTIPLIERS = (0x7FEB352D, 0x846CA68B)
"""Of the 32-bit hash, from the published "lowbias32" search; the GPU kernel shares them."""


def derive(seed: int, *key: str | int) -> int:
    """Derive a 63-bit number from a seed and a key.

    Parameters
    ----------
    seed
        The run's seed.
    key
        What the number is for, for instance ``("dropout", client, round)``.
        Parts are separated unambiguously: ``("a", "b")`` and ``("ab",)`` differ.

    Returns
    -------
    int
        Between 0 and 2**63 - 1, so that it fits a signed 64-bit integer.
    """
    text = "\x1f".join(
        f"text:{part}" if isinstance(part, str) else f"number:{int(part)}" for part in (seed, *key)
    )
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def generator(seed: int, *key: str | int) -> np.random.Generator:
    """Return a NumPy generator that belongs to this key alone."""
    return np.random.default_rng(derive(seed, *key))


def fold(keys: Tensor, number: int) -> Tensor:
    """Derive, on the device, the key of sub-purpose ``number`` (a step, a layer) from each key.

    A multiply-xorshift step on 64 bits; the result keeps the sign bit clear, like
    :func:`derive`'s.
    """
    shift = (number + 1) * 0x1E3779B97F4A7C15
    shift = (shift + 2**63) % 2**64 - 2**63  # wraps like the tensors' own int64 arithmetic
    mixed = (keys + shift) * 0x2545F4914F6CDD1D
    return (mixed ^ ((mixed >> 29) & 0x7FFFFFFFF)) & 0x7FFFFFFFFFFFFFFF


def _mix(bits: Tensor) -> Tensor:
    """Scramble int32 ``bits`` in place: a bijective 32-bit finaliser.

    Two multiply-xorshift rounds, the usual shape of integer hash finalisers;
    multiplication wraps.
    """
    if bits.device.type == "cpu":  # NumPy has unsigned shifts, which take a third of the time
        plain = bits.numpy().view(np.uint32)
        shifted = np.empty_like(plain)
        for shift, factor in zip((16, 15), MULTIPLIERS, strict=True):
            plain ^= np.right_shift(plain, shift, out=shifted)
            plain *= np.uint32(factor)
        plain ^= np.right_shift(plain, 16, out=shifted)
        return bits
    # torch's int32 shifts are arithmetic: mask the copies of the sign away
    bits ^= (bits >> 16) & 0xFFFF
    bits *= MULTIPLIERS[0]
    bits ^= (bits >> 15) & 0x1FFFF
    bits *= MULTIPLIERS[1] - (1 << 32)
    bits ^= (bits >> 16) & 0xFFFF
    return bits


def halves(keys: Tensor) -> tuple[Tensor, Tensor]:
    """Split 64-bit keys into their low and high 32 bits, each as int32."""
    low = keys & 0xFFFFFFFF
    return torch.where(low >= 1 << 31, low - (1 << 32), low).to(torch.int32), (keys >> 32).to(
        torch.int32
    )


def hash_bits(keys: Tensor, count: int) -> Tensor:
    """Hash the counters 0 … ``count`` - 1 under each key.

    Parameters
    ----------
    keys
        int64 of shape (...): keys from :func:`derive`.
    count
        How many numbers each key gives.

    Returns
    -------
    Tensor
        int32 of shape (..., count), uniform over all 2**32 values.
    """
    low, high = halves(keys)
    counter = torch.arange(count, dtype=torch.int32, device=keys.device)
    bits = counter + low[..., None]
    return _mix(_mix(bits) ^ high[..., None])


def shuffled(keys: Tensor, count: int) -> Tensor:
    """Return, for each key, a random order of 0 … ``count`` - 1.

    Sorting hashed counters is the one shuffle that looks the same on a CPU and
    for stacked clients on a GPU; ties (one pair in 2**32) keep counter order.
    """
    return torch.argsort(hash_bits(keys, count), dim=-1, stable=True)


def keep_mask(keys: Tensor, count: int, drop: float) -> Tensor:
    """Return a boolean mask, False with probability ``drop``, for each key."""
    return hash_bits(keys, count) >= keep_threshold(drop)


def keep_threshold(drop: float) -> int:
    """Return the least hash (as int32) that is kept when a share ``drop`` is dropped."""
    return min(round(drop * 2**32) - 2**31, 2**31 - 1)
