"""`carvy run`: settings in, run folder out; interruptions, full disks and bad input on the way."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file

from carvyfl import CarvyFL
from carvyfl.cli.options import resolve
from carvyfl.core.errors import CarvyError
from carvyfl.learning.recipe import Recipe
from carvyfl.runs import execute
from carvyfl.runs.config import RunConfig
from carvyfl.runs.resume import claim
from support.cli import (
    CARVY,
    QUICK,
    Answer,
    alive,
    assert_refused,
    assert_valid,
    carvy,
    process,
    start,
    state,
)

RUN = ("run", *QUICK, "--rounds", "1")


def votes(run: Path, method: str = "carvy") -> Any:
    with np.load(run / "votes" / f"{method}.npz", allow_pickle=False) as file:
        return file["votes"]


def same_models(one: Path, other: Path, method: str) -> bool:
    a, b = (load_file(run / "models" / f"{method}.safetensors") for run in (one, other))
    return all(a[name].tobytes() == b[name].tobytes() for name in a.keys() | b.keys())


@contextlib.contextmanager
def folder_in_use(folder: Path) -> Iterator[None]:
    """Hold a folder as a run at work does, from another process: locks are between those."""
    hold = "import fcntl, os, sys; fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX)"
    wait = "; print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", hold + wait, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout
        other.stdout.readline()
        yield
        other.communicate()


# --- what a user touches ------------------------------------------------------------------------


@pytest.mark.slow
def test_the_command_piped_is_quiet_and_speaks_json(out: Path, store: Path) -> None:
    answer = process(*RUN, "--out", out, "--store", store, "--json")
    assert answer.err == f"Saved in {out}: picture in ca.png, settings in config.yaml\n"
    assert_valid(answer.json, "run")
    for entry in answer.json["methods"].values():
        assert entry["rounds"] == [1] * entry["num_groups"]
    shown = process("show", out, "--json")
    assert shown.json == answer.json
    people = process("show", out)
    assert people.code == 0
    (warning,) = people.err.splitlines()  # after one round of training
    assert "was estimated when the number of groups was chosen" in warning
    assert "\x1b" not in people.out  # no colours, no cursor movements
    assert "answered correctly with up to m malicious clients" in people.out


def test_flags_reach_the_run(out: Path) -> None:
    flags: dict[str, Any] = {"dataset": "embedded", "partition": "dirichlet", "clients": 12}
    flags |= {"samples": 24, "model": "mlp", "types": "bias-profile", "groups": 3, "seed": 5}
    training = {"rounds": 2, "lr": 0.03, "patience": 7, "algorithm": "fedavg"}
    given = [f"--{name}={value}" for name, value in (flags | training).items()]
    more = ("--methods", "balanced,carvy,single", "-p", "alpha=0.7", "--workers", 1)
    answer = carvy("run", *given, *more, "--out", out, "--json")
    assert_valid(answer.json, "run")
    config = yaml.safe_load((out / "config.yaml").read_text())
    assert answer.json["config"] == config
    assert config["methods"] == ["balanced", "carvy", "single"]
    assert config["partition_options"] == {"alpha": 0.7}
    assert config.items() >= flags.items()
    assert config["training"].items() >= training.items()
    counts = {name: entry["num_groups"] for name, entry in answer.json["methods"].items()}
    assert counts == {"balanced": 3, "carvy": 3, "single": 1}
    assert answer.json["types"]["true_types"] is None


@pytest.mark.slow
def test_a_yaml_file_sets_everything_and_the_saved_one_gives_the_same_votes(
    tmp_path: Path, out: Path
) -> None:
    (tmp_path / "mine.yaml").write_text(
        "{clients: 15, samples: 20, validation: 10, model: mlp, methods: [flcert, carvy],"
        "types: given, given_types: [0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2],"
        "groups: 4, baseline_groups: 3, seed: 11,"
        "training: {rounds: 2, lr: 0.05, lr_min: 0.01, batch_size: 8}}"
    )
    first = carvy("run", "-c", tmp_path / "mine.yaml", "--workers", 1, "--out", out, "--json").json
    counts = {name: entry["num_groups"] for name, entry in first["methods"].items()}
    assert counts == {"flcert": 3, "carvy": 4}
    assert first["config"]["training"]["batch_size"] == 8
    again, other = tmp_path / "again", tmp_path / "other"
    run = ("run", "-c", out / "config.yaml", "--workers", 1, "--store", tmp_path / "fresh")
    assert carvy(*run, "--out", again).code == carvy(*run, "--seed", 12, "-o", other).code == 0
    assert (again / "config.yaml").read_text() == (out / "config.yaml").read_text()
    for method in counts:
        assert np.array_equal(votes(out, method), votes(again, method))
        assert same_models(out, again, method)
    assert not np.array_equal(votes(out), votes(other))


def test_patience_zero_means_never(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("training: {patience: 3}")
    for given, patience in ((0, None), (None, 3), (5, 5)):
        settings, _ = resolve({"config": tmp_path / "c.yaml", "patience": given})
        assert settings.training.patience == patience


@pytest.mark.slow
def test_the_paper_preset_runs(out: Path) -> None:
    flags = ("--dataset", "embedded", "--clients", 20, "--methods", "flcert,single")
    answer = carvy(*RUN, *flags, "--preset", "paper", "--out", out, "--json").json
    assert_valid(answer, "run")
    assert answer["config"]["types"] == "xmeans"
    assert answer["methods"]["flcert"]["num_groups"] == 20
    assert answer["types"] is None  # nobody asked for types


@pytest.mark.slow
def test_clients_may_hold_many_batches(out: Path) -> None:
    """Step numbers beyond a few once overflowed the derivation of keys."""
    assert carvy(*RUN, "--clients", 5, "--samples", 400, "--methods", "carvy", "-o", out).code == 0


# --- resuming, and folders that are taken -------------------------------------------------------


@pytest.mark.slow
def test_the_folder_of_another_run_is_refused(out: Path, store: Path, tmp_path: Path) -> None:
    assert carvy(*RUN, "--out", out, "--store", store).code == 0
    before = state(out)
    answer = carvy(*RUN, "--seed", 3, "--out", out, "--store", store)
    assert_refused(answer, "other settings", "seed: 0 there, 3 here", "--out")
    answer = carvy(*RUN, "--rounds", 2, "--out", out, "--store", store)
    assert_refused(answer, "rounds: 1 there, 2 here")
    assert state(out) == before
    (out / "config.yaml").write_bytes(b"\xff\xfe")
    assert_refused(carvy(*RUN, "--out", out, "--store", store), "config.yaml is damaged")
    (tmp_path / "file").write_text("precious")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        assert_refused(carvy(*RUN, "--out", path, "--store", store), str(path))
    assert (tmp_path / "file").read_text() == "precious"


@pytest.mark.slow
def test_a_folder_in_which_nothing_was_found_yet_can_be_had(out: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    started = (*RUN, "--methods", "carvy", "--out", out)
    assert carvy(*started, "--store", tmp_path / "store").code == 0
    left = tmp_path / "left"
    left.mkdir()
    shutil.copy(out / "config.yaml", left)  # as a run leaves it that was stopped in Step 1
    (left / ".config.yaml.1-1.part").write_text("half")
    again = (*RUN, "--methods", "carvy", "--seed", 3, "--out", left, "--store", tmp_path / "store")
    with folder_in_use(left):
        assert_refused(carvy(*again), f"a run is at work in {left} already; wait for it")
    (left / "federation").mkdir()
    assert_refused(carvy(*again), "other settings")
    (left / "federation").rmdir()
    assert carvy(*again).code == 0
    assert yaml.safe_load((left / "config.yaml").read_text())["seed"] == 3
    assert carvy("verify", left, "--workers", 1).code == 0


def test_a_run_holds_its_folder_while_it_is_at_work(
    out: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(*args: Any, **kwargs: Any) -> Any:
        assert [path.name for path in out.iterdir()] == ["config.yaml"]
        other = claim(out, {**RunConfig().to_dict(), "seed": 9})
        with pytest.raises(CarvyError, match="a run is at work"), other:
            raise AssertionError
        raise CarvyError("enough seen")

    monkeypatch.setattr(execute, "train", train)
    assert_refused(carvy(*RUN, "--out", out, "--store", store), "enough seen")
    assert not out.exists()


@pytest.mark.parametrize(
    "mine",
    [
        None,
        "clients: 10\n",
        "# hours of thought\n" + RunConfig().to_yaml(),
        "lr: 0.1\n",
        "a: [",
        "",
    ],
)
def test_somebodys_own_files_are_not_written_over(
    mine: str | None, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def prepare(*args: Any) -> None:
        raise AssertionError("data were loaded first")

    monkeypatch.setattr(execute, "prepare", prepare)
    out.mkdir()
    file = out / ("thesis.tex" if mine is None else "config.yaml")
    file.write_text(mine or "")
    words = "not a run folder" if mine is None else "other settings"
    assert_refused(carvy(*RUN, "--out", out), words, "--out")
    assert file.read_text() == (mine or "")
    assert list(out.iterdir()) == [file]


def test_paths_that_cannot_be_written(out: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/none")):
        assert_refused(carvy(*RUN, "--out", out, "--store", path), str(path), "store")
    assert_refused(carvy(*RUN, "--out", "/proc/none"), "/proc/none")
    assert_refused(carvy("show", out))


# --- interruptions ------------------------------------------------------------------------------

LONG = (
    *("run", "--model", "mlp", "--clients", "20", "--samples", "40", "--groups", "10"),
    *("--rounds", "20", "--methods", "carvy,balanced", "--workers", "2"),
)


class Interrupted:
    """A real run, in a session of its own, stopped once the first of 20 groups is stored."""

    def __init__(self, out: Path, store: Path, stop: Callable[[int], None]) -> None:
        self.errors = out.with_name("stderr")
        command = (CARVY, *LONG, "--out", out, "--store", store)
        with self.errors.open("w") as errors:
            run = start(*command, stdout=errors, stderr=errors, start_new_session=True)
        self.session = run.pid
        deadline = time.monotonic() + 240
        while not list(store.glob("*.safetensors")):
            assert run.poll() is None, self.errors.read_text()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        stop(run.pid)
        self.code = run.wait(timeout=60)
        assert len(list(store.glob("*.safetensors"))) < 20, "stopped too late to test anything"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("undisturbed")
    where = ("--out", folder / "out", "--store", folder / "store")
    answer = carvy(*LONG, "--workers", 1, *where)
    assert answer.code == 0, answer.err
    yield folder / "out"
    shutil.rmtree(folder)


def finish(out: Path, store: Path) -> Answer:
    """Run the same command again; the groups that were finished must not be trained twice."""
    before = state(store)
    answer = carvy(*LONG, "--workers", 1, "--out", out, "--store", store)
    after = state(store)
    trained = {name: was for name, was in before.items() if name.endswith(".safetensors")}
    assert trained
    assert after.items() >= trained.items()
    return answer


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stop", "everyone"),
    [(signal.SIGINT, True), (signal.SIGTERM, False)],
    ids=["Ctrl-C", "kill"],
)
def test_a_polite_stop_is_one_line_and_the_same_command_finishes(
    out: Path, store: Path, undisturbed: Path, stop: signal.Signals, everyone: bool
) -> None:
    """Ctrl-C reaches the workers as well: a terminal signals the whole process group."""
    stopped = Interrupted(out, store, lambda pid: (os.killpg if everyone else os.kill)(pid, stop))
    assert stopped.code == 130
    (line,) = stopped.errors.read_text().splitlines()
    assert line.startswith("carvy: stopped; finished groups are kept")
    deadline = time.monotonic() + 20  # the system may need a moment to bury the workers
    while alive(stopped.session) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert alive(stopped.session) == []
    assert_refused(carvy("show", out), "not finished")
    if everyone:
        assert finish(out, store).code == 0
        for method in ("carvy", "balanced"):
            assert same_models(out, undisturbed, method)


def test_ctrl_c_while_modules_are_loaded_is_one_line(tmp_path: Path) -> None:
    """A module stands for torch: it is slow to load, and swallows what comes meanwhile."""
    (tmp_path / "torch.py").write_text(
        "import contextlib, time\n"
        "print('loading', flush=True)\n"
        "with contextlib.suppress(BaseException):\n"
        "    time.sleep(60)\n"
    )
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    starting = start(
        *(CARVY, "predict", tmp_path, "shirt.png"),
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert starting.stdout
    assert starting.stdout.readline() == "loading\n"
    starting.send_signal(signal.SIGINT)
    _, err = starting.communicate(timeout=60)
    assert err == "carvy: stopped\n"
    assert starting.returncode == 130


@pytest.mark.slow
def test_after_kill_9_the_same_command_gives_bit_identical_models(
    out: Path, store: Path, undisturbed: Path
) -> None:
    killed = Interrupted(out, store, lambda pid: os.kill(pid, signal.SIGKILL))
    try:
        assert killed.code == -signal.SIGKILL
        assert_refused(carvy("show", out), "not finished")
        answer = finish(out, store)
        assert answer.code == 0
        assert answer.err.startswith("Saved in ")
        assert answer.err.count("\n") == 1
        for method in ("carvy", "balanced"):
            assert same_models(out, undisturbed, method)
            assert np.array_equal(votes(out, method), votes(undisturbed, method))
    finally:
        for pid in alive(killed.session):  # where the test failed before
            os.kill(pid, signal.SIGKILL)


# --- full disks ---------------------------------------------------------------------------------


@contextlib.contextmanager
def limited(kilobytes: int) -> Iterator[None]:
    """Let no file grow beyond a size: the nearest thing to a full disk for everybody."""
    before, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (kilobytes << 10, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, most))


@pytest.mark.slow
def test_a_full_disk_loses_nothing_finished(out: Path, store: Path) -> None:
    run = (*RUN, "--methods", "carvy", "--groups", 2, "--out", out, "--store", store)
    with limited(100):
        in_store = carvy(*run)
    assert_refused(in_store, "cannot write", str(store), "File too large", "run the same command")
    assert list(store.iterdir()) == []
    assert_refused(carvy("show", out))
    with limited(500):  # a group fits, all models do not
        in_folder = carvy(*run)
    assert_refused(in_folder, "cannot write", "models", "run the same command")
    trained = state(store)
    assert len(trained) == 2
    assert_refused(carvy("show", out))
    assert not [path for path in out.rglob("*") if path.name.endswith(".part")]
    assert carvy(*run).code == 0
    assert state(store).items() >= trained.items()
    assert carvy("show", out).code == 0
    (out / "ca.png").unlink()
    shutil.rmtree(store)  # now the training itself fails, and the finished run stays
    with limited(100):
        assert_refused(carvy(*run), str(store))
    assert carvy("show", out).code == 0


@pytest.mark.slow
def test_a_full_disk_with_worker_processes_is_one_line(out: Path, store: Path) -> None:
    run = (*RUN, "--workers", 2, "--groups", 2, "--out", out, "--store", store)
    for kilobytes, words in ((100, str(store)), (500, "finished groups are kept")):
        with limited(kilobytes):
            assert_refused(process(*run), words)


@pytest.mark.slow
def test_a_complete_store_that_cannot_be_written_serves_a_run(out: Path, store: Path) -> None:
    """As an archive on a read-only drive does; a group that is not there has no place in it."""
    run = ("--methods", "balanced", "--groups", 2, "--store", store)
    assert carvy(*RUN, *run, "--out", out).code == 0
    before = state(store)
    # Root may write everywhere, but not without the capability to.
    lose = ("setpriv", "--bounding-set=-dac_override", "--inh-caps=-dac_override")

    def unprivileged(*more: object) -> Answer:
        words = [*(() if os.geteuid() else lose), CARVY, *map(str, (*RUN, *run, *more))]
        done = subprocess.run(words, capture_output=True, text=True)
        return Answer(done.returncode, done.stdout, done.stderr)

    folders = [store, *(path for path in store.rglob("*") if path.is_dir())]
    for folder in folders:
        folder.chmod(0o555)
    try:
        assert unprivileged("--out", out.with_name("again")).code == 0
        assert same_models(out, out.with_name("again"), "balanced")
        refused = unprivileged("--seed", 1, "--out", out.with_name("other"))
        assert_refused(refused, "cannot write", "Permission denied; choose another folder")
        assert state(store) == before
    finally:
        for folder in folders:
            folder.chmod(0o755)


# --- bad input ----------------------------------------------------------------------------------

MALFORMED: dict[str, list[str]] = {
    "run --modle mlp": ["no such option: --modle; did you mean --model?", "'carvy run --help'"],
    "run --no-such-flag": ["no such option: --no-such-flag", "'carvy run --help'"],
    "run --clients many": ["'--clients'", "'many' is not a valid integer;", "'carvy run --help'"],
    "run --groups abc": ["--groups", "'abc'"],
    "run --workers 0": ["'--workers'", "0 is not in the range x>=1"],
    "run --out": ["'--out' requires an argument"],
    "run word": ["unexpected extra argument (word)"],
    "show": ["missing argument 'RUNS", "'carvy show --help'"],
    "rnu": ["no such command 'rnu'", "did you mean 'run'?", "'carvy --help'"],
    "data vrify": ["no such command 'vrify'", "did you mean 'verify'?", "'carvy data --help'"],
}
BAD_FLAGS: dict[str, list[str]] = {
    "--dataset fashon-mnist": ["data set", "did you mean 'fashion-mnist'"],
    "--model mlpp": ["model", "did you mean 'mlp'"],
    "--partition dirichlt": ["partition", "did you mean 'dirichlet'"],
    "--types xmean": ["did you mean 'xmeans'"],
    "--methods carvi": ["method", "did you mean 'carvy'"],
    "--methods ,": ["at least one"],
    "--methods krum": ["no grouping method but an aggregation", "--aggregation krum", "robust-agg"],
    "--methods fedavg": ["a training algorithm", "--algorithm fedavg", "single"],
    "--aggregation krumm": ["did you mean 'krum'"],
    "--aggregation median --tolerated 1": ["does not depend on tolerated"],
    "--methods flcert": ["number of groups", "--groups"],
    "--methods slots": ["number of groups", "--groups"],
    "--partition dirichlet --methods cluster -g 3": ["true types", "class-disjoint"],
    "--partition dirichlet --types oracle": ["no known true types; use --types class-means"],
    "--alpha 0.3": ["an option of partition dirichlet, feature-shift: write -p alpha=0.3"],
    "--classes-per-type=5": ["partition class-disjoint: write -p classes_per_type=5"],
    "--factor 7": [
        "an option of attack scaled-sums, scaled-means, swapped-means: write carvy attack RUN "
        "--option factor=7"
    ],
    "--sampels 20": ["did you mean --samples?"],
    "--preset papr": ["preset", "did you mean 'paper'"],
    "--algorithm scafold": ["did you mean 'scaffold'"],
    "--groups 11": ["11 groups of 10 clients"],
    "--groups 0": ["at least 1"],
    "--groups many": ["--groups is a whole number or auto, not 'many'"],
    "--groups -3": ["--groups is a whole number or auto, not '-3'"],
    "--aim best": ["aim 'best' is unknown; --aim is auc"],
    "--least-accuracy 120": ["least_accuracy must be <= 100"],
    "--samples 0": ["samples must be at least 1"],
    "--samples 21": ["21 samples", "2 classes"],
    "--samples 100000": ["class 0", "540"],
    "--clients 3": ["3 clients", "5 types"],
    "--clients -3": ["-3"],
    "-p classes_per_type=3": ["divisors of 10"],
    "--rounds 0": ["at least 1"],
    "--lr -1": ["-1"],
    "--lr nan": ["nan"],
    "--patience -2": ["-2"],
    "--types given": ["--types-file"],
    "--dataset /none/data.npz": ["/none/data.npz", "no such file"],
    "--dataset mnist": ["carvy data fetch mnist", "--data-dir"],
    "--dataset mnist --data-dir /none": ["/none", "does not exist"],
    "--config /none/c.yaml": ["/none/c.yaml", "No such file"],
}


@pytest.mark.parametrize("line", [*MALFORMED, *BAD_FLAGS])
def test_bad_flags_are_refused_in_one_line(line: str, out: Path, store: Path) -> None:
    run = (*RUN, *line.split(), "--out", out, "--store", store)
    answer = carvy(*line.split()) if line in MALFORMED else carvy(*run)
    assert_refused(answer, *(MALFORMED | BAD_FLAGS)[line])
    assert answer.out == ""
    assert not out.exists()  # so that the corrected command can have the folder


def data(folder: Path, **changes: Any) -> Path:
    """Write an npz data set of 4 classes of 8×8 images, with some arrays replaced or left out."""
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {
        "x_train": rng.integers(0, 256, (400, 8, 8), dtype=np.uint8),
        "y_train": np.arange(400) % 4,
        "x_test": rng.integers(0, 256, (40, 8, 8), dtype=np.uint8),
        "y_test": np.arange(40) % 4,
    } | changes
    path = folder / "data.npz"
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    return path


BAD_DATA: dict[str, tuple[dict[str, Any], str]] = {
    "words as labels": ({"y_train": np.full(400, "cat")}, "whole numbers"),
    "ids as labels": ({"y_train": np.arange(400) * 10**9}, "set --num-classes"),
    "ids as test labels": ({"y_test": np.arange(40) * 10**9}, "number the classes"),
    "odd classes": ({"y_train": np.arange(400) % 3, "y_test": np.arange(40) % 3}, "3 classes"),
    "labels from 1, in odd classes": (
        {"y_train": np.arange(400) % 4 + 1, "y_test": np.arange(40) % 4 + 1},
        "labels start at 1",
    ),
    "too small for a CNN": (
        {"x_train": np.zeros((400, 3, 3), np.uint8), "x_test": np.zeros((40, 3, 3), np.uint8)},
        "3",
    ),
    "one class": ({"y_train": np.zeros(400, int), "y_test": np.zeros(40, int)}, "single class"),
}


@pytest.mark.parametrize("name", BAD_DATA)
def test_bad_data_is_refused(name: str, tmp_path: Path, out: Path) -> None:
    """The file itself is read in tests/data."""
    changes, word = BAD_DATA[name]
    more = {"too small for a CNN": ("--model", "compact-cnn"), "one class": ("--partition", "iid")}
    flags = ("--dataset", data(tmp_path, **changes), *more.get(name, ()), "--out", out)
    assert_refused(carvy(*RUN, *flags), word)
    assert not out.exists()


# --- clients that misbehave ---------------------------------------------------------------------


def clients_with_a_giant(giant: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Eight clients of two types; the inputs of one are so large that its training overflows."""
    rng = np.random.default_rng(3)
    clients = []
    for number in range(8):
        labels = np.arange(48) % 2 + 2 * (number % 2)
        inputs = (rng.normal(size=(48, 6)) + 3 * np.eye(6)[labels]).astype(np.float32)
        clients.append((inputs * np.float32(1e30) if number == giant else inputs, labels))
    return clients


@pytest.mark.parametrize("giant", [0, 5])
def test_a_client_whose_update_is_not_finite_is_set_aside_in_step_1(giant: int) -> None:
    model = CarvyFL("mlp", types="bias-profile", training=Recipe(rounds=3, lr=0.1), workers=1)
    model.fit(clients_with_a_giant(giant), num_classes=4)
    assert model.profiles_
    assert list(model.profiles_.types.set_aside) == model.grouping_.benched.tolist() == [giant]
    inputs, labels = (np.concatenate(part) for part in zip(*clients_with_a_giant(9), strict=True))
    assert model.score(inputs, labels) > 0.8  # the others learned what there is to learn


@pytest.mark.filterwarnings("ignore:anticlustering brings nothing")
@pytest.mark.parametrize("giant", [0, 5])
def test_a_giant_does_not_decide_on_the_number_of_groups(giant: int) -> None:
    """Its class means are finite, so it takes part; its sums are not, and count for nothing."""
    model = CarvyFL("mlp", training=Recipe(rounds=3, lr=0.1), workers=1)
    model.fit(clients_with_a_giant(giant), num_classes=4)
    assert model.group_count_ is not None
    assert model.group_count_.groups == model.grouping_.num_groups
    assert model.group_count_.chosen.accuracy > 80
    where = int(model.grouping_.assignment[giant])
    assert list(model.results_[where].set_aside) == [giant]


@pytest.mark.parametrize("grouping", ["flcert", "balanced", "single"])
def test_a_client_whose_update_is_not_finite_is_set_aside_in_training(grouping: str) -> None:
    groups = None if grouping == "single" else 2
    model = CarvyFL("mlp", method=grouping, groups=groups, training=Recipe(rounds=2), workers=1)
    model.fit(clients_with_a_giant(5), num_classes=4)
    where = int(model.grouping_.assignment[5])
    assert [list(result.set_aside) for result in model.results_] == [
        [5] if group == where else [] for group in range(model.grouping_.num_groups)
    ]
    assert "NaN or infinite" in model.results_[where].set_aside[5]
    assert all(result.votes for result in model.results_)


def test_clients_set_aside_are_named_by_the_command(out: Path) -> None:
    """With an absurd learning rate everybody diverges; the run still ends, and says so."""
    run = (*RUN, "--lr", "1e38", "--groups", 5)
    answer = carvy(*run, "--methods", "balanced", "--out", out, "--json").json
    assert_valid(answer, "run")
    entry = answer["methods"]["balanced"]
    assert sorted(map(int, entry["set_aside"])) == list(range(10))
    assert (entry["stopped"], entry["ca"]) == (["empty"] * 5, [0])
    assert (votes(out, "balanced") == -1).all()
    shown = carvy("show", out).err
    assert "5 of 5 groups cast no vote (5 without usable members): nothing is" in shown
    assert shown.count("was set aside") == 5
    assert "5 more were set aside" in shown
    assert "training diverged; try a smaller --lr" in shown.replace("\n", " ")
    types = ("--methods", "carvy", "--types", "bias-profile", "--out", out.with_name("types"))
    assert_refused(carvy(*run, *types), "none of 10 clients sent a usable message")


# --- the number of groups -----------------------------------------------------------------------


@pytest.mark.slow
def test_a_chosen_number_of_groups_is_recorded_shown_reported_and_verified(
    out: Path, store: Path, tmp_path: Path
) -> None:
    flags = ("--learner", "one-shot", "--features", "none", "--workers", 1, "--store", store)
    sizes = ("--clients", 12, "--samples", 30, "--methods", "carvy,balanced")
    aims = ("--groups", "auto", "--aim", "m70", "--least-accuracy", 10)
    run = carvy("run", *flags, *sizes, *aims, "--out", out, "--json")
    assert_valid(run.json, "run")
    count = run.json["group_count"]
    assert (count["aim"], count["least_accuracy"]) == ("m70", 10)
    tried = {each["groups"]: each for each in count["candidates"]}
    assert list(tried) == [12, 6, 4, 3, 2]
    fine = [each for each in tried.values() if each["accuracy"] >= 10]
    assert tried[count["groups"]]["largest_m"] == max(each["largest_m"] for each in fine)
    for entry in run.json["methods"].values():
        assert entry["num_groups"] == count["groups"]
        assert entry["readings"]["honest_only"] is None  # all clients' data decided on G
    assert (out / "group-count.png").read_bytes()[:4] == b"\x89PNG"

    shown = carvy("show", out)
    rows = [line.split("│")[1:-1] for line in shown.out.splitlines() if line.startswith("│")]
    cells = [[cell.strip() for cell in row] for row in rows if len(row) == 4]
    for groups, each in tried.items():
        m = "none" if each["largest_m"] < 0 else str(each["largest_m"])
        assert [str(groups), f"{each['auc']:.0f}", f"{each['accuracy']:.1f}", m] in cells
    assert f"G = {count['groups']} was chosen for the largest m at 70 %" in shown.out
    assert "accuracy of at least 10 %" in " ".join(shown.out.split())

    answer = carvy("groups", *sizes[:4], "--model", "mlp", "--types", "class-counts", *aims)
    assert "How many groups" in answer.out
    assert carvy("report", out, "--out", tmp_path / "report.html").code == 0
    page = (tmp_path / "report.html").read_text()
    assert f"G = {count['groups']} was chosen by what it would certify" in page

    verified = carvy("verify", out, "--workers", 1, "--json").json
    assert verified["verdict"] == "all checked"
    states = {check["what"]: check["state"] for check in verified["checks"]}
    assert states["number of groups"] == states["groups of carvy"] == "ok"


# --- flags without effect -----------------------------------------------------------------------

WITHOUT_EFFECT: dict[str, str] = {
    "--learner one-shot --rounds 5 --model mlp": "--model, --rounds",
    "--preset one-shot --lr 1 --patience 0 --aggregation median": "--lr, --patience, --aggregation",
    "--learner one-shot": "",
    "--features none --ridge 1": "--features, --ridge",
    "--preset demo --rounds 5": "",
}


@pytest.mark.parametrize("flags", WITHOUT_EFFECT)
def test_flags_that_the_learner_does_not_use_are_named(flags: str, out: Path) -> None:
    """The last flag is a mistake that is found afterwards, so that nothing is trained."""
    answer = carvy("run", *flags.split(), "--clients", 3, "--out", out)
    unused = WITHOUT_EFFECT[flags]
    lines = [f"carvy: warning: {unused}: without effect"] if unused else []
    assert [line[: len(lines[0])] for line in answer.err.splitlines()[:-1]] == lines
    assert answer.code == 2


def test_a_saved_configuration_gives_no_such_warning(out: Path, tmp_path: Path) -> None:
    """It holds every setting, those without effect, too."""
    saved = tmp_path / "saved.yaml"
    saved.write_text(RunConfig(learner="one-shot", clients=3).to_yaml())
    assert_refused(carvy("run", "--config", saved, "--out", out), "3 clients")


# --- failures -----------------------------------------------------------------------------------


def test_a_run_that_fails_leaves_nothing_but_what_was_there(out: Path) -> None:
    """An interrupted run's settings stay, and so does a folder of the user's own."""
    mine, corrected = RunConfig().to_dict(), RunConfig(seed=9).to_dict()
    with pytest.raises(ZeroDivisionError), claim(out, mine):
        raise ZeroDivisionError
    assert not out.exists()
    for settings, error in ((mine, KeyboardInterrupt), (corrected, ZeroDivisionError)):
        with pytest.raises(error), claim(out, settings):
            raise error
        assert yaml.safe_load((out / "config.yaml").read_text()) == settings
    (out / "profiles.npz").write_text("with noise")
    with pytest.raises(ZeroDivisionError), claim(out, corrected):
        raise ZeroDivisionError
    assert (out / "profiles.npz").is_file()


def test_a_command_that_fails_does_not_wait_for_its_data(tmp_path: Path) -> None:
    data = tmp_path / "data.npz"
    os.mkfifo(data)  # whoever opens it waits for a writer, who never comes
    answer = process("run", "--dataset", data, "--model", "nope", "--out", tmp_path / "run")
    assert_refused(answer, "unknown model 'nope'")
