"""The audit of a run folder: every claim is derived again from the files, without rounds.

:data:`CLAIMS` lists what is checked. Bytes are compared with the recorded hashes; data, types and
groups follow from settings, seed and coins, and :mod:`carvyfl.runs.repeat` does again what files
and data allow. What was not checked, and what no audit could, is named.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from msgspec import UNSET

from carvyfl.attacks.attack import STEP_ONE
from carvyfl.core.errors import CarvyError, printable
from carvyfl.core.schema import plain
from carvyfl.core.yaml_text import to_yaml
from carvyfl.data.partitions import PARTITIONS
from carvyfl.group_count import Goal, best_candidate, search
from carvyfl.groups.coins import coins_from_seed
from carvyfl.groups.grouping import Grouping
from carvyfl.groups.hashing import named_ids
from carvyfl.groups.methods import GROUPINGS, Beforehand, form_groups
from carvyfl.learning.learners import LEARNERS
from carvyfl.pipeline import asked_groups
from carvyfl.profiles.methods import PROFILE_METHODS
from carvyfl.runs import repeat
from carvyfl.runs.config import RunConfig, without_former
from carvyfl.runs.evidence import (
    AuditedRun,
    Evidence,
    UncheckedError,
    UnderivableError,
    compare,
    registered,
    require,
)
from carvyfl.runs.flower_settings import Settings, certified_grouping
from carvyfl.runs.folder import RunFolder, read_json
from carvyfl.runs.record import AttackResult, Check, Verdict, data_entry, hashes, types_entry
from carvyfl.runs.save import draw_pictures
from carvyfl.voting.certificate import undercut


def audit(folder: RunFolder, evidence: Evidence) -> Iterator[Check]:
    """Check a finished run, claim by claim, up to the first mismatch.

    Raises :class:`CarvyError` if there is no finished run, or the evidence cannot be used.
    """
    if not folder.record_file.is_file():
        folder.record()  # says what is there instead
    run = AuditedRun(folder, evidence)
    _ = run.given  # that they cannot be read is no mismatch
    for what, check in _checks(run):
        try:
            yield Check(what, "ok", check())
        except UncheckedError as why:
            yield Check(what, why.state, str(why))
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


def _checks(run: AuditedRun) -> Iterator[tuple[str, Callable[[], str]]]:
    """Yield what to check and how; a later check may rely on the earlier ones having passed."""
    for of_methods, claims in itertools.groupby(CLAIMS, lambda claim: claim.name.endswith(" of")):
        together = list(claims)
        for method in run.record.methods if of_methods else [""]:
            for claim in together:
                if claim.applies(run):
                    given = (run, method) if of_methods else (run,)
                    yield f"{claim.name} {method}".strip(), partial(claim.check, *given)


def _record(run: AuditedRun) -> str:
    record, real = run.record, run.deployment is not None
    written = read_json(run.folder.record_file)
    written["config"] = without_former(written["config"], "the record")
    require(plain(record) == written, "the record holds fields that no run writes")
    there = record.environment
    require((there.engine == "flower") == real, "environment: the engine does not fit the rest")
    flower = there.flower is not UNSET
    require(flower == real, "environment: the version of Flower does not fit the rest")
    return f"as it was sealed, digest {record.digest}"


def _files(run: AuditedRun) -> str:
    folder, recorded = run.folder, run.record.files
    expected = folder.files(run.record)
    for file in expected:
        require(file.is_file(), f"{file} is missing")
    digests = hashes(folder.path, expected)
    require(set(recorded) == set(digests), "the record does not list the files of this run")
    for name, digest in digests.items():
        changed = f"{name} was changed: its SHA-256 is not the recorded one"
        require(recorded[name] == digest, changed)
    known = {*expected, folder.record_file, folder.signature_file, folder.attacks_file}
    extra = sorted(f for f in folder.path.rglob("*") if f.is_file() and f not in known)
    names = ", ".join(printable(str(file.relative_to(folder.path))) for file in extra)
    note = f"; not part of the run: {names}" if extra else ""
    return f"{len(digests)} files have their recorded SHA-256{note}"


def _configuration(run: AuditedRun) -> str:
    deployment, config = run.deployment, run.config
    recorded = read_json(run.folder.record_file)["config"]  # with settings of earlier versions
    text = to_yaml(recorded if deployment is None else deployment.settings)
    saved = run.folder.config_file.read_bytes() == text.encode()
    require(saved, "config.yaml is not the recorded configuration")
    configured = list(run.record.methods) == list(config.methods)
    require(configured, "the methods are not the configured ones")
    run.check_registered()
    registered(PROFILE_METHODS, config.types)
    for method in config.methods:
        registered(GROUPINGS, method)
    if deployment is None:
        registered(PARTITIONS, config.partition)
        RunConfig(**vars(config))  # refuses settings that do not fit together
    else:
        settings = Settings.of(deployment.settings, "the settings")
        derived = settings.recorded(deployment.samples, run.record.data.name)
        compare(derived, config, "configuration")
    return "config.yaml is the recorded one"


def _federation(run: AuditedRun) -> str:
    record, deployment = run.record, run.deployment
    assert deployment is not None
    settings, names = Settings.of(deployment.settings, "the settings"), deployment.clients
    derived = {"clients": settings.numbered(set(names)), **settings.identity}
    compare(derived, deployment, "deployment")
    shared = {name: getattr(settings, name) for name in ("num_classes", "mean", "std")}
    compare({**shared, "train_sha256": None}, record.data, "data")
    complete = settings.min_clients <= len(names) == len(deployment.samples)
    require(complete, "there are other clients than the settings ask for, or samples are of")
    keyed = all(name.startswith("key ") == bool(settings.keys) for name in names)
    require(keyed, "the clients' names are not those of this kind of federation")
    named = len(record.data.class_names) == settings.num_classes
    require(named, "the data is not that of a federation with these settings")
    for step, sent in deployment.traffic.items():
        fits = sent.get("messages") or not (sent.get("down") or sent.get("up"))
        require(bool(fits), f"traffic: bytes without messages in {step}")
    known = record.types is not None and record.types.true_types is not None
    require(not known, "nobody knows the true types of a real federation's clients")
    return f"{len(names)} clients, as the settings have it; samples and traffic are as recorded"


def _types(run: AuditedRun) -> str:
    config, types, claimed = run.config, run.folder.types(), run.record.types
    if claimed is None or types is None:
        return "no method needed any"
    fits = len(types) == run.num_clients and types.method == config.types
    require(fits, "types.json does not fit the configuration")
    exact = run.folder.types_file.read_bytes() == json.dumps(types.to_json()).encode()
    require(exact, "types.json says more than is read from it")
    compare(types_entry(types, claimed.true_types), claimed, "types")
    local = registered(PROFILE_METHODS, types.method).types_are_local
    otherwise = f"types.json says otherwise of '{types.method}' than is known of it"
    require(types.local == local, otherwise)
    split = run.deployment is not None or run.true_types == claimed.true_types
    require(split, "the true types do not follow from the partition")
    return f"{types.num_types} types, as recorded"


def _group_count(run: AuditedRun) -> str:
    config, count, profiles = run.config, run.record.group_count, run.folder.profiles()
    vectors = None if profiles is None else profiles.vectors
    estimated = run.deployment is None or _private(run)
    chosen = estimated and vectors is not None and config.groups is None
    fits = (chosen and "carvy" in run.record.methods) == (count is not UNSET)
    require(fits, "the record says otherwise of whether G was chosen than the settings")
    if count is UNSET or profiles is None:
        return "was not chosen from estimates"
    goal = Goal(config.aim, config.least_accuracy)
    compare(goal, count, "group_count")
    private = registered(LEARNERS, config.learner).sends == "message"
    require(count.made_up == private, "group_count: made_up is not what the learner does")
    clients = int((profiles.types.labels >= 0).sum())
    recorded = {each.groups: each for each in count.candidates}
    try:  # which numbers are tried depends on the estimates of those before
        tried = search(clients, lambda groups, _: recorded[groups], goal)
    except KeyError:
        tried = ()
    otherwise = f"other numbers of groups were tried than {clients} clients call for"
    require(tried == count.candidates, otherwise)
    best = best_candidate(count.candidates, goal).groups
    is_best = best == count.groups == count.balanced.groups
    require(is_best, f"of the recorded estimates, those of {best} groups are the best")
    return f"{best} is the best of the recorded estimates, which were not made again"


def _data(run: AuditedRun) -> str:
    if run.deployment is not None:
        raise UnderivableError("the clients of a real federation keep their training data")
    data = run.record.data
    settings = {name: getattr(run.config, name) for name in ("num_classes", "mean", "std")}
    given = {name: value for name, value in settings.items() if value is not None}
    compare(given, data, "data")
    derived = data_entry(run.data_set)
    if derived.test_sha256 != data.test_sha256:
        registered(PARTITIONS, run.config.partition)  # one from elsewhere may shift them
    compare(derived, data, "data")
    return f"{data.name}: test and training set have the recorded SHA-256"


def _test_data(run: AuditedRun) -> str:
    return f"{len(run.test)} test inputs have the recorded SHA-256"


def _groups(run: AuditedRun, method: str) -> str:
    saved, entry, real = run.folder.grouping(method), run.record.methods[method], run.deployment
    coins, committed = saved.coins, run.config.commitment
    if coins is not None and coins.source == "simulated":
        derived = coins == coins_from_seed(run.config.seed)
        require(derived, "the simulated coins do not follow from the seed")
        require(real is None, "the coins of a real federation must not follow from its seed")
    if coins is not None and real is None:
        expected = None if coins.source == "simulated" else coins.commitment
        require(expected == committed, "the coins are not those of the configuration")
    grouped = len(saved.assignment)
    require(grouped == run.num_clients, f"{grouped} clients were grouped, not {run.num_clients}")
    compare({"num_groups": saved.num_groups, "benched": saved.benched.tolist()}, entry, "groups")
    text = json.dumps(_formed_again(run, method, saved).to_json()) + "\n"
    derived = run.folder.grouping_file(method).read_bytes() == text.encode()
    require(derived, "the groups do not follow from the recorded profiles, coins and settings")
    source = "settings and seed"
    if GROUPINGS[method].needs_profiles:
        source = "profiles" if coins is None else f"profiles and {coins}"
    return f"{saved.num_groups} groups follow from the recorded {source}"


def _formed_again(run: AuditedRun, method: str, saved: Grouping) -> Grouping:
    record, config, deployment = run.record, run.config, run.deployment
    rule, types = registered(GROUPINGS, method), run.folder.types()
    registered(PROFILE_METHODS, config.types)
    num_groups = config.groups
    if rule.needs_profiles:  # all it could take over is a G that was chosen
        num_groups = None if record.group_count is UNSET else record.group_count.groups
    elif "carvy" in record.methods:
        num_groups = run.folder.grouping("carvy").num_groups
    truth = None if record.types is None else record.types.true_types
    if rule.needs_truth and truth is None and deployment is None:
        truth = run.true_types
    profiles = run.folder.profiles()
    ids = None if deployment is None else named_ids(deployment.clients, config.seed)
    grouping = form_groups(
        method,
        num_clients=run.num_clients,
        seed=config.seed,
        profiles=profiles,
        **asked_groups(method, config, profiles, num_groups),
        beforehand=Beforehand(truth, ids, saved.coins),
    )
    if deployment is None:
        return grouping
    entry, keyed = record.methods[method], deployment.authenticated
    aside = len(entry.set_aside)
    return certified_grouping(grouping, types, entry.stopped, aside, authenticated=keyed)


def _commitment(run: AuditedRun) -> str:
    groupings = [run.folder.grouping(method) for method in run.record.methods]
    drawn = {grouping.coins for grouping in groupings if grouping.coins is not None}
    published = run.evidence.commitment
    if published is None and any(coins.source != "simulated" for coins in drawn):
        raise UncheckedError(
            "the coins were committed to; give the hash that was published with `commitment`"
        )
    if published is None:
        return "nothing was committed to: coins, if any, follow from the seed"
    require(bool(drawn), "no grouping of this run was drawn with coins")
    hashed = {coins.commitment for coins in drawn}
    same = hashed == {published.strip().lower()}
    require(same, f"the coins have the commitment {', '.join(sorted(hashed))}")
    return "the coins are the ones committed to"


def _pictures(run: AuditedRun) -> str:
    certificates = {method: run.folder.certificate(method) for method in run.record.methods}
    with TemporaryDirectory() as place:
        for file in draw_pictures(RunFolder(Path(place)), certificates, run.record):
            if file.read_bytes() != (run.folder.path / file.name).read_bytes():
                raise UncheckedError(
                    f"{file.name} is not what is drawn here of the recorded numbers; another "
                    "version of matplotlib may have drawn it, or a forger"
                )
    return "they show the recorded numbers: drawn again, they are the same files"


def _attacks(run: AuditedRun) -> str:
    results = run.folder.attacks()
    regrouped = sum(_met_other_groups(run, result) for result in results)
    left = f"; {regrouped} with the CA(m) of other groups, from a poisoned Step 1"
    return (
        f"{len(results)} results on this run, unchanged; only attacking again can derive them"
        f"{left if regrouped else ''}"
    )


def _met_other_groups(run: AuditedRun, result: AttackResult) -> bool:
    """Check a result; return whether attackers lied in Step 1 and were regrouped."""
    name, m = f"{result.attack} on {result.method}", result.m
    require(result.method in run.record.methods, f"{name}: the run has no such method")
    possible = all(a < b for a, b in itertools.pairwise([-1, *m, run.num_clients + 1]))
    possible &= all(0 <= percent <= 100 for percent in [*result.accuracy, *result.certified])
    require(possible, f"{name}: no such numbers of clients, or percentages, can be")
    step_one = result.settings.get("step_one", "honest")
    require(step_one in STEP_ONE, f"{name}: no attack has this `step_one`")
    asked = result.method in GROUPINGS and GROUPINGS[result.method].needs_profiles
    regrouped = step_one == "poisoned" and asked
    ca = dict(enumerate(run.record.methods[result.method].ca))
    rounding = 100 * max(1 / run.record.data.test_inputs, repeat.FEW)
    for malicious, claimed in zip(m, result.certified, strict=True):
        of_run = (regrouped and malicious > 0) or abs(ca.get(malicious, 0.0) - claimed) <= rounding
        require(of_run, f"{name}: its CA(m) is not this run's")
    follows = result.promise_kept == (not undercut(result.accuracy, result.certified))
    require(follows, f"{name}: whether CA(m) kept its promise does not follow from it")
    return regrouped


def _rest(run: AuditedRun) -> str:
    as_recorded = "times, environment and reasons in words are as recorded"
    if not _not_derived(run):
        raise UnderivableError("times and environment are as recorded")
    if run.config.learner == "one-shot":
        raise UnderivableError(
            f"training was not repeated, since the run kept no sums; {as_recorded}"
        )
    raise UnderivableError(
        "that the models come from these clients, in these rounds, only training again can show; "
        + as_recorded
    )


class Claim(NamedTuple):
    """A line of the audit; ``check`` also takes a method where the name ends in *of*."""

    name: str
    holds: str
    check: Callable[..., str]
    applies: Callable[[AuditedRun], bool] = lambda run: True


def _private(run: AuditedRun) -> bool:
    learner = LEARNERS.get(run.config.learner)
    return learner is not None and learner.sends == "message"


def _not_derived(run: AuditedRun) -> bool:
    return not (run.config.keep_sums or _private(run))


def _kept_sums(run: AuditedRun) -> bool:
    return run.config.keep_sums


CLAIMS = (
    Claim("record", "no byte of run.json was changed, no field added", _record),
    Claim("files", "every file has its recorded SHA-256", _files),
    Claim("configuration", "config.yaml is the record's, and fits together", _configuration),
    Claim(
        "federation",
        "clients and data fit the settings",
        _federation,
        lambda run: run.deployment is not None,
    ),
    Claim("types", "types.json is the record's; true types follow from the partition", _types),
    Claim("number of groups", "a G that was chosen is the best of the estimates", _group_count),
    Claim("data", "the data set is the recorded one", _data),
    Claim("test data", "the test data are the recorded ones", _test_data),
    Claim("map", "it is made of what it says, no client's data", repeat.check_map, _private),
    Claim("messages", "they fit the settings and the map", repeat.check_messages, _private),
    Claim("profiles", "Step 1, done again, gives profiles and types", repeat.check_profiles),
    Claim("sums", "the types follow from the counts", repeat.check_sums, _kept_sums),
    Claim("sums from the data", "they are the data's", repeat.check_sums_from_data, _kept_sums),
    Claim("groups of", "they follow from profiles, coins, seed and settings", _groups),
    Claim("models of", "one a group; the usable ones vote", repeat.check_models),
    Claim("training of", "the models follow from the sums", repeat.check_heads, _kept_sums),
    Claim("heads of", "they follow from the messages", repeat.check_private_heads, _private),
    Claim("votes of", "they are those of the models", repeat.check_votes),
    Claim("certificate of", "it follows from votes and groups", repeat.check_certificate),
    Claim("commitment", "the coins are the ones committed to", _commitment),
    Claim("pictures", "they show the recorded numbers", _pictures),
    Claim("attacks", "results are of this run", _attacks, lambda r: r.folder.attacks_file.exists()),
    Claim("training", "cannot be derived", _rest, _not_derived),
    Claim("the rest", "cannot be derived", _rest, lambda run: not _not_derived(run)),
)
"""Everything that an audit checks, in this order: what is said of methods, one after another."""
