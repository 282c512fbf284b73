"""Private learning over the wire: one message per client, counted by the client's own ledger."""

from __future__ import annotations

import logging
import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from carvyfl.core.errors import CarvyError
from carvyfl.core.schema import plain
from carvyfl.data.clients import Client, Federation, Samples
from carvyfl.data.datasets import DataSet
from carvyfl.flower import identity, server
from carvyfl.flower.client import Party, RefusalError, answer_message, client_app
from carvyfl.flower.identity import ServerContext
from carvyfl.flower.questions import replies
from carvyfl.flower.remote import NOT_IN_TIME
from carvyfl.flower.server import make_plan
from carvyfl.flower.wire import COUNTS, FAULTS, MESSAGE, PROFILE, ROUND, SUMS, MessageOrder, write
from carvyfl.groups.coins import Coins, draw_coins
from carvyfl.learning.one_shot.features import probe
from carvyfl.learning.private import map as private_map
from carvyfl.learning.private.head import head
from carvyfl.learning.private.model import PrivateModel
from carvyfl.learning.store import GroupStore
from carvyfl.pipeline import Setup
from carvyfl.privacy import Ledger
from carvyfl.runs.audit import audit, verdict
from carvyfl.runs.evidence import Evidence
from carvyfl.runs.execute import Prepared
from carvyfl.runs.flower_settings import Settings, read_settings
from carvyfl.runs.folder import RunFolder
from carvyfl.runs.resume import claim
from carvyfl.runs.save import save
from support.cli import carvy
from support.federations import blobs, class_disjoint_federation
from support.flower_apps import command, make_app
from support.network import Killed, Network
from support.processes import connection, free_ports, processes

pytest.importorskip("opendp")
CLIENTS = class_disjoint_federation(per_type=4)
WIDTH, CLASSES = 8, 4
SHAPE = CLASSES, WIDTH + 1
NAMES = tuple(f"key {number}" for number in range(len(CLIENTS)))
SETTINGS = {
    "carvy.learner": "private",
    "carvy.features": "none",
    "carvy.num-classes": CLASSES,
    "carvy.epsilon": 50.0,
    "carvy.keys": "keys",
}
Behaviour = Callable[[int, RecordDict], RecordDict | None]


def honest(number: int, reply: RecordDict) -> RecordDict | None:
    return reply


def settings_with(**settings: Any) -> Settings:
    return read_settings({**SETTINGS, **{f"carvy.{name}": v for name, v in settings.items()}})


def model_of(settings: Settings) -> PrivateModel:
    module = settings.module((WIDTH,), CLASSES)
    assert isinstance(module, PrivateModel)
    return module


def order_of(settings: Settings) -> MessageOrder:
    model = model_of(settings)
    return MessageOrder.of(model, torch.from_numpy(probe(model.features, (WIDTH,))))


class Site(Network):
    """Carries orders to clients, by the code they really run, with a ledger each."""

    def __init__(self, ledgers: Path, behave: Behaviour = honest, **options: Any):
        super().__init__()
        self.settings, self.ledgers, self.behave = settings_with(**options), ledgers, behave
        self.module = model_of(self.settings)
        self.asked: list[int] = []
        self.registered = frozenset(NAMES)
        self.numbered = self.settings.numbered(NAMES)

    def greet(self) -> None:
        pass

    def now(self) -> dict[str, int]:
        return {name: 1000 + number for number, name in enumerate(self.numbered)}

    def ledger(self, number: int) -> Ledger:
        return Ledger(self.ledgers / str(number))

    def answer(self, number: int, kind: str, question: RecordDict, most: int) -> RecordDict | None:
        assert (kind, most) == (MESSAGE, CLASSES * (WIDTH + 1))
        self.asked.append(number)
        party = Party(self.settings, CLIENTS.clients[number], torch.nn.Module())
        return self.behave(number, write(answer_message(question, party, self.ledger(number))))


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., RunFolder]:
    """Run all of the server's work but the waiting for clients, into a folder."""

    def run(
        network: Site, name: str = "run", coins: Coins | None = None, **options: Any
    ) -> RunFolder:
        monkeypatch.setattr(identity, "replies", network.replies)
        settings, everybody, no_grid = network.settings, cast(Any, network), cast(Any, None)
        store = GroupStore(tmp_path / "store" / name)
        who = no_grid, everybody, network.numbered, settings, store
        context = ServerContext(*who, clock=network.clock, **options)
        with claim(tmp_path / name, plain(settings)) as folder:
            plan, asked = make_plan(context, network.module, coins, (WIDTH,))
            results, traffic = server._train(context, plan, network.module, (WIDTH,))
            assert not traffic
            setup = Setup(nobody(), network.module, settings.training, 0, plan.messages)
            began = time.monotonic()
            done = server.finish(
                settings, Prepared(data_set(), setup), plan, results, {"types": asked}, began
            )
            save(done, folder)
        return folder

    return run


def nobody() -> Federation:
    return Federation((), CLASSES, 0.0, 1.0)


def data_set() -> DataSet:
    test = blobs(7, 40, (0, 1, 2, 3))
    return DataSet("ours", test.take([]), test, CLASSES, 0.0, 1.0, tuple("abcd"))


def verified(folder: RunFolder, place: Path) -> str:
    test = data_set().test
    np.savez(place / "test.npz", x_test=test.inputs, y_test=test.labels)
    checks = list(audit(folder, Evidence(test_data=place / "test.npz", workers=1)))
    states = {check.what: check.state for check in checks}
    (method,) = folder.record().methods
    assert states["messages"] == states[f"heads of {method}"] == states["profiles"] == "ok", checks
    return verdict(checks)


def test_one_question_to_each_client_gives_a_run_that_is_verified(
    run: Callable[..., RunFolder], tmp_path: Path
):
    """G is chosen, too; nothing but the messages of the ledgers has reached the server."""
    network = Site(tmp_path / "ledgers")
    folder = run(network)
    assert network.asked == [*range(len(CLIENTS))]
    messages, record = folder.messages(), folder.record()
    for number in range(len(CLIENTS)):
        (spending,) = network.ledger(number).spendings
        assert (spending.epsilon, spending.delta) == (50.0, 1e-5)
        with np.load(tmp_path / "ledgers" / str(number) / f"{spending.message}.npz") as stored:
            np.testing.assert_array_equal(messages.units[number], stored["units"], strict=True)
    entry = record.methods["carvy"]
    assert record.group_count
    assert entry.num_groups == record.group_count.groups > 1
    for own, weights in zip(
        folder.grouping("carvy").groups, folder.models("carvy").weights, strict=True
    ):
        matrix, biases = head(messages.of_clients(own))
        expected = np.concatenate([matrix.ravel(), biases]).astype(np.float32)
        np.testing.assert_array_equal(weights.numpy(), expected)
    assert record.privacy
    assert record.privacy.map == network.module.map.digest
    assert record.deployment
    assert record.deployment.samples == (0,) * len(CLIENTS)  # which no client says
    traffic = record.deployment.traffic["types"]
    assert traffic["messages"] == len(CLIENTS)
    size = 4 * CLASSES * (WIDTH + 1)
    assert size * len(CLIENTS) < traffic["up"] < (size + 200) * len(CLIENTS)
    assert verified(folder, tmp_path) == "all checked"
    assert carvy("report", folder.path, "--out", tmp_path / "page.html").code == 0
    assert "ε = 50, δ = 1e-05 for one sample" in carvy("show", folder.path).out
    np.save(tmp_path / "one.npy", data_set().test.inputs[:1])
    assert carvy("predict", folder.path, tmp_path / "one.npy").code == 0


def test_random_slots_are_certified_against_whole_runs(
    run: Callable[..., RunFolder], tmp_path: Path
):
    network = Site(tmp_path / "ledgers", method="slots", groups=2)
    entry = run(network, coins=draw_coins()).record().methods["slots"]
    assert entry.readings.given_groups
    assert entry.readings.honest_only
    assert entry.readings.all_honest


@pytest.mark.parametrize("method", ["carvy", "balanced"])
def test_no_usable_message(method: str, run: Callable[..., RunFolder], tmp_path: Path):
    behave: Behaviour = lambda n, reply: BAD["flat" if n else "nothing"]  # noqa: E731
    with pytest.raises(
        CarvyError, match=r"no message can be used; of 7 of 8 clients: .* 4 classes"
    ):
        run(Site(tmp_path / "ledgers", behave, method=method, groups=2))


def sending(array: Any) -> RecordDict:
    arrays = {} if array is None else {"units": array if isinstance(array, Array) else Array(array)}
    return RecordDict({"arrays": ArrayRecord(arrays), "head": ConfigRecord()})


GOOD = np.ones(SHAPE, np.int32)
BAD = {
    "nothing": RecordDict(),
    "no units": sending(None),
    "floats": sending(GOOD.astype(np.float32)),
    "NaN": sending(np.full(SHAPE, np.nan)),
    "64 bits": sending(GOOD.astype(np.int64)),
    "unsigned": sending(GOOD.astype(np.uint32)),
    "bytes in another order": sending(GOOD.astype(">i4")),
    "flat": sending(GOOD.ravel()),
    "another class": sending(np.ones((CLASSES + 1, WIDTH + 1), np.int32)),
    "without counts": sending(np.ones((CLASSES, WIDTH), np.int32)),
    "huge": sending(np.ones((CLASSES, 10_000), np.int32)),
    "objects": sending(Array("object", SHAPE, "numpy.ndarray", b"cos\nsystem\n(S'true'\ntR.")),
    "truncated": sending(Array("int32", SHAPE, "numpy.ndarray", Array(GOOD).data[:-9])),
}
EXTREME = {
    "largest": sending(np.full(SHAPE, 2**31 - 1, np.int32)),
    "least": sending(np.full(SHAPE, -(2**31), np.int32)),
}


@pytest.mark.parametrize("kind", [*BAD, *EXTREME])
def test_whatever_a_client_sends_changes_its_own_group_alone(
    kind: str, run: Callable[..., RunFolder], tmp_path: Path
):
    """Groups that no message has formed: the other heads keep every bit."""
    grouped: dict[str, Any] = {"method": "balanced", "groups": 3}
    honest = run(Site(tmp_path / "ledgers", **grouped), "honest")
    behave: Behaviour = lambda n, reply: (BAD | EXTREME)[kind] if n == 1 else reply  # noqa: E731
    folder = run(Site(tmp_path / "ledgers", behave, **grouped))
    groups = folder.grouping("balanced")
    (hurt,) = [g for g, own in enumerate(groups.groups) if 1 in own]
    weights = [each.models("balanced").weights for each in (honest, folder)]
    same = [torch.equal(*pair) for pair in zip(*weights, strict=True)]
    assert same == [g != hurt for g in range(3)]
    aside = folder.record().methods["balanced"].set_aside
    assert [*aside] == (["1"] if kind in BAD else [])
    assert all(why.isprintable() and len(why) < 100 for why in aside.values())
    assert verified(folder, tmp_path) == "all checked"


def test_who_sends_nothing_usable_has_no_group_with_carvy(
    run: Callable[..., RunFolder], tmp_path: Path
):
    network = Site(tmp_path / "ledgers", lambda n, reply: BAD["floats"] if n == 5 else reply)
    folder = run(network)
    types = folder.types()
    assert types is not None
    assert list(types.set_aside) == [5]
    assert folder.grouping("carvy").assignment[5] == -1
    assert verified(folder, tmp_path) == "all checked"


@pytest.mark.parametrize("late", [False, True])
def test_silence(late: bool, run: Callable[..., RunFolder], tmp_path: Path):
    """A client has misses × answer-seconds; where a deadline cuts that off nothing is certified."""
    network = Site(tmp_path / "ledgers", lambda n, reply: None if n == 2 else reply, groups=2)
    folder = run(network, until=2000.0 if late else np.inf)
    assert network.asked.count(2) == (2 if late else 3)
    assert network.clock.now == (3600 if late else 5400)
    why = NOT_IN_TIME if late else "no answer for 5400 seconds"
    assert folder.messages().set_aside == {2: why}
    entry = folder.record().methods["carvy"]
    assert set(entry.stopped) == ({"deadline"} if late else {"closed-form"})
    assert (entry.readings.given_groups is None) == late
    assert verified(folder, tmp_path) == "all checked"


def test_a_server_that_dies_asks_again_and_gets_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The map stays, so no client spends any more; with all messages there, nobody is asked."""

    def start(network: Site) -> RunFolder:
        monkeypatch.setattr(identity, "replies", network.replies)
        monkeypatch.setattr(server, "Presence", lambda grid, settings: network)
        no_grid: Any = None
        settings = replace(network.settings, out=str(tmp_path / "run"))
        return server.run_federation(no_grid, settings, data_set())

    def die(number: int, reply: RecordDict) -> RecordDict:
        if number == 6:
            raise Killed
        return reply

    def dead(*_: object) -> None:
        raise Killed

    first, second, third = (Site(tmp_path / "ledgers", each) for each in (die, *2 * [honest]))
    with pytest.raises(Killed):
        start(first)
    monkeypatch.setattr(private_map, "stored_map", dead)  # it might make another one
    with monkeypatch.context() as patch:
        patch.setattr(server, "_train", dead)
        with pytest.raises(Killed):
            start(second)
    assert second.asked == [*range(len(CLIENTS))]
    folder = start(third)
    assert third.asked == []
    assert folder.record().group_count
    assert verified(folder, tmp_path) == "all checked"
    assert {len(third.ledger(number).spendings) for number in range(len(CLIENTS))} == {1}


def test_asked_twice_a_client_sends_the_same(tmp_path: Path):
    """Its samples may come in another order; another ε is another message, and counts."""
    settings, ledger, own = settings_with(), Ledger(tmp_path), CLIENTS.clients[0]
    turned = Client(own.train.take(np.arange(len(own.train))[::-1]), own.validation)

    def units(client: Client, settings: Settings) -> np.ndarray[Any, Any]:
        party = Party(settings, client, torch.nn.Module())
        return answer_message(write(order_of(settings)), party, ledger).units

    first = units(own, settings)
    assert (first.dtype, first.shape) == (np.int32, SHAPE)
    for client in (own, turned):
        np.testing.assert_array_equal(units(client, settings), first)
    assert len(ledger.spendings) == 1
    assert (units(own, settings_with(epsilon=20.0)) != first).any()
    fewer = Client(own.train.take(np.arange(5)), own.validation)
    assert (units(fewer, settings) != first).any()
    assert [each.epsilon for each in ledger.spendings] == [50, 20, 50]


FALSE_ORDERS: dict[str, tuple[Callable[[MessageOrder], MessageOrder], str]] = {
    "a map with another bound": (lambda o: replace(o, bound=o.bound + 1), "message"),
    "a map of other origin": (lambda o: replace(o, origin="nobody knows"), "message"),
    "a shorter map": (lambda o: replace(o, matrix=o.matrix[:-WIDTH]), "message"),
    "another ε": (lambda o: replace(o, epsilon=99.0), "settings"),
    "another δ": (lambda o: replace(o, delta=0.01), "settings"),
    "another C": (lambda o: replace(o, num_classes=2), "settings"),
    "other features": (lambda o: replace(o, probe=2 * o.probe), "features"),
}


@pytest.mark.parametrize("name", FALSE_ORDERS)
def test_a_false_order_is_refused_before_anything_is_spent(name: str, tmp_path: Path):
    change, fault = FALSE_ORDERS[name]
    settings, ledger = settings_with(), Ledger(tmp_path)
    party = Party(settings, CLIENTS.clients[0], torch.nn.Module())
    with pytest.raises(RefusalError) as caught:
        answer_message(write(change(order_of(settings))), party, ledger)
    assert caught.value.fault == fault
    assert not ledger.spendings


class Node:
    """A grid of one node, with the real ClientApp behind it, and its node config."""

    def __init__(self, settings: dict[str, Any], data: Samples, **node_config: Any) -> None:
        self.app = client_app(lambda _: (data.inputs, data.labels))
        self.settings, self.node_config = settings, node_config
        self.answers: list[Message] = []

    def push_messages(self, messages: Any) -> list[str]:
        (question,) = messages
        config: Any = {name.replace("_", "-"): each for name, each in self.node_config.items()}
        context = Context(1, 1, config, RecordDict(), dict(self.settings))
        self.answers.append(self.app(question, context))
        return [str(len(self.answers) - 1)]

    def pull_messages(self, names: Any) -> list[Message]:
        return [self.answers[int(name)] for name in names]

    def ask(self, kind: str, content: RecordDict) -> RecordDict | str:
        grid: Any = self
        ((_, answer),) = replies(grid, kind, {7: content}, 60, numbers=1000)
        return answer


@pytest.fixture
def _a_running_app(monkeypatch: pytest.MonkeyPatch):
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


DATA = CLIENTS.clients[0].train


@pytest.mark.usefixtures("_a_running_app")
def test_the_limit_is_the_clients_own(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """Beyond it the server gets one word, once; the client's log says why."""
    own = {"carvy_ledger": str(tmp_path), "carvy_epsilon_limit": 60}
    first = Node(SETTINGS, DATA, **own)
    sent = first.ask(MESSAGE, write(order_of(settings_with())))
    assert isinstance(sent, RecordDict)
    second = Node({**SETTINGS, "carvy.epsilon": 20.0}, DATA, **own)
    with caplog.at_level(logging.INFO, "flwr"):
        assert second.ask(MESSAGE, write(order_of(settings_with(epsilon=20.0)))) == FAULTS["limit"]
    assert [answer.error.reason for answer in second.answers] == ["limit"]
    assert f"{tmp_path}: its limit is ε = 60" in caplog.text
    again = Node(SETTINGS, DATA, **own).ask(MESSAGE, write(order_of(settings_with())))
    assert isinstance(again, RecordDict)
    pair = [each.array_records["arrays"]["units"].numpy() for each in (sent, again)]
    np.testing.assert_array_equal(pair[0], pair[1])
    assert Ledger(tmp_path).limit.epsilon == 60


@pytest.mark.usefixtures("_a_running_app")
@pytest.mark.parametrize("kind", [COUNTS, SUMS, PROFILE, ROUND])
def test_nothing_without_noise_leaves_a_client_with_a_limit(kind: str, tmp_path: Path):
    """Nor one whose settings say private, whatever it is asked for."""
    learner = "one-shot" if kind in {COUNTS, SUMS} else "scaffold"
    exact = {"carvy.learner": learner, "carvy.features": "none", "carvy.num-classes": CLASSES}
    limited = Node({**exact, "carvy.model": "mlp"}, DATA, carvy_epsilon_limit=2)
    assert limited.ask(kind, RecordDict()) == FAULTS["limit"]
    assert Node(SETTINGS, DATA).ask(kind, RecordDict()) == FAULTS["settings"]


@pytest.mark.usefixtures("_a_running_app")
def test_without_opendp_or_with_a_lost_ledger_nothing_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    order = write(order_of(settings_with()))
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "opendp.prelude", None)
        node = Node(SETTINGS, DATA, carvy_ledger=str(tmp_path))
        assert node.ask(MESSAGE, order) == FAULTS["settings"]
        assert "cannot answer: a private message needs OpenDP's sampler" in caplog.text
    assert not Ledger(tmp_path).spendings
    (tmp_path / "ledger.jsonl").write_text("lost")
    node = Node(SETTINGS, DATA, carvy_ledger=str(tmp_path))
    assert node.ask(MESSAGE, order) == FAULTS["settings"]


@pytest.mark.usefixtures("_a_running_app")
@pytest.mark.parametrize(
    "data",
    [
        (DATA.inputs, DATA.labels + 3),
        (DATA.inputs, DATA.labels - 1),
        (np.where(np.arange(len(DATA))[:, None] == 1, np.nan, DATA.inputs), DATA.labels),
        (np.where(np.arange(len(DATA))[:, None] == 1, np.inf, DATA.inputs), DATA.labels),
        (DATA.inputs, DATA.labels + 0.5),
        (DATA.inputs[:0], DATA.labels[:0]),
    ],
)
def test_no_sample_makes_a_client_refuse(tmp_path: Path, data: Any):
    """The server would learn of it without noise: of the largest label, by trying C."""
    order = write(order_of(settings_with()))
    data = Samples(*data)
    node = Node(SETTINGS, data, carvy_ledger=str(tmp_path))
    assert isinstance(node.ask(MESSAGE, order), RecordDict)
    spent = Node(SETTINGS, data, carvy_ledger=str(tmp_path / "x"), carvy_epsilon_limit=1.0)
    assert spent.ask(MESSAGE, order) == FAULTS["limit"]


@pytest.mark.usefixtures("_a_running_app")
def test_every_partition_has_a_ledger_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    order = write(order_of(settings_with()))
    for config in ({"partition_id": 3}, {"partition_id": 4}, {}):
        assert isinstance(Node(SETTINGS, DATA, **config).ask(MESSAGE, order), RecordDict)
    found = {path.parent.relative_to(tmp_path) for path in tmp_path.rglob("ledger.jsonl")}
    place = Path("carvyfl") / "ledger"
    assert found == {place, place / "partition-3", place / "partition-4"}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"types": "class-counts"}, "carvy.types is private-means with the learner private"),
        ({"learner": "scaffold", "types": "private-means"}, "not 'private-means'"),
        ({"learner": "scaffold", "public": "mnist"}, "carvy.public is not for .* scaffold"),
        ({"epsilon": 0.0}, r"carvy\.epsilon"),
        ({"epsilon": 1000.0}, "`epsilon` must be from"),
        ({"delta": 1.0}, r"carvy\.delta"),
        ({"method": "slots"}, "set carvy.groups"),
    ],
)
def test_settings_that_contradict_each_other(settings: dict[str, Any], words: str):
    with pytest.raises(CarvyError, match=words):
        settings_with(**settings)


def test_settings_are_private_means_and_inputs_as_they_are():
    found = settings_with(mean=0.3, public="", epsilon=2)
    assert (found.types, found.mean, found.std, found.split_off) == ("private-means", 0, 1, 0)
    assert (found.public, found.groups, found.epsilon) == (None, None, 2.0)
    assert settings_with(public="embedded").public == "embedded"


@pytest.mark.flower
@pytest.mark.timeout(600)
def test_real_clients_with_ledgers_and_one_with_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Two runs with the same settings: the second one is of the same messages, and costs nothing.

    Client 1 sends another shape, client 3 has a limit below what is asked for.
    """
    port, *ports = free_ports(5)
    with processes(tmp_path) as flower:
        make_app(flower)
        line = command("flower-superlink --insecure").replace(" --simulation", "")
        flower.start("superlink", line.replace("8000", str(port)))
        flower.until("SuperLink is up", lambda: "startup complete" in flower.log("superlink"))
        connection(flower, {"address": f'"127.0.0.1:{port}"', "insecure": "true"})
        for node, own in enumerate(ports):
            config = f'partition-id={node} num-partitions=10 carvy-ledger="ledgers/{node}"'
            config += " carvy-epsilon-limit=1.5" if node == 3 else ""
            start = f"flower-supernode --insecure --superlink 127.0.0.1:{port} --port {own}"
            flower.start(f"node-{node}", f"{start} --node-config {shlex.quote(config)}")
        line = command("flwr run federation link --run-config").partition(" --federation-config")[0]
        for out in ("private", "again"):
            more = f'carvy.min-clients=4 hostile="1:shape" carvy.groups=2 carvy.out="{out}"'
            flower.start(f"{out}-log", line.replace('carvy.out="private"', more))
            flower.until(f"{out} ends", lambda out=out: "saved in" in flower.log(f"{out}-log"))  # type: ignore[misc]
        refused = flower.log("node-3")
    first, again = (RunFolder(tmp_path / out) for out in ("private", "again"))
    messages = first.messages()
    assert messages.set_aside[3] == FAULTS["limit"]
    assert [*messages.set_aside] == [1, 3]
    assert "bytes instead of 10280" in messages.set_aside[1]
    assert "its limit is ε = 1.5" in refused
    np.testing.assert_array_equal(again.messages().units, messages.units)
    for node in range(4):
        spent = Ledger(tmp_path / "ledgers" / str(node)).spendings
        assert [each.epsilon for each in spent] == ([] if node == 3 else [4.0])
    record = first.record()
    assert record.deployment
    assert 4 * 10_280 < record.deployment.traffic["types"]["up"] < 4 * 10_280 + 1000
    monkeypatch.setattr(private_map, "IMAGES", 3000)  # as in the processes
    assert carvy("verify", first.path, "--workers", 1).code == 0
