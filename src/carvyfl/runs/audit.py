"""The audit of a run folder: every claim is derived again from the files, without training.

Bytes are compared with the recorded hashes; then groups follow from types and coins, votes
from models, margins and CA(m) from votes. What only training could show is named as not
checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from carvyfl.basis import UNKNOWN
from carvyfl.certificate import undercut
from carvyfl.config import RunConfig, to_yaml
from carvyfl.ensemble import GroupModels
from carvyfl.errors import CarvyError
from carvyfl.federation.clients import Samples
from carvyfl.federation.datasets import load
from carvyfl.grouping.coins import coins_from_seed
from carvyfl.grouping.grouping import Grouping
from carvyfl.grouping.methods import TYPED, form_groups
from carvyfl.runs.execute import resting, wanted_groups
from carvyfl.runs.folder import RunFolder
from carvyfl.runs.record import certificate_record, hashes, types_record, unsealed
from carvyfl.runs.signing import is_signed
from carvyfl.training.local import FlatNet, prepared
from carvyfl.votes_io import load_votes
from carvyfl.voting import NO_VOTE

NEAR = 1e-3  # of a model's range of logits: another device may decide such a tie differently


@dataclass(frozen=True)
class Check:
    """One line of an audit.

    Attributes
    ----------
    what
        What was looked at.
    state
        ``ok``, ``mismatch`` or ``not checked``.
    detail
        How it was derived, what differs, or why it could not be checked.
    """

    what: str
    state: Literal["ok", "mismatch", "not checked"]
    detail: str


class UncheckedError(Exception):
    """Why something could not be checked."""


@dataclass(frozen=True)
class Evidence:
    """What an auditor brings along.

    Attributes
    ----------
    commitment
        The hash of the coins that was published before the reports, or None.
    key
        The public key of whoever signed the record, or None.
    data_dir
        Where the data set is, if not where the run found it.
    workers
        Worker processes that compute votes; default one per core.
    """

    commitment: str | None = None
    key: Path | None = None
    data_dir: Path | None = None
    workers: int | None = None


def audit(folder: RunFolder, evidence: Evidence) -> Iterator[Check]:
    """Check a finished run, claim by claim, up to the first mismatch.

    Raises
    ------
    CarvyError
        If there is no finished run, or the evidence itself cannot be used.
    """
    if not folder.record_file.is_file():
        folder.record()  # says what is there instead
    for what, check in _checks(folder, evidence):
        try:
            yield Check(what, "ok", check())
        except UncheckedError as why:
            yield Check(what, "not checked", str(why))
        except CarvyError as error:
            yield Check(what, "mismatch", str(error))
            return


def _checks(folder: RunFolder, evidence: Evidence) -> Iterator[tuple[str, Callable[[], str]]]:
    """Yield what to check and how; a later check may rely on the earlier ones having passed."""
    yield "record", partial(_record, folder)
    if folder.signature_file.exists() or evidence.key is not None:
        yield "signature", partial(_signature, folder, evidence.key)
    yield "files", partial(_files, folder)
    yield "configuration", partial(_configuration, folder)
    yield "types", partial(_types, folder)
    if evidence.commitment is not None:
        yield "commitment", partial(_commitment, folder, evidence.commitment)
    test_set = cache(partial(_test_set, folder, evidence))
    for method in folder.record()["methods"]:
        yield f"groups of {method}", partial(_groups, folder, method)
        yield f"models of {method}", partial(_models, folder, method)
        yield f"votes of {method}", partial(_votes, folder, method, test_set, evidence.workers)
        yield f"certificate of {method}", partial(_certificate, folder, method)
    if folder.attacks_file.exists():
        yield "attacks", partial(_attacks, folder)
    yield "training", _training


def _record(folder: RunFolder) -> str:
    try:
        text = folder.record_file.read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise CarvyError(f"{folder.record_file} cannot be read: {error}") from error
    unsealed(text)
    folder.record()
    return f"as it was sealed, digest {folder.record()['digest']}"


def _signature(folder: RunFolder, key: Path | None) -> str:
    if key is None:
        raise UncheckedError("the record is signed; give the signer's public key with --key")
    if not folder.signature_file.is_file():
        raise CarvyError("the record is not signed")
    if not is_signed(folder.record_file, folder.signature_file, key):
        raise CarvyError(f"not made over this record with the key of {key}")
    return f"made over this record with the key of {key}"


def _files(folder: RunFolder) -> str:
    record = folder.record()
    expected = folder.files(record["methods"], typed=record["types"] is not None)
    missing = [file for file in expected if not file.is_file()]
    if missing:
        raise CarvyError(f"{missing[0]} is missing")
    found, recorded = hashes(folder.path, expected), record.get("files")
    if not isinstance(recorded, dict) or set(recorded) != set(found):
        raise CarvyError("the record does not list the files of this run")
    for name, digest in found.items():
        if recorded[name] != digest:
            raise CarvyError(f"{name} was changed: its SHA-256 is not the recorded one")
    known = {*expected, folder.record_file, folder.signature_file, folder.attacks_file}
    extra = sorted(f for f in folder.path.rglob("*") if f.is_file() and f not in known)
    note = f"; not part of the run: {', '.join(str(f.relative_to(folder.path)) for f in extra)}"
    return f"{len(found)} files have their recorded SHA-256" + (note if extra else "")


def _configuration(folder: RunFolder) -> str:
    deployment = folder.record().get("deployment")
    settings = folder.known_config().to_dict() if deployment is None else deployment["settings"]
    if folder.config_file.read_text(encoding="utf-8") != to_yaml(settings):
        raise CarvyError("config.yaml is not the recorded configuration")
    return "config.yaml is the recorded one"


def _types(folder: RunFolder) -> str:
    record, config = folder.record(), folder.known_config()
    if record["types"] is None:
        return "no method needed any"
    types, claimed = folder.types(), record["types"]
    if types is None or len(types) != config.clients or types.method != config.types:
        raise CarvyError("types.json does not fit the configuration")
    _compare(types_record(types), claimed, "types")
    truth = {"given": config.given_types, "oracle": claimed["true_types"]}.get(types.method)
    if truth is None:
        return (
            f"{types.num_types} types as recorded; that clients sent what leads to them, "
            "only Step 1 again can show"
        )
    values, numbers = np.unique(np.asarray(truth), return_inverse=True)
    if not np.array_equal(numbers, types.labels):
        raise CarvyError(f"types.json does not hold the {types.method} types")
    return f"the {len(values)} {types.method} types"


def _commitment(folder: RunFolder, published: str) -> str:
    drawn = {
        coins.commitment
        for method in folder.record()["methods"]
        if (coins := folder.grouping(method).coins) is not None
    }
    if not drawn:
        raise CarvyError("no grouping of this run was drawn with coins")
    if drawn != {published.strip().lower()}:
        raise CarvyError(f"the coins of this run have the commitment {', '.join(sorted(drawn))}")
    return "the coins are the ones committed to"


def _groups(folder: RunFolder, method: str) -> str:
    config, entry = folder.known_config(), folder.record()["methods"][method]
    saved = folder.grouping(method)
    coins = saved.coins
    if coins is not None and coins.source == "seed" and coins != coins_from_seed(config.seed):
        raise CarvyError("the coins do not follow from the seed")
    if saved.benched.tolist() != entry.get("benched"):
        raise CarvyError("the clients in no group are not the recorded ones")
    again = _form_again(folder, method, config, saved)
    if "deployment" in folder.record():  # what happened since then may only have weakened it
        kept = replace(saved.basis, because=again.basis.because)
        if kept != again.basis and kept.kind != UNKNOWN:
            raise CarvyError("the certificate claims more than its grouping gives")
        again = replace(again, basis=saved.basis)
    if again != saved:
        raise CarvyError("the groups do not follow from the recorded types, coins and settings")
    from_coins = "" if coins is None else f" and coins (commitment {coins.commitment})"
    source = f"types{from_coins}" if method in TYPED else "settings and seed"
    return f"{saved.num_groups} groups follow from the recorded {source}"


def _form_again(folder: RunFolder, method: str, config: RunConfig, saved: Grouping) -> Grouping:
    record = folder.record()
    carvy = folder.grouping("carvy").num_groups if "carvy" in record["methods"] else config.groups
    oracle = None if record["types"] is None else record["types"]["true_types"]
    if method == "cluster" and oracle is None:
        raise UncheckedError("'cluster' needs the true types, which the record does not hold")
    if "deployment" in record and method not in TYPED:
        raise UncheckedError(
            "the groups follow from the clients' keys, which are not in the folder"
        )
    grouping = form_groups(
        method,
        num_clients=config.clients,
        seed=config.seed,
        types=folder.types(),
        oracle=oracle,
        num_groups=wanted_groups(method, config, carvy),
        rule=config.group_rule,
        literal=config.literal,
        coins=saved.coins,
    )
    return resting(grouping, config)


def _models(folder: RunFolder, method: str) -> str:
    models, stopped = folder.models(method), folder.record()["methods"][method]["stopped"]
    finite = torch.isfinite(models.weights).all(dim=1).numpy()
    usable = finite & np.array([why not in {"empty", "diverged"} for why in stopped])
    if not np.array_equal(usable, models.casts):
        raise CarvyError("the models that may vote are not the usable ones")
    return f"{len(models)} models, {int(models.casts.sum())} of them usable"


def _votes(
    folder: RunFolder, method: str, test_set: Callable[[], Samples], workers: int | None
) -> str:
    test = test_set()
    ballots, labels = load_votes(folder.votes_file(method))
    if labels is None or not np.array_equal(labels, test.labels):
        raise CarvyError("the labels in the votes file are not those of the test set")
    models = folder.models(method)
    again = models.votes(test.inputs, workers=workers)
    if again.groups.shape != ballots.groups.shape or again.num_classes != ballots.num_classes:
        raise CarvyError("the votes are of another shape than the models' own")
    different = np.argwhere(again.groups != ballots.groups)
    for group, number in different.tolist():
        cast = int(ballots.groups[group, number])
        if cast == NO_VOTE or not _near_tie(models, group, test.inputs[number : number + 1], cast):
            raise CarvyError(f"group {group} does not vote {cast} on test input {number}")
    near = f"; {len(different)} near ties fell otherwise here" if len(different) else ""
    return f"{ballots.groups.size} votes follow from the models{near}"


def _near_tie(models: GroupModels, group: int, inputs: Any, cast: int) -> bool:
    """Whether a model's logit for the vote cast is as large as its largest, up to rounding."""
    net = FlatNet(models.module)
    net.load(models.weights[group])
    logits = net.logits(prepared(inputs, models.mean, models.std))[0].double()
    return bool(logits[cast] >= logits.max() - NEAR * (logits.max() - logits.min()))


def _test_set(folder: RunFolder, evidence: Evidence) -> Samples:
    config, data = folder.known_config(), folder.record()["data"]
    try:
        dataset = load(config.dataset, data_dir=evidence.data_dir or config.data_dir)
    except CarvyError as error:
        raise UncheckedError(f"the data is not at hand: {error}") from error
    if len(dataset.test) != data.get("test_inputs"):
        raise CarvyError(f"the test set holds {len(dataset.test)} inputs, not the recorded number")
    return dataset.test


def _certificate(folder: RunFolder, method: str) -> str:
    certificate = folder.certificate(method)
    entry = folder.record()["methods"][method]
    _compare(certificate_record(certificate), entry, "certificate")
    known = "none" if certificate.end_to_end() is None else "both readings"
    return f"margins, CA(m) and AUC follow from the votes; end to end: {known}"


def _attacks(folder: RunFolder) -> str:
    results = folder.attacks()
    for result in results:
        name = f"{result['attack']} on {result['method']}"
        if result["promise_kept"] == bool(undercut(result["accuracy"], result["certified"])):
            raise CarvyError(f"{name}: whether CA(m) kept its promise does not follow from it")
    return f"{len(results)} results on this run, unchanged; only attacking again can derive them"


def _training() -> str:
    raise UncheckedError(
        "that the models come from these clients, in these rounds, only training again can show"
    )


def _compare(derived: dict[str, Any], claimed: dict[str, Any], what: str) -> None:
    """Refuse a claim that differs from what was derived; numbers agree to 1e-6."""
    for name, value in derived.items():
        if name not in claimed or not _same(value, claimed[name]):
            raise CarvyError(f"{what}: {name} is not what follows from the files")


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, float) and isinstance(b, int | float):
        return abs(a - b) <= 1e-6  # an interval's ends may move with the library's version
    return bool(a == b)
