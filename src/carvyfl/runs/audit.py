"""The audit of a run folder: every claim is derived again from the files, without training.

Bytes are compared with the recorded hashes; then groups follow from types and coins; votes,
margins and CA(m) are left to :mod:`carvyfl.runs.audit_votes`. What only training could show is
named as not checked.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Literal

import numpy as np
from msgspec import UNSET

from carvyfl.core.errors import CarvyError, printable
from carvyfl.data.partitions import PARTITIONS
from carvyfl.groups.basis import deployed
from carvyfl.groups.coins import coins_from_seed
from carvyfl.groups.grouping import Grouping
from carvyfl.groups.hashing import named_ids
from carvyfl.groups.methods import GROUPINGS
from carvyfl.learning.job import LATE, UNUSABLE
from carvyfl.pipeline import form_method
from carvyfl.profiles.methods import Profiles
from carvyfl.runs.audit_votes import (
    UncheckedError,
    check_attacks,
    check_certificate,
    check_data,
    check_models,
    check_votes,
    compare,
)
from carvyfl.runs.config import RunConfig, to_yaml
from carvyfl.runs.flower_settings import Settings
from carvyfl.runs.folder import RunFolder
from carvyfl.runs.record import hashes, types_entry
from carvyfl.runs.signing import is_signed


@dataclass(frozen=True)
class Check:
    """One line of an audit."""

    what: str
    """What was looked at."""
    state: Literal["ok", "mismatch", "not checked"]
    """What came of it."""
    detail: str
    """How it was derived, what differs, or why it could not be checked."""


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
        except Exception as error:  # a forger decides what is in the files, so anything may happen
            reason = printable(f"{type(error).__name__}: {error}")
            yield Check(what, "mismatch", f"cannot be made sense of ({reason})")
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
    test = cache(partial(check_data, folder, evidence.data_dir))
    for method in folder.record().methods:
        yield f"groups of {method}", partial(_groups, folder, method)
        yield f"models of {method}", partial(check_models, folder, method)
        yield f"votes of {method}", partial(check_votes, folder, method, test, evidence.workers)
        yield f"certificate of {method}", partial(check_certificate, folder, method)
    if folder.attacks_file.exists():
        yield "attacks", partial(check_attacks, folder)
    yield "training", _training


def _record(folder: RunFolder) -> str:
    return f"as it was sealed, digest {folder.record().digest}"


def _signature(folder: RunFolder, key: Path | None) -> str:
    if key is None:
        raise UncheckedError("the record is signed; give the signer's public key with `key`")
    if not folder.signature_file.is_file():
        raise CarvyError("the record is not signed")
    if not is_signed(folder.record_file, folder.signature_file, key):
        raise CarvyError(f"not made over this record with the key of {key}")
    return f"made over this record with the key of {key}"


def _files(folder: RunFolder) -> str:
    record = folder.record()
    expected = folder.files(record.methods, typed=record.types is not None)
    missing = [file for file in expected if not file.is_file()]
    if missing:
        raise CarvyError(f"{missing[0]} is missing")
    found, recorded = hashes(folder.path, expected), record.files
    if set(recorded) != set(found):
        raise CarvyError("the record does not list the files of this run")
    for name, digest in found.items():
        if recorded[name] != digest:
            raise CarvyError(f"{name} was changed: its SHA-256 is not the recorded one")
    known = {*expected, folder.record_file, folder.signature_file, folder.attacks_file}
    extra = sorted(f for f in folder.path.rglob("*") if f.is_file() and f not in known)
    names = (printable(str(file.relative_to(folder.path))) for file in extra)
    note = f"; not part of the run: {', '.join(names)}"
    return f"{len(found)} files have their recorded SHA-256" + (note if extra else "")


def _configuration(folder: RunFolder) -> str:
    record, config = folder.record(), folder.known_config()
    deployment = record.deployment
    settings = record.config.to_dict()
    if deployment is not UNSET:
        again = Settings.of(deployment.settings, "the settings").recorded(
            deployment.samples, record.config.dataset
        )
        compare(again, settings, "configuration")
        settings = deployment.settings
        if len(deployment.samples) != len(deployment.clients):
            raise CarvyError("the record names other clients than it counts samples of")
    if folder.config_file.read_bytes() != to_yaml(settings).encode():
        raise CarvyError("config.yaml is not the recorded configuration")
    if list(record.methods) != list(config.methods):
        raise CarvyError("the methods are not the configured ones")
    if deployment is UNSET and record.config.partition not in PARTITIONS:
        raise UncheckedError(
            f"config.yaml is the recorded one, but partition '{record.config.partition}' is not "
            "registered here: the clients' data cannot be made again"
        )
    return "config.yaml is the recorded one"


def _num_clients(folder: RunFolder) -> int:
    deployment = folder.record().deployment
    return folder.known_config().clients if deployment is UNSET else len(deployment.clients)


def _types(folder: RunFolder) -> str:
    record, config = folder.record(), folder.known_config()
    types, claimed = folder.types(), record.types
    if claimed is None:
        return "no method needed any"
    if types is None or len(types) != _num_clients(folder) or types.method != config.types:
        raise CarvyError("types.json does not fit the configuration")
    if folder.types_file.read_bytes() != json.dumps(types.to_json()).encode():
        raise CarvyError("types.json says more than is read from it")
    compare(types_entry(types, claimed.true_types), claimed, "types")
    truth = {"given": config.given_types, "oracle": claimed.true_types}.get(types.method)
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
        for method in folder.record().methods
        if (coins := folder.grouping(method).coins) is not None
    }
    if not drawn:
        raise CarvyError("no grouping of this run was drawn with coins")
    if drawn != {published.strip().lower()}:
        raise CarvyError(f"the coins of this run have the commitment {', '.join(sorted(drawn))}")
    return "the coins are the ones committed to"


def _groups(folder: RunFolder, method: str) -> str:
    config, entry = folder.known_config(), folder.record().methods[method]
    saved = folder.grouping(method)
    coins = saved.coins
    if coins is not None:
        simulated = coins.source == "simulated"
        if simulated and coins != coins_from_seed(config.seed):
            raise CarvyError("the simulated coins do not follow from the seed")
        published = None if simulated else coins.commitment
        if folder.record().deployment is UNSET and published != config.commitment:
            raise CarvyError("the coins are not those of the configuration")
    if saved.num_groups != entry.num_groups:
        raise CarvyError(f"{saved.num_groups} groups were formed, {entry.num_groups} recorded")
    if tuple(saved.benched.tolist()) != entry.benched:
        raise CarvyError("the clients in no group are not the recorded ones")
    again = _form_again(folder, method, config, saved)
    if folder.grouping_file(method).read_bytes() != (json.dumps(again.to_json()) + "\n").encode():
        raise CarvyError("the groups do not follow from the recorded types, coins and settings")
    from_coins = "" if coins is None else f" and {coins}"
    source = f"types{from_coins}" if GROUPINGS.pick(method).needs_profiles else "settings and seed"
    return f"{saved.num_groups} groups follow from the recorded {source}"


def _form_again(folder: RunFolder, method: str, config: RunConfig, saved: Grouping) -> Grouping:
    record = folder.record()
    found = folder.grouping("carvy").num_groups if "carvy" in record.methods else config.groups
    truth = None if record.types is None else record.types.true_types
    if GROUPINGS.pick(method).needs_truth and truth is None:
        raise UncheckedError(f"'{method}' needs the true types, which the record does not hold")
    deployment, types = record.deployment, folder.types()
    grouping = form_method(
        method,
        config.grouping,
        num_clients=_num_clients(folder),
        seed=config.seed,
        profiles=None if types is None else Profiles.of(types),
        truth=truth,
        found=found,
        ids=None if deployment is UNSET else named_ids(deployment.clients, config.seed),
        coins=saved.coins,
    )
    if deployment is UNSET:
        return grouping
    entry = record.methods[method]
    basis = deployed(
        grouping.basis,
        authenticated=deployment.authenticated,
        lost=sum(why in UNUSABLE for why in entry.stopped),
        late=sum(why in LATE for why in entry.stopped),
        groups=grouping.num_groups,
        aside=len(entry.set_aside) + (0 if types is None else len(types.set_aside)),
        clients=len(deployment.clients),
    )
    return replace(grouping, basis=basis)


def _training() -> str:
    raise UncheckedError(
        "that the models come from these clients, in these rounds, only training again can show; "
        "the picture, times and environment are as recorded"
    )
