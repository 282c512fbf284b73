"""`python -m reproduction`: its targets, and small reproductions that are really trained."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

from carvyfl.attacks.badnets import BadNets
from carvyfl.attacks.campaign import AttackedRun, attack_grouping
from carvyfl.core.progress import Report, quiet
from carvyfl.learning.backends import Cores
from carvyfl.learning.job import Checkpoints, GroupJob, GroupResult, OnRounds
from carvyfl.learning.recipe import Recipe
from carvyfl.learning.scaffold.group import train_group
from carvyfl.learning.store import GroupStore
from carvyfl.pipeline import Compute
from carvyfl.runs.config import RunConfig
from carvyfl.runs.execute import execute, prepare
from carvyfl.runs.folder import RunFolder
from reproduction import records
from reproduction.__main__ import app, without_locations
from reproduction.records import AsrRecord, CaRecord, Record, TypesRecord
from reproduction.runner import missing_trials, run_trials
from reproduction.targets import TARGETS, Only, Trial, chosen
from reproduction.tests.trials import ca_trial, select, types_trial
from support.cli import assert_refused, carvy
from support.pages import DOCS, blocks, commands

command = partial(carvy, app=app)

# What each target takes -------------------------------------------------------------------------


def per_method(name: str) -> Counter[str]:
    return Counter(trial.method for trial in TARGETS[name].expand())


def test_targets_have_the_papers_trial_counts():
    sizes = 4
    for name in ("ca-mnist", "ca-fashion-mnist"):
        expected = {"carvy": 10 * sizes, "flcert": 10 * sizes, "cluster": 10 * sizes}
        assert per_method(name) == expected | {"single": 3 * sizes}
    assert per_method("asr") == {"carvy": 20, "flcert": 20, "cluster": 20, "single": 6}
    counts = 2 * 18  # data sets, values of G
    assert per_method("groups") == {
        "carvy": 3 * counts,
        "flcert": 6 * counts,
        "cluster": 3 * counts,
    }
    assert per_method("types") == {"": 80}
    assert per_method("failed-types") == {"carvy": 10}


def test_trials_are_those_of_the_paper():
    for trial in TARGETS["asr"].expand():
        single = trial.method == "single"
        assert trial.malicious == ((0, 1, 2, 3, 10, 20) if single else tuple(range(21)))
        assert trial.samples == 500
        assert trial.seed < (3 if single else 10)
    swept = {trial.groups for trial in TARGETS["groups"].expand()}
    assert len(swept) == 18
    assert {1, 20, 100} < swept
    assert {trial.samples for trial in TARGETS["ca-mnist"].expand()} == {50, 100, 200, 500}


def test_targets_share_trials_and_can_be_narrowed():
    everything = chosen(["all"])
    assert len(everything) == len(set(everything)) == len(set(chosen([*TARGETS, "all"])))
    # failed-types is a part of ca-fashion-mnist; nothing else is shared.
    alone = sum(len(target.expand()) for target in TARGETS.values())
    assert len(everything) == alone - 10
    few = chosen(["ca-mnist"], Only(seeds=2, samples=(50,)))
    assert {(t.samples, t.seed) for t in few} == {(50, 0), (50, 1)}
    assert {t.dataset for t in chosen(["asr"], Only(datasets=("mnist",)))} == {"mnist"}
    sweep = chosen(["groups", "types"], Only(methods=("carvy",)))
    assert {t.method for t in sweep} == {"carvy", ""}  # types are found before any method
    assert len([t for t in sweep if t.method]) == 2 * 3 * 18


# Small ones, really trained ----------------------------------------------------------------------


@dataclasses.dataclass
class Counting:
    """Trains in this process and counts; gives up before the lot that would exceed a limit."""

    limit: float = float("inf")
    trained: int = 0
    precision: str = "fp32"
    name: str = "loop"
    device: None = None

    def map(self, work: Any, items: Sequence[Any], progress: Report = quiet) -> list[Any]:
        return [work(item) for item in items]

    def train_groups(
        self, jobs: Sequence[GroupJob], on_rounds: OnRounds, checkpoints: Checkpoints | None = None
    ) -> Iterator[tuple[int, GroupResult]]:
        if self.trained + len(jobs) > self.limit:
            raise KeyboardInterrupt
        self.trained += len(jobs)
        for position, job in enumerate(jobs):
            yield position, train_group(job)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Noisy 8×8 pictures of four classes, each with a bright row of its own."""
    rng = np.random.default_rng(0)

    def pictures(size: int) -> tuple[np.ndarray, np.ndarray]:
        labels = np.arange(size) % 4
        inputs = rng.integers(0, 120, (size, 8, 8), dtype=np.uint8)
        inputs[np.arange(size), 2 * labels] += 100
        return inputs, labels

    (x, y), (x_test, y_test) = pictures(400), pictures(80)
    path = tmp_path_factory.mktemp("data") / "rows.npz"
    np.savez(path, x_train=x, y_train=y, x_test=x_test, y_test=y_test)
    return path


@pytest.fixture
def configure(data):
    def small(preset_name: str, dataset: str) -> RunConfig:
        return RunConfig(
            dataset=str(data),
            mean=0.28,
            std=0.2,
            clients=8,
            validation=8,
            model="mlp",
            types="oracle" if preset_name == "paper" else "bias-profile",
            baseline_groups=3,
            training=Recipe(rounds=2, lr=0.2, lr_min=0.01),
        )

    return small


TRIALS = [
    Trial("ca", "fashion-mnist", 20, 0, "carvy"),
    Trial("asr", "mnist", 20, 0, "carvy"),
    Trial("ca", "mnist", 20, 0, "carvy"),
    Trial("ca", "mnist", 20, 0, "flcert", groups=2),
    Trial("ca", "mnist", 20, 1, "single"),
    Trial("types", "mnist", 20, 1),
    Trial("asr", "mnist", 20, 0, "carvy", attack="badnets-scaled"),
]


@pytest.fixture
def reproduce(tmp_path, configure):
    def run(engine: Counting, trials: Sequence[Trial] = TRIALS) -> list[Record]:
        store = GroupStore(tmp_path / "store")
        return run_trials(
            trials,
            "paper",
            tmp_path / "out",
            Compute(engine, store),
            command="python -m reproduction",
            commit="abc",
            configure=configure,
        )

    return run


@pytest.mark.slow
def test_records_are_what_a_run_and_an_attack_measure(reproduce, configure, tmp_path):
    engine = Counting()
    measured_trials = reproduce(engine)
    assert [type(r) for r in measured_trials].count(CaRecord) == 4
    config = dataclasses.replace(
        configure("paper", "mnist"), samples=20, methods=("carvy", "flcert"), baseline_groups=2
    )
    compute = Compute(Cores(1), GroupStore(tmp_path / "other"))
    found_once = execute(config, tmp_path / "run", compute)
    (measured,) = select(measured_trials, CaRecord, dataset="mnist", method="carvy")
    expected = found_once.methods["carvy"]
    assert measured.ca == pytest.approx(expected.ca, abs=1e-4)
    assert measured.auc == pytest.approx(expected.auc, abs=1e-4)
    assert measured.num_groups == expected.num_groups
    assert measured.rounds == expected.rounds
    assert measured.types_exact

    prepared = prepare(config)
    run = AttackedRun(prepared.dataset, prepared.setup, Compute(Counting()))
    ms = range(9)
    attacked = attack_grouping(
        run,
        RunFolder(tmp_path / "run").grouping("carvy"),
        BadNets(),
        "dispersed",
        tuple(ms),
        run.train,
    )
    (asr,) = select(measured_trials, AsrRecord, attack="badnets")
    (scaled,) = select(measured_trials, AsrRecord, attack="badnets-scaled")
    assert scaled.asr != asr.asr
    assert scaled.ca == asr.ca  # nobody attacks in either
    assert asr.m == tuple(range(21))
    assert asr.asr[:9] == pytest.approx(attacked.asr, abs=1e-4)
    assert asr.accuracy[:9] == pytest.approx(attacked.accuracy, abs=1e-4)
    assert asr.ca[:9] == pytest.approx(attacked.certified, abs=1e-4)
    assert asr.placement == "dispersed"
    assert asr.promise_kept

    (swept,) = select(measured_trials, CaRecord, method="flcert")
    assert (swept.groups, swept.num_groups, swept.types_found) == (2, 2, None)
    assert swept.ca == pytest.approx(found_once.methods["flcert"].ca, abs=1e-4)
    (types,) = select(measured_trials, TypesRecord)
    truth = prepared.setup.federation.types
    assert truth is not None
    assert types.labels == types.true == tuple(truth.tolist())
    assert len(types.points) == 8
    for record in measured_trials:
        assert (record.preset, record.samples) == ("paper", 20)
        assert record.environment["command"] == "python -m reproduction"
        assert record.environment["commit"] == "abc"


@pytest.mark.slow
def test_what_is_there_is_not_measured_again(reproduce, tmp_path):
    first = Counting()
    measured_trials = reproduce(first)
    out = tmp_path / "out"
    assert first.trained > 0
    assert records.load(out / "paper.jsonl") == measured_trials
    assert missing_trials(TRIALS, "paper", out) == []
    assert len(missing_trials(TRIALS, "default", out)) == len(TRIALS)
    before = (out / "paper.jsonl").read_bytes()
    again = Counting(limit=0)
    assert reproduce(again) == measured_trials
    assert again.trained == 0
    assert (out / "paper.jsonl").read_bytes() == before


def test_a_lot_trains_what_its_trials_share_once(reproduce):
    benign, both = Counting(), Counting()
    reproduce(benign, [TRIALS[2]])
    reproduce(both, [TRIALS[1], TRIALS[2]])
    # Four groups of two types: benign, with one attacker, with both. The benign ones are stored.
    assert benign.trained == 4
    assert both.trained == 8


def test_time_is_given_only_where_it_was_spent(reproduce, tmp_path):
    (fresh,) = reproduce(Counting(precision="bf16"), TRIALS[:1])
    assert fresh.seconds > 0
    (tmp_path / "out" / "paper.jsonl").unlink()
    (stored,) = reproduce(Counting(limit=0, precision="bf16"), TRIALS[:1])
    assert stored.seconds is None
    assert stored.ca == fresh.ca


@pytest.mark.slow
def test_killed_between_lots_keeps_the_finished_lot(reproduce, tmp_path):
    first_lot = Counting()
    reproduce(first_lot, TRIALS[:1])
    (tmp_path / "out" / "paper.jsonl").unlink()
    killed = Counting(limit=0)  # the first lot's groups are in the store, the second's are not
    with pytest.raises(KeyboardInterrupt):
        reproduce(killed)
    finished = records.load(tmp_path / "out" / "paper.jsonl")
    assert len(select(finished, CaRecord, dataset="fashion-mnist")) == 1
    assert select(finished, AsrRecord) == []
    rest = Counting()
    measured_trials = reproduce(rest)
    assert {r.key() for r in finished} < {r.key() for r in measured_trials}
    assert missing_trials(TRIALS, "paper", tmp_path / "out") == []


# The command -------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CARVYFL_DATA", raising=False)


def test_targets_are_listed_with_what_is_there(tmp_path):
    out = tmp_path / "out"
    records.add(
        out / "paper.jsonl",
        [
            ca_trial("carvy", (90, 0), dataset="fashion-mnist"),
            ca_trial("carvy", (90, 0), groups=20),
            types_trial([0, 1], [0, 1]),
            ca_trial("carvy", (90, 0), samples=70),  # of no target
        ],
    )
    answer = command("--out", out, "--preset", "both", "--json")
    targets = answer.json["targets"]
    assert {name: entry["trials"] for name, entry in targets.items()} == {
        "ca-mnist": 132,
        "ca-fashion-mnist": 132,
        "asr": 66,
        "asr-scaled": 66,
        "groups": 432,
        "types": 80,
        "failed-types": 10,
    }
    done = {name: entry["done"]["paper"] for name, entry in targets.items()}
    assert done == {
        "ca-mnist": 0,
        "ca-fashion-mnist": 1,
        "asr": 0,
        "asr-scaled": 0,
        "groups": 1,
        "types": 1,
        "failed-types": 1,
    }
    assert not any(entry["done"]["default"] for entry in targets.values())
    shown = command("--out", out)
    assert shown.code == 0
    assert all(name in shown.out for name in TARGETS)
    assert "done (paper)" in shown.out
    assert not (out / "reproduction").exists()


@pytest.mark.slow
def test_finished_trials_are_presented_without_data(tmp_path):
    out = tmp_path / "out"
    trial = ca_trial("carvy", (91.5, 60, 0), dataset="fashion-mnist", exact=True)
    records.add(out / "paper.jsonl", [trial])
    common = ("failed-types", "--seeds", 1, "--out", out, "--engine", "loop")
    bare = command(*common, "--records-only", "--json").json
    assert bare["report"] is None
    assert not (out / "reproduction").exists()
    answer = command(*common, "--json")
    assert answer.json["trials"] == 1
    assert answer.json["presets"] == ["paper"]
    assert "91.5" in Path(answer.json["report"]).read_text(encoding="utf-8")
    assert "1 trials of paper" in command(*common).out


def test_without_pandas_there_are_records_only(tmp_path, monkeypatch):
    out = tmp_path / "out"
    trial = ca_trial("carvy", (91.5, 60, 0), dataset="fashion-mnist", exact=True)
    records.add(out / "paper.jsonl", [trial])
    for name in [name for name in sys.modules if name.startswith("reproduction.")]:
        if hasattr(sys.modules[name], "pd") or name.endswith((".present", ".page", ".draw")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pandas", None)  # as if it were not installed
    common = ("failed-types", "--seeds", 1, "--out", out, "--engine", "loop")
    assert_refused(command(*common), "pandas", "carvyfl[paper]", "--records-only")
    assert command(*common, "--records-only", "--json").json["trials"] == 1


def test_data_that_is_not_there_is_named(tmp_path):
    answer = command("failed-types", "--seeds", 1, "--out", tmp_path / "out")
    assert_refused(answer, "fashion-mnist", "carvy data fetch")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("ca-mnst",), ("unknown target", "ca-mnist")),
        (("asr", "--preset", "demo"), ("preset", "paper, default or both")),
        (("asr", "--samples", "50"), ("no trial fits", "--samples")),
        (("asr", "--samples", "51"), ("51 samples", "50, 100, 200 or 500")),
        (("--samples", "500", "--samples", "51"), ("51 samples",)),
        (("--dataset", "mnits"), ("data set", "did you mean 'mnist'")),
        (("asr", "--dataset", "mnist", "--dataset", "embedded"), ("unknown data set 'embedded'",)),
        (("--method", "carvy", "--method", "flcrt"), ("method", "did you mean 'flcert'")),
        (("types", "--method", "balanced"), ("unknown method", "'balanced'")),
        (("asr", "--seeds", "0"), ("'--seeds'", "x>=1")),
        (("ca-mnist", "--dataset", "fashion-mnist"), ("no trial fits",)),
        (("asr", "--engine", "steam"), ("engine",)),
    ],
)
def test_mistakes_are_one_line(tmp_path, args, words):
    assert_refused(command(*args, "--out", tmp_path / "out"), *words)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("args", "warnings"),
    [
        (("failed-types", "--seeds", 10), []),
        (
            ("failed-types", "--seeds", 99),
            ["--seeds 99 is more than there are: failed-types has 10"],
        ),
        (
            ("failed-types", "groups", "--seeds", 8),
            ["--seeds 8 is more than there are: groups has 6"],
        ),
        (
            ("failed-types", "--method", "carvy", "--method", "single"),
            ["--method single fits no trial of failed-types"],
        ),
        (
            ("failed-types", "--samples", 50, "--samples", 500, "--dataset", "mnist"),
            [],  # refused instead: nothing is left
        ),
        (("failed-types", "--samples", 50, "--samples", 500), ["--samples 50 fits no trial of "]),
        (("all", "--samples", 50), []),
    ],
)
def test_what_has_no_effect_is_said(tmp_path, args, warnings):
    answer = command(*args, "--out", tmp_path / "out", "--data-dir", tmp_path)
    assert answer.code == 2  # there are no data
    *lines, _ = answer.err.splitlines()
    assert len(lines) == len(warnings)
    for line, expected in zip(lines, warnings, strict=True):
        assert line.startswith(f"carvy: warning: {expected}")


def test_the_list_says_so_as_well(tmp_path):
    answer = command("--seeds", 7, "--out", tmp_path / "out", "--json")
    assert answer.json["targets"]["groups"]["trials"] == 432
    assert answer.err == "carvy: warning: --seeds 7 is more than there are: groups has 6\n"


@pytest.mark.parametrize("args", [(), ("failed-types",)])
def test_a_damaged_records_file_is_one_line(tmp_path, args):
    path = tmp_path / "out" / "paper.jsonl"
    path.parent.mkdir()
    for content in (b"\xff\xfe\x00bad\n", b"[" * 100_000 + b"\n", b"9" * 5000, b"{\n"):
        path.write_bytes(content)
        answer = command(*args, "--out", path.parent)
        assert_refused(answer, str(path), "remove")
        assert path.read_bytes() == content
    path.unlink()
    path.mkdir()
    answer = command(*args, "--out", path.parent)
    assert_refused(answer, f"cannot read {path}", "Is a directory", "--out")


def test_the_commands_of_the_pages_are_understood():
    pages = [DOCS / "howto" / "reproduce.md", DOCS / "howto" / "cluster.md"]
    named = [
        words
        for page in pages
        for block in blocks(page)
        for words, _ in commands(block.text, "python -m reproduction")
    ]
    assert len(named) == 5
    for words in named:
        context = typer.main.get_command(app).make_context("reproduction", words)
        assert chosen(context.params["targets"] or ["all"])


def test_commands_are_kept_without_locations() -> None:
    given = "python -m reproduction asr --out=a -o 'b c' --preset paper --store s --commit c0"
    assert without_locations(shlex.split(given)) == "python -m reproduction asr --preset paper"
