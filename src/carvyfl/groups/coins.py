"""The server's coins: drawn once, committed to before any message, revealed afterwards."""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from carvyfl.core.errors import CarvyError

LENGTH: Final = 32  # bytes: nobody finds the coins from their commitment
SOURCES: Final = ("system", "simulated")


@dataclass(frozen=True)
class Coins:
    """The random number from which the slots of a grouping are drawn: 32 bytes, in hexadecimal.

    The end-to-end certificate asks that malicious clients choose their messages without knowing
    it. So the server draws it, publishes :attr:`commitment`, closes the messages, and only then
    reveals the coins. Who kept the commitment can check that they do not suit the messages.

    The source ``system`` is the operating system's, for deployment. Those that are ``simulated``
    are derived from the run's seed; whoever knows the seed knows them.
    """

    value: str = field(repr=False)
    source: str

    def __post_init__(self) -> None:
        if not (isinstance(self.value, str) and re.fullmatch(r"[0-9a-f]{64}", self.value)):
            raise CarvyError(f"coins: must be {LENGTH} bytes in lower-case hexadecimal")
        if self.source not in SOURCES:
            raise CarvyError(f"coins from '{self.source}': must be from {' or '.join(SOURCES)}")

    @property
    def commitment(self) -> str:
        """What is published before the messages: SHA-256 of the coins, in hexadecimal."""
        return hashlib.sha256(b"carvyfl coins" + bytes.fromhex(self.value)).hexdigest()

    def __str__(self) -> str:
        return f"{self.words}, commitment {self.commitment}"

    @property
    def words(self) -> str:
        """What they are, for people."""
        return "committed coins" if self.source == "system" else "simulated coins (from the seed)"

    @property
    def key(self) -> int:
        """The coins as a number, the seed of everything drawn from them."""
        return int(self.value, 16)

    def to_json(self) -> dict[str, str]:
        """Return the coins, their source and their commitment as plain strings."""
        return {"value": self.value, "source": self.source, "commitment": self.commitment}

    @staticmethod
    def from_json(data: Any, where: str) -> Coins:
        """Rebuild coins from :meth:`to_json`; the commitment must be theirs."""
        try:
            coins, commitment = Coins(data["value"], data["source"]), data["commitment"]
        except (KeyError, TypeError) as error:
            remedy = "draw others with 'carvy coins', or form groups again"
            raise CarvyError(f"{where}: no complete coins; {remedy}") from error
        if commitment != coins.commitment:
            raise CarvyError(f"{where}: the coins are not the ones that were committed to")
        return coins


def draw_coins() -> Coins:
    """Draw coins from the operating system's secure source."""
    return Coins(secrets.token_hex(LENGTH), "system")


def coins_from_seed(seed: int) -> Coins:
    """Derive a simulation's coins from its seed."""
    digest = hashlib.blake2b(f"carvyfl coins {seed}".encode(), digest_size=LENGTH)
    return Coins(digest.hexdigest(), "simulated")


def save_coins(coins: Coins, path: Path) -> None:
    """Write coins to a new file, since a commitment may be published, that only its owner reads."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(number, "w", encoding="utf-8") as file:
            file.write(json.dumps(coins.to_json()) + "\n")
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError as error:
        raise CarvyError(f"{path} exists and is not overwritten; name a new file") from error
    except OSError as error:
        raise CarvyError(f"cannot write {path}: {error.strerror}; name another file") from error


def load_coins(path: Path) -> Coins:
    """Read coins that :func:`save_coins` wrote; simulated ones are refused."""
    try:
        with open(path, "rb") as file:
            content = json.loads(file.read(4096))
    except OSError as error:
        raise CarvyError(f"cannot read the coins in {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise CarvyError(f"{path}: not a file of coins; make one with 'carvy coins'") from error
    coins = Coins.from_json(content, str(path))
    if coins.source != "system":
        raise CarvyError(f"{path}: the coins are simulated; draw others with 'carvy coins'")
    return coins
