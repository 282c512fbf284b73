"""Private runs: noise is drawn once, whatever happens to the run, and the folder is enough."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from carvyfl.core.errors import CarvyError
from carvyfl.learning.private.map import load as load_map
from carvyfl.learning.private.message import Messages
from carvyfl.learning.private.model import as_private
from carvyfl.pipeline import Compute
from carvyfl.runs.audit import audit, verdict
from carvyfl.runs.evidence import Evidence
from carvyfl.runs.execute import execute, prepare
from carvyfl.runs.folder import RunFolder
from carvyfl.runs.resume import finished_run
from support.cli import carvy
from support.private import CLASSES, runs_on_corners


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("private")
    runs_on_corners(folder, run=(), second=("--seed", 1), chosen=("--groups", "auto"))
    return folder


@pytest.fixture
def copied(place: Path, tmp_path: Path) -> RunFolder:
    return RunFolder(shutil.copytree(place / "run", tmp_path / "run"))


def again(run: RunFolder) -> None:
    execute(run.config(), run.path, Compute.on_cores(1))


def content(run: RunFolder) -> dict[str, bytes]:
    files = (path for path in run.path.rglob("*") if path.is_file())
    return {str(path.relative_to(run.path)): path.read_bytes() for path in files}


def asked(*_: object, **__: object) -> None:
    raise AssertionError("clients were asked again, or a map was made")


def test_a_run_that_is_repeated_asks_nobody(
    copied: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = content(copied)
    monkeypatch.setattr("carvyfl.learning.private.model.simulated_messages", asked)
    again(copied)
    assert content(copied) == before


def test_a_finished_run_is_recognised(place: Path) -> None:
    run = RunFolder(place / "run")
    record = finished_run(run.record().config, run.path, "auto", None)
    dirty = (run.record().environment.commit or "").endswith("-dirty")
    assert (record is None) == dirty
    assert dirty or record == run.record()
    other = dataclasses.replace(run.record().config, epsilon=3.0)
    assert finished_run(other, run.path, "auto", None) is None


def test_an_interrupted_run_goes_on_with_what_was_sent(
    copied: RunFolder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config, run = copied.config(), RunFolder(tmp_path / "interrupted")

    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("carvyfl.runs.execute.train", stopped)
        with pytest.raises(KeyboardInterrupt):
            execute(config, run.path, Compute.on_cores(1))
    sent = run.messages_file.read_bytes()
    assert sent != copied.messages_file.read_bytes()
    monkeypatch.setattr("carvyfl.learning.private.model.simulated_messages", asked)
    execute(config, run.path, Compute.on_cores(1))
    assert run.messages_file.read_bytes() == sent
    assert verdict(list(audit(run, Evidence(workers=1)))) == "all checked"


@pytest.mark.parametrize("name", ["messages.safetensors", "map.safetensors"])
def test_damaged_messages_are_named_and_no_client_is_asked_again(
    copied: RunFolder, name: str
) -> None:
    """What was sent cannot be had again; new noise would spend ε again."""
    file, before, config = copied.path / name, copied.record(), copied.config()
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))  # which can still be read
    with pytest.raises(CarvyError, match=f"{name} is missing or damaged; put it back"):
        again(copied)
    file.unlink()
    with pytest.raises(CarvyError, match=f"{name} is missing or damaged; put it back"):
        again(copied)
    copied.record_file.unlink()  # as if the run had been interrupted
    file.write_bytes(content[:-5])
    with pytest.raises(CarvyError, match=f"{name}.*clients that are asked again"):
        execute(config, copied.path, Compute.on_cores(1))
    file.write_bytes(content)
    execute(config, copied.path, Compute.on_cores(1))
    assert copied.record().methods == before.methods
    file.write_bytes(content[:-5])
    reader: Any = copied.messages if name.startswith("messages") else copied.module
    with pytest.raises(CarvyError, match=name):
        reader()
    assert verdict(list(audit(copied, Evidence(workers=1)))) == "mismatch"


def test_another_seed_has_other_noise(place: Path) -> None:
    first, second = (RunFolder(place / name).messages() for name in ("run", "second"))
    assert not (first.units == second.units).all(axis=(1, 2)).any()


def test_the_noise_is_that_of_the_settings(place: Path) -> None:
    """The exact sums, taken from the messages, leave discrete Gaussian noise."""
    run = RunFolder(place / "run")
    setup = prepare(run.config()).setup
    kept = run.messages()
    noise: list[Any] = []
    for client, units in zip(setup.federation.clients, kept.units, strict=True):
        vectors = load_map(run.path / "map.safetensors").vectors(
            client.train.inputs.reshape(len(client.train), -1) / np.float32(255)
        )
        for c in range(CLASSES):
            exact = np.rint(vectors[client.train.labels == c].sum(axis=0) * 4096)
            noise.append(units[c, :-1] - exact)
    spread = np.concatenate(noise).std() / 4096
    assert spread == pytest.approx(kept.sigma, rel=0.05)
    for sigma, private in ((kept.sigma, True), (0.98 * kept.sigma, False)):
        # The chance that the loss of privacy is above ε, in one dimension along the sample's move.
        x = np.linspace(-60 * sigma, 60 * sigma, 2_000_001)
        move = np.sqrt(1.09)
        with_it = np.exp(-((x - move) ** 2) / (2 * sigma**2))
        without = np.exp(-(x**2) / (2 * sigma**2))
        above = np.maximum(with_it - np.exp(20) * without, 0).sum() * (x[1] - x[0])
        assert (above / (sigma * np.sqrt(2 * np.pi)) <= 1e-5) == private


def test_a_chosen_number_of_groups_is_audited(place: Path) -> None:
    run = RunFolder(place / "chosen")
    count = run.record().group_count
    assert count
    assert count.made_up
    assert verdict(list(audit(run, Evidence(workers=1)))) == "all checked"
    said = " ".join(carvy("show", run.path).out.split())
    assert "tried on inputs made up from the messages" in said


def test_other_public_inputs_are_another_run(copied: RunFolder, tmp_path: Path) -> None:
    """A file of the same name, whose content is not what the clients' messages were made by."""
    public = tmp_path / "public.npy"
    shutil.copy(copied.config().public or "", public)
    config = dataclasses.replace(copied.config(), public=str(public))
    run = RunFolder(tmp_path / "changed")
    execute(config, run.path, Compute.on_cores(1))
    run.record_file.unlink()  # as if it had been interrupted
    np.save(public, 255 - np.load(public))
    with pytest.raises(CarvyError, match="other `public` inputs"):
        execute(config, run.path, Compute.on_cores(1))


def test_messages_of_another_run_are_refused(place: Path, tmp_path: Path) -> None:
    run = RunFolder(place / "run")
    kept = run.messages()
    path = tmp_path / "messages.safetensors"
    model = as_private(run.module())
    for sent in (
        Messages(kept.units[1:], kept.sigma),
        Messages(kept.units, kept.sigma / 2),
        Messages(kept.units[:, :-1], kept.sigma),
        Messages(kept.units[..., 1:], kept.sigma),
        Messages(kept.units.astype(np.int64), kept.sigma),
    ):
        sent.save(path)
        with pytest.raises(CarvyError, match="does not hold the messages of 12 clients"):
            model.read_messages(path, 12)
    aside = Messages(
        np.where(np.arange(12)[:, None, None] == 3, 0, kept.units), kept.sigma, {3: "x"}
    )
    aside.save(path)
    assert model.read_messages(path, 12).set_aside == {3: "x"}
