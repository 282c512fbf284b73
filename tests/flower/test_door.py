"""The operator's door: nginx lets SuperNodes reach a SuperLink, and nobody reach its control."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import httpx
import pytest
from flwr.app import Context, RecordDict
from flwr.cli.build import build_fab_from_disk
from flwr.cli.supernode.register import try_load_public_key
from flwr.proto.control_pb2 import ListNodesRequest, RegisterNodeRequest, StartRunRequest
from flwr.proto.fab_pb2 import Fab
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.runtime import RuntimeHttpClient

from carvyfl.core.errors import CarvyError
from carvyfl.flower.door import FLEET, knock, unguarded
from carvyfl.flower.server import server_app
from carvyfl.runs.folder import RunFolder
from support.cli import assert_refused, carvy
from support.flower_apps import command, make_app
from support.processes import BIN, Processes, connection, free_ports, in_memory, processes

NGINX = shutil.which("nginx", path=f"{os.environ['PATH']}{os.pathsep}/usr/sbin")
SITES = 2
STRANGER = """
from pathlib import Path
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

client = ClientApp()
server = ServerApp()

@server.main()
def main(grid, context):
    Path("{mark}").write_text("the stranger was here")
    raise ValueError("this app fails")
"""


@dataclass
class Guarded:
    """A federation with its door."""

    flower: Processes
    superlink: int
    door: int

    @property
    def certificate(self) -> Path:
        return self.flower.folder / "certificates" / "ca.crt"

    def start_superlink(self, name: str) -> None:
        line = command("flower-superlink --ssl").replace("--port 8000", f"--port {self.superlink}")
        self.flower.start(name, line)
        self.flower.until("SuperLink is up", lambda: "startup complete" in self.flower.log(name))

    def address(self, port: int) -> str:
        return f"127.0.0.1:{port}"

    def control(self, port: int) -> ControlHttpClient:
        """Return Flower's own client of the operator's interface, with nothing but ca.crt."""
        return ControlHttpClient.from_server_address(
            self.address(port),
            False,
            self.certificate.read_bytes(),
            [RuntimeVersionHttpInterceptor(component_name="flwr")],
        )

    def runtime(self, port: int) -> RuntimeHttpClient:
        return RuntimeHttpClient.from_server_address(
            self.address(port), False, self.certificate.read_bytes(), []
        )

    def register(self, port: int, key: str) -> None:
        public = try_load_public_key(self.flower.folder / key)
        with self.control(port) as client:
            client.RegisterNode(RegisterNodeRequest(public_key=public))

    def registered(self) -> int:
        with self.control(self.superlink) as client:
            return len(client.ListNodes(ListNodesRequest()).nodes_info)

    def raw(self, port: int, request: str) -> int:
        """Send a request as it stands, which no client would write so; return the status."""
        context = ssl.create_default_context(cafile=self.certificate)
        with (
            socket.create_connection(("127.0.0.1", port), timeout=10) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as secure,
        ):
            head = "Host: localhost\r\nContent-Type: application/protobuf\r\nContent-Length: 0\r\n"
            secure.sendall(f"{request} HTTP/1.1\r\n{head}Connection: close\r\n\r\n".encode())
            answer = http.client.HTTPResponse(secure)
            answer.begin()
            return answer.status


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    if NGINX is None:
        pytest.skip("no nginx to put in front of a SuperLink; run scripts/nginx.sh")
    with in_memory() as folder, processes(folder or tmp_path_factory.mktemp("run")) as flower:
        superlink, door, *others = free_ports(2 + SITES)
        made = Guarded(flower, superlink, door)
        make_app(flower)
        flower.run(command("mkdir"))
        for subject in ("CA", "server"):
            start = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
            flower.run(command(f'{start} -days 365 -subj "/CN=Federation {subject}"'))
        for name in [*(f"client-{site}" for site in range(SITES)), "stranger"]:
            flower.run(command("ssh-keygen").replace("client-0", name))
        made.start_superlink("superlink")
        text = (flower.folder / "federation" / "operator" / "nginx.conf").read_text()
        for before, after in (
            ("server 127.0.0.1:8000;", f"server 127.0.0.1:{superlink};"),
            ("listen 9092 ssl;", f"listen 127.0.0.1:{door} ssl;"),
        ):
            assert text.count(before) == 1
            text = text.replace(before, after)
        (flower.folder / "nginx.conf").write_text(text)
        rights = '-g "user root;"' if os.geteuid() == 0 else ""  # the folder is nobody else's
        line = command("nginx")
        assert line.startswith("nginx ")
        flower.start("door", f"{NGINX} {rights} {line.removeprefix('nginx ')}")
        connection(
            flower,
            {
                "address": f'"{made.address(superlink)}"',
                "root-certificates": f'"{made.certificate}"',
            },
        )
        for site, port in zip(range(SITES), others, strict=True):
            made.register(superlink, f"keys/client-{site}.pub")
            line = command("flower-supernode").replace(":9092", f":{door}")
            line = line.replace("client-0", f"client-{site}").replace("9094", str(port))
            line = line.replace("partition-id=0", f"partition-id={site}")
            assert f"--superlink {made.address(door)} " in line
            flower.start(f"node-{site}", line)
        (flower.folder / "keys" / "stranger.pub").rename(flower.folder / "stranger.pub")
        yield made


@pytest.mark.flower
@pytest.mark.timeout(600)
def test_sites_work_through_the_door_and_a_stranger_does_not(guarded: Guarded):
    """Who has ca.crt alone is refused at the door, and not on the SuperLink's own port."""
    flower, folder = guarded.flower, guarded.flower.folder
    line = command("flwr run federation link --stream --run-config")
    more = f"carvy.min-clients={SITES} carvy.groups={SITES} carvy.answer-seconds=240"
    more += ' carvy.learner="one-shot" carvy.features="none"'
    flower.start("run-log", f"{line[:-1]} {more}'")
    mark = folder / "mark"
    app = folder / "stranger"
    app.mkdir()
    settings = (folder / "federation" / "pyproject.toml").read_text()
    settings = settings.replace("carvy_app.apps", "apps").replace("carvy-app", "stranger")
    (app / "pyproject.toml").write_text(settings)
    (app / "apps.py").write_text(STRANGER.format(mark=mark))
    content = build_fab_from_disk(app)
    fab = Fab(hash_str=hashlib.sha256(content).hexdigest(), content=content)

    def attack(port: int) -> list[int]:
        """Register a key, start an app, ask for a task of another's: the statuses."""
        statuses = []
        with guarded.control(port) as control, guarded.runtime(port) as runtime:
            for act in (
                lambda: guarded.register(port, "stranger.pub"),
                lambda: control.StartRun(StartRunRequest(fab=fab)),
                lambda: runtime.AcquireTask(AcquireTaskRequest()),
            ):
                try:
                    act()
                    statuses.append(200)
                except httpx.HTTPStatusError as error:
                    statuses.append(error.response.status_code)
        return statuses

    assert attack(guarded.door) == [403, 403, 403]
    assert guarded.registered() == SITES
    for target in (
        "POST /v1/control/list-nodes",
        "POST /v1/fleet/../control/list-nodes",
        "POST /v1/fleet/%2e%2e/control/list-nodes",
        "POST /v1/fleet/..%2fcontrol/list-nodes",
        "POST //v1/control/list-nodes",
        "POST /v1/control/list-nodes?/v1/fleet/pull-messages",
        "POST /v1/fleet/register-node",
        "POST /v1/fleet/pull-messages/",
        "POST /V1/FLEET/pull-messages",
        "POST https://localhost/v1/control/list-nodes",
        "POST /",
        "GET /v1/fleet/pull-messages",
        "PUT /v1/fleet/pull-messages",
        "GET /openapi.json",
        "GET /docs",
        "GET /health",
    ):
        assert guarded.raw(guarded.door, target) == 403, target
    # What is passed on is the path that was checked, however it was written.
    for target in (
        f"POST {FLEET}",
        f"POST {FLEET}?x=/v1/control/list-nodes",
        "POST /v1/control/list-nodes/../../fleet/pull-messages",
        "POST /v1/%66leet/pull-messages",
    ):
        assert guarded.raw(guarded.door, target) == 401, target
    context = ssl.create_default_context(cafile=guarded.certificate)
    large = httpx.post(
        f"https://127.0.0.1:{guarded.door}{FLEET}", content=bytes(9 * 2**20), verify=context
    )
    assert large.status_code == 413

    assert flower.wait("run-log", 300) == 0
    assert "saved in" in flower.log("run-log"), flower.log("run-log")
    record = RunFolder(folder / "run").record()
    assert record.deployment
    assert record.deployment.authenticated
    assert len(record.deployment.clients) == SITES
    assert "controls the federation" not in flower.log("run-log")
    assert not mark.exists()

    # `carvy flower check` and curl tell one address from the other.
    assert knock(guarded.address(guarded.door), guarded.certificate).open == []
    for port, code in ((guarded.door, 0), (guarded.superlink, 1)):
        said = carvy("flower", "check", guarded.address(port), "--ca", guarded.certificate)
        assert said.code == code, said
        assert ("REACHABLE" in said.out) == bool(code)
        if shutil.which("curl"):
            line = command("curl").replace("9092", str(port))
            assert flower.run(line) == ("200\n" if code else "403\n")

    # Without the door, all of it succeeds.
    assert attack(guarded.superlink) == [200, 200, 200]
    assert guarded.registered() == SITES + 1
    flower.until("the stranger's app has run on the server", mark.exists)

    # `flwr run` of an app that fails ends well; the list of runs tells the truth.
    flower.run("flwr run stranger link --stream")
    runs = json.loads(flower.run(command("flwr list")))["runs"]
    assert [run["status"] for run in runs if run["fab-name"] == "carvy-app"] == [
        "finished:completed"
    ]
    last = flower.run("flwr list link --limit 1 --format json")
    assert '"finished:failed"' in last
    assert {run["status"] for run in runs if run["fab-name"] == "stranger"} == {"finished:failed"}

    # The SuperLink goes away and comes back: the sites wait at the door.
    flower.kill("superlink")
    assert guarded.raw(guarded.door, f"POST {FLEET}") == 502
    assert knock(guarded.address(guarded.door), guarded.certificate).admits_clients is False

    def both_say(words: str) -> None:
        for log in [f"node-{site}" for site in range(SITES)]:
            flower.until(f"{log}: {words}", lambda: words in flower.log(log))  # noqa: B023

    both_say("Connection attempt failed, retrying")
    guarded.start_superlink("superlink again")
    both_say("Connection successful after")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze")
def test_units_are_accepted_by_systemd(tmp_path: Path):
    assert carvy("flower", "init", tmp_path / "mine").code == 0
    units = sorted((tmp_path / "mine" / "operator").glob("*.service"))
    assert len(units) == 3
    for unit in units:
        text = unit.read_text().replace("/opt/carvy/bin/", f"{BIN}/")
        unit.write_text(text.replace("/usr/sbin/nginx", NGINX or "/bin/true"))
        said = subprocess.run(
            ["systemd-analyze", "verify", unit], capture_output=True, text=True, timeout=60
        )
        assert (said.returncode, said.stderr) == (0, ""), unit
        assert "Restart=always" in text
        assert "RestartSec=5" in text


def test_nothing_of_the_operator_is_sent_to_clients(tmp_path: Path):
    """Keys that were put beside the configuration stay, too."""
    app = tmp_path / "mine"
    assert carvy("flower", "init", app).code == 0
    for name in ("ca.key", "server.key", "server.crt", "client-0.pub", "client-0"):
        (app / "operator" / name).write_text("secret")
    (tmp_path / "app.fab").write_bytes(build_fab_from_disk(app))
    shutil.unpack_archive(tmp_path / "app.fab", tmp_path / "packed", "zip")
    folder = tmp_path / "packed"
    packed = [str(file.relative_to(folder)) for file in folder.rglob("*")]
    assert "carvy_app/apps.py" in packed
    assert not [name for name in packed if "operator" in name]


def test_a_superlink_on_all_addresses_is_noticed():
    with socket.socket() as beyond, socket.socket() as free:
        beyond.bind(("127.0.0.2", 0))
        beyond.listen()
        port = beyond.getsockname()[1]
        assert unguarded(f"127.0.0.1:{port}") == f"all addresses, port {port}"
        assert unguarded(f"localhost:{port}") == f"all addresses, port {port}"
        free.bind(("127.0.0.1", 0))
        free.listen()
        assert unguarded(f"127.0.0.1:{free.getsockname()[1]}") is None
    assert unguarded("192.0.2.1:8000") == "192.0.2.1:8000"
    assert unguarded("superlink:8000") == "superlink:8000"
    assert unguarded("") is None  # a simulation in this process


def test_the_server_warns_before_anything_else(caplog: pytest.LogCaptureFixture):
    class NoDataError(Exception):
        pass

    def no_data(context: Context) -> None:
        raise NoDataError

    def said(address: str) -> str:
        caplog.clear()
        context = Context(1, 0, {}, RecordDict(), {})
        with caplog.at_level("INFO", "flwr"), pytest.raises(NoDataError):
            server_app(no_data)(mock.Mock(_addr=address), context)
        return caplog.text

    assert "listens on 192.0.2.1:8000, not on 127.0.0.1 alone" in said("192.0.2.1:8000")
    (port,) = free_ports(1)
    assert said(f"127.0.0.1:{port}") == ""


def test_wrong_addresses_and_certificates_are_refused(tmp_path: Path):
    (port,) = free_ports(1)
    (tmp_path / "ca.crt").write_text("none")
    ca = ("--ca", tmp_path / "ca.crt")
    for address in ("localhost", "https://localhost:1", "localhost:http", "user@localhost:1/x", ""):
        assert_refused(carvy("flower", "check", address, *ca), "HOST:PORT")
    assert_refused(carvy("flower", "check", f"localhost:{port}", *ca), "ca.crt")
    assert_refused(carvy("flower", "check", f"localhost:{port}", "--ca", tmp_path / "no"), "no")
    (tmp_path / "ca.crt").write_text(ssl.DER_cert_to_PEM_cert(b""))
    with pytest.raises(CarvyError):
        knock(f"127.0.0.1:{port}", tmp_path / "ca.crt")
