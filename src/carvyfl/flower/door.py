"""Find out whether the operator's interface of a SuperLink can be reached from here.

Flower serves it on the port of the clients, and it asks for no key. The proxy in
``template/operator/nginx.conf`` answers 403 to all that a SuperNode does not need.
"""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from carvyfl.core.errors import CarvyError

FLEET = "/v1/fleet/pull-messages"
CLOSED = {
    "control": "/v1/control/list-nodes",
    "runtime": "/v1/runtime/get-nodes",
    "description": "/openapi.json",
}
"""One path of each interface that clients do not need; asking changes nothing."""

UNGUARDED = (
    "the SuperLink listens on %s, not on 127.0.0.1 alone; who reaches that port and has ca.crt "
    "controls the federation without a key: start it with --host 127.0.0.1, behind "
    "operator/nginx.conf, and try 'carvy flower check' on a client's machine"
)
SECONDS = 10


@dataclass(frozen=True)
class Door:
    """What an address answers: the HTTP status of the clients' path, and of each of the others."""

    fleet: int
    others: dict[str, int]

    @property
    def admits_clients(self) -> bool:
        """Whether a SuperLink answers SuperNodes; it refuses one without a key with 401."""
        return self.fleet not in {403, 404} and self.fleet < 500

    @property
    def open(self) -> list[str]:
        """The interfaces that are reached: all that is not refused by the proxy."""
        return [name for name, status in self.others.items() if status != 403]


def knock(address: str, certificate: Path) -> Door:
    """Ask an address, HOST:PORT, for one path of each interface."""
    host, port = _split(address)
    try:
        context = ssl.create_default_context(cafile=certificate)
    except (OSError, ssl.SSLError) as error:
        raise CarvyError(f"{certificate}: no certificate of an authority ({error})") from error
    try:
        others = {name: _status(host, port, path, context) for name, path in CLOSED.items()}
        return Door(_status(host, port, FLEET, context), others)
    except (OSError, http.client.HTTPException) as error:
        raise CarvyError(f"{address} does not answer as a SuperLink with TLS: {error}") from error


def _status(host: str, port: int, path: str, context: ssl.SSLContext) -> int:
    connection = http.client.HTTPSConnection(host, port, timeout=SECONDS, context=context)
    try:
        connection.request("POST", path, b"", {"Content-Type": "application/protobuf"})
        return connection.getresponse().status
    finally:
        connection.close()


def _split(address: str) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{address}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if host is None or port is None or parts.netloc != address:
        raise CarvyError(f"'{address}' is no address; write HOST:PORT, as for --superlink")
    return host, port


def unguarded(address: str) -> str | None:
    """Return where a SuperLink listens beyond its own machine's loopback, else None.

    ``address`` is the one that the server's app was given. A SuperLink on all addresses gives
    127.0.0.1 for it. Then it answers on 127.0.0.2 as well, and one on 127.0.0.1 alone does not.
    Nothing is known where only 127.0.0.1 is loopback, as on macOS, and for IPv6.
    """
    try:
        host, port = _split(address)
    except CarvyError:
        return None
    try:
        loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name
        loopback = False
    if not loopback:
        return address
    try:
        socket.create_connection(("127.0.0.2", port), timeout=1).close()
    except OSError:
        return None
    return f"all addresses, port {port}"
