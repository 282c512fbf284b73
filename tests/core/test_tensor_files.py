"""Tensor files: byte for byte those of the safetensors library."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save

from carvyfl.core import tensor_files
from carvyfl.core.errors import CarvyError
from carvyfl.core.tensor_files import write_tensors

NAMES = st.text(st.characters(codec="utf-8"), max_size=6).filter(lambda x: x != "__metadata__")
SHAPES = st.lists(st.integers(0, 4), max_size=3)


@settings(max_examples=60)
@given(shapes=st.dictionaries(NAMES, SHAPES, max_size=5), key=NAMES, value=NAMES)
def test_the_bytes_are_those_of_the_library(
    tmp_path_factory: pytest.TempPathFactory,
    shapes: dict[str, list[int]],
    key: str,
    value: str,
) -> None:
    tensors = {name: torch.randn(shape) for name, shape in shapes.items()}
    path = tmp_path_factory.mktemp("files") / "some.safetensors"
    write_tensors(path, tensors, {key: value})
    assert path.read_bytes() == save(tensors, {key: value})


def test_views_of_one_tensor_are_written_as_what_they_show(tmp_path: Path) -> None:
    whole = torch.arange(24.0).reshape(4, 6)
    views = {"rows": whole[1:3], "columns": whole[:, 2:4], "again": whole[1:3], "one": whole[0, 0]}
    write_tensors(tmp_path / "views", views, {})
    found = load_file(tmp_path / "views")
    assert found.keys() == views.keys()
    for name, view in views.items():
        assert torch.equal(found[name], view)


def test_a_large_view_is_written_some_rows_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensor_files, "AT_ONCE", 50)  # of 16 bytes a row: three rows
    view = torch.arange(70.0).reshape(10, 7)[:, 1:5]
    write_tensors(tmp_path / "view", {"a": view}, {})
    assert (tmp_path / "view").read_bytes() == save({"a": view.contiguous()}, {})


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CarvyError, match="cannot write"):
        write_tensors(tmp_path / "file" / "below", {"a": torch.ones(1)}, {})
