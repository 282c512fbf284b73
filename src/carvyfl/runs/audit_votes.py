"""The second half of an audit: models, votes, certificates and results of attacks."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import torch
from msgspec import UNSET

from carvyfl.core.archives import npz_shapes, safetensors_shapes
from carvyfl.core.errors import CarvyError
from carvyfl.groups.basis import READINGS
from carvyfl.learning.models.registry import MODELS
from carvyfl.learning.one_shot.features import FEATURES
from carvyfl.learning.recipe import UNUSABLE
from carvyfl.learning.scaffold.local import FlatNet, prepared
from carvyfl.runs.audit_data import RunData
from carvyfl.runs.audit_outcomes import compare, registered
from carvyfl.runs.config import RunSettings
from carvyfl.runs.folder import RunFolder
from carvyfl.runs.record import certified_method
from carvyfl.voting.certificate import undercut
from carvyfl.voting.group_models import GroupModels
from carvyfl.voting.votes import NO_VOTE

NEAR = 1e-4
"""Two logits this close, as a share of their size, may fall otherwise on another device."""

FEW = 1e-3
"""The share of test inputs on which that may happen; one input may in any case."""


def check_models(folder: RunFolder, method: str) -> str:
    """Check that the models which vote are the usable ones, one for every group."""
    record = folder.record()
    entry, recipe, grouping = (
        record.methods[method],
        record.config.training,
        folder.grouping(method),
    )
    _check_model_shapes(folder, method)
    models = folder.models(method)
    stopped, aside = entry.stopped, set(entry.set_aside)
    lists = {len(own) for own in (entry.rounds, stopped, entry.validation_accuracy)}
    if lists != {grouping.num_groups} or len(models) != grouping.num_groups:
        raise CarvyError("the record does not hold one result for every group")
    for rounds, history, why in zip(entry.rounds, entry.validation_accuracy, stopped, strict=True):
        least = {"rounds": recipe.rounds, "patience": recipe.patience or math.inf}.get(why, 0)
        if not least <= rounds == len(history) <= recipe.rounds:
            raise CarvyError("the rounds are not those of the configuration")
        judged = record.deployment is not UNSET or record.config.validation > 0
        if not judged and any(accuracy is not None for accuracy in history):
            raise CarvyError("there is a validation accuracy, but no validation data")
    if not aside <= {str(client) for client in np.flatnonzero(grouping.assignment >= 0)}:
        raise CarvyError("a client was set aside that sits in no group")
    finite = torch.isfinite(models.weights).all(dim=1).tolist()
    for g, members in enumerate(grouping.groups):
        left = [client for client in members.tolist() if str(client) not in aside]
        fits = {
            "empty": not left,
            "diverged": bool(left) and not finite[g],
            "untrained": not entry.rounds[g],
        }
        if not fits.get(stopped[g], bool(left) and finite[g]):
            raise CarvyError(
                f"group {g} is said to have stopped as '{stopped[g]}'; its members or model say no"
            )
    usable = np.array([why not in UNUSABLE for why in stopped])
    if not np.array_equal(usable, models.casts):
        raise CarvyError("the models that may vote are not the usable ones")
    return f"{len(models)} models, {int(models.casts.sum())} of them usable"


def _check_model_shapes(folder: RunFolder, method: str) -> None:
    """Compare the sizes of the stored models with the record before memory is taken for either."""
    record = folder.record()
    name, data = check_architecture(record.config), record.data
    groups = record.methods[method].num_groups
    if record.config.learner == "one-shot":
        module = record.config.module(data.input_shape, data.num_classes)
    else:
        try:
            with torch.device("meta"):  # shapes without numbers
                module = record.config.module(data.input_shape, data.num_classes)
        except (RuntimeError, TypeError, ValueError):  # somebody's own model may need the numbers
            return
    wanted = {own: (groups, *p.shape) for own, p in module.named_parameters()}
    if safetensors_shapes(folder.models_file(method)) != wanted:
        raise CarvyError(f"they are not {groups} models '{name}' for the recorded data")


def check_architecture(config: RunSettings) -> str:
    """Return the name of the model, or of the features, of a run; it may be unknown here."""
    if config.learner == "one-shot":
        return registered(FEATURES, config.features).name
    return registered(MODELS, config.model).name


def _check_vote_shapes(folder: RunFolder, method: str) -> None:
    """Compare the sizes of the stored votes with the record before they are read."""
    record = folder.record()
    groups, inputs = record.methods[method].num_groups, record.data.test_inputs
    found = {name: shape for name, (shape, _) in npz_shapes(folder.votes_file(method)).items()}
    if found != {"votes": (groups, inputs), "labels": (inputs,), "num_classes": ()}:
        raise CarvyError(f"they are not those of {groups} groups on {inputs} test inputs")


def check_votes(folder: RunFolder, method: str, data: RunData, workers: int | None) -> str:
    """Have the models vote again, and compare."""
    _check_vote_shapes(folder, method)
    check_architecture(folder.record().config)
    samples = data.test
    ballots, labels = folder.votes(method)
    if labels is None or not np.array_equal(labels, samples.labels):
        raise CarvyError("the labels in the votes file are not those of the test set")
    models = folder.models(method)
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


def _near_tie(models: GroupModels, group: int, inputs: Any, cast: int, own: int) -> bool:
    """Whether a model's logits for two votes are as large as each other, up to rounding."""
    if NO_VOTE in (cast, own):
        return False
    net = FlatNet(models.module)
    net.load(models.weights[group])
    logits = net.logits(prepared(inputs, models.mean, models.std))[0].double()
    pair = logits[[cast, own]]
    near = (pair[0] - pair[1]).abs() <= NEAR * (1 + pair.abs().max())
    return bool(torch.isfinite(logits).all() and near)


def check_certificate(folder: RunFolder, method: str) -> str:
    """Derive margins, CA(m) and AUC from the votes."""
    certificate = folder.certificate(method)
    entry = folder.record().methods[method]
    compare(certified_method(certificate), entry, "certificate")
    labels = [READINGS[reading].label for reading in certificate.basis.readings]
    return f"margins, CA(m) and AUC follow from the votes; read {', '.join(labels) or 'not at all'}"


def check_attacks(folder: RunFolder) -> str:
    """Check that results of attacks are about this run, and say of its promise what they show."""
    results, record = folder.attacks(), folder.record()
    for result in results:
        name = f"{result.attack} on {result.method}"
        if result.method not in record.methods:
            raise CarvyError(f"{name}: the run has no such method")
        clients = len(folder.grouping(result.method).assignment)
        ms, percentages = result.m, [*result.accuracy, *result.certified]
        rising = all(a < b for a, b in itertools.pairwise([-1, *ms, clients + 1]))
        if not rising or not all(0 <= value <= 100 for value in percentages):
            raise CarvyError(f"{name}: no such numbers of clients, or percentages, can be")
        ca = dict(enumerate(record.methods[result.method].ca))
        inputs = folder.votes(result.method)[0].groups.shape[1]
        rounding = 100 * max(1, FEW * inputs) / inputs
        # Attackers that lie in Step 1 meet other groups than the run's.
        honest = result.settings.get("step_one", "honest") == "honest"
        pairs = zip(ms, result.certified, strict=True)
        if honest and any(abs(ca.get(m, 0.0) - found) > rounding for m, found in pairs):
            raise CarvyError(f"{name}: its CA(m) is not this run's")
        if result.promise_kept == bool(undercut(result.accuracy, result.certified)):
            raise CarvyError(f"{name}: whether CA(m) kept its promise does not follow from it")
    return f"{len(results)} results on this run, unchanged; only attacking again can derive them"
