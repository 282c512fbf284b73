"""Tensors written to files of the safetensors format."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from carvyfl.core.files import replacing

AT_ONCE = 2**24
"""Bytes of a tensor copied at once, where its numbers do not lie in memory as in the file."""


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write float32 tensors of the CPU to a safetensors file that is complete or absent.

    The bytes are those of ``safetensors.torch.save``, which first copies everything three times;
    here they go into the file some rows at a time. They may share memory, and be views.
    """
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    end = 0
    for name in sorted(tensors):
        start, end = end, end + tensors[name].nbytes
        assert tensors[name].dtype == torch.float32
        shape = list(tensors[name].shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # so that the numbers are aligned
    with replacing(path) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in sorted(tensors):
            for part in _parts(tensors[name]):
                file.write(part.contiguous().numpy().data)


def _parts(tensor: Tensor) -> Sequence[Tensor]:
    """Return a tensor as it is if its numbers lie one after another, else some rows at a time."""
    if tensor.is_contiguous():
        return [tensor]
    return torch.split(tensor, max(1, AT_ONCE * len(tensor) // tensor.nbytes))
