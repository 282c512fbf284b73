from __future__ import annotations

import contextlib
import io
import re
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from carvyfl.core.errors import CarvyError
from carvyfl.voting.files import load_votes, save_votes
from carvyfl.voting.votes import NO_VOTE, votes


def refused(path: Path, **options: str) -> str:
    with pytest.raises(CarvyError) as caught:
        load_votes(path, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    return message


@given(
    hnp.arrays(
        np.int32,
        st.tuples(st.integers(1, 5), st.integers(1, 8)),
        elements=st.integers(NO_VOTE, 300),
    ),
    st.booleans(),
)
def test_npz_round_trip(groups: np.ndarray, labelled: bool) -> None:
    cast = votes(groups, 301)
    labels = np.arange(cast.num_inputs) * 7 if labelled else None
    with TemporaryDirectory() as folder:
        path = Path(folder) / "v.npz"
        save_votes(path, cast, labels)
        assert [entry.name for entry in Path(folder).iterdir()] == ["v.npz"]
        again, truth = load_votes(path)
    assert again.num_classes == 301
    assert again.groups.tolist() == groups.tolist()
    assert (truth is not None) == labelled
    if truth is not None:
        assert truth.tolist() == list(range(0, 7 * cast.num_inputs, 7))


@pytest.mark.parametrize(
    ("row", "dtype"),
    [
        ([0, 255], "uint8"),
        ([-1, 127], "int8"),
        ([-1, 128], "int16"),
        ([0, 256], "uint16"),
        ([-1, 40_000], "int32"),
    ],
)
def test_stored_in_the_smallest_type(tmp_path: Path, row: list[int], dtype: str) -> None:
    save_votes(tmp_path / "v.npz", votes([row]))
    with np.load(tmp_path / "v.npz") as archive:
        assert archive["votes"].dtype == dtype
    assert load_votes(tmp_path / "v.npz")[0].groups.tolist() == [row]


def test_what_cannot_be_saved_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "v.npz"
    save_votes(path, votes([[0, 1]]), [0, 1])
    before = path.read_bytes()
    for place, labels, message in (
        (path, [0, 5], "the label of input 1 is 5"),
        (tmp_path / "v.csv", None, "written as .npz, not '.csv'"),
        (path / "v.npz", None, "cannot write"),
    ):
        with pytest.raises(CarvyError, match=re.escape(message)):
            save_votes(place, votes([[0, 1]]), labels)
    assert path.read_bytes() == before


def test_npz_without_num_classes_learns_it_from_votes_and_labels(tmp_path: Path) -> None:
    path = tmp_path / "v.npz"
    np.savez(path, votes=np.array([[0, 2], [1, 1]], dtype=np.uint8), labels=np.array([0, 6]))
    cast, labels = load_votes(path)
    assert cast.num_classes == 7
    assert cast.groups.dtype == np.uint8
    assert labels is not None
    assert labels.tolist() == [0, 6]


V = np.array([[0, 1, 2], [1, -1, 2]])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"ballots": V}, "votes missing; it needs 'votes', and the archive holds 'ballots'"),
        ({}, "the archive holds nothing"),
        ({"votes": V - 1}, "group 1 votes -2 on input 1"),
        ({"votes": V, "num_classes": 2}, "group 0 votes 2 on input 2; classes are 0 to 1"),
        ({"votes": V, "num_classes": 3.0}, "'num_classes' must be a single integer"),
        ({"votes": V, "num_classes": [3, 3]}, "'num_classes' must be a single integer"),
        ({"votes": V, "labels": [0, 1, -1]}, "the label of input 2 is -1"),
        ({"votes": V, "labels": [0, 1, 3], "num_classes": 3}, "the label of input 2 is 3"),
        ({"votes": V.astype("M8[s]")}, "votes of type datetime64[s]"),
        ({"votes": V, "num_classes": np.timedelta64(3, "s")}, "must be a single integer"),
        ({"votes": V.astype(object)}, "not a readable .npz archive of plain arrays"),
    ],
)
def test_npz_mistakes(tmp_path: Path, content: dict[str, Any], message: str) -> None:
    path = tmp_path / "v.npz"
    np.savez(path, **content)
    assert message in refused(path)


def test_files_that_are_no_archive(tmp_path: Path) -> None:
    path, bare, archived = tmp_path / "v.npz", io.BytesIO(), io.BytesIO()
    assert "No such file" in refused(path)
    np.save(bare, V)
    with zipfile.ZipFile(archived, "w") as archive:
        archive.writestr("votes", "0,1,2")
    for content, message in (
        (b"", "the file is empty"),
        (b"these are no votes", "not a readable .npz archive"),
        (bare.getvalue(), "a bare array"),
        (archived.getvalue(), ""),
    ):
        path.write_bytes(content)
        assert message in refused(path)
    (tmp_path / "folder.npz").mkdir()
    assert "cannot be read" in refused(tmp_path / "folder.npz")
    assert "read from .npz or .csv, not '.txt'" in refused(tmp_path / "v.txt")


def test_a_damaged_archive_never_gives_other_votes(tmp_path: Path) -> None:
    path = tmp_path / "v.npz"
    cast = votes(np.random.default_rng(0).integers(0, 10, (5, 40), dtype=np.uint8), 10)
    save_votes(path, cast, np.arange(40) % 10)
    intact = path.read_bytes()
    for length in range(0, len(intact), 17):
        path.write_bytes(intact[:length])
        refused(path)
    survived = 0
    for at in range(len(intact)):
        path.write_bytes(intact[:at] + bytes([intact[at] ^ 0x55]) + intact[at + 1 :])
        with contextlib.suppress(CarvyError):  # any other exception fails the test
            again, _ = load_votes(path)
            # Some bytes carry nothing: a date, a flag, the name of an array that may be missing.
            assert again.groups.tolist() == cast.groups.tolist()
            survived += 1
    assert survived < len(intact) / 3


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "v.csv"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


TRUTHS = ["true_y", "y_test", "y_val", "actual", "expected", "true_class", "category", "cls"]
TRUTHS += ["y", "Y_true", "y-true", "target", "ground_truth", "gt", "class", "True label"]
NUMBERS = ["id", "ID", "sample_id", "image-idx", "sampleId", "index", "Unnamed: 0"]
NO_GROUPS = ["answer", "correct", "fold", "#", "ensemble"]
GROUPS = ["grid", "david", "yellow", "trueno", "g_y", "northeast", "rows"]
WITH_LABELS = ([[0, -1, -1], [2, 1, 0]], [1, 0, 4])


@pytest.mark.parametrize(
    ("text", "groups", "labels"),
    [
        ("g0,label,g1\n0,1,2\n,0,1\n-1,4,0\n", *WITH_LABELS),
        ("\ufeffg0,label,g1\r\n0,1,2\r\n,0,1\r\n-1,4,0\r\n", *WITH_LABELS),
        (' g0 , label , g1 \n 0 ,1,2\n  ,0," 1"\n-1,4,0\n\n\n', *WITH_LABELS),
        # pandas, where a vote is missing
        ("g0,label,g1\n0.0,1,2\n,0,1.0\n-1.0,4.0,0\n", *WITH_LABELS),
        ("g0,g1\nnan,1.0\n2.0,NaN\n", [[-1, 2], [1, -1]], None),
        ("0,1,2,label\n0,1,2,0\n", [[0], [1], [2]], [0]),
        ("resnet18,vgg16,vit,label\n0,1,2,0\n", [[0], [1], [2]], [0]),  # numbers of their own
        ('only\n1\n""\n3\n', [[1, -1, 3]], None),
        *((f"g0,{name}\n0,1\n", [[0], [1]], None) for name in GROUPS),
    ],
)
def test_csv(tmp_path: Path, text: str, groups: list[list[int]], labels: list[int] | None) -> None:
    cast, truth = load_votes(written(tmp_path, text))
    assert cast.groups.tolist() == groups
    assert cast.groups.dtype.itemsize == 1
    assert (None if truth is None else truth.tolist()) == labels
    assert cast.num_classes == max(2, *np.array(groups).ravel() + 1, *np.array(labels or [0]) + 1)


@pytest.mark.parametrize("name", TRUTHS + NUMBERS + NO_GROUPS)
def test_a_column_that_seems_no_group_is_refused_unless_named_as_the_truth(
    tmp_path: Path, name: str
) -> None:
    """As a group it would vote for the truth, or for row numbers."""
    path = written(tmp_path, f"g0,{name},g1\n0,1,2\n,0,1\n")
    message = refused(path)
    assert ("`labels_column`" in message) == (name not in NUMBERS)
    assert (f"numbered ('g0', …) and {name!r} is not" in message) == (name in NO_GROUPS)
    cast, labels = load_votes(path, labels_column=name)
    assert cast.groups.tolist() == [[0, -1], [2, 1]]
    assert labels is not None
    assert labels.tolist() == [1, 0]


def test_the_column_of_labels_must_be_there(tmp_path: Path) -> None:
    path = written(tmp_path, "g0,g1\n0,1\n")
    assert "line 1: no column 'truth'" in refused(path, labels_column="truth")
    np.savez(tmp_path / "v.npz", votes=V)
    assert "`labels_column` is for .csv" in refused(tmp_path / "v.npz", labels_column="label")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty"),
        ("\n", "line 1: blank"),
        ("g0,g1\n", "a header but no rows"),
        ("label\n1\n", "no column of votes"),
        ("0,1,2\n1,1,1\n", "line 1: only numbers"),
        (",g0\n0,1\n", "line 1: column 1 has no name"),
        ("g0,g0\n0,1\n", "two columns are called 'g0'"),
        ("g0,label,label\n0,1,1\n", "two columns are called 'label'"),
        ("g0,Labels\n0,1\n", "is column 'Labels' the truth or a group?"),
        ("y,g0,label\n0,1,1\n", "is column 'y' the truth or a group?"),
        ("g0,label\n0,1.5\n", "line 2, column 'label': '1.5' is not a class number"),
        ("g0,g1\n0,1_0\n", "line 2, column 'g1': '1_0' is not a class number"),
        ("g0,label\n0,nan\n", "line 2, column 'label': 'nan' is not a class number"),
        ("g0,g1\n0,inf\n", "line 2, column 'g1': 'inf' is not a class number"),
        ("g0,g1\n0,1\n1.5,0\n", "line 3, column 'g0': '1.5' is not a class number"),
        ("g0,g1\n0,1\n0\n", "line 3: 1 cells where the header has 2"),
        ("g0,g1\n0,1\n0,1,1\n", "line 3: 3 cells where the header has 2"),
        ("g0,g1\n0,1\n\n\n0,1\n", "line 3: 0 cells where the header has 2"),
        ("g0,g1\n0,1\n0,x\n", "line 3, column 'g1': 'x' is not a class number"),
        ("g0,g1\n-2,1\n", "line 2, column 'g0': '-2' is not a class number"),
        ("g0,g1\n0,99999999999999999999999\n", "line 2, column 'g1'"),
        ("g0,label\n0,1\n1,\n", "line 3, column 'label': '' is not a class number"),
        ("g0,label\n0,-1\n", "line 2, column 'label': '-1' is not a class number"),
        ('g0,g1\n0,"1\n', "not valid CSV"),
        (b"g0,g1\n0,\xff\n", "not a text file in UTF-8"),
        ('"g\n0",g1\n0,1\n0,x\n', "line 4, column 'g1'"),  # a line break in quotes
        ('"g\n0",g1\nx,1\n', r"line 3, column 'g\n0'"),
    ],
)
def test_csv_mistakes(tmp_path: Path, text: str | bytes, message: str) -> None:
    assert message in refused(written(tmp_path, text))
