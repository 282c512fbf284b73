"""Several seeds of one configuration: run, shown and reported together."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from carvyfl.runs.folder import RunFolder
from support.cli import QUICK, Answer, assert_refused, assert_valid, carvy, state

FLAGS = (*QUICK, "--rounds", 1, "--methods", "carvy,balanced", "--groups", 4)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("seeds")
    assert run(folder, "--seeds", "0,2-3", "--out", folder / "all").code == 0
    return folder


def run(place: Path, *more: object) -> Answer:
    return carvy("run", *FLAGS, "--store", place / "store", *more)


def test_every_seed_has_its_run_folder(place: Path) -> None:
    out = place / "all"
    assert {path.name for path in out.iterdir()} == {"seed-0", "seed-2", "seed-3", "ca.png"}
    for seed in (0, 2, 3):
        assert RunFolder(out / f"seed-{seed}").config().seed == seed
    alone = place / "alone"
    assert run(place, "--seed", 2, "--out", alone).code == 0
    same, other = (RunFolder(path).certificate("carvy") for path in (alone, out / "seed-2"))
    assert (same.margin == other.margin).all()


def test_means_and_deviations_are_those_of_the_records(place: Path) -> None:
    folders = [place / "all" / f"seed-{seed}" for seed in (0, 2, 3)]
    answer, shown = carvy("show", place / "all", "--json").json, carvy("show", place / "all").out
    assert_valid(answer, "seeds")
    assert answer["seeds"] == [0, 2, 3]
    assert carvy("show", *folders, "--json").json == answer
    for method in ("carvy", "balanced"):
        entries = [RunFolder(path).record().methods[method] for path in folders]
        curve = answer["methods"][method]["given_groups"]
        first, areas = [entry.ca[0] for entry in entries], [entry.auc for entry in entries]
        assert curve["mean"][0] == pytest.approx(statistics.mean(first))
        assert curve["sd"][0] == pytest.approx(statistics.stdev(first))
        assert curve["auc_mean"] == pytest.approx(statistics.mean(areas))
        assert curve["auc_sd"] == pytest.approx(statistics.stdev(areas))
        assert f"{statistics.mean(first):.1f} ± {statistics.stdev(first):.1f}" in shown
    assert "over 3 seeds" in shown.replace("\n", " ")


@pytest.mark.slow
def test_runs_with_other_settings_are_shown_one_after_another(place: Path) -> None:
    other, page = place / "other", place / "seeds.html"
    assert run(place, "--samples", 30, "--out", other).code == 0
    shown = carvy("show", other, place / "all").out
    assert "with 30 samples" in shown
    assert "over 3 seeds" in shown.replace("\n", " ")
    assert_refused(carvy("show", other, place / "all", "--json"), "more than the seed")
    assert_refused(carvy("show", other, other), "named twice")
    assert carvy("report", place / "all", "--out", page).code == 0
    curve = carvy("show", place / "all", "--json").json["methods"]["carvy"]["given_groups"]
    assert f"{curve['auc_mean']:.1f} ± {curve['auc_sd']:.1f}" in page.read_text()


def test_only_seeds_that_are_not_finished_are_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("carvyfl.runs.resume", "carvyfl.runs.execute"):  # no changes in the sources
        monkeypatch.setattr(f"{module}.commit", lambda: "0123abc")
    command = ("--methods", "balanced", "--seeds", "0-1", "--out", tmp_path / "all")
    assert run(tmp_path, *command).code == 0
    whole, lost = (tmp_path / "all" / f"seed-{seed}" for seed in (0, 1))
    before, trained = state(whole), state(tmp_path / "store")
    votes = RunFolder(lost).votes_file("balanced")
    content = votes.read_bytes()
    votes.unlink()
    assert run(tmp_path, *command).code == 0
    assert (state(whole), state(tmp_path / "store")) == (before, trained)
    assert votes.read_bytes() == content


@pytest.mark.parametrize("command", ["attack {}", "verify {}", "predict {} one.npy"])
def test_commands_that_take_one_run_ask_for_one(command: str, place: Path) -> None:
    answer = carvy(*command.format(place / "all").split())
    assert_refused(answer, f"holds runs of several seeds; name one of them, such as {place}/all/")
    assert "seed-0" in answer.err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--seeds", "a-b"), "--seeds takes numbers such as"),
        (("--seeds", "3-1"), "names no number"),
        (("--seeds", "0-99999999999"), "more than 10,000"),
        (("--seeds", "0-1", "--seed", "3"), "leave one out"),
        (("--seeds", "9", "--groups", "3", "--out", "alone"), "holds a run"),
        (("--seeds", "2", "--groups", "3", "--out", "all"), "seed-2 holds a run with other"),
    ],
)
def test_bad_seeds_are_refused(
    flags: tuple[str, ...], words: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    if "alone" in flags and not (place / "alone").exists():
        assert run(place, "--seed", 2, "--out", place / "alone").code == 0
    out = () if "--out" in flags else ("--out", place / "new")
    assert_refused(run(place, *flags, *out), words)
    assert not (place / "new").exists()
