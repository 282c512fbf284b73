"""One-shot learning over the wire: the simulator's heads, whatever single clients send."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from carvyfl.core.errors import CarvyError
from carvyfl.core.schema import plain
from carvyfl.data import clients as own_clients
from carvyfl.data.clients import Samples
from carvyfl.data.datasets import DataSet
from carvyfl.flower import identity, server
from carvyfl.flower.client import Party, answer_counts, answer_sums
from carvyfl.flower.identity import ServerContext
from carvyfl.flower.remote import OTHER_COUNTS, ReceivedSums, learn_group_remotely
from carvyfl.flower.server import Plan, make_plan
from carvyfl.flower.wire import (
    COUNTS,
    HEADER_BYTES,
    SUMS,
    SumsOrder,
    packed,
    read_sums,
    sums_lengths,
    write,
)
from carvyfl.groups.coins import draw_coins
from carvyfl.learning.job import GroupJob, GroupResult, group_job
from carvyfl.learning.one_shot.features import FEATURES, FeatureMap, probe
from carvyfl.learning.one_shot.sums import MOST_SAMPLES, Sums, counts_of, sums_of
from carvyfl.learning.one_shot.training import OneShotModel, train_one_shot
from carvyfl.learning.recipe import Recipe
from carvyfl.learning.store import DamagedEntryWarning, GroupStore
from carvyfl.pipeline import Compute, Setup, find_profiles
from carvyfl.runs.audit import audit, verdict
from carvyfl.runs.evidence import Evidence
from carvyfl.runs.execute import Prepared
from carvyfl.runs.flower_settings import read_settings
from carvyfl.runs.folder import RunFolder
from carvyfl.runs.resume import claim
from carvyfl.runs.save import save
from carvyfl.settings import GroupingSettings
from support.cli import carvy
from support.federations import blobs, class_disjoint_federation
from support.network import Killed, Network
from support.registries import registered

CLIENTS = class_disjoint_federation(per_type=3)
WIDTH, CLASSES = 8, 4
MEMBERS = (0, 1, 3, 4)
NAMES = tuple(f"key {number}" for number in range(len(CLIENTS)))
SETTINGS = {"carvy.learner": "one-shot", "carvy.features": "none", "carvy.num-classes": CLASSES}
Behaviour = Callable[[int, RecordDict], RecordDict | None]


def honest(number: int, reply: RecordDict) -> RecordDict | None:
    return reply


class Site(Network):
    """Carries questions to clients, by the code they really run, and their answers back.

    ``behave`` may change or withhold (None) what a client answers.
    """

    def __init__(self, behave: Behaviour = honest, **settings: Any) -> None:
        super().__init__()
        self.settings = read_settings({**SETTINGS, **settings})
        module = self.settings.module((WIDTH,), CLASSES)
        assert isinstance(module, OneShotModel)
        self.module, self.behave = module, behave
        self.asked: list[int] = []

    def now(self) -> dict[str, int]:
        return {name: 1000 + number for number, name in enumerate(NAMES)}

    def answer(self, number: int, kind: str, question: RecordDict, most: int) -> RecordDict | None:
        party = Party(self.settings, CLIENTS.clients[number], self.module)
        self.asked.append(number)
        assert kind in {COUNTS, SUMS}
        reply = write(answer_counts(party) if kind == COUNTS else answer_sums(question, party))
        size = sum(len(array.data) for array in reply.array_records["arrays"].values())
        assert size <= 4 * most + 3 * HEADER_BYTES
        return self.behave(number, reply)


class Remote:
    """Learns a group over a network; the store stays, as if a server were started again."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.monkeypatch = folder, monkeypatch

    def __call__(
        self, network: Site, members: tuple[int, ...] = MEMBERS, **options: Any
    ) -> GroupResult:
        self.monkeypatch.setattr(identity, "replies", network.replies)
        grid, everybody = cast(Any, None), cast(Any, network)
        who = grid, everybody, NAMES, network.settings
        context = ServerContext(*who, GroupStore(self.folder), clock=network.clock, **options)
        return learn_group_remotely(context, 0, job(network, members), expected(network))[0]


@pytest.fixture
def learn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Remote:
    return Remote(tmp_path, monkeypatch)


def job(network: Site, members: tuple[int, ...] = MEMBERS) -> GroupJob:
    return GroupJob(members, (), network.module, network.settings.training, 0, 0.0, 1.0)


def expected(network: Site) -> Any:
    return torch.from_numpy(probe(network.module.features, (WIDTH,)))


def alone(network: Site, members: tuple[int, ...] = MEMBERS) -> GroupResult:
    """Return what the simulator makes of a group."""
    whole = group_job(CLIENTS, members, network.module, network.settings.training, 0)
    ((_, result),) = train_one_shot([whole])
    return result


def changed(reply: RecordDict, **arrays: Any) -> RecordDict:
    """Return a message with other arrays; None leaves one out."""
    record = dict(reply.array_records["arrays"])
    for name, array in arrays.items():
        record.pop(name)
        if array is not None:
            record[name] = array if isinstance(array, Array) else Array(array)
    return RecordDict({"arrays": ArrayRecord(record), "head": ConfigRecord()})


def test_same_head_as_the_simulator(learn: Remote, tmp_path: Path):
    network = Site()
    found, simulated = learn(network), alone(network)
    assert torch.equal(found.weights, simulated.weights)
    assert (found.stopped, found.accuracy, found.set_aside) == ("closed-form", (), {})
    assert network.asked == list(MEMBERS)  # once
    assert not list((tmp_path / "sums").iterdir())  # nothing is kept that is no longer needed
    again = learn(network)
    assert torch.equal(again.weights, found.weights)
    assert network.asked == list(MEMBERS)


@given(width=st.integers(1, 9), samples=st.integers(1, 30), seed=st.integers(0, 2**32 - 1))
def test_sums_survive_the_wire_to_the_bit(width: int, samples: int, seed: int):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(samples, width)).astype(np.float32) * 10.0 ** rng.integers(-9, 9)
    sent = sums_of(x, rng.integers(0, CLASSES, samples), CLASSES)
    content = write(packed(sent))
    found = read_sums(content, width, CLASSES)
    assert isinstance(found, Sums)
    for name in ("second", "first", "counts"):
        np.testing.assert_array_equal(getattr(found, name), getattr(sent, name), strict=True)
    arrays = {name: array.numpy() for name, array in content.array_records["arrays"].items()}
    lengths = {"second": width * (width + 1) // 2, "first": CLASSES * width, "counts": CLASSES}
    assert {name: array.shape for name, array in arrays.items()} == {
        name: (length,) for name, length in lengths.items()
    }
    assert [arrays[name].itemsize for name in lengths] == [4, 4, 8]
    assert sums_lengths(width, CLASSES) == lengths


def sums_from(samples: Samples) -> Sums:
    return sums_of(samples.inputs.astype(np.float32), samples.labels, CLASSES)


TRIANGLE = WIDTH * (WIDTH + 1) // 2
GOOD = write(packed(sums_from(blobs(0, 20, (0, 1)))))
BAD = {
    "nothing": RecordDict(),
    "NaN": changed(GOOD, second=np.full(TRIANGLE, np.nan, np.float32)),
    "infinity": changed(GOOD, first=np.full(CLASSES * WIDTH, np.inf, np.float32)),
    "too large for float32": changed(GOOD, first=np.full(CLASSES * WIDTH, 1e300)),
    "no sums": changed(GOOD, second=None),
    "another width": changed(GOOD, second=np.zeros(10, np.float32)),
    "a whole matrix": changed(GOOD, second=np.zeros((WIDTH, WIDTH), np.float32)),
    "other classes": changed(GOOD, counts=np.ones(CLASSES + 1, np.int64)),
    "shares": changed(GOOD, counts=np.full(CLASSES, 0.25)),
    "too few of it": changed(GOOD, counts=np.full(CLASSES, -1)),
    "none of anything": changed(GOOD, counts=np.zeros(CLASSES, np.int64)),
    "too much": changed(GOOD, counts=np.full(CLASSES, MOST_SAMPLES + 1)),
    "words": changed(GOOD, first=np.array(["x"] * CLASSES * WIDTH)),
    "a pickle": changed(GOOD, counts=Array("int64", (4,), "pickle", b"cos\nsystem\n(S'true'\ntR.")),
    "much": changed(GOOD, second=np.zeros(100_000, np.float32)),
    "truncated": changed(
        GOOD, first=Array("float32", (32,), "numpy.ndarray", Array(np.zeros(32)).data[:-9])
    ),
}

FORGED, FORGERY = "numbers of no data", changed(GOOD, second=np.full(TRIANGLE, -3e38, np.float32))
"""Numbers like any others: they reach one head, and no other."""


@pytest.mark.parametrize("kind", [*BAD, FORGED])
def test_what_cannot_be_used_costs_its_sender_alone(kind: str, learn: Remote):
    network = Site(lambda n, reply: BAD.get(kind, FORGERY) if n == 1 else reply)
    result = learn(network)
    assert list(result.set_aside) == ([] if kind == FORGED else [1])
    assert all(reason.isprintable() for reason in result.set_aside.values())
    others = torch.equal(result.weights, alone(network, (0, 3, 4)).weights)
    assert others == (kind != FORGED)
    assert not torch.equal(result.weights, alone(network).weights)
    assert network.asked == list(MEMBERS)  # it is not asked a second time
    other = learn(network, members=(2, 5))
    assert torch.equal(other.weights, alone(network, (2, 5)).weights)


def test_other_counts_than_in_step_one_set_a_client_aside(learn: Remote):
    network = Site()
    own = {n: tuple(counts_of(c.train.labels, CLASSES)) for n, c in enumerate(CLIENTS.clients)}
    said = {**own, 3: tuple(reversed(own[3]))}
    found = learn(network, counts=said)
    assert found.set_aside == {3: OTHER_COUNTS}
    assert torch.equal(found.weights, alone(network, (0, 1, 4)).weights)


@pytest.mark.parametrize("refused", [False, True])
@pytest.mark.parametrize(("back", "lost"), [(100.0, False), (1e6, True)])
def test_one_that_is_silent_is_lost_by_time(back: float, lost: bool, refused: bool, learn: Remote):
    """A site that is started again after a minute or two is part of the head."""
    network = Site(honest, **{"carvy.misses": 3, "carvy.answer-seconds": 60.0})
    network.refused = refused
    network.behave = lambda n, reply: reply if n != 3 or network.clock.now >= back else None
    result = learn(network)
    assert result.set_aside == ({3: "no answer for 180 seconds"} if lost else {})
    assert network.clock.now == (180 if lost else 100 if refused else 120)
    assert torch.equal(result.weights, alone(network, (0, 1, 4) if lost else MEMBERS).weights)
    if not refused:  # asked as often as the settings say
        assert network.asked == [*MEMBERS, 3, 3]


def test_group_that_loses_everybody(learn: Remote):
    result = learn(Site(lambda n, reply: None))
    assert (result.stopped, result.votes, sorted(result.set_aside)) == ("empty", False, [*MEMBERS])


@pytest.mark.parametrize("victim", MEMBERS)
def test_killed_server_asks_only_whom_it_has_not_heard(victim: int, learn: Remote):
    def die(number: int, reply: RecordDict) -> RecordDict:
        if number == victim:
            raise Killed
        return reply

    with pytest.raises(Killed):
        learn(Site(die))
    again = Site()
    found = learn(again)
    assert again.asked == [number for number in MEMBERS if number >= victim]
    assert torch.equal(found.weights, alone(again).weights)


def test_damaged_sums_are_asked_for_again(learn: Remote, tmp_path: Path):
    network = Site()
    kept = ReceivedSums(tmp_path / "sums", job(network).key())
    kept.put(0, sums_from(CLIENTS.clients[0].train))
    file = kept.file(0)
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)
    with pytest.warns(DamagedEntryWarning, match="asked for again"):
        found = learn(network)
    assert network.asked == list(MEMBERS)
    assert torch.equal(found.weights, alone(network).weights)


@pytest.mark.parametrize(
    ("deadline", "used", "why"),
    [(0.0, (), "untrained"), (0.5, (0, 1, 4), "deadline"), (9.0, MEMBERS, "closed-form")],
)
def test_deadline(deadline: float, used: tuple[int, ...], why: str, learn: Remote):
    """Asking takes a second; one of the members answers when it is asked a second time."""
    network = Site()
    network.behave = lambda n, reply: reply if n != 3 or network.asked.count(3) == 2 else None
    network.pace, network.refused = 1.0, True
    found = learn(network, until=deadline)
    assert (found.stopped, found.votes) == (why, bool(used))
    assert found.set_aside == {n: "no answer before the deadline" for n in MEMBERS if n not in used}
    if used:
        assert torch.equal(found.weights, alone(network, used).weights)


def test_types_are_the_simulators(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Counts go over the wire; who sends none that can be used has no type, and changes nobody."""
    network = Site(lambda n, r: RecordDict() if n == 5 else r, **{"carvy.groups": 3})
    monkeypatch.setattr(identity, "replies", network.replies)
    no_grid: Any = None
    everybody: Any = network
    context = ServerContext(no_grid, everybody, NAMES, network.settings, GroupStore(tmp_path))
    plan, traffic = make_plan(context, network.module, draw_coins(), (WIDTH,))
    setup = Setup(CLIENTS, network.module, Recipe(), 0)
    whole = find_profiles(setup, GroupingSettings(types="class-counts"), Compute.on_cores(1))
    assert plan.profiles is not None
    assert list(plan.profiles.types.set_aside) == [5]
    names = [
        [types.names[k] if k >= 0 else None for k in types.labels.tolist()]
        for types in (plan.profiles.types, whole.types)
    ]
    assert names[0][:5] == names[1][:5]
    assert plan.samples == (*(len(client.train) for client in CLIENTS.clients[:5]), 0)
    assert traffic["messages"] == len(CLIENTS)
    assert 8 * CLASSES * 5 < traffic["up"] < (8 * CLASSES + HEADER_BYTES) * 5
    assert traffic["down"] == 0

    plan.save(tmp_path / "plan.json")
    loaded = Plan.load(tmp_path / "plan.json")
    assert loaded.counts == plan.counts
    assert loaded.counts[0] == tuple(counts_of(CLIENTS.clients[0].train.labels, CLASSES))
    assert 5 not in loaded.counts


def test_a_client_with_other_features_refuses(tmp_path: Path):
    """A network with other weights, say: nothing else would show it."""
    with registered(FEATURES, FeatureMap("doubled", "", lambda shape: lambda x: 2 * x)):
        settings = replace(read_settings(SETTINGS), features="doubled")
        module = settings.module((WIDTH,), CLASSES)
        order = write(SumsOrder(expected(Site())))
        party = Party(settings, CLIENTS.clients[0], module)
        with pytest.raises(CarvyError, match="'doubled' give other numbers here"):
            answer_sums(order, party)
        with pytest.raises(CarvyError, match="cannot be used: probe"):
            answer_sums(RecordDict(), party)
    scaffold = read_settings({"carvy.num-classes": CLASSES, "carvy.model": "mlp"})
    with pytest.raises(CarvyError, match="learner is not one-shot"):
        answer_sums(order, Party(scaffold, CLIENTS.clients[0], scaffold.module((WIDTH,), CLASSES)))


def test_the_folder_of_a_federation_is_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """All of the server's work but the network: types, groups, heads, votes, record, audit."""
    network = Site(
        lambda n, reply: RecordDict() if n == 2 and "second" in reply["arrays"] else reply,
        **{"carvy.groups": 3, "carvy.keys": "keys"},
    )
    monkeypatch.setattr(identity, "replies", network.replies)
    settings, names = network.settings, network.settings.numbered(NAMES)
    numbers = {name: 1000 + number for number, name in enumerate(names)}
    everybody: Any = SimpleNamespace(now=lambda: numbers)
    test = own_clients.as_samples(
        (blobs(7, 40, (0, 1, 2, 3)).inputs, blobs(7, 40, (0, 1, 2, 3)).labels),
        num_classes=CLASSES,
        where="test",
    )
    data = DataSet("ours", test.take([]), test, CLASSES, 0.0, 1.0, tuple("abcd"))
    no_grid: Any = None
    store = GroupStore(tmp_path / "store")
    context = ServerContext(no_grid, everybody, names, settings, store)
    while True:  # the coins decide who sits out; the silent client must have somebody beside it
        plan, counted = make_plan(context, network.module, draw_coins(), (WIDTH,))
        seat = plan.grouping.assignment[2]
        if seat >= 0 and all(np.delete(own, own == 2).size for own in plan.grouping.groups):
            break
    with claim(tmp_path / "run", plain(settings)) as folder:
        context = replace(context, counts=plan.counts)
        results, traffic = server._train(context, plan, network.module, (WIDTH,))
        nobody = own_clients.Federation((), CLASSES, 0.0, 1.0)
        prepared = Prepared(data, Setup(nobody, network.module, settings.training, 0))
        sent = {"types": counted, "training": traffic}
        began = time.monotonic()
        save(server.finish(settings, prepared, plan, results, sent, began), folder)

    members = [tuple(own.tolist()) for own in plan.grouping.groups]
    for own, result in zip(members, results, strict=True):
        left = tuple(number for number in own if number != 2)
        assert torch.equal(result.weights, alone(network, left).weights)
    entry = RunFolder(folder.path).record().methods["carvy"]
    assert list(entry.set_aside) == ["2"]
    assert set(entry.stopped) == {"closed-form"}
    size = 4 * (TRIANGLE + CLASSES * WIDTH) + 8 * CLASSES
    usable = sum(map(len, members)) - 1
    assert size * usable < traffic["up"] < (size + 3 * HEADER_BYTES) * usable
    np.savez(tmp_path / "test.npz", x_test=test.inputs, y_test=test.labels)
    checks = list(
        audit(
            folder,
            Evidence(
                test_data=tmp_path / "test.npz",
                commitment=plan.grouping.coins.commitment if plan.grouping.coins else None,
                workers=1,
            ),
        )
    )
    assert verdict(checks) == "all checked", checks
    for command in (["show"], ["show", "--json"], ["report", "--out", tmp_path / "page.html"]):
        found = carvy(command[0], folder.path, *command[1:])
        assert found.code == 0, found.out
    np.save(tmp_path / "one.npy", test.inputs[:1])
    assert carvy("predict", folder.path, tmp_path / "one.npy").code == 0
