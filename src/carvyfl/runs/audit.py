"""The audit of a run folder: every claim is derived again from the files, without rounds.

Bytes are compared with the recorded hashes; then groups follow from types and coins. Data is
left to :mod:`carvyfl.runs.audit_data`; one-shot training, where the clients' sums were kept, to
:mod:`carvyfl.runs.audit_sums`; models, votes, margins and CA(m) to
:mod:`carvyfl.runs.audit_votes`. What was not checked, and what no audit could, is named.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from msgspec import UNSET

from carvyfl.core.errors import CarvyError, printable
from carvyfl.core.schema import plain
from carvyfl.data.partitions import PARTITIONS, split_classes
from carvyfl.group_count import best_candidate, candidates
from carvyfl.groups.basis import OPEN, deployed
from carvyfl.groups.coins import coins_from_seed
from carvyfl.groups.grouping import Grouping
from carvyfl.groups.hashing import named_ids
from carvyfl.groups.methods import GROUPINGS
from carvyfl.learning.job import LATE, UNUSABLE
from carvyfl.pipeline import form_method
from carvyfl.profiles.methods import PROFILE_METHODS, read_profiles
from carvyfl.runs.audit_data import RunData, check_test_file
from carvyfl.runs.audit_outcomes import UncheckedError, UnderivableError, compare, registered
from carvyfl.runs.audit_sums import check_heads, check_sums, check_sums_from_data
from carvyfl.runs.audit_votes import (
    check_architecture,
    check_attacks,
    check_certificate,
    check_models,
    check_votes,
)
from carvyfl.runs.config import RunConfig, to_yaml
from carvyfl.runs.flower_settings import KEYS, Settings
from carvyfl.runs.folder import RunFolder, read_json
from carvyfl.runs.record import RunRecord, hashes, types_entry
from carvyfl.runs.signing import is_signed, read_public_key

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

Verdict = Literal["all checked", "as far as checked", "mismatch"]


@dataclass(frozen=True)
class Check:
    """One line of an audit."""

    what: str
    """What was looked at."""
    state: Literal["ok", "mismatch", "not checked", "cannot be derived"]
    """What came of it: not checked is what could be, with more at hand; what cannot be derived from
    a folder by any audit does not count against the verdict."""
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
    test_data
        An npz file with the test data (``x_test``, ``y_test``), where the data set is not at hand.
    workers
        Worker processes that compute votes; default one per core.
    """

    commitment: str | None = None
    key: Path | None = None
    data_dir: Path | None = None
    test_data: Path | None = None
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
    key = None if evidence.key is None else read_public_key(evidence.key)
    if evidence.test_data is not None:
        check_test_file(evidence.test_data)
    for what, check in _checks(folder, evidence, key):
        try:
            yield Check(what, "ok", check())
        except UncheckedError as why:
            yield Check(what, "not checked", str(why))
        except UnderivableError as why:
            yield Check(what, "cannot be derived", str(why))
        except CarvyError as error:
            yield Check(what, "mismatch", str(error))
            return
        except Exception as error:  # a forger decides what is in the files, so anything may happen
            reason = printable(f"{type(error).__name__}: {error}")
            yield Check(what, "mismatch", f"cannot be made sense of ({reason})")
            return


def verdict(checks: Sequence[Check]) -> Verdict:
    """Return what the checks of an audit come to."""
    states = {check.state for check in checks}
    if "mismatch" in states:
        return "mismatch"
    return "as far as checked" if "not checked" in states else "all checked"


def _checks(
    folder: RunFolder, evidence: Evidence, key: Ed25519PublicKey | None
) -> Iterator[tuple[str, Callable[[], str]]]:
    """Yield what to check and how; a later check may rely on the earlier ones having passed."""
    yield "record", partial(_record, folder)
    if folder.signature_file.exists() or key is not None:
        yield "signature", partial(_signature, folder, key)
    yield "files", partial(_files, folder)
    yield "configuration", partial(_configuration, folder)
    if folder.record().deployment is not UNSET:
        yield "federation", partial(_federation, folder)
    yield "types", partial(_types, folder)
    yield "number of groups", partial(_group_count, folder)
    data = RunData(folder, evidence.data_dir, evidence.test_data)
    yield "data", data.check_data_set
    yield "test data", data.check_test_data
    summed = folder.record().config.keep_sums
    if summed:
        yield "sums", partial(check_sums, folder)
        yield "sums from the data", partial(check_sums_from_data, folder, data)
    for method in folder.record().methods:
        yield f"groups of {method}", partial(_groups, folder, method)
        yield f"models of {method}", partial(check_models, folder, method)
        if summed:
            yield f"training of {method}", partial(check_heads, folder, method)
        yield f"votes of {method}", partial(check_votes, folder, method, data, evidence.workers)
        yield f"certificate of {method}", partial(check_certificate, folder, method)
    yield "commitment", partial(_commitment, folder, evidence.commitment)
    if folder.attacks_file.exists():
        yield "attacks", partial(check_attacks, folder)
    yield ("the rest", _rest) if summed else ("training", partial(_training, folder))


def _record(folder: RunFolder) -> str:
    record = folder.record()
    if plain(record) != read_json(folder.record_file):
        raise CarvyError("the record holds fields that no run writes")
    if (record.environment.engine == "flower") != (record.deployment is not UNSET):
        raise CarvyError("environment: what trained the groups does not fit the rest")
    if (record.environment.flower is UNSET) != (record.deployment is UNSET):
        raise CarvyError("environment: the version of Flower does not fit the rest")
    return f"as it was sealed, digest {record.digest}"


def _signature(folder: RunFolder, key: Ed25519PublicKey | None) -> str:
    if key is None:
        raise UncheckedError("the record is signed; give the signer's public key with `key`")
    if not folder.signature_file.is_file():
        raise CarvyError("the record is not signed")
    if not is_signed(folder.record_file, folder.signature_file, key):
        raise CarvyError("not made over this record with the given key")
    return "made over this record with the given key"


def _files(folder: RunFolder) -> str:
    record = folder.record()
    expected = folder.files(
        record.methods,
        record.config.types,
        typed=record.types is not None,
        counted=record.group_count is not UNSET,
        summed=record.config.keep_sums,
    )
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
    record = folder.record()
    deployment, config = record.deployment, record.config
    settings = config.to_dict() if deployment is UNSET else deployment.settings
    if folder.config_file.read_bytes() != to_yaml(settings).encode():
        raise CarvyError("config.yaml is not the recorded configuration")
    if list(record.methods) != list(config.methods):
        raise CarvyError("the methods are not the configured ones")
    check_architecture(config)
    registered(PROFILE_METHODS, config.types)
    for method in config.methods:
        registered(GROUPINGS, method)
    if deployment is UNSET:
        registered(PARTITIONS, config.partition)
        RunConfig(**vars(config))  # refuses settings that do not fit together
    else:
        own = Settings.of(deployment.settings, "the settings")
        again = own.recorded(deployment.samples, record.data.name)
        compare(again, config.to_dict(), "configuration")
    return "config.yaml is the recorded one"


def _federation(folder: RunFolder) -> str:
    """Compare what the record says of a federation's clients with its settings."""
    record = folder.record()
    deployment = record.deployment
    assert deployment is not UNSET
    settings = Settings.of(deployment.settings, "the settings")
    names, keyed = deployment.clients, bool(settings.keys)
    distinct = set(names)
    if names != settings.numbered(distinct) or len(distinct) < settings.min_clients:
        raise CarvyError("the clients are not numbered as a federation numbers them")
    if any(name.startswith("key ") != keyed for name in names):
        raise CarvyError("the clients' names are not those of this kind of federation")
    if deployment.authenticated != keyed or deployment.identity != (KEYS if keyed else OPEN):
        raise CarvyError("the settings say otherwise of who could take part")
    if len(deployment.samples) != len(names):
        raise CarvyError("the record names other clients than it counts samples of")
    compare(
        {"num_classes": settings.num_classes, "mean": settings.mean, "std": settings.std},
        record.data,
        "data",
    )
    if len(record.data.class_names) != settings.num_classes or record.data.train_sha256 is not None:
        raise CarvyError("the data is not that of a federation with these settings")
    for step, sent in deployment.traffic.items():
        if (sent.get("down") or sent.get("up")) and not sent.get("messages"):
            raise CarvyError(f"traffic: bytes without messages in {step}")
    types = record.types
    if types is not None and types.true_types is not None:
        raise CarvyError("nobody knows the true types of a real federation's clients")
    return f"{len(names)} clients, as the settings have it; samples and traffic are as recorded"


def _num_clients(folder: RunFolder) -> int:
    record = folder.record()
    return record.config.clients if record.deployment is UNSET else len(record.deployment.clients)


def _types(folder: RunFolder) -> str:
    record = folder.record()
    config, types, claimed = record.config, folder.types(), record.types
    if claimed is None or types is None:
        return "no method needed any"
    if len(types) != _num_clients(folder) or types.method != config.types:
        raise CarvyError("types.json does not fit the configuration")
    if folder.types_file.read_bytes() != json.dumps(types.to_json()).encode():
        raise CarvyError("types.json says more than is read from it")
    compare(types_entry(types, claimed.true_types), claimed, "types")
    method = registered(PROFILE_METHODS, types.method)
    if types.local != method.types_are_local:
        raise CarvyError(f"types.json says otherwise of '{types.method}' than is known of it")
    if record.deployment is UNSET and _partitioned(record) != claimed.true_types:
        raise CarvyError("the true types do not follow from the partition")
    if method.sends in {"class-counts", "class-means"} and config.keep_sums:
        return f"{types.num_types} types as recorded; the counts they follow from are in the sums"
    if method.asks_clients:
        return (
            f"{types.num_types} types as recorded; that clients sent what leads to them, "
            "only Step 1 again can show"
        )
    again = read_profiles(
        types.method,
        seed=config.seed,
        truth=claimed.true_types,
        given=config.given_types if config.covariates is None else config.covariates,
    ).types
    if again.to_json() != types.to_json():
        raise CarvyError(f"types.json does not hold the {types.method} types")
    return f"the {types.num_types} {types.method} types"


def _group_count(folder: RunFolder) -> str:
    record = folder.record()
    config, count, profiles = record.config, record.group_count, folder.profiles()
    compared = None if profiles is None else profiles.vectors
    simulated = record.deployment is UNSET
    chosen = simulated and compared is not None and config.groups is None
    if (chosen and "carvy" in record.methods) != (count is not UNSET):
        raise CarvyError("the record says otherwise of whether G was chosen than the settings")
    if count is UNSET:
        return "was not chosen from estimates"
    assert profiles is not None
    compare({"aim": config.aim, "least_accuracy": config.least_accuracy}, count, "group_count")
    clients = int((profiles.types.labels >= 0).sum())
    if [each.groups for each in count.candidates] != candidates(clients):
        raise CarvyError(f"other numbers of groups were tried than {clients} clients call for")
    best = best_candidate(count.candidates, count.aim, count.least_accuracy)
    if not best.groups == count.groups == count.balanced.groups:
        raise CarvyError(f"of the recorded estimates, those of {best.groups} groups are the best")
    return f"{best.groups} is the best of the recorded estimates, which were not made again"


def _partitioned(record: RunRecord) -> tuple[int, ...] | None:
    """Split the classes over the clients again, and return the clients' true types."""
    config = record.config
    registered(PARTITIONS, config.partition)
    partition = split_classes(
        config.partition,
        num_clients=config.clients,
        num_classes=record.data.num_classes,
        samples=config.samples,
        seed=config.seed,
        **config.partition_options,
    )
    return None if partition.types is None else tuple(partition.types.tolist())


def _commitment(folder: RunFolder, published: str | None) -> str:
    groupings = map(folder.grouping, folder.record().methods)
    drawn = {grouping.coins for grouping in groupings if grouping.coins is not None}
    if published is None:
        if any(coins.source != "simulated" for coins in drawn):
            raise UncheckedError(
                "the coins were committed to; give the hash that was published with `commitment`"
            )
        return "nothing was committed to: coins, if any, follow from the seed"
    if not drawn:
        raise CarvyError("no grouping of this run was drawn with coins")
    commitments = {coins.commitment for coins in drawn}
    if commitments != {published.strip().lower()}:
        raise CarvyError(f"the coins have the commitment {', '.join(sorted(commitments))}")
    return "the coins are the ones committed to"


def _groups(folder: RunFolder, method: str) -> str:
    record, saved = folder.record(), folder.grouping(method)
    entry, coins, clients = record.methods[method], saved.coins, _num_clients(folder)
    if coins is not None:
        simulated = coins.source == "simulated"
        if simulated and coins != coins_from_seed(record.config.seed):
            raise CarvyError("the simulated coins do not follow from the seed")
        if simulated and record.deployment is not UNSET:
            raise CarvyError("the coins of a real federation must not follow from its seed")
        published = None if simulated else coins.commitment
        if record.deployment is UNSET and published != record.config.commitment:
            raise CarvyError("the coins are not those of the configuration")
    if len(saved.assignment) != clients:
        raise CarvyError(f"{len(saved.assignment)} clients were grouped, {clients} recorded")
    if saved.num_groups != entry.num_groups:
        raise CarvyError(f"{saved.num_groups} groups were formed, {entry.num_groups} recorded")
    if tuple(saved.benched.tolist()) != entry.benched:
        raise CarvyError("the clients in no group are not the recorded ones")
    again = _form_again(folder, method, saved)
    if folder.grouping_file(method).read_bytes() != (json.dumps(again.to_json()) + "\n").encode():
        raise CarvyError("the groups do not follow from the recorded profiles, coins and settings")
    from_coins = "" if coins is None else f" and {coins}"
    source = f"profiles{from_coins}" if GROUPINGS[method].needs_profiles else "settings and seed"
    return f"{saved.num_groups} groups follow from the recorded {source}"


def _form_again(folder: RunFolder, method: str, saved: Grouping) -> Grouping:
    record = folder.record()
    config, own = record.config, registered(GROUPINGS, method)
    registered(PROFILE_METHODS, config.types)
    found = folder.grouping("carvy").num_groups if "carvy" in record.methods else config.groups
    if own.needs_profiles:  # all it could take over is a G that was chosen
        found = None if record.group_count is UNSET else record.group_count.groups
    truth = None if record.types is None else record.types.true_types
    if own.needs_truth and truth is None and record.deployment is UNSET:
        truth = _partitioned(record)
    deployment, profiles = record.deployment, folder.profiles()
    grouping = form_method(
        method,
        config.grouping,
        num_clients=_num_clients(folder),
        seed=config.seed,
        profiles=profiles,
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
        aside=len(entry.set_aside) + (0 if profiles is None else len(profiles.types.set_aside)),
        clients=len(deployment.clients),
    )
    return replace(grouping, basis=basis)


def _training(folder: RunFolder) -> str:
    learned = (
        "training was not repeated, since the run kept no sums"
        if folder.record().config.learner == "one-shot"
        else "that the models come from these clients, in these rounds, only training again can "
        "show"
    )
    raise UnderivableError(
        f"{learned}; the picture, times, environment and reasons in words are as recorded"
    )


def _rest() -> str:
    raise UnderivableError("the picture, times and environment are as recorded")
