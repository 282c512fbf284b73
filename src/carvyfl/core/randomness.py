"""Randomness by key: the one place where seeds are derived.

Every random choice is a function of a key such as *(seed, purpose, client, round)* and of nothing
else: what one group draws cannot shift what another draws, on which the certificate rests.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:  # most users of keys need no tensors, and importing torch takes seconds
    from torch import Tensor

MULTIPLIERS = (0x7FEB352D, 0x846CA68B)
"""Of the 32-bit hash, from the published "lowbias32" search; the GPU kernel shares them."""
IN_CACHE = 1 << 15  # words hashed at a time on a CPU

Words = npt.NDArray[np.uint32]


def derive(seed: int, *key: str | int) -> int:
    """Derive a number below 2**63 from a seed and a key, such as ``("dropout", client, round)``.

    Parts are separated unambiguously: ``("a", "b")`` and ``("ab",)`` differ.
    """
    digest = hashlib.blake2b(_text(seed, *key), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def stem(seed: int, *key: str | int) -> bytes:
    """Return what keys that differ only in their last number share."""
    return _text(seed, *key) + b"\x1fnumber:"


def derive_each(stems: Iterable[bytes], numbers: Iterable[int]) -> npt.NDArray[np.int64]:
    """Return what :func:`derive` gives of each stem and its last number, in half the time."""
    keys = (b"%b%d" % key for key in zip(stems, numbers, strict=False))
    digests = b"".join(hashlib.blake2b(key, digest_size=8).digest() for key in keys)
    return (np.frombuffer(digests, ">u8") >> np.uint64(1)).astype(np.int64)


def _text(*key: str | int) -> bytes:
    parts = (f"text:{part}" if isinstance(part, str) else f"number:{int(part)}" for part in key)
    return "\x1f".join(parts).encode()


def generator(seed: int, *key: str | int) -> np.random.Generator:
    """Return a NumPy generator that belongs to this key alone."""
    return np.random.default_rng(derive(seed, *key))


def fold(keys: Tensor, number: int | Tensor) -> Tensor:
    """Derive, on the device, the key of sub-purpose ``number`` (a step, a layer) from each key.

    A multiply-xorshift step on 64 bits, which wrap; the result keeps the sign bit clear, like
    :func:`derive`'s. A number may lie on the device: int64, of one element.
    """
    shift = (number + 1) * 0x1E3779B97F4A7C15
    if isinstance(shift, int):
        shift = (shift + 2**63) % 2**64 - 2**63  # wraps like the tensors' own int64 arithmetic
    mixed = (keys + shift) * 0x2545F4914F6CDD1D
    return (mixed ^ ((mixed >> 29) & 0x7FFFFFFFF)) & 0x7FFFFFFFFFFFFFFF


def _mix(bits: Tensor) -> Tensor:
    """Scramble int32 ``bits`` in place, bijectively: two multiply-xorshift rounds, which wrap."""
    # torch's int32 shifts are arithmetic: mask the copies of the sign away
    bits ^= (bits >> 16) & 0xFFFF
    bits *= MULTIPLIERS[0]
    bits ^= (bits >> 15) & 0x1FFFF
    bits *= MULTIPLIERS[1] - (1 << 32)
    bits ^= (bits >> 16) & 0xFFFF
    return bits


def _mix_on_cpu(bits: Words, scratch: Words) -> None:
    """Compute :func:`_mix` on uint32: NumPy's unsigned shifts take a third of the time."""
    for shift, factor in zip((16, 15), MULTIPLIERS, strict=True):
        bits ^= np.right_shift(bits, np.uint32(shift), out=scratch)
        bits *= np.uint32(factor)
    bits ^= np.right_shift(bits, np.uint32(16), out=scratch)


def halves(keys: Tensor) -> tuple[Tensor, Tensor]:
    """Split 64-bit keys into their low and high 32 bits, each as int32."""
    import torch

    low = keys & 0xFFFFFFFF
    signed = torch.where(low >= 1 << 31, low - (1 << 32), low)
    return signed.to(torch.int32), (keys >> 32).to(torch.int32)


def hash_bits(keys: Tensor, count: int) -> Tensor:
    """Hash the counters 0 … ``count`` - 1 under each key, int64 (...) → int32 (..., count)."""
    if keys.device.type == "cpu":
        return _hash_bits_on_cpu(keys, count)
    import torch

    low, high = halves(keys)
    counter = torch.arange(count, dtype=torch.int32, device=keys.device)
    bits = counter + low[..., None]
    return _mix(_mix(bits) ^ high[..., None])


def _hash_bits_on_cpu(keys: Tensor, count: int) -> Tensor:
    """Do the same in blocks that stay in a core's cache."""
    import torch

    hashes = np.empty((keys.numel(), count), dtype=np.uint32)
    counter = np.arange(min(count, IN_CACHE), dtype=np.uint32)
    scratch = np.empty_like(counter)
    for row, key in zip(hashes, keys.flatten().tolist(), strict=True):
        for start in range(0, count, IN_CACHE):
            bits = row[start : start + IN_CACHE]
            np.add(counter[: len(bits)], np.uint32((start + key) & 0xFFFFFFFF), out=bits)
            _mix_on_cpu(bits, scratch[: len(bits)])
            bits ^= np.uint32(key >> 32)
            _mix_on_cpu(bits, scratch[: len(bits)])
    return torch.from_numpy(hashes.view(np.int32)).view(*keys.shape, count)


def shuffled(keys: Tensor, count: int) -> Tensor:
    """Return, for each key, a random order of 0 … ``count`` - 1, on every device the same."""
    return hash_bits(keys, count).argsort(dim=-1, stable=True)


def keep_mask(keys: Tensor, count: int, drop: float) -> Tensor:
    """Return a boolean mask, False with probability ``drop``, for each key."""
    import torch

    bits, least = hash_bits(keys, count), keep_threshold(drop)
    if bits.device.type == "cpu":  # NumPy compares several times as fast
        return torch.from_numpy(bits.numpy() >= np.int32(least))
    return bits >= least


def keep_threshold(drop: float) -> int:
    """Return the least hash (as int32) that is kept when a share ``drop`` is dropped."""
    return min(round(drop * 2**32) - 2**31, 2**31 - 1)
