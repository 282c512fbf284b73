"""The settings of private learning on the command line, and what every command says of it."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from carvyfl.runs.folder import RunFolder
from support.cli import assert_refused, assert_valid, carvy
from support.federations import corners
from support.private import CLASSES, runs_on_corners


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("private")
    runs_on_corners(folder, run=(), second=("--seed", 1))
    np.save(folder / "small.npy", corners(5, 9).inputs[:, :, 1:])
    np.save(folder / "one.npy", corners(5, 1).inputs)
    train = np.load(folder / "corners.npz")["x_train"]
    np.save(folder / "theirs.npy", np.concatenate([corners(5, 9).inputs, train]))
    np.save(folder / "scaled.npy", train.astype(np.float32) / np.float32(255))
    return folder


BASE = ("--clients", 12, "--samples", 60, "-p", "classes_per_type=2", "--groups", 4)
PRIVATE = ("--learner", "private", "--features", "none")
REFUSED: dict[str, tuple[tuple[object, ...], tuple[str, ...]]] = {
    "no ε": ((*PRIVATE, "--epsilon", 0), ("epsilon",)),
    "an ε below nothing": ((*PRIVATE, "--epsilon", -1), ("epsilon",)),
    "an ε of noise alone": ((*PRIVATE, "--epsilon", 0.001), ("--epsilon", "from 0.01 to 100")),
    "an absurd ε": ((*PRIVATE, "--epsilon", 1e6), ("--epsilon", "nothing is private")),
    "ε that is no number": ((*PRIVATE, "--epsilon", "nan"), ("epsilon",)),
    "no δ": ((*PRIVATE, "--delta", 0), ("delta",)),
    "δ of one over n": ((*PRIVATE, "--delta", 1 / 60), ("--delta", "60 samples")),
    "a δ that is no number": ((*PRIVATE, "--delta", 1e-20), ("--delta", "from 1e-12")),
    "another shape": ((*PRIVATE, "--public", "small.npy"), ("--public", "(9, 1, 7, 8)")),
    "one public input": ((*PRIVATE, "--public", "one.npy"), ("--public", "at least two")),
    "no such file": ((*PRIVATE, "--public", "none.npy"), ("none.npy",)),
    "a data set of another shape": ((*PRIVATE, "--public", "embedded"), ("--public", "28, 28")),
    "the clients' own data set": (
        (*PRIVATE, "--public", "corners.npz"),
        ("--public", "not public"),
    ),
    "inputs of clients": ((*PRIVATE, "--public", "theirs.npy"), ("--public", "of client")),
    "inputs of clients, scaled": ((*PRIVATE, "--public", "scaled.npy"), ("--public", "of client")),
    "types of exact sums": ((*PRIVATE, "--types", "class-means"), ("leave out --types",)),
    "types of updates": ((*PRIVATE, "--types", "bias-profile"), ("leave out --types",)),
    "types of another message": ((*PRIVATE, "--types", "private-shares"), ("leave out --types",)),
    "a least accuracy": (
        (*PRIVATE, "--groups", "auto", "--least-accuracy", 50),
        ("--least-accuracy", "set --groups"),
    ),
    "scattering of a table": (("--learner", "private", "--dataset", "table.npz"), ("scattering",)),
    "types of messages in rounds": (("--types", "private-means"), ("set --learner",)),
    "ε in rounds": (("--epsilon", 2), ("--epsilon", "'scaffold'", "--learner private")),
    "δ in rounds": (("--delta", 1e-6), ("--delta", "'scaffold'", "exact numbers")),
    "ε and sums": (("--learner", "one-shot", "--epsilon", 2), ("--epsilon", "'one-shot'")),
    "sums to keep": ((*PRIVATE, "--keep-sums"), ("no sums to keep",)),
    "mean of pixels": ((*PRIVATE, "--mean", 0.5), ("leave out --mean",)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_settings_that_make_no_sense_are_refused_in_one_line(
    place: Path, name: str, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    rng = np.random.default_rng(0)
    table: dict[str, Any] = {
        "x_train": rng.normal(size=(900, 5)),
        "y_train": rng.integers(0, 4, 900),
    }
    np.savez("table.npz", **table, x_test=table["x_train"][:9], y_test=table["y_train"][:9])
    words, said = REFUSED[name]
    dataset = ("--dataset", "corners.npz", "--num-classes", CLASSES)
    assert_refused(carvy("run", *dataset, *BASE, *words, "--out", out), *said)
    assert not out.exists()


@pytest.mark.parametrize(
    ("words", "unused"),
    [
        (("--projection", 20), "--projection"),
        (("--ridge", 0.5), "--ridge"),
        (("--rounds", 3), "--rounds"),
        (("--model", "mlp"), "--model"),
    ],
)
def test_settings_without_effect_are_named(
    place: Path, out: Path, words: tuple[object, ...], unused: str
) -> None:
    private = ("--public", place / "public.npy", *PRIVATE, *BASE, "--epsilon", 20)
    data = ("--dataset", place / "corners.npz", "--num-classes", CLASSES)
    answer = carvy("run", *data, *private, "--validation", 0, "--out", out, *words)
    assert answer.code == 0, answer.err
    warning = f"carvy: warning: {unused}: without effect on the learner 'private'; leave this out"
    assert answer.err.splitlines()[0] == warning


def test_public_inputs_do_nothing_in_rounds(place: Path, out: Path) -> None:
    data = ("--dataset", place / "corners.npz", "--num-classes", CLASSES, "--model", "mlp")
    words = (*BASE, "--rounds", 1, "--public", place / "public.npy", "--methods", "flcert")
    answer = carvy("run", *data, *words, "--out", out)
    assert answer.code == 0, answer.err
    assert "--public: without effect on the learner 'scaffold'" in answer.err


def test_types_with_noise_of_their_own_take_epsilon_and_no_delta(place: Path, out: Path) -> None:
    data = ("--dataset", place / "corners.npz", "--num-classes", CLASSES, "--model", "mlp")
    words = (
        *BASE,
        "--rounds",
        1,
        "--types",
        "private-shares",
        "--epsilon",
        9,
        "--methods",
        "carvy",
    )
    answer = carvy("run", *data, *words, "--out", out)
    assert answer.code == 0, answer.err
    assert "without effect" not in answer.err
    assert "ε = 9 covers what clients sent in Step 1, not training" in " ".join(answer.out.split())


def test_groups_are_formed_from_messages(place: Path) -> None:
    run = place / "run"
    answer = carvy("groups", "--config", run / "config.yaml", "--json")
    assert_valid(answer.json, "groups")
    assert answer.json["num_groups"] == 4
    types = RunFolder(run).types()
    assert types is not None
    assert answer.json["num_types"] == types.num_types


# Every place that shows a certificate shows both guarantees ------------------------------------

SAID = (
    "Differential privacy of one message against the server and everybody else: ε = 20, δ = 1e-05 "
    "for one sample added to a client's data or removed."
)


def test_every_command_that_shows_a_certificate_says_what_is_private(
    place: Path, tmp_path: Path
) -> None:
    run = place / "run"
    for words in (
        ("show", run),
        ("certify", run / "votes" / "carvy.npz"),
        ("predict", run, place / "inputs.npy"),
    ):
        np.save(place / "inputs.npy", corners(9, 3).inputs)
        shown = carvy(*words)
        assert shown.code == 0, shown.err
        assert SAID in " ".join(shown.out.split()), words
        answer = carvy(*words, "--json")
        assert_valid(answer.json, "run" if words[0] == "show" else str(words[0]))
        privacy = answer.json["privacy"]
        assert (privacy["guarantee"] if words[0] == "show" else privacy).startswith(SAID)
    elsewhere = tmp_path / "carvy.npz"
    elsewhere.write_bytes((run / "votes" / "carvy.npz").read_bytes())
    assert carvy("certify", elsewhere, "--json").json["privacy"] is None
    assert "ε" not in carvy("certify", elsewhere).out


def test_runs_over_seeds_add_up(place: Path) -> None:
    both = (place / "run", place / "second")
    shown = " ".join(carvy("show", *both).out.split())
    assert "each of 2 messages" in shown
    assert "Together they are private with ε = 40, δ = 2e-05 at most." in shown
    answer = carvy("show", *both, "--json")
    assert_valid(answer.json, "seeds")
    assert "ε = 40" in answer.json["privacy"]


def test_the_report_says_what_is_private(place: Path, tmp_path: Path) -> None:
    runs, page = (place / "run", place / "second"), tmp_path / "report.html"
    assert carvy("report", runs[0], "--out", page).code == 0
    text = html.unescape(" ".join(page.read_text(encoding="utf-8").split()))
    privacy = RunFolder(runs[0]).record().privacy
    assert text.count(SAID) == 2  # in the summary, and with all that was sent
    assert privacy
    for detail in (privacy.map, privacy.made_of, "one message of 1,040 bytes"):
        assert detail in text
    assert carvy("report", *runs, "--out", page).code == 0
    text = html.unescape(" ".join(page.read_text(encoding="utf-8").split()))
    assert "Together they are private with ε = 40" in text
