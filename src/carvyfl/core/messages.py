"""What a client sends is checked here before anything else touches it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


def fault(vector: Any, length: int) -> str | None:
    """Say what is wrong with a vector of weights or updates a client sent.

    Parameters
    ----------
    vector
        What the client sent: anything at all.
    length
        P, the number of float32 values expected.

    Returns
    -------
    str or None
        The reason it cannot be used, or None if it can: a one-dimensional
        vector of ``length`` numbers that are finite in float32.
    """
    if vector is None:
        return "no answer"
    if isinstance(vector, torch.Tensor):
        vector = vector.detach().cpu().numpy()
    if not isinstance(vector, np.ndarray) or vector.dtype.kind not in "fiu":
        return "not an array of numbers"
    if vector.shape != (length,):
        return f"wrong shape {vector.shape} instead of {(length,)}"
    with np.errstate(over="ignore"):
        if not np.isfinite(vector.astype(np.float32)).all():
            return "NaN or infinite values"
    return None
