"""What an audit does again of a run, from its files and its data: Steps 1, 3 and 4."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from carvyfl.core.archives import npz_shapes
from carvyfl.core.errors import CarvyError
from carvyfl.core.schema import plain
from carvyfl.data.clients import Inputs, Samples
from carvyfl.groups.basis import READINGS
from carvyfl.learning.backends import Cores
from carvyfl.learning.job import GroupResult
from carvyfl.learning.learners import learner_of
from carvyfl.learning.one_shot.sums import NEVER, Floats, Sums, SumsFile, fault
from carvyfl.learning.one_shot.training import OneShotModel, as_one_shot, head_from
from carvyfl.learning.private.model import as_private, group_head
from carvyfl.learning.recipe import UNUSABLE
from carvyfl.learning.scaffold.client import FlatNet, prepared
from carvyfl.pipeline import Compute, each_clients_sums, find_profiles, gather_models
from carvyfl.profiles.class_counts import class_count_types, collect_counts
from carvyfl.profiles.class_means import types_of_counts
from carvyfl.profiles.methods import PROFILE_METHODS, read_profiles
from carvyfl.runs.evidence import (
    AuditedRun,
    UncheckedError,
    UnderivableError,
    compare,
    registered,
    require,
)
from carvyfl.runs.record import certified_method
from carvyfl.voting.group_models import GroupModels
from carvyfl.voting.votes import NO_VOTE, Votes

NEAR = 1e-4
"""Two logits this close, as a share of their size, may fall otherwise on another device."""

FEW = 1e-3
"""The share of test inputs on which that may happen; one input may in any case."""

SAME_HEAD = 1e-5
"""How far a head may be from the one derived, as a share of its largest weight or bias: both come
from the same sums in float64, and are rounded to float32."""

COMPARED = 100
"""Test inputs on which two maps are compared."""

SAME_MAP = 0.02
"""How far products of vectors, of length 1 at most, may be from those of the map made again."""

SAME_SUMS = 1e-4
"""How far sums may be from those of the data, as a share of their length: another processor rounds
features otherwise. A change of the last bit in every pixel moves the sums of scattering features by
7e-6."""


def check_profiles(run: AuditedRun) -> str:
    """Do Step 1 again, where its result is more than types, and compare all that it gave."""
    saved = run.folder.profiles()
    if saved is None:
        return "no method needed any"
    method, settings = registered(PROFILE_METHODS, saved.types.method), run.config
    if not method.asks_clients:
        truth = None if run.record.types is None else run.record.types.true_types
        given, seed = settings.listed, run.config.seed
        again = read_profiles(method.name, seed=seed, truth=truth, given=given)
    elif method.sends == "message":
        messages = run.folder.messages()
        again = read_profiles(method.name, messages, seed=settings.seed)
    elif method.sends == "private-shares":
        raise UnderivableError("the noise is each client's own secret, so nobody can derive them")
    elif saved.vectors is None:
        raise UnderivableError("that clients sent what leads to the types, only Step 1 can show")
    else:
        again = find_profiles(run.setup, settings, Compute.on_cores(run.evidence.workers))
    same = again.types.to_json() == saved.types.to_json()
    require(same, f"{method.name} of these clients gives other types, or warnings")
    if again.vectors is None or saved.vectors is None:
        return f"the {again.types.num_types} {method.name} types"
    rows = again.vectors.rows, saved.vectors.rows
    require(rows[0].shape == rows[1].shape, "the profiles have another length than this method's")
    largest = abs(again.vectors.by_chance - saved.vectors.by_chance)
    for client, pair in enumerate(zip(*rows, strict=True)):
        largest = max(largest, distance := _distance(*pair, np.linalg.norm))
        follows = distance <= SAME_SUMS
        require(follows, f"the profile of client {client} does not follow from its data")
    follows = largest <= SAME_SUMS
    require(follows, "by how much profiles differ by chance does not follow from the data")
    source = "messages" if method.sends == "message" else "data"
    return f"profiles, types and warnings follow from the {source}, {_agreement(largest)}"


def check_map(run: AuditedRun) -> str:
    """Make the map again; another processor rounds otherwise, and may turn or mirror directions.

    Heads do not depend on that: angles between vectors do not change.
    """
    kept, config, data = run.folder.module(), run.config, run.record.data
    learner = learner_of(kept)
    try:
        again = learner.build(config, data.input_shape, data.num_classes, config.seed)
    except CarvyError as error:
        raise UncheckedError(f"what the map was made of is not at hand: {error}") from None
    maps = as_private(again).map, as_private(kept).map
    require(maps[0].origin == maps[1].origin, "the map says that it was made of something else")
    if maps[0].digest == maps[1].digest:
        return f"made of {maps[0].origin}, bit for bit"
    require(maps[0].matrix.shape == maps[1].matrix.shape, "the map has another shape")
    rows = as_private(again).features.of(run.test.inputs[:COMPARED])
    products = [vectors @ vectors.T for vectors in (each.vectors(rows) for each in maps)]
    largest = float(np.abs(products[0] - products[1]).max())
    alike = np.allclose(maps[0].spread, maps[1].spread, rtol=0.05, atol=1e-3)
    require(largest <= SAME_MAP and alike, f"the map was not made of {maps[0].origin}")
    return f"made of {maps[0].origin}, up to rounding ({largest:.1g})"


def check_messages(run: AuditedRun) -> str:
    """Check the kept messages, the map that they name, and the privacy that is claimed."""
    messages, module = run.folder.messages(), run.folder.module()
    about = learner_of(module).privacy(module)
    require(bool(run.record.privacy), "the record says nothing of privacy")
    exact = plain(about) == plain(run.record.privacy)  # δ may be smaller than any tolerance
    require(exact, "privacy: ε, δ, the map or the words are not those of the settings")
    size = 4 * messages.units[0].size
    return (
        f"{len(messages)} messages of {size:,} bytes; that their noise "
        "is what was claimed, each client's own secret, nobody can derive"
    )


def check_private_heads(run: AuditedRun, method: str) -> str:
    """Derive every group's head from its members' messages: the same bits."""
    module, messages = run.folder.module(), run.folder.messages()
    entry, models = run.record.methods[method], run.folder.models(method)
    aside: dict[str, str] = {}
    weights = messages.units[0, :, :-1].size
    for g, members in enumerate(run.folder.grouping(method).groups):
        again = group_head(module, members.tolist(), messages.of_clients(members))
        aside |= {str(client): why for client, why in again.set_aside.items()}
        follows = f"from its members' messages follows '{again.stopped}'"
        said = f"group {g} is said to have stopped as '{entry.stopped[g]}'; {follows}"
        # A deadline that some messages missed, in a real federation, leaves nothing certified.
        cut = run.deployment is not None and again.votes and entry.stopped[g] == "deadline"
        require(cut or again.stopped == entry.stopped[g], said)
        if again.stopped not in UNUSABLE:
            derived, stored = again.weights.numpy(), models.weights[g].numpy()
            distance = _head_distance(derived, stored, weights)
            follows = f"the model of group {g} does not follow from its members' messages"
            require(distance <= SAME_HEAD, follows)
    require(aside == entry.set_aside, "other clients were set aside than the messages say")
    return f"{len(models)} models follow from their members' messages"


def check_sums(run: AuditedRun) -> str:
    """Check the kept sums by themselves, and the types against the counts in them."""
    run.check_sizes()
    file, types = run.folder.sums(), run.folder.types()
    faults = [fault(file.of(client), file.width, file.classes) for client in range(file.clients)]
    unusable = len(faults) - faults.count(None)
    left = f"; those of {unusable} cannot be used" if unusable else ""
    detail = f"of {file.clients} clients: {file.classes} classes of {file.width} features{left}"
    if types is None or types.method not in {"class-counts", "class-means"}:
        return detail
    counts = file.counts()
    if types.method == "class-counts":
        again = class_count_types(collect_counts(counts.astype(np.float32), file.classes))
    else:
        again = types_of_counts(counts, types.set_aside)
    # Warnings also tell of the vectors, which the counts alone do not give.
    same = replace(again, warnings=types.warnings).to_json() == types.to_json()
    require(same, "types.json does not hold the types that follow from the counts")
    return f"{detail}; the types follow from the counts"


def check_sums_from_data(run: AuditedRun) -> str:
    """Compute every client's sums again, and compare; heads of both must vote alike.

    Sums that only rounding makes different may still be forged: a head with little shrinkage
    magnifies a ten-thousandth.
    """
    stored, distances = run.folder.sums(), [0.0]

    def compared() -> Iterator[Sums]:
        for client, sums in enumerate(each_clients_sums(run.setup, None)):
            distances.append(_sums_distance(sums, stored.of(client), client))
            yield sums

    with TemporaryDirectory() as place:
        derived = replace(stored, path=Path(place) / "sums")
        derived.write(compared())
        for method in run.record.methods if any(distances) else ():
            models, (ballots, _) = run.folder.models(method), run.folder.votes(method)
            module, groups = as_one_shot(models.module), run.folder.grouping(method).groups
            heads = [_head(module, derived, members.tolist()) for members in groups]
            try:
                _compare_votes(gather_models(run.setup, heads), ballots, run.test, None)
            except CarvyError as error:
                raise CarvyError(f"models from the data's own sums: {method}: {error}") from None
    return f"every client's sums follow from its data, {_agreement(max(distances))}"


def _head(module: OneShotModel, sums: SumsFile, members: list[int]) -> GroupResult:
    return head_from(module, ((client, sums.of(client)) for client in sorted(members)))


def _sums_distance(derived: Sums, stored: Sums, client: int) -> float:
    same = np.array_equal(derived.counts, stored.counts)
    require(same, f"the class counts of client {client} are not those of its data")
    pairs = ((derived.first, stored.first), (derived.second, stored.second))
    distance = max(_distance(*pair, np.linalg.norm) for pair in pairs)
    require(distance <= SAME_SUMS, f"the sums of client {client} are not those of its data")
    return distance


def check_heads(run: AuditedRun, method: str) -> str:
    """Derive every group's head from its members' sums, and compare it with the stored model."""
    run.check_sizes()
    entry, sums, models = run.record.methods[method], run.folder.sums(), run.folder.models(method)
    module = as_one_shot(models.module)
    set_aside: dict[str, str] = {}
    largest = 0.0
    for g, members in enumerate(run.folder.grouping(method).groups):
        again = _head(module, sums, members.tolist())
        set_aside |= {str(client): why for client, why in again.set_aside.items()}
        stopped = f"group {g} is said to have stopped as '{entry.stopped[g]}'"
        follows = f"from its members' sums follows '{again.stopped}'"
        require(again.stopped == entry.stopped[g], f"{stopped}; {follows}")
        if again.stopped not in UNUSABLE:
            derived, stored = again.weights.numpy(), models.weights[g].numpy()
            distance = _head_distance(derived, stored, module.head.weight.numel())
            same = distance <= SAME_HEAD
            require(same, f"the model of group {g} does not follow from its members' sums")
            largest = max(largest, distance)
    same = set_aside == entry.set_aside
    require(same, "other clients were set aside than those whose sums cannot be used")
    return f"{len(models)} models follow from their members' sums, {_agreement(largest)}"


def _agreement(largest: float) -> str:
    return f"up to rounding ({largest:.1g})" if largest else "bit for bit"


def _head_distance(derived: Floats, stored: Floats, num_weights: int) -> float:
    """Return the largest distance of weights or biases; what nobody holds is a constant."""
    never = derived == np.float32(NEVER)
    if not np.array_equal(derived[never], stored[never]):
        return math.inf
    pair = (np.where(never, 0, derived), np.where(never, 0, stored))
    return max(
        _distance(pair[0][part], pair[1][part], lambda values: np.abs(values).max())
        for part in (slice(num_weights), slice(num_weights, None))
    )


def _distance(derived: Floats, stored: Floats, size: Callable[[Floats], np.floating[Any]]) -> float:
    """Return the size of a difference as a share of the derived one's; infinity, never NaN."""
    if np.array_equal(derived, stored, equal_nan=True):
        return 0.0
    with np.errstate(invalid="ignore"):  # the difference of two infinities
        difference = float(size(np.subtract(derived, stored, dtype=np.float64)))
    scale = float(size(derived))
    return difference / scale if scale > 0 and math.isfinite(difference) else math.inf


def check_models(run: AuditedRun, method: str) -> str:
    """Check that the models which vote are the usable ones, one for every group."""
    entry, recipe = run.record.methods[method], run.config.training
    grouping = run.folder.grouping(method)
    run.check_sizes()
    stored = run.folder.models(method)
    lists = (entry.rounds, entry.stopped, entry.validation_accuracy, stored.weights)
    whole = {len(values) for values in lists} == {grouping.num_groups}
    require(whole, "the record does not hold one result for every group")
    aside = set(entry.set_aside)
    grouped = {str(client) for client in np.flatnonzero(grouping.assignment >= 0)}
    require(aside <= grouped, "a client was set aside that sits in no group")
    judged = run.deployment is not None or run.config.validation > 0
    finite = torch.isfinite(stored.weights).all(dim=1).tolist()
    for g, members in enumerate(grouping.groups):
        rounds, why, history = entry.rounds[g], entry.stopped[g], entry.validation_accuracy[g]
        least = {"rounds": recipe.rounds, "patience": recipe.patience or math.inf}.get(why, 0)
        made = least <= rounds == len(history) <= recipe.rounds
        require(made, "the rounds are not those of the configuration")
        measured = any(accuracy is not None for accuracy in history)
        require(judged or not measured, "there is a validation accuracy, but no validation data")
        left = any(str(client) not in aside for client in members.tolist())
        fits = {"empty": not left, "diverged": left and not finite[g], "untrained": not rounds}
        said = f"group {g} is said to have stopped as '{why}'; its members or model say no"
        require(fits.get(why, left and finite[g]), said)
    usable = stored.casts.tolist() == [why not in UNUSABLE for why in entry.stopped]
    require(usable, "the models that may vote are not the usable ones")
    voters = np.flatnonzero(stored.casts).tolist()
    first: dict[bytes, int] = {}
    copies = [
        f"group {g} of group {other}"
        for g in voters
        if (other := first.setdefault(blake2b(stored.weights[g].numpy().data).digest(), g)) != g
    ]
    detail = f"{len(stored)} models, {len(voters)} of them usable"
    if copies:
        detail += f"; {len(copies)} are copies of another group's, such as {copies[0]}"
    return detail


def check_votes(run: AuditedRun, method: str) -> str:
    """Have the models vote again, and compare; sizes first, before the votes are read."""
    groups, inputs = run.record.methods[method].num_groups, run.record.data.test_inputs
    arrays = npz_shapes(run.folder.votes_file(method))
    shapes = {"votes": (groups, inputs), "labels": (inputs,), "num_classes": ()}
    fits = {name: shape for name, (shape, _) in arrays.items()} == shapes
    require(fits, f"they are not those of {groups} groups on {inputs} test inputs")
    run.check_sizes()
    test = run.test
    ballots, labels = run.folder.votes(method)
    same = labels is not None and np.array_equal(labels, test.labels)
    require(same, "the labels in the votes file are not those of the test set")
    return _compare_votes(run.folder.models(method), ballots, test, run.evidence.workers)


def _compare_votes(models: GroupModels, ballots: Votes, test: Samples, workers: int | None) -> str:
    """Refuse votes that are not those of the models, but for a few near ties."""
    again = models.votes(test.inputs, Cores(workers))
    fits = again.groups.shape == ballots.groups.shape and again.num_classes == ballots.num_classes
    require(fits, "the votes are of another shape than the models' own")
    different = np.argwhere(again.groups != ballots.groups)
    for group, number in different.tolist():
        cast, derived = int(ballots.groups[group, number]), int(again.groups[group, number])
        near = _near_tie(models, group, test.inputs[number : number + 1], cast, derived)
        require(near, f"group {group} does not vote {cast} on test input {number}")
    touched = len(np.unique(different[:, 1]))
    few = touched <= max(1, FEW * len(test))
    require(few, f"on {touched} test inputs votes differ; rounding explains a few at most")
    near_ties = (
        f"; {len(different)} near ties fell otherwise here, so that CA(m) holds to within "
        f"{100 * touched / len(test):.2g} points"
    )
    return f"{ballots.groups.size} votes follow from the models{near_ties if touched else ''}"


def _near_tie(models: GroupModels, group: int, inputs: Inputs, cast: int, derived: int) -> bool:
    if NO_VOTE in (cast, derived):
        return False
    net = FlatNet(models.module)
    net.load(models.weights[group])
    logits = net.logits(prepared(inputs, models.mean, models.std))[0].double()
    pair = logits[[cast, derived]]
    near = (pair[0] - pair[1]).abs() <= NEAR * (1 + pair.abs().max())
    return bool(torch.isfinite(logits).all() and near)


def check_certificate(run: AuditedRun, method: str) -> str:
    """Derive margins, CA(m) and AUC from the votes."""
    derived = run.folder.certificate(method)
    compare(certified_method(derived), run.record.methods[method], "certificate")
    labels = [READINGS[reading].label for reading in derived.basis.readings]
    return f"margins, CA(m) and AUC follow from the votes; read {', '.join(labels) or 'not at all'}"
