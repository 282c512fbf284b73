"""Who takes part: a client is the holder of a registered key."""

from __future__ import annotations

import contextlib
import hashlib
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Protocol

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_public_key,
    load_ssh_public_key,
)
from flwr.app import RecordDict
from flwr.serverapp import Grid

from carvyfl.core.errors import CarvyError
from carvyfl.flower.questions import log, replies, retry
from carvyfl.flower.wire import HELLO, Hello, array_bytes, read
from carvyfl.groups.hashing import PARTITION, training_id
from carvyfl.learning.store import GroupStore
from carvyfl.runs.flower_settings import Settings


def registered_keys(folder: Path) -> frozenset[str]:
    """Return the names of the keys in a folder: ``*.pub``, as ``ssh-keygen`` writes them."""
    if not (files := sorted(folder.glob("*.pub"))):  # nothing where there is no folder
        advice = "put the registered ones there, or set carvy.keys to '' for an open federation"
        raise CarvyError(f"{folder}: no public keys (*.pub) of the clients there; {advice}")
    return frozenset(_name(file.read_bytes(), load_ssh_public_key, str(file)) for file in files)


def _name(key: bytes, load: Callable[[bytes], object], where: str) -> str:
    """Name a public key by its fingerprint, whatever its encoding."""
    try:
        plain = load(key).public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)  # type: ignore[attr-defined]
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise CarvyError(f"{where}: not a public key; make it with ssh-keygen") from error
    return f"key {hashlib.blake2b(plain, digest_size=12).hexdigest()}"


class Presence:
    """Tells who is connected, by name.

    With keys these are their holders, as Flower's SuperLink made sure; ``registered`` names all of
    them. Without keys it is every node that was greeted, by its partition where it names one.
    """

    def __init__(self, grid: Grid, settings: Settings) -> None:
        self._grid = grid
        self._seconds = settings.join_seconds
        self.registered = registered_keys(Path(settings.keys)) if settings.keys else frozenset()
        self._greeted: dict[int, str] = {}

    def now(self) -> dict[str, int]:
        """Return who is connected now: name → Flower's node id."""
        if not self.registered:
            connected = set(retry(self._grid.get_node_ids))
            return {name: node for node, name in self._greeted.items() if node in connected}
        holders = {}
        for node in retry(self._grid.get_nodes):
            with contextlib.suppress(CarvyError):  # a simulated node has no key
                holders[_name(node.public_key, load_pem_public_key, "SuperNode")] = node.node_id
        return {name: node for name, node in holders.items() if name in self.registered}

    def greet(self) -> None:
        """Ask the nodes that are new in an open federation for their names."""
        if self.registered:
            return
        nodes = retry(self._grid.get_node_ids)
        new = {n: RecordDict() for n in nodes if n not in self._greeted}
        for node, answer in replies(self._grid, HELLO, new, self._seconds, numbers=0):
            hello, name = read(Hello, answer), f"node {node}"
            if isinstance(hello, Hello) and 0 <= hello.partition < 10**6:
                named = f"{PARTITION} {hello.partition:06d}"
                name = name if named in self._greeted.values() else named
            self._greeted[node] = name


class Clock(Protocol):
    """The part of the module ``time`` that waiting needs."""

    def monotonic(self) -> float: ...  # noqa: D102
    def sleep(self, seconds: float, /) -> None: ...  # noqa: D102


def wait_for_clients(
    presence: Presence, settings: Settings, deadline: float = math.inf, clock: Clock = time
) -> tuple[str, ...]:
    """Wait for the clients; return their names by number: ``key …``, ``partition …``, ``node …``.

    All registered keys are numbered, so that who stays away changes no other's number, by hashes of
    key and seed, so that nobody can choose one.
    """
    registered = presence.registered
    if registered and settings.min_clients > len(registered):
        few = f"{settings.keys} holds {len(registered)} public keys"
        advice = "register more, or lower carvy.min-clients"
        raise CarvyError(f"carvy.min-clients is {settings.min_clients}, but {few}; {advice}")
    wanted = max(settings.min_clients, len(registered))
    until = min(clock.monotonic() + settings.join_seconds, deadline)
    presence.greet()
    while len(names := presence.now()) < wanted and clock.monotonic() < until:
        clock.sleep(min(0.5, max(until - clock.monotonic(), 0)))
        presence.greet()
    if clock.monotonic() >= deadline:
        raise CarvyError(
            f"carvy.deadline-seconds passed when {len(names)} clients were connected; begin again "
            "with a longer deadline in another folder (carvy.out)"
        )
    if len(names) < settings.min_clients:
        raise CarvyError(
            f"{len(names)} clients are connected, but carvy.min-clients is "
            f"{settings.min_clients}; start more SuperNodes, or raise carvy.join-seconds"
        )
    if len(names) < len(registered):
        log.warning("carvy: %s of %s clients are connected", len(names), len(registered))
    return settings.numbered(registered or names)


@dataclass(frozen=True)
class ServerContext:
    """What all groups share while they are trained, and no group changes.

    A client's position among the ``names`` is its number. The operator's deadline passes at
    ``until`` on the ``clock``. ``counts``: the class counts that clients sent in Step 1, by number.
    """

    grid: Grid
    presence: Presence
    names: tuple[str, ...]
    settings: Settings
    store: GroupStore
    until: float = math.inf
    clock: Clock = time
    counts: Mapping[int, tuple[int, ...]] = field(default_factory=dict)

    @cached_property
    def ids(self) -> tuple[int, ...]:
        """What each client's samples are ordered by; a registration changes nobody else's."""
        return tuple(training_id(name, self.settings.seed) for name in self.names)

    def located(self) -> dict[int, int]:
        """Return the node of every client that is connected: number → node id."""
        present = self.presence.now()
        return {i: present[name] for i, name in enumerate(self.names) if name in present}

    def connected_nodes(self, numbers: Iterable[int]) -> dict[int, int]:
        """Return nodes by number; wait for one, no longer than for an answer or the deadline."""
        wanted = set(numbers)
        until = min(self.clock.monotonic() + self.settings.answer_seconds, self.until)
        while True:
            nodes = {number: node for number, node in self.located().items() if number in wanted}
            if nodes or self.clock.monotonic() >= until:
                return nodes
            self.clock.sleep(1)

    def replies(
        self,
        kind: str,
        questions: Mapping[int, RecordDict],
        nodes: Mapping[int, int],
        traffic: Counter[str],
        *,
        numbers: int,
    ) -> Iterator[tuple[int, RecordDict | str]]:
        """Ask clients, by number, at their nodes; yield what :func:`replies` does, as it arrives.

        Counts in ``traffic`` the messages, those sent again once, and the bytes of arrays ``down``
        to and ``up`` from clients.
        """
        client_at = {node: number for number, node in nodes.items()}
        asked = {node: questions[number] for node, number in client_at.items()}
        traffic.update(messages=len(asked), down=sum(map(array_bytes, asked.values())), up=0)
        seconds = self.settings.answer_seconds
        for node, reply in replies(self.grid, kind, asked, seconds, numbers=numbers):
            traffic.update(up=array_bytes(reply))
            yield client_at[node], reply
