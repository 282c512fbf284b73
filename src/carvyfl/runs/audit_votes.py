"""The second half of an audit: models, votes, certificates and results of attacks."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from carvyfl.core.errors import CarvyError
from carvyfl.core.schema import plain
from carvyfl.data.clients import Samples
from carvyfl.groups.basis import READINGS
from carvyfl.learning.job import UNUSABLE
from carvyfl.learning.scaffold.local import FlatNet, prepared
from carvyfl.runs.config import load_data
from carvyfl.runs.folder import RunFolder
from carvyfl.runs.record import certified_method, data_entry
from carvyfl.voting.certificate import undercut
from carvyfl.voting.group_models import GroupModels
from carvyfl.voting.votes import NO_VOTE

NEAR = 1e-4
"""Two logits this close, as a share of their size, may fall otherwise on another device."""

FEW = 1e-3
"""The share of test inputs on which that may happen; one input may in any case."""


class UncheckedError(Exception):
    """Why something could not be checked."""


def check_models(folder: RunFolder, method: str) -> str:
    """Check that the models which vote are the usable ones, one for every group."""
    models, entry = folder.models(method), folder.record().methods[method]
    grouping, recipe = folder.grouping(method), folder.known_config().training
    stopped, aside = entry.stopped, set(entry.set_aside)
    lists = {len(own) for own in (entry.rounds, stopped, entry.validation_accuracy)}
    if lists != {grouping.num_groups} or len(models) != grouping.num_groups:
        raise CarvyError("the record does not hold one result for every group")
    for rounds, history in zip(entry.rounds, entry.validation_accuracy, strict=True):
        if not 0 <= rounds == len(history) <= recipe.rounds:
            raise CarvyError("the rounds are not those of the configuration")
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


def check_votes(
    folder: RunFolder, method: str, test: Callable[[], Samples], workers: int | None
) -> str:
    """Have the models vote again, and compare."""
    samples = test()
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


def check_data(folder: RunFolder, data_dir: Path | None) -> Samples:
    """Load the test set and compare what the record says of the data."""
    config, data = folder.known_config(), folder.record().data
    try:
        dataset = load_data(config, data_dir)
    except CarvyError as error:
        raise UncheckedError(f"the data is not at hand: {error}") from error
    compare(data_entry(dataset), data, "data")
    return dataset.test


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
    clients = folder.known_config().clients
    for result in results:
        name = f"{result.attack} on {result.method}"
        if result.method not in record.methods:
            raise CarvyError(f"{name}: the run has no such method")
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


def compare(derived: object, claimed: object, what: str) -> None:
    """Refuse a claim that differs from what was derived; numbers agree to 1e-6."""
    there = plain(claimed)
    for name, value in plain(derived).items():
        if name not in there or not _same(value, there[name]):
            raise CarvyError(f"{what}: {name} is not what follows from the files")


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, float) and isinstance(b, int | float):
        return abs(a - b) <= 1e-6  # an interval's ends may move with the library's version
    return bool(a == b)
