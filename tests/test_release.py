"""The wheel holds everything that the package needs."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from carvyfl import __version__

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
def test_the_wheel_holds_every_file_of_the_package(tmp_path: Path) -> None:
    pytest.importorskip("setuptools")
    source = tmp_path / "source"
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", source / "src", ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*build, "--wheel-dir", str(tmp_path), str(source)], check=True)
    (wheel,) = tmp_path.glob(f"carvyfl-{__version__}-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        packed = set(archive.namelist())
        metadata = archive.read(f"carvyfl-{__version__}.dist-info/METADATA").decode()
    own = source / "src"
    files = {p.relative_to(own).as_posix() for p in (own / "carvyfl").rglob("*") if p.is_file()}
    assert files
    assert files <= packed
    for field in ("Author: ", "License-Expression: Apache-2.0", "Requires-Python: ", "Summary: "):
        assert field in metadata
