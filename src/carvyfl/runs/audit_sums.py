"""The audit of one-shot training: from the clients' data to their sums, and on to the models."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from carvyfl.core.errors import CarvyError
from carvyfl.data.partitions import PARTITIONS
from carvyfl.learning.job import UNUSABLE
from carvyfl.learning.one_shot.features import FEATURES
from carvyfl.learning.one_shot.head import NEVER
from carvyfl.learning.one_shot.model import OneShotModel
from carvyfl.learning.one_shot.sums import fault
from carvyfl.learning.one_shot.training import head_from
from carvyfl.pipeline import Setup, each_clients_sums
from carvyfl.profiles.class_counts import class_count_types, collect_counts
from carvyfl.profiles.class_means import types_of_counts
from carvyfl.runs.audit_data import RunData
from carvyfl.runs.audit_outcomes import registered
from carvyfl.runs.config import split_data
from carvyfl.runs.folder import RunFolder

SAME_HEAD = 1e-5
"""How far a head may be from the one derived, as a share of its largest weight or bias: both come
from the same sums in float64, and are rounded to float32."""

SAME_SUMS = 1e-4
"""How far sums may be from those of the data, as a share of their length: another processor rounds
features otherwise. A change of the last bit in every pixel moves the sums of scattering features by
7e-6."""


def check_sums(folder: RunFolder) -> str:
    """Check the kept sums by themselves, and the types against the counts in them."""
    registered(FEATURES, folder.record().config.features)
    sums, types = folder.sums(), folder.types()
    unusable = [
        client
        for client in range(sums.clients)
        if fault(sums.of(client), sums.width, sums.classes) is not None
    ]
    left = f"; those of {len(unusable)} cannot be used" if unusable else ""
    found = f"of {sums.clients} clients: {sums.classes} classes of {sums.width} features{left}"
    if types is None or types.method not in {"class-counts", "class-means"}:
        return found
    counts = sums.counts()
    again = (
        class_count_types(collect_counts(counts.astype(np.float32), sums.classes))
        if types.method == "class-counts"
        else types_of_counts(counts, types.set_aside)
    )
    # Warnings also tell of the vectors, which the counts alone do not give.
    if replace(again, warnings=types.warnings).to_json() != types.to_json():
        raise CarvyError("types.json does not hold the types that follow from the counts")
    return f"{found}; the types follow from the counts"


def check_sums_from_data(folder: RunFolder, data: RunData) -> str:
    """Split the data again, compute every client's sums, and compare."""
    config = folder.record().config
    registered(PARTITIONS, config.partition)
    registered(FEATURES, config.features)
    dataset, sums = data.data_set, folder.sums()
    module = config.module(dataset.train.inputs.shape[1:], dataset.num_classes, config.seed)
    setup = Setup(split_data(config, dataset), module, config.training, config.seed)
    largest = 0.0
    for client, own in enumerate(each_clients_sums(setup, None)):
        kept = sums.of(client)
        if not np.array_equal(own.counts, kept.counts):
            raise CarvyError(f"the class counts of client {client} are not those of its data")
        far = max(_distance(own.first, kept.first), _distance(own.second, kept.second))
        if far > SAME_SUMS:
            raise CarvyError(f"the sums of client {client} are not those of its data")
        largest = max(largest, far)
    return f"every client's sums follow from its data, {_agreement(largest)}"


def check_heads(folder: RunFolder, method: str) -> str:
    """Derive every group's head from its members' sums, and compare it with the stored model."""
    record = folder.record()
    registered(FEATURES, record.config.features)
    entry, sums, models = record.methods[method], folder.sums(), folder.models(method)
    module = models.module
    assert isinstance(module, OneShotModel)
    set_aside: dict[str, str] = {}
    largest = 0.0
    for g, members in enumerate(folder.grouping(method).groups):
        again = head_from(
            module, ((client, sums.of(client)) for client in sorted(members.tolist()))
        )
        set_aside |= {str(client): why for client, why in again.set_aside.items()}
        if again.stopped != entry.stopped[g]:
            raise CarvyError(
                f"group {g} is said to have stopped as '{entry.stopped[g]}'; from its members' "
                f"sums follows '{again.stopped}'"
            )
        if again.stopped in UNUSABLE:
            continue
        far = _head_distance(again.weights, models.weights[g], module.head.weight.numel())
        if far > SAME_HEAD:
            raise CarvyError(f"the model of group {g} does not follow from its members' sums")
        largest = max(largest, far)
    if set_aside != entry.set_aside:
        raise CarvyError("other clients were set aside than those whose sums cannot be used")
    return f"{len(models)} models follow from their members' sums, {_agreement(largest)}"


def _agreement(largest: float) -> str:
    return f"up to rounding ({largest:.1g})" if largest else "bit for bit"


def _distance(derived: npt.NDArray[Any], kept: npt.NDArray[Any]) -> float:
    """Return the length of a difference, as a share of the length of what was derived."""
    if np.array_equal(derived, kept, equal_nan=True):
        return 0.0
    with np.errstate(invalid="ignore"):  # the difference of two infinities
        difference = np.subtract(derived, kept, dtype=np.float64)
    return _share(float(np.linalg.norm(difference)), float(np.linalg.norm(derived)))


def _head_distance(derived: Tensor, stored: Tensor, num_weights: int) -> float:
    """Return the largest difference between two heads, as a share of the largest weight or bias.

    The bias of a class that nobody in the group holds is a constant, and must be the same.
    """
    never = derived == torch.tensor(NEVER, dtype=derived.dtype)
    if not torch.equal(derived[never], stored[never]):
        return math.inf
    held = torch.where(never, 0.0, derived)
    difference = torch.where(never, 0.0, stored - derived)
    parts = (slice(num_weights), slice(num_weights, None))  # each has a scale of its own
    return max(
        _share(float(difference[part].abs().max()), float(held[part].abs().max())) for part in parts
    )


def _share(difference: float, scale: float) -> float:
    """Return a difference as a share of a scale; infinity, never NaN, if there is none."""
    if difference == 0:
        return 0.0
    return difference / scale if scale > 0 and math.isfinite(difference) else math.inf
