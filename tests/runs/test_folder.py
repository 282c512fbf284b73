"""The run folder and `carvy show`: what was found can be recomputed, and damage is noticed."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.numpy import load_file

from carvyfl.core.errors import CarvyError
from carvyfl.core.progress import Report, quiet
from carvyfl.data.datasets import load
from carvyfl.learning.backends import Cores
from carvyfl.learning.store import GroupStore
from carvyfl.pipeline import Compute
from carvyfl.runs.execute import execute
from carvyfl.runs.folder import RunFolder
from carvyfl.runs.record import FORMAT, AttackResult, sealed
from support.cli import QUICK, assert_refused, assert_valid, carvy, naive_ca
from support.records import attack_result
from support.sealing import reseal

METHODS = ("carvy", "flcert", "cluster", "balanced", "single")
MANY = ("run", *QUICK, "--clients", "20", "--rounds", "2", "--methods", ",".join(METHODS))


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="module")
def finished(tmp_path_factory, store):
    out = tmp_path_factory.mktemp("run") / "all"
    answer = carvy(*MANY, "--out", out, "--store", store)
    assert answer.code == 0, answer.err
    return out


@pytest.fixture
def copy(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "copy")


def test_show_equals_what_the_votes_give_by_a_naive_loop(finished):
    shown = carvy("show", finished, "--json").json
    assert_valid(shown, "run")
    assert set(shown["methods"]) == set(METHODS)
    for name, entry in shown["methods"].items():
        with np.load(finished / "votes" / f"{name}.npz", allow_pickle=False) as file:
            votes, labels, classes = file["votes"], file["labels"], int(file["num_classes"])
        curve, area = naive_ca(votes, labels, classes)
        assert entry["ca"] == pytest.approx(curve)
        assert entry["auc"] == pytest.approx(area)
        assert entry["num_groups"] == len(votes) == len(entry["rounds"])
        assert entry["rounds"] == [2] * len(votes)
        again = RunFolder(finished).certificate(name)
        assert again.ca().tolist() == entry["ca"]
        assert again.basis.because == entry["certificate"]["because"]


def test_the_stored_votes_are_those_of_the_stored_models(finished):
    """The MLP by hand, in NumPy: normalise, two layers, the largest logit."""
    test = load("embedded").test
    data = json.loads((finished / "run.json").read_text())["data"]
    inputs = (test.inputs.reshape(len(test), -1) / 255 - data["mean"]) / data["std"]
    weights = load_file(finished / "models" / "carvy.safetensors")
    hidden = np.maximum(
        np.einsum("ni,ghi->gnh", inputs, weights["1.weight"]) + weights["1.bias"][:, None], 0
    )
    logits = np.einsum("gnh,gch->gnc", hidden, weights["3.weight"]) + weights["3.bias"][:, None]
    with np.load(finished / "votes" / "carvy.npz") as file:
        best_two = np.sort(logits, axis=2)[:, :, -2:]
        clear = best_two[:, :, 1] - best_two[:, :, 0] > 1e-4  # float32 may round a near tie
        assert clear.mean() > 0.99
        assert (logits.argmax(axis=2) == file["votes"])[clear].all()
        assert np.array_equal(file["labels"], test.labels)


def test_the_folder_explains_itself(finished):
    names = {str(path.relative_to(finished)) for path in finished.rglob("*") if path.is_file()}
    once = "config.yaml run.json types.json profiles.npz ca.png group-count.png"
    assert names == set(once.split()) | {
        file
        for m in METHODS
        for file in (f"groups/{m}.json", f"models/{m}.safetensors", f"votes/{m}.npz")
    }
    record = json.loads((finished / "run.json").read_text())
    assert yaml.safe_load((finished / "config.yaml").read_text()) == record["config"]
    folder = RunFolder(finished)
    assert folder.config().to_dict() == record["config"]
    types = folder.types()
    assert types is not None
    assert types.num_types == record["types"]["num_types"]
    assert np.array_equal(types.sizes, record["types"]["sizes"])
    assert (finished / "ca.png").read_bytes()[:4] == b"\x89PNG"


def test_a_person_reads_every_method(finished, monkeypatch):
    record = json.loads((finished / "run.json").read_text())
    for width in (80, 120):
        monkeypatch.setenv("COLUMNS", str(width))
        lines = carvy("show", finished).out.splitlines()
        assert "embedded, 20 clients with 20 samples" in lines[0]
        assert max(map(len, lines)) <= width + 5  # a summary line may stand out a little
        assert "…" not in "".join(lines)  # no name is cut
        for entry in record["methods"].values():
            assert any(f"AUC {entry['auc']:.1f}" in line for line in lines)
        words = " ".join(" ".join(lines).replace("│", " ").replace("┃", " ").split())
        assert "these groups give without their (at most m) malicious members" in words
        for entry in record["methods"].values():
            assert entry["certificate"]["because"].replace("`", "") in words


def test_what_was_set_aside_is_named(copy):
    def change(record: dict[str, Any]) -> None:
        record["methods"]["carvy"]["set_aside"] = {"7": "round 0: NaN or infinite values"}
        record["methods"]["carvy"]["stopped"][0] = "diverged"
        record["types"]["set_aside"] = {"3": "holds NaN"}

    reseal(copy, change)
    shown = carvy("show", copy)
    assert "client 7 was set aside (round 0: NaN or infinite values)" in shown.err
    assert "client 3 was set aside in Step 1 (holds NaN)" in shown.err
    assert re.search(r"carvy: 1 of \d+ groups cast no vote \(1 diverged\)", shown.err)
    assert_valid(carvy("show", copy, "--json").json, "run")


@pytest.mark.parametrize(
    ("samples", "shown"),
    [([7] * 19 + [40], "20 clients with 7 to 40 samples"), ([0, *[7] * 19], "20 clients")],
)
def test_samples_of_real_clients_are_those_they_told(copy, samples, shown):
    """Once their median was shown as the number of each, or 1 where nobody said."""

    def real(record: Any) -> None:
        about = {"settings": {}, "authenticated": False, "identity": "", "traffic": {}}
        names = [f"node {number}" for number in range(20)]
        record["deployment"] = {**about, "clients": names, "samples": samples}

    reseal(copy, real)
    title = carvy("show", copy).out.splitlines()[0]
    assert re.search(rf"{shown}$", title.strip())
    carvy("report", copy, "--out", copy.parent / "report.html")
    assert f"embedded, {shown}" in (copy.parent / "report.html").read_text()


def test_a_method_that_is_not_registered_here_is_shown(copy):
    for place in ("groups/{}.json", "models/{}.safetensors", "votes/{}.npz"):
        (copy / place.format("flcert")).rename(copy / place.format("by-number"))

    def rename(record: dict[str, Any]) -> None:
        record["methods"]["by-number"] = record["methods"].pop("flcert")
        record["config"]["methods"] = ["carvy", "by-number", "single"]

    reseal(copy, rename)
    assert "by-number" in carvy("show", copy).out
    assert "MISMATCH" in carvy("verify", copy).out


def test_folders_without_a_finished_run(finished, copy, tmp_path):
    assert_refused(carvy("show", tmp_path / "none"), "does not exist")
    (tmp_path / "empty").mkdir()
    assert_refused(carvy("show", tmp_path / "empty"), "no run folder")
    assert_refused(carvy("show", finished / "run.json"), "no run folder")
    (copy / "run.json").unlink()
    assert_refused(carvy("show", copy), "not finished", "run the same command again")
    assert_refused(carvy("predict", copy, "x.npy"), "not finished")


def edit(**changes: Any) -> Callable[[Path], object]:
    """Change the record, and leave out fields where the new value is None; seal it again."""

    def apply(folder: Path) -> None:
        record = json.loads((folder / "run.json").read_text()) | changes
        record = {name: value for name, value in record.items() if value is not None}
        del record["digest"]
        (folder / "run.json").write_text(sealed(record))

    return apply


def of_carvy(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
    return lambda folder: reseal(folder, lambda record: change(record["methods"]["carvy"]))


def content(change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    return lambda f: (f / "run.json").write_bytes(change((f / "run.json").read_bytes()))


DAMAGED_RECORDS: dict[str, Callable[[Path], object]] = {
    "half a file": content(lambda whole: whole[:500]),
    "not text": content(lambda _: b"\xff\xfe\x00"),
    "no file at all": content(lambda _: b""),
    "no object": content(lambda _: b"[]"),
    "an empty object": content(lambda _: b"{}"),
    "changed": content(lambda whole: whole.replace(b'"auc": ', b'"auc": 1')),
    "no methods": edit(methods={}),
    "a method elsewhere": edit(methods={"../x": {}}),
    "no curve": of_carvy(lambda entry: entry.update(ca=[])),
    "a curve of words": of_carvy(lambda entry: entry.update(ca=["high"])),
    "no rounds": of_carvy(lambda entry: entry.pop("rounds")),
    "no data": edit(data=None),
    "a shape of words": lambda f: reseal(f, lambda r: r["data"].update(input_shape="big")),
    "strange types": edit(types=3),
    "no types": edit(types=None),
}


@pytest.mark.parametrize("damage", DAMAGED_RECORDS)
def test_a_damaged_record_is_refused(copy, damage):
    DAMAGED_RECORDS[damage](copy)
    for command in (("show", copy), ("show", copy, "--json"), ("predict", copy, "x.npy")):
        assert_refused(carvy(*command), "run.json is damaged", "again to restore it")


def test_a_record_of_another_format_is_refused(copy):
    edit(format=99)(copy)
    assert_refused(carvy("show", copy), "format 99", "the version of carvyfl that wrote it")
    assert carvy("verify", copy).code == 1


@pytest.mark.slow
def test_a_run_in_the_format_before_can_be_had_again(copy, finished, store, tmp_path):
    edit(format=FORMAT - 1)(copy)
    answer = carvy("show", copy)
    assert_refused(answer, f"format {FORMAT - 1}, this version reads {FORMAT}")
    (command,) = re.findall(r"'carvy (run --config \S+ --out) NEW'", answer.err)
    assert carvy(*command.split(), tmp_path / "again", "--store", store).code == 0
    for name in ("votes/carvy.npz", "models/carvy.safetensors"):
        assert (tmp_path / "again" / name).read_bytes() == (finished / name).read_bytes()
    edit(deployment={})(copy)
    assert_refused(carvy("show", copy), "federation cannot be repeated")


@pytest.mark.slow
def test_damaged_groups_and_models_are_refused_and_restored_by_the_same_command(
    copy, finished, store
):
    image = copy / "x.npy"
    np.save(image, load("embedded").test.inputs[:1])
    models, grouping = copy / "models" / "carvy.safetensors", copy / "groups" / "carvy.json"
    whole, single = models.read_bytes(), (copy / "models" / "single.safetensors").read_bytes()
    flipped = bytearray(whole)
    flipped[-1000] ^= 1
    text = grouping.read_bytes()
    for file, content, word in (
        (models, whole[: len(whole) // 2], "cannot read the tensors"),
        (models, b"", "cannot read the tensors"),
        (models, bytes(flipped), "checksum"),
        (models, single, "does not hold 4 models"),
        (grouping, b"", "carvy.json"),
        (grouping, b"{}", "carvy.json"),
        (grouping, b'{"assignment": [0, 5]}', "carvy.json"),
        (grouping, text.replace(b'"honest_only": null', b'"honest_only": 1'), None),
    ):
        before = file.read_bytes()
        assert content != before
        file.write_bytes(content)
        assert_refused(carvy("predict", copy, image), file.name, "changed", "restore")
        if file == grouping:
            assert_refused(carvy("report", copy, "--out", copy / "r.html"), file.name, "changed")
        if word:
            reseal(copy)
            assert_refused(carvy("predict", copy, image), file.name, word, "restore")
        file.write_bytes(before)
        reseal(copy)
    models.unlink()
    assert_refused(carvy("predict", copy, image), "carvy.safetensors", "restore")
    image.unlink()
    grouping.unlink()
    assert carvy(*MANY, "--out", copy, "--store", store).code == 0
    assert grouping.read_bytes() == (finished / "groups" / "carvy.json").read_bytes()
    before, after = (load_file(f / "models" / "carvy.safetensors") for f in (finished, copy))
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_damaged_votes_and_types_are_refused(copy):
    folder = RunFolder(copy)
    damaged: list[tuple[Path, bytes, Callable[[], object]]] = [
        (folder.votes_file("carvy"), b"PK", lambda: folder.certificate("carvy"))
    ]
    texts = (b"{", b"{}", b'{"labels": [0]}', b"[" * 100_000)
    for file, content, read in damaged + [(folder.types_file, t, folder.types) for t in texts]:
        file.write_bytes(content)
        with pytest.raises(CarvyError, match=r"changed.*restore"):
            read()
        reseal(copy)
        with pytest.raises(CarvyError, match="restore"):
            read()


def test_a_group_that_casts_no_vote_keeps_silent_after_loading(copy):
    """Weights that are not finite are stored, found again, and do not vote."""
    folder = RunFolder(copy)
    models = folder.models("carvy")
    models.weights[1] = torch.nan
    models.casts[1] = False
    models.save(folder.models_file("carvy"), {"model": "mlp"})
    reseal(copy)
    loaded = folder.models("carvy")
    votes = loaded.votes(load("embedded").test.inputs[:5], Cores(1))
    assert (votes.groups[1] == -1).all()
    assert (np.delete(votes.groups, 1, axis=0) >= 0).all()


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_an_interrupted_repeat_leaves_the_finished_run_as_it_is(copy, store):
    """Ctrl-C comes while the last method votes: some files of the repeat are written by then."""

    @contextlib.contextmanager
    def interrupting(title: str) -> Iterator[Report]:
        if title == f"Step 4  votes of {METHODS[-1]}":
            raise KeyboardInterrupt
        yield quiet

    before = contents(copy)
    with pytest.raises(KeyboardInterrupt):
        execute(RunFolder(copy).config(), copy, Compute(Cores(1), GroupStore(store), interrupting))
    assert contents(copy) == before


@pytest.mark.slow
def test_a_run_that_is_repeated_keeps_its_record_signature_and_attacks_for_the_same_result(
    copy, store
):
    folder = RunFolder(copy)
    folder.add_attacks([attack_result("carvy", [80.0], [70.0])])
    folder.signature_file.write_text("of this record")
    before = contents(copy)
    (copy / "ca.png").write_bytes(b"damaged")
    assert carvy(*MANY, "--out", copy, "--store", store).code == 0
    assert contents(copy) == before

    of_carvy(lambda entry: entry.update(auc=1e4))(copy)
    (copy / "ca.png").unlink()
    assert carvy(*MANY, "--out", copy, "--store", store).code == 0
    assert not folder.signature_file.exists()
    assert folder.record().methods["carvy"].auc < 1e4


def test_attacks_at_the_same_time_are_all_kept(copy):
    folder = RunFolder(copy)

    def attacked(number: int) -> AttackResult:
        return attack_result("carvy", [80.0], [70.0], attack="noise", settings={"number": number})

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda number: folder.add_attacks([attacked(number)]), range(40)))
    assert sorted(result.settings["number"] for result in folder.attacks()) == list(range(40))


@pytest.mark.slow
def test_models_may_lie_on_another_disk(copy, store):
    """As far as two of them are to be had here; else it is the same test with one."""
    shared = Path("/dev/shm")
    elsewhere = Path(tempfile.mkdtemp(dir=shared if os.access(shared, os.W_OK) else None))
    try:
        shutil.rmtree(elsewhere)
        shutil.move(copy / "models", elsewhere)
        (copy / "models").symlink_to(elsewhere)
        (copy / "models" / "carvy.safetensors").unlink()
        answer = carvy(*MANY, "--out", copy, "--store", store)
        assert answer.code == 0, answer.err
        assert carvy("verify", copy).code == 0
    finally:
        shutil.rmtree(elsewhere)


def test_a_crowded_bench_is_mentioned(tmp_path):
    """Five types of three clients in two groups: a third sits out."""
    run = ("run", *QUICK, "--clients", 15, "--rounds", 1, "--methods", "slots", "--groups", 2)
    answer = carvy(*run, "--out", tmp_path / "run", "--store", tmp_path / "store")
    assert answer.code == 0
    assert "slots: 5 of 15 clients sit out" in answer.err
