"""A ledger counts every message before it can leave, and draws noise once."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from carvyfl.core.errors import CarvyError
from carvyfl.privacy import ledger as module
from carvyfl.privacy.ledger import Ledger, total
from carvyfl.privacy.noise import GaussianNoise, failure

NOISE = GaussianNoise(1.0, 1e-5, 100)
DATA = {"x": np.arange(6.0).reshape(2, 3), "y": np.array([0, 1])}


def drawn() -> dict[str, np.ndarray]:
    return {"units": np.frombuffer(os.urandom(64), np.int32)}


def ask(ledger: Ledger, noise: GaussianNoise = NOISE, **settings: object) -> bytes:
    return ledger.message(DATA, settings, noise, drawn)["units"].tobytes()


def test_the_same_request_gets_the_same_message_and_is_counted_once(tmp_path: Path) -> None:
    first = ask(Ledger(tmp_path), seed=1)
    assert ask(Ledger(tmp_path), seed=1) == first
    assert len(Ledger(tmp_path).spendings) == 1


@pytest.mark.parametrize("change", ["settings", "epsilon", "value", "type", "name"])
def test_anything_else_is_another_message(tmp_path: Path, change: str) -> None:
    ledger = Ledger(tmp_path)
    first = ledger.message(DATA, {"map": "a"}, NOISE, drawn)
    data, settings, noise = dict(DATA), {"map": "a"}, NOISE
    match change:
        case "settings":
            settings = {"map": "b"}
        case "epsilon":
            noise = GaussianNoise(2.0, 1e-5, 100)
        case "value":
            data["x"] = data["x"] + np.eye(2, 3) * 1e-12
        case "type":
            data["y"] = data["y"].astype(np.int32)
        case "name":
            data = {"x": DATA["x"], "z": DATA["y"]}
    second = ledger.message(data, settings, noise, drawn)
    assert (first["units"] != second["units"]).any()
    assert [spending.epsilon for spending in ledger.spendings] == [1.0, noise.epsilon]


def test_beyond_the_limit_nothing_is_drawn(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.set_limit(2.0)
    first, _ = ask(ledger, seed=1), ask(ledger, seed=2)
    refusal = r"ε = 2 is spent, and with this message it would be ε = 3, .*\(basic composition\)"
    with pytest.raises(CarvyError, match=refusal):
        Ledger(tmp_path).message(DATA, {"seed": 3}, NOISE, lambda: pytest.fail("noise was drawn"))
    assert ask(ledger, seed=1) == first  # what has left may leave again
    assert len(ledger.spendings) == 2


def test_delta_has_a_limit_too(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.set_limit(100.0, delta=1.5e-5)
    ask(ledger, seed=1)
    with pytest.raises(CarvyError, match="δ = 2e-05"):
        ask(ledger, seed=2)


def test_gaussian_composition_allows_more_and_is_what_the_formula_says(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.set_limit(4.0, 1e-5, "gaussian")
    with pytest.raises(CarvyError, match="gaussian composition"):
        all(ask(ledger, seed=seed) for seed in range(100))
    count = len(ledger.spendings)
    assert count > 4
    epsilon, delta = total(ledger.spendings, "gaussian", 1e-5)
    assert epsilon <= 4 < total([*ledger.spendings, ledger.spendings[0]], "gaussian", 1e-5)[0]
    assert failure(epsilon, np.sqrt(count) * NOISE.signal) == pytest.approx(delta, rel=1e-6)


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"PK")])
def test_new_noise_for_a_lost_message_is_counted(
    tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    ledger = Ledger(tmp_path)
    first = ask(ledger)
    (file,) = tmp_path.glob("*.npz")
    damage(file)
    second = ask(ledger)
    assert second != first
    assert len(ledger.spendings) == 2
    assert ask(ledger) == second
    assert len(ledger.spendings) == 2


def test_a_message_that_somebody_replaced_is_not_sent(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ask(ledger, seed=1)
    (file,) = tmp_path.glob("*.npz")
    other = ask(ledger, seed=2)
    (new,) = set(tmp_path.glob("*.npz")) - {file}
    file.write_bytes(new.read_bytes())
    assert ask(ledger, seed=1) != other
    assert len(ledger.spendings) == 3


CRASH = """
import os, sys
from pathlib import Path
import numpy as np
from carvyfl.privacy import ledger as module
from carvyfl.privacy.ledger import Ledger
from carvyfl.privacy.noise import GaussianNoise
folder, place = sys.argv[1:]
def crash(*_): os._exit(9)
def before(function): return crash
def after(function): return lambda *given: (function(*given), crash())
when, name = place.split()
wrap = {"before": before, "after": after}[when]
ledger = Ledger(folder)
if name == "noise":
    draw = crash
else:
    draw = lambda: {"units": np.frombuffer(os.urandom(64), np.int32)}
    setattr(module, name, wrap(getattr(module, name)))
ledger.message({"x": np.zeros(1)}, {}, GaussianNoise(1.0, 1e-5, 100), draw)
"""


@pytest.mark.parametrize(
    ("place", "counted"),
    [
        ("in noise", 0),
        ("before write_npz", 0),
        ("after write_npz", 0),
        ("before write_text", 0),
        ("after write_text", 1),
    ],
)
def test_a_crash_never_hides_a_message(tmp_path: Path, place: str, counted: int) -> None:
    place = place.replace("in noise", "before noise")
    Ledger(tmp_path)
    done = subprocess.run([sys.executable, "-c", CRASH, str(tmp_path), place], check=False)
    assert done.returncode == 9
    ledger = Ledger(tmp_path)
    assert len(ledger.spendings) == counted
    stored = {file.stem for file in tmp_path.glob("*.npz")}
    message = ledger.message({"x": np.zeros(1)}, {}, NOISE, drawn)
    assert len(ledger.spendings) == 1  # what was lost in the crash has not left
    if counted:
        assert module.digest(message) in stored


BUSY = """
import os, sys, numpy as np
from carvyfl.privacy.ledger import Ledger
from carvyfl.privacy.noise import GaussianNoise
draw = lambda: {"units": np.frombuffer(os.urandom(64), np.int32)}
data, noise, ledger = {"x": np.zeros(1)}, GaussianNoise(1.0, 1e-5, 9), Ledger(sys.argv[1])
for seed in range(8):
    print(ledger.message(data, {"seed": seed}, noise, draw)["units"].tobytes().hex())
"""


@pytest.mark.slow
def test_processes_share_a_ledger(tmp_path: Path) -> None:
    command = [sys.executable, "-c", BUSY, str(tmp_path)]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(2)]
    first, second = (process.communicate()[0] for process in started)
    assert first == second
    assert len(first.split()) == len(set(first.split())) == 8
    assert len(Ledger(tmp_path).spendings) == 8


@pytest.mark.parametrize("content", [b"", b"{}\n{}\n", b"no json", b'{"epsilon": "much"}'])
def test_a_damaged_ledger_is_refused(tmp_path: Path, content: bytes) -> None:
    ledger = Ledger(tmp_path)
    ask(ledger)
    ledger.path.write_bytes(content)
    with pytest.raises(CarvyError, match="what was spent is not known"):
        ask(Ledger(tmp_path))


def test_a_ledger_that_was_taken_away_is_refused(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ask(ledger)
    ledger.path.unlink()
    with pytest.raises(CarvyError, match="put it back"):
        Ledger(tmp_path)


def test_nobody_else_can_read_it(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "client")
    ask(ledger)
    assert ledger.folder.stat().st_mode & 0o077 == 0
    assert ledger.path.stat().st_mode & 0o077 == 0
