"""`carvy groups`, `carvy predict`, `carvy data`, and the help of every command."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from carvyfl.cli.predict import read_inputs
from carvyfl.core.errors import CarvyError
from carvyfl.data.datasets import load
from carvyfl.data.partitions import PARTITIONS
from carvyfl.groups.basis import READINGS
from support.cli import QUICK, assert_refused, assert_valid, carvy, naive_radius, process

GROUPS = ("groups", *QUICK)
# --- groups -------------------------------------------------------------------------------------


def test_groups_of_the_papers_partition(tmp_path: Path) -> None:
    answer = carvy(*GROUPS, "--json", "--plot", tmp_path / "groups.png").json
    assert_valid(answer, "groups")
    assert answer["types"] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert answer["num_types"] == 5
    assert answer["num_groups"] == 2
    for group in range(2):  # one client of every type
        members = [c for c, g in enumerate(answer["groups"]) if g == group]
        assert sorted(answer["types"][c] for c in members) == [0, 1, 2, 3, 4]
    assert answer["diversity"] == [1.0, 1.0]
    assert (tmp_path / "groups.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.slow
@pytest.mark.parametrize("partition", list(PARTITIONS))
@pytest.mark.parametrize("method", ["carvy", "flcert", "single"])
def test_every_method_runs_on_every_partition(partition: str, method: str) -> None:
    """Also where clients have no true types, and for methods that need none."""
    answer = carvy(*GROUPS, "--partition", partition, "--method", method, "--groups", 3, "--json")
    assert answer.err == ""
    assert_valid(answer.json, "groups")
    assert len(answer.json["types"]) == len(answer.json["groups"]) == 10
    assert answer.json["num_groups"] == (1 if method == "single" else 3)
    assert sorted(set(answer.json["groups"])) == list(range(answer.json["num_groups"]))


def test_groups_from_a_file_of_types(tmp_path: Path) -> None:
    (tmp_path / "types.txt").write_text("7 7 7 7 7\n9, 9, 9, 9, 9\n")
    answer = carvy(*GROUPS, "--types-file", tmp_path / "types.txt", "--json").json
    assert_valid(answer, "groups")
    assert answer["types"] == [0] * 5 + [1] * 5
    assert answer["type_names"] == ["type 7", "type 9"]
    assert answer["num_groups"] == 5
    certificate = answer["certificate"]
    assert [certificate[name] for name in READINGS] == [1, 1, 1]


def test_groups_take_a_yaml_file_and_partition_options(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("types: oracle\npartition_options: {classes_per_type: 5}\n")
    answer = carvy(*GROUPS, "--config", tmp_path / "c.yaml", "--json").json
    assert answer["types"] == [0] * 5 + [1] * 5
    flags = ("--partition-option", "classes-per-type=5", "--types", "oracle", "--json")
    assert carvy(*GROUPS, *flags).json == answer


def test_a_person_reads_who_goes_where() -> None:
    shown = carvy(*GROUPS)
    assert shown.code == 0
    assert "5 types of 10 clients" in shown.out
    assert "G = 2" in shown.out
    assert "mean diversity 1.000" in shown.out
    warned = carvy(*GROUPS, "--partition", "dirichlet")
    assert warned.out.count("over-segmented") == 1


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--method", "flcrt"), ["did you mean 'flcert'"]),
        (("--method", "cluster", "-g", 3, "--partition", "dirichlet"), ["true types"]),
        (("--types-file", "none.txt"), ["none.txt", "No such file"]),
        (("--plot", "groups.xyz"), ["groups.xyz", ".png"]),
        (("--plot", "/dev/null/groups.png"), ["/dev/null/groups.png"]),
    ],
)
def test_bad_groups_are_refused(flags: tuple[Any, ...], words: list[str]) -> None:
    assert_refused(carvy(*GROUPS, *flags), *words)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"0 1 2", "3 types"),
        (b"0 1 x", "'x'"),
        (b"0.5 " * 10, "'0.5'"),
        (b"\xff\xfe", "text file"),
        (b"0 " * 10, "--types-file means --types given, not xmeans"),
    ],
)
def test_bad_files_of_types_are_refused(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "types.txt").write_bytes(content)
    more = ("--types", "xmeans") if "xmeans" in words else ()
    assert_refused(carvy(*GROUPS, "--types-file", tmp_path / "types.txt", *more), words)


# --- predict ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("predict")
    methods = ("--methods", "carvy,slots,flcert", "--groups", 4)
    flags = ("--clients", 20, "--rounds", 2, *methods, "--store", out / "store")
    assert carvy("run", *QUICK, *flags, "--out", out / "run").code == 0
    return out / "run"


TEST = load("embedded").test


@pytest.mark.parametrize("method", ["carvy", "slots", "flcert"])
def test_predictions_agree_with_the_votes_of_the_run(
    run: Path, tmp_path: Path, method: str
) -> None:
    np.save(tmp_path / "stack.npy", TEST.inputs[:12])
    np.save(tmp_path / "one.npy", TEST.inputs[12, 0])
    np.save(tmp_path / "floats.npy", TEST.inputs[13] / np.float64(255))
    np.save(tmp_path / "whole.npy", TEST.inputs[14:15].astype(np.int64))
    Image.fromarray(TEST.inputs[15, 0]).save(tmp_path / "gray [15].png")
    Image.fromarray(TEST.inputs[16, 0]).convert("RGB").save(tmp_path / "colour.PNG")
    names = ["stack.npy", "one.npy", "floats.npy", "whole.npy", "gray [15].png", "colour.PNG"]
    files = [tmp_path / name for name in names]
    answer = carvy("predict", run, *files, "--method", method, "--workers", 1, "--json").json
    assert_valid(answer, "predict")
    assert answer["method"] == method
    rows = answer["predictions"]
    inputs = [f"{files[0]}[{i}]" for i in range(12)] + [str(file) for file in files[1:]]
    assert [row["input"] for row in rows] == inputs
    with np.load(run / "votes" / f"{method}.npz") as stored:
        votes = stored["votes"]
    shown = carvy("predict", run, files[1], "--method", method, "--workers", 1)
    assert (shown.code, shown.err) == (0, "")
    first = [list(votes[:, 12]).count(c) for c in range(10)]
    assert f"{load('embedded').class_names[first.index(max(first))]} {max(first)}" in shown.out
    assert all(words.label in " ".join(shown.out.split()) for words in READINGS.values())
    for i, row in enumerate(rows):
        count = [list(votes[:, i]).count(c) for c in range(10)]
        assert row["votes"] == count
        assert row["label"] == count.index(max(count))
        alone = naive_radius(votes[:, i], row["label"], 10)
        # A liar leaves a slot and takes another; FLCert's groups do not depend on what is sent.
        # Of CARVY-FL's groups, which everybody had a say in, nothing more is proved.
        behaving = {"carvy": None, "slots": alone // 2, "flcert": alone}[method]
        assert row["radius"] == {
            "given_groups": alone,
            "honest_only": None if method == "carvy" else alone,
            "all_honest": behaving,
        }


def png(pixels: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "png")
    return file.getvalue()


def npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


GOOD = png(TEST.inputs[0, 0])


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("half.png", GOOD[: len(GOOD) // 2], "damaged"),
        ("text.png", b"hello", "not an image"),
        ("empty.npy", b"", "damaged"),
        ("photo.jpg", GOOD, ".png and .npy"),
        ("deep.png", png(np.zeros((28, 28), np.uint16)), "8 bits"),
        ("tall.png", png(np.zeros((30, 28), np.uint8)), "28×30"),
        ("nan.npy", npy(np.full((28, 28), np.nan)), "NaN"),
        ("small.npy", npy(np.zeros((27, 28), np.uint8)), "resize"),
        ("one.npy", npy(np.uint8(3)), "resize"),
    ],
    ids=range(9),
)
def test_bad_inputs_are_refused(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CarvyError, match=f"{name}.*{words}"):
        read_inputs(tmp_path / name, (1, 28, 28), "uint8")


def test_what_cannot_be_predicted_is_refused(run: Path, tmp_path: Path) -> None:
    assert_refused(carvy("predict", run, tmp_path / "none.png"), "No such file")
    assert_refused(carvy("predict", run, tmp_path), ".png and .npy")
    (tmp_path / "good.png").write_bytes(GOOD)
    asked = ("predict", run, tmp_path / "good.png", "--method", "flcrt")
    assert_refused(carvy(*asked), "did you mean 'flcert'")


# --- data ---------------------------------------------------------------------------------------


def test_data_sets_are_listed(tmp_path: Path) -> None:
    listed = carvy("data", "list", "--json").json
    assert_valid(listed, "data")
    where = {entry["name"]: entry["where"] for entry in listed["datasets"]}
    absent = dict.fromkeys(["mnist", "fashion-mnist", "cifar-10"])
    assert where == {**absent, "embedded": "in the package"}
    shown = carvy("data", "list")
    assert "carvy data fetch mnist" in " ".join(shown.out.split())
    assert_refused(carvy("data", "list", "--data-dir", tmp_path / "none"), "does not exist")


def test_the_embedded_data_set_is_verified() -> None:
    checked = carvy("data", "verify", "embedded", "--json").json
    assert_valid(checked, "data")
    assert [file["state"] for file in checked["files"]] == ["ok"]
    assert "ok" in carvy("data", "verify", "embedded").out


def test_damaged_and_missing_files_are_found(tmp_path: Path) -> None:
    folder = tmp_path / "mnist"
    folder.mkdir()
    (folder / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(b"not images"))
    (folder / "train-labels-idx1-ubyte").write_bytes(b"\x1f\x8bbroken")
    answer = carvy("data", "verify", "mnist", "--data-dir", tmp_path, "--json")
    assert_refused(answer, "train-images-idx3-ubyte is damaged", "4 of 4", "carvy data fetch mnist")
    checked = json.loads(answer.out)
    assert_valid(checked, "data")
    assert [file["state"] for file in checked["files"]] == ["damaged"] * 2 + ["missing"] * 2
    assert "missing" in carvy("data", "verify", "mnist", "--data-dir", tmp_path).out


def test_data_sets_that_cannot_be_fetched(tmp_path: Path) -> None:
    assert_refused(carvy("data", "fetch", "minst"), "did you mean 'mnist'")
    assert_refused(carvy("data", "fetch", "embedded"), "part of the package")
    (tmp_path / "file").write_text("")
    flags = ("--directory", tmp_path / "file")
    assert_refused(carvy("data", "fetch", "mnist", *flags), "cannot be written")


# --- help ---------------------------------------------------------------------------------------

COMMANDS = "run,show,report,verify,attack,predict,certify,groups,coins,data list,data verify"


@pytest.mark.parametrize("command", [*COMMANDS.split(","), "data fetch", "flower init"])
def test_every_help_has_an_example(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = carvy(*command.split(), "--help")
    assert shown.code == 0
    lines = [line.strip() for line in shown.out.splitlines()]
    start = next(i for i, line in enumerate(lines) if line in ("Example", "Examples"))
    assert lines[start + 2].startswith(f"carvy {command}")
    assert max(len(line) for line in shown.out.splitlines()) <= 80


@pytest.mark.slow
def test_the_installed_command_answers() -> None:
    assert process("--version").out.startswith("carvy ")
    shown = process()
    assert "Usage: carvy" in shown.out + shown.err
    assert shown.code == process("data").code == 2
    assert_refused(process("rnu"), "did you mean 'run'?")
