"""The audit of a run folder: every claim is derived again from the files, without rounds.

Bytes are compared with the recorded hashes; then data, types and groups follow from settings, seed
and coins, and :mod:`carvyfl.runs.audit_learning` derives models, votes and CA(m). What was not
checked, and what no audit could, is named.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec import UNSET

from carvyfl.core.archives import read_npz
from carvyfl.core.errors import CarvyError, printable
from carvyfl.core.schema import plain
from carvyfl.core.yaml_text import to_yaml
from carvyfl.data.partitions import PARTITIONS
from carvyfl.group_count import best_candidate, search
from carvyfl.groups.coins import coins_from_seed
from carvyfl.groups.grouping import Grouping
from carvyfl.groups.hashing import named_ids
from carvyfl.groups.methods import GROUPINGS
from carvyfl.pipeline import form_method
from carvyfl.profiles.methods import PROFILE_METHODS
from carvyfl.runs import audit_learning as learned
from carvyfl.runs.audited import (
    ARRAYS,
    AuditedRun,
    UncheckedError,
    UnderivableError,
    compare,
    registered,
)
from carvyfl.runs.config import RunConfig, without_former
from carvyfl.runs.flower_settings import Settings, certified_grouping
from carvyfl.runs.folder import RunFolder, read_json
from carvyfl.runs.pictures import draw_pictures
from carvyfl.runs.record import Check, Verdict, data_entry, hashes, types_entry


@dataclass(frozen=True)
class Evidence:
    """What an auditor brings along.

    Attributes
    ----------
    commitment
        The hash of the coins that was published before the reports, or None.
    data_dir
        Where the data set is, if not where the run found it.
    test_data
        An npz file with the test data (``x_test``, ``y_test``), where the data set is not at hand.
    workers
        Worker processes that compute votes; default one per core.
    """

    commitment: str | None = None
    data_dir: Path | None = None
    test_data: Path | None = None
    workers: int | None = None


def audit(folder: RunFolder, evidence: Evidence) -> Iterator[Check]:
    """Check a finished run, claim by claim, up to the first mismatch.

    Raises :class:`CarvyError` if there is no finished run, or the evidence cannot be used.
    """
    if not folder.record_file.is_file():
        folder.record()  # says what is there instead
    given = None if evidence.test_data is None else read_npz(evidence.test_data, ARRAYS)
    run = AuditedRun(folder, evidence.data_dir, given)
    for what, check in _checks(run, evidence):
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


def _checks(run: AuditedRun, evidence: Evidence) -> Iterator[tuple[str, Callable[[], str]]]:
    """Yield what to check and how; a later check may rely on the earlier ones having passed."""
    yield "record", partial(_record, run)
    yield "files", partial(_files, run)
    yield "configuration", partial(_configuration, run)
    if run.deployment is not None:
        yield "federation", partial(_federation, run)
    yield "types", partial(_types, run)
    yield "number of groups", partial(_group_count, run)
    yield "data", partial(_data, run)
    yield "test data", lambda: f"{len(run.test)} test inputs have the recorded SHA-256"
    yield "profiles", partial(learned.check_profiles, run, evidence.workers)
    if run.config.keep_sums:
        yield "sums", partial(learned.check_sums, run)
        yield "sums from the data", partial(learned.check_sums_from_data, run)
    for method in run.record.methods:
        yield f"groups of {method}", partial(_groups, run, method)
        yield f"models of {method}", partial(learned.check_models, run, method)
        if run.config.keep_sums:
            yield f"training of {method}", partial(learned.check_heads, run, method)
        yield f"votes of {method}", partial(learned.check_votes, run, method, evidence.workers)
        yield f"certificate of {method}", partial(learned.check_certificate, run, method)
    yield "commitment", partial(_commitment, run, evidence.commitment)
    yield "pictures", partial(_pictures, run)
    if run.folder.attacks_file.exists():
        yield "attacks", partial(learned.check_attacks, run)
    yield "the rest" if run.config.keep_sums else "training", partial(_rest, run)


def _record(run: AuditedRun) -> str:
    record, real = run.record, run.deployment is not None
    written = read_json(run.folder.record_file)
    written["config"] = without_former(written["config"], "the record")
    if plain(record) != written:
        raise CarvyError("the record holds fields that no run writes")
    if (record.environment.engine == "flower") != real:
        raise CarvyError("environment: what trained the groups does not fit the rest")
    if (record.environment.flower is not UNSET) != real:
        raise CarvyError("environment: the version of Flower does not fit the rest")
    return f"as it was sealed, digest {record.digest}"


def _files(run: AuditedRun) -> str:
    folder, recorded = run.folder, run.record.files
    expected = folder.files(run.record)
    missing = [file for file in expected if not file.is_file()]
    if missing:
        raise CarvyError(f"{missing[0]} is missing")
    found = hashes(folder.path, expected)
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


def _configuration(run: AuditedRun) -> str:
    deployment, config = run.deployment, run.config
    recorded = read_json(run.folder.record_file)["config"]  # with settings of earlier versions
    settings = recorded if deployment is None else deployment.settings
    if run.folder.config_file.read_bytes() != to_yaml(settings).encode():
        raise CarvyError("config.yaml is not the recorded configuration")
    if list(run.record.methods) != list(config.methods):
        raise CarvyError("the methods are not the configured ones")
    assert run.architecture  # which must be registered here
    registered(PROFILE_METHODS, config.types)
    for method in config.methods:
        registered(GROUPINGS, method)
    if deployment is None:
        registered(PARTITIONS, config.partition)
        RunConfig(**vars(config))  # refuses settings that do not fit together
    else:
        own = Settings.of(deployment.settings, "the settings")
        again = own.recorded(deployment.samples, run.record.data.name)
        compare(again, config.to_dict(), "configuration")
    return "config.yaml is the recorded one"


def _federation(run: AuditedRun) -> str:
    """Compare what the record says of a federation's clients with its settings."""
    record, deployment = run.record, run.deployment
    assert deployment is not None
    settings = Settings.of(deployment.settings, "the settings")
    names, keyed = deployment.clients, bool(settings.keys)
    derived = {"clients": settings.numbered(set(names)), **settings.identity}
    compare(derived, deployment, "deployment")
    shared = {name: getattr(settings, name) for name in ("num_classes", "mean", "std")}
    compare({**shared, "train_sha256": None}, record.data, "data")
    if len(names) < settings.min_clients or len(names) != len(deployment.samples):
        raise CarvyError("there are other clients than the settings ask for, or samples are of")
    if any(name.startswith("key ") != keyed for name in names):
        raise CarvyError("the clients' names are not those of this kind of federation")
    if len(record.data.class_names) != settings.num_classes:
        raise CarvyError("the data is not that of a federation with these settings")
    for step, sent in deployment.traffic.items():
        if (sent.get("down") or sent.get("up")) and not sent.get("messages"):
            raise CarvyError(f"traffic: bytes without messages in {step}")
    if record.types is not None and record.types.true_types is not None:
        raise CarvyError("nobody knows the true types of a real federation's clients")
    return f"{len(names)} clients, as the settings have it; samples and traffic are as recorded"


def _types(run: AuditedRun) -> str:
    config, types, claimed = run.config, run.folder.types(), run.record.types
    if claimed is None or types is None:
        return "no method needed any"
    if len(types) != run.num_clients or types.method != config.types:
        raise CarvyError("types.json does not fit the configuration")
    if run.folder.types_file.read_bytes() != json.dumps(types.to_json()).encode():
        raise CarvyError("types.json says more than is read from it")
    compare(types_entry(types, claimed.true_types), claimed, "types")
    method = registered(PROFILE_METHODS, types.method)
    if types.local != method.types_are_local:
        raise CarvyError(f"types.json says otherwise of '{types.method}' than is known of it")
    if run.deployment is None and run.partitioned != claimed.true_types:
        raise CarvyError("the true types do not follow from the partition")
    return f"{types.num_types} types, as recorded"


def _group_count(run: AuditedRun) -> str:
    config, count, profiles = run.config, run.record.group_count, run.folder.profiles()
    compared = None if profiles is None else profiles.vectors
    chosen = run.deployment is None and compared is not None and config.groups is None
    if (chosen and "carvy" in run.record.methods) != (count is not UNSET):
        raise CarvyError("the record says otherwise of whether G was chosen than the settings")
    if count is UNSET:
        return "was not chosen from estimates"
    assert profiles is not None
    compare({"aim": config.aim, "least_accuracy": config.least_accuracy}, count, "group_count")
    clients = int((profiles.types.labels >= 0).sum())
    recorded = {each.groups: each for each in count.candidates}
    try:  # which numbers are tried depends on the estimates of those before
        tried = search(clients, lambda groups, _: recorded[groups], count.aim, count.least_accuracy)
    except KeyError:
        tried = ()
    if tried != count.candidates:
        raise CarvyError(f"other numbers of groups were tried than {clients} clients call for")
    best = best_candidate(count.candidates, count.aim, count.least_accuracy)
    if not best.groups == count.groups == count.balanced.groups:
        raise CarvyError(f"of the recorded estimates, those of {best.groups} groups are the best")
    return f"{best.groups} is the best of the recorded estimates, which were not made again"


def _data(run: AuditedRun) -> str:
    """Load the data set and compare all that the record says of it."""
    if run.deployment is not None:
        raise UnderivableError("the clients of a real federation keep their training data")
    data = run.record.data
    settings = {name: getattr(run.config, name) for name in ("num_classes", "mean", "std")}
    given = {name: value for name, value in settings.items() if value is not None}
    compare(given, data, "data")
    found = data_entry(run.data_set)
    if found.test_sha256 != data.test_sha256:
        registered(PARTITIONS, run.config.partition)  # one from elsewhere may shift them
    compare(found, data, "data")
    return f"{data.name}: test and training set have the recorded SHA-256"


def _groups(run: AuditedRun, method: str) -> str:
    saved, entry = run.folder.grouping(method), run.record.methods[method]
    coins = saved.coins
    if coins is not None:
        simulated = coins.source == "simulated"
        if simulated and coins != coins_from_seed(run.config.seed):
            raise CarvyError("the simulated coins do not follow from the seed")
        if simulated and run.deployment is not None:
            raise CarvyError("the coins of a real federation must not follow from its seed")
        published = None if simulated else coins.commitment
        if run.deployment is None and published != run.config.commitment:
            raise CarvyError("the coins are not those of the configuration")
    if len(saved.assignment) != run.num_clients:
        raise CarvyError(f"{len(saved.assignment)} clients were grouped, not {run.num_clients}")
    compare({"num_groups": saved.num_groups, "benched": saved.benched.tolist()}, entry, "groups")
    text = json.dumps(_form_again(run, method, saved).to_json()) + "\n"
    if run.folder.grouping_file(method).read_bytes() != text.encode():
        raise CarvyError("the groups do not follow from the recorded profiles, coins and settings")
    from_coins = "" if coins is None else f" and {coins}"
    source = f"profiles{from_coins}" if GROUPINGS[method].needs_profiles else "settings and seed"
    return f"{saved.num_groups} groups follow from the recorded {source}"


def _form_again(run: AuditedRun, method: str, saved: Grouping) -> Grouping:
    record, config, deployment = run.record, run.config, run.deployment
    own = registered(GROUPINGS, method)
    registered(PROFILE_METHODS, config.types)
    if own.needs_profiles:  # all it could take over is a G that was chosen
        found = None if record.group_count is UNSET else record.group_count.groups
    else:
        carvy = "carvy" in record.methods
        found = run.folder.grouping("carvy").num_groups if carvy else config.groups
    truth = None if record.types is None else record.types.true_types
    if own.needs_truth and truth is None and deployment is None:
        truth = run.partitioned
    grouping = form_method(
        method,
        config,
        num_clients=run.num_clients,
        seed=config.seed,
        profiles=run.folder.profiles(),
        truth=truth,
        found=found,
        ids=None if deployment is None else named_ids(deployment.clients, config.seed),
        coins=saved.coins,
    )
    if deployment is None:
        return grouping
    entry, types = record.methods[method], run.folder.types()
    keyed, aside = deployment.authenticated, len(entry.set_aside)
    return certified_grouping(grouping, types, entry.stopped, aside, authenticated=keyed)


def _commitment(run: AuditedRun, published: str | None) -> str:
    groupings = map(run.folder.grouping, run.record.methods)
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


def _pictures(run: AuditedRun) -> str:
    record = run.record
    certificates = {method: run.folder.certificate(method) for method in record.methods}
    with TemporaryDirectory() as place:
        drawn = RunFolder(Path(place))
        for file in draw_pictures(drawn, certificates, record):
            if file.read_bytes() != (run.folder.path / file.name).read_bytes():
                raise UncheckedError(
                    f"{file.name} is not what is drawn here of the recorded numbers; another "
                    "version of matplotlib may have drawn it, or a forger"
                )
    return "they show the recorded numbers: drawn again, they are the same files"


def _rest(run: AuditedRun) -> str:
    if run.config.keep_sums:
        raise UnderivableError("times and environment are as recorded")
    trained = (
        "training was not repeated, since the run kept no sums"
        if run.config.learner == "one-shot"
        else "that the models come from these clients, in these rounds, only training again can "
        "show"
    )
    raise UnderivableError(f"{trained}; times, environment and reasons in words are as recorded")
