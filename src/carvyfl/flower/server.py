"""The server's half: all four steps over the nodes that are connected."""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import flwr
import numpy as np
import torch
from flwr.app import Context, RecordDict
from flwr.serverapp import Grid, ServerApp
from torch import nn

from carvyfl.core.environment import environment
from carvyfl.core.errors import CarvyError
from carvyfl.core.files import write_text
from carvyfl.core.schema import plain, read
from carvyfl.data import clients
from carvyfl.data.datasets import DataSet
from carvyfl.flower import wire
from carvyfl.flower.door import UNGUARDED, unguarded
from carvyfl.flower.identity import Presence, ServerContext, wait_for_clients
from carvyfl.flower.questions import log
from carvyfl.flower.remote import (
    NOT_IN_TIME,
    hear_messages,
    learn_group_remotely,
    train_group_remotely,
)
from carvyfl.group_count import GroupCount
from carvyfl.groups.basis import OPEN
from carvyfl.groups.coins import Coins, draw_coins
from carvyfl.groups.grouping import Grouping
from carvyfl.groups.hashing import named_ids
from carvyfl.groups.methods import GROUPINGS, Beforehand, form_groups
from carvyfl.learning.job import GroupJob, GroupResult
from carvyfl.learning.learners import LEARNERS, learner_of
from carvyfl.learning.models import Shape, flat_weights
from carvyfl.learning.one_shot.features import probe
from carvyfl.learning.private.message import Messages as PrivateMessages
from carvyfl.learning.private.model import PrivateModel, group_head
from carvyfl.learning.store import GroupStore
from carvyfl.pipeline import Compute, Setup, asked_groups, choose_groups
from carvyfl.profiles.asking import message_form
from carvyfl.profiles.class_counts import collect_counts
from carvyfl.profiles.messages import Messages, collect
from carvyfl.profiles.methods import PROFILE_METHODS, Profiles, read_profiles
from carvyfl.profiles.types import ClientTypes
from carvyfl.profiles.vectors import Vectors
from carvyfl.runs.execute import Prepared, Run, vote
from carvyfl.runs.flower_settings import Settings, certified_grouping, read_settings
from carvyfl.runs.folder import RunFolder, read_json
from carvyfl.runs.record import Deployment, Environment
from carvyfl.runs.resume import claim
from carvyfl.runs.save import save
from carvyfl.settings import GroupingSettings

T = TypeVar("T")


def server_app(test_data: Callable[[Context], Any]) -> ServerApp:
    """Make the ServerApp of a federation.

    ``test_data`` is called with Flower's context on the server's machine and returns the data that
    certified accuracy is measured on: a :class:`~carvyfl.data.datasets.DataSet`, of which only the
    test part is used, or (inputs, labels), or a torch ``Dataset``.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        settings = read_settings(context.run_config)
        if where := unguarded(getattr(grid, "_addr", "")):
            log.warning(f"carvy: {UNGUARDED}", where)
        run_federation(grid, settings, _test_set(test_data(context), settings))

    return app


def _test_set(data: Any, settings: Settings) -> DataSet:
    """Return a data set whose training part is empty: that is the clients'."""
    names, title, classes = (
        tuple(map(str, range(settings.num_classes))),
        "test data",
        settings.num_classes,
    )
    if isinstance(data, DataSet):
        names, title, data = data.class_names, data.name, data.test
    test = clients.as_samples(data, num_classes=classes, where="test data")
    return DataSet(title, test.take([]), test, classes, settings.mean, settings.std, names)


@dataclass(frozen=True)
class Plan:
    """What Steps 1 and 2 gave; a federation that is started again goes on from it.

    By number the clients' ``names``, how many ``samples`` each trains on, 0 where it did not say,
    and the class ``counts`` sent by those who were asked. ``profiles`` is None if nobody was asked,
    ``count`` if G was not chosen. The private ``messages``, if any, are in a file of their own.
    """

    names: tuple[str, ...]
    samples: tuple[int, ...]
    profiles: Profiles | None
    grouping: Grouping
    counts: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    count: GroupCount | None = None
    messages: PrivateMessages | None = None

    def save(self, path: Path) -> None:
        """Write the plan as JSON."""
        vectors = None if self.profiles is None else self.profiles.vectors
        content = {
            "names": self.names,
            "samples": self.samples,
            "types": None if self.profiles is None else self.profiles.types.to_json(),
            "vectors": None if vectors is None else vectors.rows.tolist(),
            "by_chance": None if vectors is None else vectors.by_chance,
            "grouping": self.grouping.to_json(),
            "counts": dict(self.counts),
            "count": plain(self.count),
        }
        write_text(path, json.dumps(content))

    @classmethod
    def load(cls, path: Path) -> Plan:
        """Read what :meth:`save` wrote."""
        content = read_json(path)
        try:
            types, rows = content["types"], content["vectors"]
            vectors = rows and Vectors(np.array(rows, np.float32), float(content["by_chance"]))
            return cls(
                tuple(content["names"]),
                tuple(content["samples"]),
                None if types is None else Profiles(ClientTypes.from_json(types), vectors),
                Grouping.from_json(content["grouping"], str(path)),
                {int(number): tuple(counts) for number, counts in content["counts"].items()},
                content["count"] and read(GroupCount, content["count"], str(path)),
            )
        except (KeyError, TypeError, ValueError, AttributeError, CarvyError) as error:
            raise CarvyError(
                f"{path} is damaged; begin again in another folder (carvy.out): the coins of "
                "this one are no longer secret"
            ) from error


def run_federation(grid: Grid, settings: Settings, dataset: DataSet) -> RunFolder:
    """Run all four steps on the test part of a data set, or go on, and write the run folder."""
    # A server whose SuperLink was started again may still be at work: it holds the folder.
    with claim(Path(settings.out), plain(settings), "carvy.out") as folder:
        finished = _run_steps(grid, settings, dataset, folder)
        record = save(finished, folder)
    ((method, entry),) = record.methods.items()
    basis = finished.methods[method].certificate.basis
    if basis.readings:
        curve = "  ".join(f"m={m}: {ca:.1f}" for m, ca in enumerate(entry.ca))
        log.info("carvy: certified accuracy in %%  %s", curve)
        log.info("carvy: certified %s: %s", ", ".join(basis.readings), basis.because)
    else:
        log.warning("carvy: accuracy %.1f %%, nothing certified: %s", entry.ca[0], basis.because)
    if record.privacy:
        log.info("carvy: %s", record.privacy.guarantee)
    log.info("carvy: saved in %s; try 'carvy show %s'", folder.path, folder.path)
    return folder


def _run_steps(grid: Grid, settings: Settings, dataset: DataSet, folder: RunFolder) -> Run:
    started, until = time.monotonic(), _deadline(folder, settings)
    torch.set_num_threads(1)  # groups run beside each other, and sums are ordered as elsewhere
    shape = dataset.test.inputs.shape[1:]
    module = _module(settings, shape, folder)
    presence, store = Presence(grid, settings), GroupStore(folder.path / "federation")
    plan_file, traffic = store.folder / "plan.json", {}
    if not settings.keys:
        log.warning("carvy: %s; set carvy.keys", OPEN)
    if plan_file.exists():
        plan = Plan.load(plan_file)
        if isinstance(module, PrivateModel):
            messages = module.read_messages(folder.messages_file, len(plan.names))
            plan = replace(plan, messages=messages)
        delete_coins(folder)  # a server may have died before it did
        # Without keys nodes are known by what they say when they are greeted.
        if not settings.keys and time.monotonic() < until:
            wait_for_clients(presence, settings)
        context = ServerContext(grid, presence, plan.names, settings, store, until)
        log.info("carvy: going on with %s groups", plan.grouping.num_groups)
    else:
        names = wait_for_clients(presence, settings, until)
        log.info("carvy: %s clients", len(names))
        coins = committed_coins(folder, settings.method)
        context = ServerContext(grid, presence, names, settings, store, until)
        plan, traffic["types"] = make_plan(context, module, coins, shape)
        if plan.messages is not None:
            plan.messages.save(folder.messages_file)
        plan.save(plan_file)
        delete_coins(folder)
        log.info("carvy: groups\n%s", plan.grouping)
    results, traffic["training"] = _train(replace(context, counts=plan.counts), plan, module, shape)
    nobody = clients.Federation((), settings.num_classes, settings.mean, settings.std)
    setup = Setup(nobody, module, settings.training, settings.seed, plan.messages)
    prepared = Prepared(dataset, setup)
    return finish(settings, prepared, plan, results, traffic, started)


def _module(settings: Settings, shape: Shape, folder: RunFolder) -> nn.Module:
    """Build the model; what is made for one run, a map, stays the same if the server dies."""
    learner, classes = LEARNERS[settings.learner], settings.num_classes
    if learner.files and all((folder.path / name).is_file() for name in learner.files):
        return learner.load(settings, shape, classes, folder.path)
    module = settings.module(shape, classes, settings.seed)
    learner.save(module, folder.path)
    return module


def _deadline(folder: RunFolder, settings: Settings) -> float:
    """Return when the deadline passes, as ``time.monotonic`` counts; it is infinite for none.

    It counts from the first start: who can bring the server down must not prolong the run.
    """
    if not settings.deadline_seconds:
        return math.inf
    began = folder.path / "federation" / "began.json"
    if not began.exists():
        write_text(began, json.dumps(time.time()))
    left = read_json(began) + settings.deadline_seconds - time.time()
    return time.monotonic() + float(left)


def committed_coins(folder: RunFolder, method: str) -> Coins | None:
    """Draw the coins, if a method uses any, once; a server started again keeps them.

    Their hash is in ``federation/commitment.txt`` and in the log before any client is asked. They
    become public with the grouping, when all messages are in.
    """
    if not GROUPINGS.pick(method).draws_coins:
        return None
    secret, published = (folder.path / "federation" / n for n in ("coins.json", "commitment.txt"))
    if secret.exists():
        coins = Coins.from_json(read_json(secret), str(secret))
    else:
        coins = draw_coins()
        write_text(secret, json.dumps(coins.to_json()), mode=0o600)
    # Again, too, as a server may die between the two files.
    write_text(published, coins.commitment + "\n")
    log.info("carvy: commitment of the coins %s", coins.commitment)
    return coins


def delete_coins(folder: RunFolder) -> None:
    """Remove the coins once groups were formed, whose file holds them from then on.

    Clients know their groups now: should that file be lost, others must be drawn with other coins.
    """
    (folder.path / "federation" / "coins.json").unlink(missing_ok=True)


def make_plan(
    context: ServerContext, module: nn.Module, coins: Coins | None, shape: Shape
) -> tuple[Plan, Counter[str]]:
    """Ask every client for what its type shows in (Step 1), and form the groups (Step 2).

    Private messages are asked for whatever the method: they serve Step 3, too.
    """
    settings, names = context.settings, context.names
    samples: Mapping[int, int] = {}
    counts: Mapping[int, tuple[int, ...]] = {}
    profiles, sent, count, traffic = None, None, None, Counter[str]()
    profiled = GROUPINGS.pick(settings.method).needs_profiles
    if isinstance(module, PrivateModel):
        expected = torch.from_numpy(probe(module.features, shape))
        sent, traffic = hear_messages(context, module, expected)
        if profiled:
            profiles = read_profiles(settings.types, sent, seed=settings.seed)
            count = _group_count(settings, module, profiles, sent)
    elif profiled:
        if PROFILE_METHODS.pick(settings.types).sends == "class-counts":
            messages, counts, traffic = _ask_for_counts(context)
            samples = {number: sum(client_counts) for number, client_counts in counts.items()}
        else:
            messages, samples, traffic = _ask_for_profiles(context, module)
        profiles = read_profiles(settings.types, messages, seed=settings.seed)
    grouping = form_groups(
        settings.method,
        num_clients=len(names),
        seed=settings.seed,
        profiles=profiles,
        beforehand=Beforehand(ids=named_ids(names, settings.seed), coins=coins),
        **asked_groups(
            settings.method, settings, profiles, None if count is None else count.groups
        ),
    )
    of_all = tuple(samples.get(number, 0) for number in range(len(names)))
    return Plan(names, of_all, profiles, grouping, counts, count, sent), traffic


def _group_count(
    settings: Settings, module: nn.Module, profiles: Profiles, messages: PrivateMessages
) -> GroupCount | None:
    """Choose G from private messages for ``carvy``, where it is not set."""
    nobody = clients.Federation((), settings.num_classes, settings.mean, settings.std)
    setup = Setup(nobody, module, settings.training, settings.seed, messages)
    chosen = GroupingSettings(types=settings.types, groups=settings.groups)
    return choose_groups((settings.method,), setup, chosen, profiles, Compute.on_cores(1))


def _ask_for_profiles(
    context: ServerContext, module: nn.Module
) -> tuple[Messages, dict[int, int], Counter[str]]:
    """Have every client train one epoch, or describe its data; return also its samples."""
    settings, weights, ids = context.settings, flat_weights(module), context.ids
    form = message_form(module, settings.num_classes, settings.types)

    def question(number: int) -> RecordDict:
        return wire.write(wire.ProfileOrder(ids[number], weights))

    answers, traffic = _ask_all(context, wire.PROFILE, question, wire.Profile, form.length)
    usable = {n: each for n, each in answers.items() if 1 <= each.samples < wire.MOST_SAMPLES}
    samples = {number: answer.samples for number, answer in usable.items()}
    recipe, numbers = settings.training, range(len(ids))
    messages = collect(
        [usable[n].profile.numpy() if n in usable else None for n in numbers],
        length=form.length,
        lr=recipe.lr,
        steps=np.array([-(-samples.get(n, 1) // recipe.batch_size) for n in numbers]),
        num_classes=settings.num_classes,
        head=form.head,
    )
    return messages, samples, traffic


def _ask_for_counts(
    context: ServerContext,
) -> tuple[Messages, dict[int, tuple[int, ...]], Counter[str]]:
    """Have every client count its samples of each class: nothing is trained for its type."""
    classes = context.settings.num_classes
    kinds = wire.COUNTS, lambda _: RecordDict(), wire.ClassCounts
    answers, traffic = _ask_all(context, *kinds, classes)
    messages = [answers[n].counts if n in answers else None for n in range(len(context.names))]
    counts = {n: tuple(answer.counts.tolist()) for n, answer in sorted(answers.items())}
    return collect_counts(messages, classes), counts, traffic


def _ask_all(
    context: ServerContext,
    kind: str,
    question: Callable[[int], RecordDict],
    answer: type[T],
    length: int,
) -> tuple[dict[int, T], Counter[str]]:
    """Ask every client that is connected; return the answers that can be used, by number."""
    nodes, traffic = context.located(), Counter[str]()
    questions = {number: question(number) for number in nodes}
    replies = context.replies(kind, questions, nodes, traffic, numbers=2 * length)  # for a count
    answers = {number: wire.read(answer, reply, length) for number, reply in replies}
    return {n: each for n, each in answers.items() if not isinstance(each, str)}, traffic


def _train(
    context: ServerContext, plan: Plan, module: nn.Module, shape: Shape
) -> tuple[list[GroupResult], Counter[str]]:
    """Step 3: all groups at once, each in a thread of its own and at its own pace."""
    settings = context.settings
    if plan.messages is not None:
        late = NOT_IN_TIME in plan.messages.set_aside.values()
        heads = [
            group_head(module, members.tolist(), plan.messages.of_clients(members))
            for members in plan.grouping.groups
        ]
        return [replace(h, stopped="deadline") if late and h.votes else h for h in heads], Counter()
    shared = module, settings.training, settings.seed, settings.mean, settings.std
    jobs = [GroupJob(tuple(members.tolist()), (), *shared) for members in plan.grouping.groups]
    learn: Callable[[ServerContext, int, GroupJob], tuple[GroupResult, Counter[str]]]
    learn = train_group_remotely
    if (features := learner_of(module).features(module)) is not None:
        expected = torch.from_numpy(probe(features, shape))
        learn = partial(learn_group_remotely, expected=expected)
    with ThreadPoolExecutor(len(jobs)) as threads:
        pairs = list(threads.map(learn, [context] * len(jobs), range(len(jobs)), jobs))
    traffic = sum((counts for _, counts in pairs), Counter[str]())
    return [result for result, _ in pairs], traffic


def finish(
    settings: Settings,
    prepared: Prepared,
    plan: Plan,
    results: list[GroupResult],
    traffic: dict[str, Counter[str]],
    started: float,
) -> Run:
    """Step 4, and the whole run as a value; its record says how the federation was run."""
    types, keyed = None if plan.profiles is None else plan.profiles.types, bool(settings.keys)
    stopped, aside = [each.stopped for each in results], sum(len(r.set_aside) for r in results)
    grouping = certified_grouping(plan.grouping, types, stopped, aside, authenticated=keyed)
    method = vote(prepared, grouping, results, Compute.on_cores(1), grouping.method)
    return Run(
        config=settings.recorded(plan.samples, prepared.dataset.name),
        prepared=prepared,
        profiles=plan.profiles,
        group_count=plan.count,
        methods={grouping.method: method},
        seconds=time.monotonic() - started,
        environment=Environment(
            **environment(), engine="flower", precision="fp32", flower=flwr.__version__
        ),
        deployment=Deployment(
            settings=plain(settings),
            **settings.identity,
            clients=plan.names,
            samples=plan.samples,
            traffic={step: dict(counts) for step, counts in traffic.items()},
        ),
    )
