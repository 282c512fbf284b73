"""How the tests of the command line call it, and what they ask of every answer."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import jsonschema
import numpy.typing as npt
from typer import Typer

from carvyfl.cli import main

CARVY = Path(sys.executable).with_name("carvy")
SCHEMAS = Path(__file__).parents[2] / "docs" / "reference" / "schemas"
QUICK = ("--model", "mlp", "--clients", "10", "--samples", "20", "--workers", "1")


LOG_IMPORTS = """
import os, sys, threading
from importlib import _bootstrap

def noting(original):
    def call(name, *others):
        spec = getattr(sys.modules.get(name), "__spec__", None)
        new = name not in sys.modules or getattr(spec, "_initializing", False)
        if new and threading.current_thread() is not threading.main_thread():
            with open(os.environ["IMPORT_LOG"], "a") as log:
                print(os.getpid(), threading.current_thread().name, name, file=log)
        return original(name, *others)
    return call

_bootstrap._find_and_load = noting(_bootstrap._find_and_load)
_bootstrap._lock_unlock_module = noting(_bootstrap._lock_unlock_module)
"""
"""Python runs this at its start, before anything else: it notes what threads import, by whatever
statement or function, and where they wait for a module that is being imported."""


@dataclass(frozen=True)
class Answer:
    """What a command said: its exit code, standard output and standard error."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one JSON object on standard output; NaN and infinity are no JSON."""
        assert self.code == 0, self.err
        assert self.out.count("\n") == 1

        def refuse(constant: str) -> None:
            raise AssertionError(f"{constant} is not JSON")

        return json.loads(self.out, parse_constant=refuse)


def carvy(*args: object, app: Typer | None = None) -> Answer:
    """Call a command, by default carvy, in this process, as its entry point does."""
    out, err = io.StringIO(), io.StringIO()
    code = 0
    with (
        mock.patch.object(sys, "argv", ["carvy", *map(str, args)]),
        mock.patch.object(sys.modules["__main__"], "__package__", None),  # not "python -m pytest"
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main(app)
        except SystemExit as end:
            code = int(end.code or 0)
    return Answer(code, out.getvalue(), err.getvalue())


def process(*args: object, **options: Any) -> Answer:
    """Call the installed command as a process of its own, its output piped."""
    done = subprocess.run(
        [CARVY, *map(str, args)], capture_output=True, text=True, timeout=300, **options
    )
    return Answer(done.returncode, done.stdout, done.stderr)


def noting_imports(folder: Path) -> dict[str, str]:
    """Return the environment of a process of which :func:`imported_by_threads` speaks."""
    place = folder / ".noting"
    place.mkdir(exist_ok=True)
    (place / "sitecustomize.py").write_text(LOG_IMPORTS)
    path = os.pathsep.join(filter(None, [str(place), os.environ.get("PYTHONPATH")]))
    cache = os.environ.get("XDG_CACHE_HOME") or str(folder / "cache")
    more = {"PYTHONPATH": path, "IMPORT_LOG": str(place / "log"), "XDG_CACHE_HOME": cache}
    return {**os.environ, **more}


def imported_by_threads(folder: Path) -> list[str]:
    """Return the modules that threads other than the main one imported, or waited for."""
    log = folder / ".noting" / "log"
    return [line.split()[-1] for line in log.read_text().splitlines()] if log.exists() else []


def start(*command: object, **options: Any) -> subprocess.Popen[str]:
    """Start a process that can be stopped, however the tests themselves were started.

    A child inherits signals that are ignored or blocked, and under ``nohup``, ``setsid`` or
    ``&`` in a script the tests may run with such.
    """

    def take_signals() -> None:
        for kind in (signal.SIGINT, signal.SIGTERM):
            signal.signal(kind, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [kind])

    return subprocess.Popen(list(map(str, command)), text=True, preexec_fn=take_signals, **options)


def assert_refused(answer: Answer, *words: str) -> None:
    """One line on standard error that names what is wrong, exit code 2, no traceback."""
    assert answer.code == 2, answer
    assert re.fullmatch(r"carvy: [^\n]+\n", answer.err), answer.err
    for word in words:
        assert word in answer.err


def assert_valid(value: Any, name: str) -> None:
    """The value fits the schema, and holds no field that the schema does not know."""
    schema = json.loads((SCHEMAS / f"{name}.schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(value, closed(schema), cls=jsonschema.Draft202012Validator)


def closed(schema: Any) -> Any:
    """Return a schema whose objects may have no further fields."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    parts = {name: closed(part) for name, part in schema.items()}
    return parts | {"additionalProperties": False} if "properties" in schema else parts


def naive_radius(votes: npt.NDArray[Any], label: int, num_classes: int) -> int:
    """Eqs. 6 to 8 for one input: floor(Δ / 2), -1 where the label loses or nobody votes."""
    count = [sum(1 for vote in votes if vote == c) for c in range(num_classes)]
    if not any(count):
        return -1
    lead = min(
        count[label] - count[rival] - (1 if rival < label else 0)
        for rival in range(num_classes)
        if rival != label
    )
    return max(lead // 2, -1)


def naive_ca(
    votes: npt.NDArray[Any], labels: npt.NDArray[Any], num_classes: int
) -> tuple[list[float], float]:
    """CA(m) in percent up to its first zero, and its area, from the definition."""
    radii = [naive_radius(votes[:, i], int(label), num_classes) for i, label in enumerate(labels)]
    curve, m = [], 0
    while True:
        curve.append(100 * sum(1 for radius in radii if radius >= m) / len(radii))
        if curve[-1] == 0:
            break
        m += 1
    return curve, sum((a + b) / 2 for a, b in itertools.pairwise(curve))


def state(folder: Path) -> dict[str, tuple[int, int]]:
    """Return name, time of last change and size of every file, to see whether one was touched."""
    return {
        str(file.relative_to(folder)): (os.stat(file).st_mtime_ns, os.stat(file).st_size)
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


def alive(session: int) -> list[int]:
    """Processes of a session that live; zombies are dead."""
    pids = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == session and fields[0] not in "ZX":
                pids.append(int(entry.name))
    return pids
