"""A group's rounds, with clients that answer in this process: every turn they can take."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from flwr.app import RecordDict

from carvyfl.flower import identity, server
from carvyfl.flower.client import Party, answer_profile, answer_round
from carvyfl.flower.identity import ServerContext
from carvyfl.flower.remote import PAUSE, TOTAL_FACTOR, train_group_remotely
from carvyfl.flower.server import committed_coins, delete_coins, make_plan
from carvyfl.flower.wire import HEADER_BYTES, Order, ProfileOrder, read, write
from carvyfl.groups.coins import draw_coins
from carvyfl.groups.methods import GROUPINGS, Beforehand, form_groups
from carvyfl.learning.job import GroupJob, GroupResult, group_job
from carvyfl.learning.models import build_model, flat_weights
from carvyfl.learning.scaffold.group import train_group
from carvyfl.learning.store import GroupStore
from carvyfl.pipeline import Compute, Setup, find_profiles
from carvyfl.profiles.methods import Profiles
from carvyfl.profiles.types import given_types
from carvyfl.runs.flower_settings import Settings, certified_grouping, read_settings
from carvyfl.runs.folder import RunFolder
from carvyfl.settings import GroupingSettings
from support.federations import class_disjoint_federation
from support.network import Killed, Network

CLIENTS = class_disjoint_federation(per_type=2)
MEMBERS = (0, 1, 3)
Behaviour = Callable[[Order, RecordDict], RecordDict | None]


class Site(Network):
    """Carries orders to clients, by the code they really run, and answers back.

    ``behave`` may change or withhold (None) what a client answers; ``states`` is what each keeps.
    """

    def __init__(self, settings: dict[str, Any], behave: Behaviour = lambda order, reply: reply):
        super().__init__()
        self.settings = read_settings({"carvy.model": "mlp", "carvy.num-classes": 4, **settings})
        self.module = build_model("mlp", (8,), 4, 0)
        self.behave = behave
        self.clients = dict(enumerate(CLIENTS.clients))
        self.states = {number: RecordDict() for number in MEMBERS}
        self.orders: list[Order] = []

    def answer(self, number: int, kind: str, question: RecordDict, most: int) -> RecordDict | None:
        size = len(flat_weights(self.module))
        assert most == 2 * size  # weights and control variate
        order = read(Order, question, size)
        assert isinstance(order, Order)
        self.orders.append(order)
        state = self.states[order.client_id]
        party = Party(self.settings, self.clients[order.client_id], self.module, state)
        return self.behave(order, write(answer_round(question, party)))


NUMBERS = tuple(range(len(CLIENTS)))
NAMES = tuple(f"partition {number:06d}" for number in NUMBERS)  # their ids are the numbers


class Everybody:
    """All clients are connected."""

    def now(self) -> dict[str, int]:
        return {name: 1000 + number for number, name in enumerate(NAMES)}


def job(network: Site) -> GroupJob:
    whole = group_job(CLIENTS, MEMBERS, network.module, network.settings.training, 0)
    return GroupJob(MEMBERS, (), network.module, whole.recipe, 0, 0.0, 1.0)


class Remote:
    """Trains the group over a network; the store stays, as if a server were started again."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.monkeypatch = folder, monkeypatch
        self.traffic: Counter[str] = Counter()

    def __call__(self, network: Site, until: float = math.inf) -> GroupResult:
        self.monkeypatch.setattr(identity, "replies", network.replies)
        store, grid, everybody = GroupStore(self.folder), cast(Any, None), cast(Any, Everybody())
        who = grid, everybody, NAMES, network.settings
        context = ServerContext(*who, store, until, network.clock)
        result, self.traffic = train_group_remotely(context, 0, job(network))
        return result


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Remote:
    return Remote(tmp_path, monkeypatch)


def alone(network: Site) -> GroupResult:
    """Return what the simulator makes of the group."""
    return train_group(group_job(CLIENTS, MEMBERS, network.module, network.settings.training, 0))


def assert_same(found: GroupResult, expected: GroupResult) -> None:
    assert torch.equal(found.weights, expected.weights)
    np.testing.assert_array_equal(found.accuracy, expected.accuracy)
    assert (found.stopped, found.set_aside) == (expected.stopped, expected.set_aside)


@pytest.mark.parametrize("algorithm", ["scaffold", "fedavg"])
def test_same_as_the_simulator(algorithm: str, train: Remote):
    network = Site({"carvy.rounds": 4, "carvy.algorithm": algorithm})
    assert_same(train(network), alone(network))
    # Clients keep their control variates: the server sends none.
    assert all(order.client_control is None for order in network.orders)
    asked = 4 * len(MEMBERS)
    vectors = 2 * 4 * len(flat_weights(network.module)) * asked  # w_i⁺ and c_i⁺, in bytes
    # The accuracy after the last round takes one more short answer of everybody.
    assert vectors < train.traffic["up"] < vectors + 3 * HEADER_BYTES * (asked + len(MEMBERS))


def test_stops_early_as_the_simulator_does(train: Remote):
    network = Site({"carvy.rounds": 40, "carvy.patience": 2, "carvy.lr": 0.1})
    expected = alone(network)
    assert expected.stopped == "patience"
    assert expected.rounds < 40
    assert_same(train(network), expected)


@pytest.mark.parametrize("round_", [0, 1, 3, 4])
@pytest.mark.parametrize("clients_too", [False, True])
def test_killed_server_goes_on(round_: int, clients_too: bool, train: Remote):
    """Killed in the middle of any round, even the last measurement; the clients' states may go."""
    network = Site({"carvy.rounds": 4})

    def die(order: Order, reply: RecordDict) -> RecordDict:
        if order.round_ == round_ and order.client_id == MEMBERS[1]:
            raise Killed
        return reply

    network.behave = die
    with pytest.raises(Killed):
        train(network)
    again = Site({"carvy.rounds": 4})
    if not clients_too:
        again.states = network.states
    assert_same(train(again), alone(again))
    assert min(order.round_ for order in again.orders) == round_  # nothing done twice


def without(silent: Callable[[int], bool]) -> Behaviour:
    """Let the first member withhold its answers in these rounds."""
    return lambda order, reply: (
        None if order.client_id == MEMBERS[0] and silent(order.round_) else reply
    )


def forgetful(network: Site, members: Sequence[int]) -> Site:
    """Let members lose what they hold whenever they have answered."""

    def forget(order: Order, reply: RecordDict) -> RecordDict:
        if order.client_id in members:
            network.states[order.client_id] = RecordDict()
        return reply

    network.behave = forget
    return network


def test_lost_control_variates_are_restored(train: Remote):
    """A SuperNode that is started again in between changes nothing."""
    network = forgetful(Site({"carvy.rounds": 4}), MEMBERS)
    assert_same(train(network), alone(network))


def test_absent_for_a_round_and_back(train: Remote):
    """It sits the round out, is sent its old control variate, and is not set aside."""
    network = Site({"carvy.rounds": 4, "carvy.misses": 2}, without(lambda round_: round_ == 1))
    found = train(network)
    assert (found.rounds, found.set_aside) == (4, {})
    restored = [o.round_ for o in network.orders if o.client_control is not None]
    assert restored == [2]
    assert not torch.equal(found.weights, alone(network).weights)


FAST = {"carvy.rounds": 40, "carvy.misses": 3, "carvy.answer-seconds": 10.0}
SLOW = {"carvy.rounds": 40, "carvy.misses": 2}
LATE = f"round {4 * TOTAL_FACTOR - 1}: kept its group waiting for {2 * 1800 * TOTAL_FACTOR} seconds"


@pytest.mark.parametrize(
    ("settings", "silent", "refused", "why"),
    [
        (SLOW, lambda round_: round_ >= 1, False, "round 2: no answer for 3600 seconds"),
        # It never misses two rounds in a row, so only the whole waiting ends it.
        (SLOW, lambda round_: round_ % 2 == 1, False, LATE),
        # Rounds of a second, and a site that is started again: after five seconds, or too late.
        (FAST, lambda round_: 1 <= round_ < 6, True, None),
        (FAST, lambda round_: 1 <= round_ < 60, True, "round 30: no answer for 30 seconds"),
    ],
    ids=["gone", "late again and again", "back", "back too late"],
)
def test_one_that_is_silent_is_lost_by_time(
    settings: dict[str, Any],
    silent: Callable[[int], bool],
    refused: bool,
    why: str | None,
    train: Remote,
):
    network = Site(settings, without(silent))
    network.pace, network.refused = float(refused), refused
    result = train(network)
    assert result.rounds == 40
    assert result.set_aside == ({} if why is None else {MEMBERS[0]: why})


def test_one_that_forgets_in_every_round_is_set_aside(train: Remote):
    """Each time it is asked twice, and its group waits twice as long."""
    settings = {"carvy.rounds": 20, "carvy.misses": 2, "carvy.answer-seconds": 60.0}
    network = forgetful(Site(settings), MEMBERS[:1])
    network.pace = 50.0
    found = train(network)
    assert (found.rounds, list(found.set_aside)) == (20, [MEMBERS[0]])


@pytest.mark.parametrize("refused", [True, False])
def test_group_that_loses_everybody(refused: bool, train: Remote):
    """Where questions are refused at once it asks again, but not without pause."""
    settings = {"carvy.rounds": 5, "carvy.misses": 3, "carvy.answer-seconds": 60.0}
    network = Site(settings, lambda order, reply: None)
    network.refused = refused
    found = train(network)
    assert (found.stopped, found.votes) == ("empty", False)
    assert sorted(found.set_aside) == list(MEMBERS)
    assert network.clock.now == 180
    assert len(network.orders) == len(MEMBERS) * 180 / (PAUSE if refused else 60)


@pytest.mark.parametrize("sent", [RecordDict(), "more than was asked for"])
def test_garbage_changes_nobody_else(sent: Any, train: Remote):
    """From the round after, the group trains as the members that are left would."""
    network = Site({"carvy.rounds": 3}, lambda o, r: sent if o.client_id == 0 else r)
    result = train(network)
    honest = group_job(CLIENTS, (1, 3), network.module, network.settings.training, 0)
    assert torch.equal(result.weights, train_group(honest).weights)
    ((number, reason),) = result.set_aside.items()
    assert (number, str(sent) in reason) == (0, isinstance(sent, str))


@pytest.mark.parametrize("method", ["class-means", "bias-profile", "xmeans"])
def test_types_are_the_simulators(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Whatever is sent for it: a few numbers of the output layer, or whole updates."""
    settings = read_settings({"carvy.model": "mlp", "carvy.num-classes": 4, "carvy.types": method})
    module = build_model("mlp", (8,), 4, 0)

    class Learning(Network):
        def answer(self, number: int, kind: str, question: RecordDict, most: int) -> RecordDict:
            order = read(ProfileOrder, question, len(flat_weights(module)))
            assert isinstance(order, ProfileOrder)
            other = build_model("mlp", (8,), 4, 9)  # it must take the weights it is sent
            return write(answer_profile(question, Party(settings, CLIENTS.clients[number], other)))

    monkeypatch.setattr(identity, "replies", Learning().replies)
    everybody: Any = Everybody()
    no_grid: Any = None
    context = ServerContext(no_grid, everybody, NAMES, settings, GroupStore(tmp_path))
    plan, _ = make_plan(context, module, draw_coins(), (8,))
    setup = Setup(CLIENTS, module, settings.training, 0)
    expected = find_profiles(setup, GroupingSettings(types=method), Compute.on_cores(1)).types
    assert plan.profiles is not None
    assert plan.profiles.types.to_json() == expected.to_json()
    assert plan.samples == tuple(len(client.train) for client in CLIENTS.clients)


def test_a_registration_changes_no_other_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """One more key shifts numbers; the other groups' models, and all other reports, stay."""
    settings = {"carvy.rounds": 3, "carvy.seed": 5}
    names = [f"key {number}" for number in NUMBERS]
    data = dict(zip(names, CLIENTS.clients, strict=True))
    numbered = Settings(seed=5).numbered
    before = numbered(names)
    shifting = next(
        name
        for name in (f"key {number}" for number in range(100, 1000))
        if numbered([*names, name])[0] == name
    )
    after = numbered([*names, shifting])
    data[shifting] = CLIENTS.clients[0]
    assert after[1:] == before  # everybody's number is another one

    def trained(
        all_names: tuple[str, ...], members: tuple[str, ...], where: str
    ) -> tuple[Any, list[str]]:
        network = Site(settings)
        numbers = tuple(sorted(map(all_names.index, members)))
        connected: Any = SimpleNamespace(now=lambda: {n: i for i, n in enumerate(all_names)})
        no_grid: Any = None
        store = GroupStore(tmp_path / where)
        federation = ServerContext(no_grid, connected, all_names, network.settings, store)
        by_id = dict(zip(federation.ids, all_names, strict=True))
        network.clients = {own: data[name] for own, name in by_id.items()}
        network.states = {own: RecordDict() for own in by_id}
        monkeypatch.setattr(identity, "replies", network.replies)
        own = GroupJob(numbers, (), network.module, network.settings.training, 5, 0.0, 1.0)
        result = train_group_remotely(federation, 0, own)[0]
        return result, [by_id[order.client_id] for order in network.orders]

    group = tuple(names[:3])
    alone, asked = trained(before, group, "before")
    again, asked_again = trained(after, group, "after")
    assert_same(again, alone)
    assert asked_again == asked  # in the same order
    joined, _ = trained(after, (*group, shifting), "joined")
    assert not torch.equal(joined.weights, alone.weights)


@pytest.mark.parametrize(
    ("deadline", "made", "why"),
    [(0.0, 0, "untrained"), (1.5, 2, "deadline"), (4.5, 4, "rounds"), (99, 4, "rounds")],
)
def test_deadline(deadline: float, made: int, why: str, train: Remote):
    """Every round takes a second; one that has begun is made, and the group votes with it."""
    network = Site({"carvy.rounds": 4})
    network.pace = 1.0
    found = train(network, deadline)
    assert (found.rounds, found.stopped, found.votes) == (made, why, made > 0)
    reached: dict[int, torch.Tensor] = {0: flat_weights(network.module)}
    whole = group_job(CLIENTS, MEMBERS, network.module, network.settings.training, 0)
    train_group(whole, on_round=lambda state: reached.update({state.rounds: state.weights}))
    assert torch.equal(found.weights, reached[made])
    network.clock.now = -9.0  # a server that is started again leaves it at that
    assert train(network, deadline).stopped == why


def test_the_certificate_says_which_groups_the_deadline_stopped():
    """Anybody can cost others time, so what time decided must be known."""
    grouping = form_groups("balanced", num_clients=len(CLIENTS), seed=0, num_groups=3)

    def because(*stopped: str) -> str:
        return certified_grouping(grouping, None, stopped, 0, authenticated=True).basis.because

    found = because("rounds", "deadline", "untrained")
    assert "the deadline stopped 2 of 3 groups" in found
    assert "1 of 3 groups were lost" in found
    assert "deadline" not in because("rounds", "rounds", "rounds")


def test_the_deadline_counts_from_the_first_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    clock = SimpleNamespace(wall=1000.0, own=50.0)
    fake = SimpleNamespace(time=lambda: clock.wall, monotonic=lambda: clock.own)
    monkeypatch.setattr(server, "time", fake)
    folder, limited = RunFolder(tmp_path), Settings(deadline_seconds=60)
    assert server._deadline(folder, Settings()) == float("inf")
    assert server._deadline(folder, limited) == 110
    clock.wall, clock.own = 1045.0, 3.0  # killed, and started again after a reboot
    assert server._deadline(folder, limited) == 18


def test_coins_are_drawn_once_and_their_hash_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The coins are not readable by others, not even while they are written."""
    modes, fsync = [], os.fsync

    def look(file: int) -> None:
        modes.append(os.fstat(file).st_mode & 0o777)
        fsync(file)

    monkeypatch.setattr(os, "fsync", look)
    (tmp_path / "federation").mkdir()
    coins = committed_coins(RunFolder(tmp_path), "slots")
    assert coins is not None
    assert coins.source == "system"
    assert committed_coins(RunFolder(tmp_path), "slots") == coins  # a server that is started again
    published = tmp_path / "federation" / "commitment.txt"
    assert published.read_text().strip() == coins.commitment
    assert coins.value not in published.read_text()
    assert (tmp_path / "federation" / "coins.json").stat().st_mode & 0o077 == 0
    assert modes[0] == 0o600
    assert modes[1] & 0o077
    delete_coins(RunFolder(tmp_path))  # groups were formed, so clients know something of them
    assert committed_coins(RunFolder(tmp_path), "slots") != coins


@pytest.mark.parametrize("method", list(GROUPINGS))
def test_coins_are_committed_to_where_groups_are_drawn_from_them(tmp_path: Path, method: str):
    """An auditor who is given the hash of coins that no group was drawn from sees a mismatch."""
    profiles = Profiles(given_types([0, 0, 1, 1, 2, 2]))
    groups = 1 if method == "single" else 2
    formed = form_groups(
        method,
        num_clients=6,
        seed=0,
        profiles=profiles,
        num_groups=groups,
        beforehand=Beforehand(truth=profiles.types.labels, coins=draw_coins()),
    )
    committed = committed_coins(RunFolder(tmp_path), method)
    assert (committed is None) == (formed.coins is None)
    assert (tmp_path / "federation" / "commitment.txt").exists() == (formed.coins is not None)
