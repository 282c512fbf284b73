"""The audit of what groups learned: sums, models, votes, certificates and results of attacks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from carvyfl.core.archives import npz_shapes, safetensors_shapes
from carvyfl.core.errors import CarvyError
from carvyfl.data.clients import Inputs
from carvyfl.data.partitions import PARTITIONS
from carvyfl.groups.basis import READINGS
from carvyfl.learning.models.registry import MODELS
from carvyfl.learning.one_shot.features import FEATURES
from carvyfl.learning.one_shot.head import NEVER
from carvyfl.learning.one_shot.model import OneShotModel
from carvyfl.learning.one_shot.sums import Floats, fault
from carvyfl.learning.one_shot.training import head_from
from carvyfl.learning.recipe import UNUSABLE
from carvyfl.learning.scaffold.local import FlatNet, prepared
from carvyfl.pipeline import Setup, each_clients_sums
from carvyfl.profiles.class_counts import class_count_types, collect_counts
from carvyfl.profiles.class_means import types_of_counts
from carvyfl.runs.audited import AuditedRun, compare, registered
from carvyfl.runs.config import RunSettings, split_data
from carvyfl.runs.record import certified_method
from carvyfl.voting.certificate import undercut
from carvyfl.voting.group_models import GroupModels
from carvyfl.voting.votes import NO_VOTE

NEAR = 1e-4
"""Two logits this close, as a share of their size, may fall otherwise on another device."""

FEW = 1e-3
"""The share of test inputs on which that may happen; one input may in any case."""

SAME_HEAD = 1e-5
"""How far a head may be from the one derived, as a share of its largest weight or bias: both come
from the same sums in float64, and are rounded to float32."""

SAME_SUMS = 1e-4
"""How far sums may be from those of the data, as a share of their length: another processor rounds
features otherwise. A change of the last bit in every pixel moves the sums of scattering features by
7e-6."""


def check_architecture(config: RunSettings) -> str:
    """Return the name of the model, or of the features, of a run; it may be unknown here."""
    if config.learner == "one-shot":
        return registered(FEATURES, config.features).name
    return registered(MODELS, config.model).name


def check_sums(run: AuditedRun) -> str:
    """Check the kept sums by themselves, and the types against the counts in them."""
    check_architecture(run.config)
    sums, types = run.folder.sums(), run.folder.types()
    faults = [fault(sums.of(client), sums.width, sums.classes) for client in range(sums.clients)]
    unusable = len(faults) - faults.count(None)
    left = f"; those of {unusable} cannot be used" if unusable else ""
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


def check_sums_from_data(run: AuditedRun) -> str:
    """Split the data again, compute every client's sums, and compare."""
    config = run.config
    registered(PARTITIONS, config.partition)
    check_architecture(config)
    dataset, sums = run.data_set, run.folder.sums()
    module = config.module(dataset.train.inputs.shape[1:], dataset.num_classes, config.seed)
    setup = Setup(split_data(config, dataset), module, config.training, config.seed)
    largest = 0.0
    for client, own in enumerate(each_clients_sums(setup, None)):
        kept = sums.of(client)
        if not np.array_equal(own.counts, kept.counts):
            raise CarvyError(f"the class counts of client {client} are not those of its data")
        pairs = ((own.first, kept.first), (own.second, kept.second))
        far = max(_distance(*pair, np.linalg.norm) for pair in pairs)
        if far > SAME_SUMS:
            raise CarvyError(f"the sums of client {client} are not those of its data")
        largest = max(largest, far)
    return f"every client's sums follow from its data, {_agreement(largest)}"


def check_heads(run: AuditedRun, method: str) -> str:
    """Derive every group's head from its members' sums, and compare it with the stored model."""
    check_architecture(run.config)
    entry, sums, models = run.record.methods[method], run.folder.sums(), run.folder.models(method)
    module = models.module
    assert isinstance(module, OneShotModel)
    set_aside: dict[str, str] = {}
    largest = 0.0
    for g, members in enumerate(run.folder.grouping(method).groups):
        again = head_from(module, ((c, sums.of(c)) for c in sorted(members.tolist())))
        set_aside |= {str(client): why for client, why in again.set_aside.items()}
        if again.stopped != entry.stopped[g]:
            raise CarvyError(
                f"group {g} is said to have stopped as '{entry.stopped[g]}'; from its members' "
                f"sums follows '{again.stopped}'"
            )
        if again.stopped in UNUSABLE:
            continue
        derived, stored = again.weights.numpy(), models.weights[g].numpy()
        far = _head_distance(derived, stored, module.head.weight.numel())
        if far > SAME_HEAD:
            raise CarvyError(f"the model of group {g} does not follow from its members' sums")
        largest = max(largest, far)
    if set_aside != entry.set_aside:
        raise CarvyError("other clients were set aside than those whose sums cannot be used")
    return f"{len(models)} models follow from their members' sums, {_agreement(largest)}"


def _agreement(largest: float) -> str:
    return f"up to rounding ({largest:.1g})" if largest else "bit for bit"


def _head_distance(derived: Floats, stored: Floats, num_weights: int) -> float:
    """Return the distance of two heads in their weights or biases, each of a scale of its own.

    The bias of a class that nobody in the group holds is a constant, and must be the same.
    """
    never = derived == np.float32(NEVER)
    if not np.array_equal(derived[never], stored[never]):
        return math.inf
    pair = (np.where(never, 0, derived), np.where(never, 0, stored))
    return max(
        _distance(pair[0][part], pair[1][part], lambda own: np.abs(own).max())
        for part in (slice(num_weights), slice(num_weights, None))
    )


def _distance(derived: Floats, kept: Floats, size: Callable[[Floats], np.floating[Any]]) -> float:
    """Return the size of a difference, as a share of that of what was derived.

    Infinity, never NaN, where there is no such share.
    """
    if np.array_equal(derived, kept, equal_nan=True):
        return 0.0
    with np.errstate(invalid="ignore"):  # the difference of two infinities
        difference = float(size(np.subtract(derived, kept, dtype=np.float64)))
    scale = float(size(derived))
    return difference / scale if scale > 0 and math.isfinite(difference) else math.inf


def check_models(run: AuditedRun, method: str) -> str:
    """Check that the models which vote are the usable ones, one for every group."""
    entry, recipe = run.record.methods[method], run.config.training
    grouping = run.folder.grouping(method)
    _check_model_shapes(run, method)
    models = run.folder.models(method)
    lists = (entry.rounds, entry.stopped, entry.validation_accuracy, models.weights)
    if {len(own) for own in lists} != {grouping.num_groups}:
        raise CarvyError("the record does not hold one result for every group")
    aside = set(entry.set_aside)
    if not aside <= {str(client) for client in np.flatnonzero(grouping.assignment >= 0)}:
        raise CarvyError("a client was set aside that sits in no group")
    judged = run.deployment is not None or run.config.validation > 0
    finite = torch.isfinite(models.weights).all(dim=1).tolist()
    for g, members in enumerate(grouping.groups):
        rounds, why, history = entry.rounds[g], entry.stopped[g], entry.validation_accuracy[g]
        least = {"rounds": recipe.rounds, "patience": recipe.patience or math.inf}.get(why, 0)
        if not least <= rounds == len(history) <= recipe.rounds:
            raise CarvyError("the rounds are not those of the configuration")
        if not judged and any(accuracy is not None for accuracy in history):
            raise CarvyError("there is a validation accuracy, but no validation data")
        left = any(str(client) not in aside for client in members.tolist())
        fits = {"empty": not left, "diverged": left and not finite[g], "untrained": not rounds}
        if not fits.get(why, left and finite[g]):
            raise CarvyError(
                f"group {g} is said to have stopped as '{why}'; its members or model say no"
            )
    if models.casts.tolist() != [why not in UNUSABLE for why in entry.stopped]:
        raise CarvyError("the models that may vote are not the usable ones")
    return f"{len(models)} models, {int(models.casts.sum())} of them usable"


def _check_model_shapes(run: AuditedRun, method: str) -> None:
    """Compare the sizes of the stored models with the record before memory is taken for either."""
    name, data = check_architecture(run.config), run.record.data
    groups = run.record.methods[method].num_groups
    if run.config.learner == "one-shot":
        module = run.config.module(data.input_shape, data.num_classes)
    else:
        try:
            with torch.device("meta"):  # shapes without numbers
                module = run.config.module(data.input_shape, data.num_classes)
        except (RuntimeError, TypeError, ValueError):  # somebody's own model may need the numbers
            return
    wanted = {own: (groups, *p.shape) for own, p in module.named_parameters()}
    if safetensors_shapes(run.folder.models_file(method)) != wanted:
        raise CarvyError(f"they are not {groups} models '{name}' for the recorded data")


def check_votes(run: AuditedRun, method: str, workers: int | None) -> str:
    """Have the models vote again, and compare; sizes first, before the votes are read."""
    groups, inputs = run.record.methods[method].num_groups, run.record.data.test_inputs
    arrays = npz_shapes(run.folder.votes_file(method))
    shapes = {"votes": (groups, inputs), "labels": (inputs,), "num_classes": ()}
    if {name: shape for name, (shape, _) in arrays.items()} != shapes:
        raise CarvyError(f"they are not those of {groups} groups on {inputs} test inputs")
    check_architecture(run.config)
    samples = run.test
    ballots, labels = run.folder.votes(method)
    if labels is None or not np.array_equal(labels, samples.labels):
        raise CarvyError("the labels in the votes file are not those of the test set")
    models = run.folder.models(method)
    again = models.votes(samples.inputs, workers=workers)
    if again.groups.shape != ballots.groups.shape or again.num_classes != ballots.num_classes:
        raise CarvyError("the votes are of another shape than the models' own")
    different = np.argwhere(again.groups != ballots.groups)
    for group, number in different.tolist():
        cast, own = int(ballots.groups[group, number]), int(again.groups[group, number])
        if not _near_tie(models, group, samples.inputs[number : number + 1], cast, own):
            raise CarvyError(f"group {group} does not vote {cast} on test input {number}")
    touched = len(np.unique(different[:, 1]))
    if touched > max(1, FEW * len(samples)):
        raise CarvyError(f"on {touched} test inputs votes differ; rounding explains a few at most")
    near = (
        f"; {len(different)} near ties fell otherwise here, so that CA(m) holds to within "
        f"{100 * touched / len(samples):.2g} points"
    )
    return f"{ballots.groups.size} votes follow from the models" + (near if touched else "")


def _near_tie(models: GroupModels, group: int, inputs: Inputs, cast: int, own: int) -> bool:
    """Whether a model's logits for two votes are as large as each other, up to rounding."""
    if NO_VOTE in (cast, own):
        return False
    net = FlatNet(models.module)
    net.load(models.weights[group])
    logits = net.logits(prepared(inputs, models.mean, models.std))[0].double()
    pair = logits[[cast, own]]
    near = (pair[0] - pair[1]).abs() <= NEAR * (1 + pair.abs().max())
    return bool(torch.isfinite(logits).all() and near)


def check_certificate(run: AuditedRun, method: str) -> str:
    """Derive margins, CA(m) and AUC from the votes."""
    certificate = run.folder.certificate(method)
    compare(certified_method(certificate), run.record.methods[method], "certificate")
    labels = [READINGS[reading].label for reading in certificate.basis.readings]
    return f"margins, CA(m) and AUC follow from the votes; read {', '.join(labels) or 'not at all'}"


def check_attacks(run: AuditedRun) -> str:
    """Check that results of attacks are about this run, and say of its promise what they show."""
    results = run.folder.attacks()
    for result in results:
        name = f"{result.attack} on {result.method}"
        if result.method not in run.record.methods:
            raise CarvyError(f"{name}: the run has no such method")
        percentages = [*result.accuracy, *result.certified]
        rising = all(a < b for a, b in itertools.pairwise([-1, *result.m, run.num_clients + 1]))
        if not rising or not all(0 <= value <= 100 for value in percentages):
            raise CarvyError(f"{name}: no such numbers of clients, or percentages, can be")
        ca = dict(enumerate(run.record.methods[result.method].ca))
        rounding = 100 * max(1 / run.record.data.test_inputs, FEW)
        # Attackers that lie in Step 1 meet other groups than the run's.
        honest = result.settings.get("step_one", "honest") == "honest"
        pairs = zip(result.m, result.certified, strict=True)
        if honest and any(abs(ca.get(m, 0.0) - found) > rounding for m, found in pairs):
            raise CarvyError(f"{name}: its CA(m) is not this run's")
        if result.promise_kept == bool(undercut(result.accuracy, result.certified)):
            raise CarvyError(f"{name}: whether CA(m) kept its promise does not follow from it")
    return f"{len(results)} results on this run, unchanged; only attacking again can derive them"
