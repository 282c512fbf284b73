"""Real Flower processes on localhost, ended to the last one whatever happens."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

BIN = Path(sys.executable).parent
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "NO_COLOR": "1",
    "OMP_NUM_THREADS": "1",
}


def free_ports(count: int) -> list[int]:
    """Return ports of localhost that nobody uses."""
    with contextlib.ExitStack() as stack:
        taken = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in taken:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in taken]


class Processes:
    """Processes of one test: each leads a session of its own, which ends with it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "flwr"
        self.home.mkdir()
        self.env = {
            **os.environ,
            **QUIET,
            "FLWR_HOME": str(self.home),
            "XDG_CACHE_HOME": str(folder / "cache"),
            "XDG_DATA_HOME": str(folder / "data"),
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        }
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def log(self, name: str) -> str:
        """Return what a process has said so far."""
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def start(self, name: str, command: str) -> None:
        """Start a process; its output goes to NAME.log."""
        with open(self.folder / f"{name}.log", "ab") as log:
            self._running[name] = subprocess.Popen(
                shlex.split(command),
                cwd=self.folder,
                env=self.env,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def run(self, command: str) -> str:
        """Run a command to its end, which must be a good one, and return what it said."""
        done = subprocess.run(
            shlex.split(command),
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def until(self, what: str, condition: Callable[[], bool], timeout: float = 120) -> None:
        """Wait for a condition; fail with all that was said if it does not come true."""
        end = time.monotonic() + timeout
        while not condition():
            ended = [n for n, process in self._running.items() if process.poll() is not None]
            if time.monotonic() > end:
                said = "\n".join(f"== {n}\n{self.log(n)[-3000:]}" for n in self._running)
                raise AssertionError(f"not within {timeout} s: {what}; ended: {ended}\n{said}")
            time.sleep(0.2)

    def kill(self, name: str) -> None:
        """Kill a process and those of its session, without warning."""
        process = self._running.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def find(self, word: str) -> list[int]:
        """Return the processes of this place whose command line holds a word.

        They are known by the environment they were started with: Flower puts some of
        its processes into sessions of their own.
        """
        mark, pids = f"FLWR_HOME={self.home}".encode(), []
        for folder in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                if word in command and mark in (folder / "environ").read_bytes().split(b"\0"):
                    pids.append(int(folder.name))
        return pids

    def wait(self, name: str, timeout: float = 120) -> int:
        """Wait for a process to end by itself and return its exit code."""
        return self._running[name].wait(timeout)

    def end(self) -> None:
        """Kill everything that still runs."""
        for name in list(self._running):
            self.kill(name)
        while left := self.find(""):
            for process in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            time.sleep(0.05)


@contextlib.contextmanager
def processes(folder: Path) -> Iterator[Processes]:
    """Open a place for processes; none of them outlives it."""
    place = Processes(folder)
    try:
        yield place
    finally:
        place.end()


@contextlib.contextmanager
def in_memory() -> Iterator[Path | None]:
    """Open a folder in memory, where there is room: a disk busy with something else can
    stall for longer than the five seconds after which Flower's database gives up.
    """
    shared = Path("/dev/shm")
    if not shared.is_dir() or shutil.disk_usage(shared).free < 2**30:
        yield None
        return
    with tempfile.TemporaryDirectory(dir=shared, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def connection(place: Processes, settings: Mapping[str, str]) -> None:
    """Write Flower's own configuration: how 'flwr' reaches the SuperLink."""
    lines = [f"{name} = {value}" for name, value in settings.items()]
    text = '[superlink]\ndefault = "link"\n\n[superlink.link]\n'
    (place.home / "config.toml").write_text(text + "\n".join(lines) + "\n")
