"""The wheel holds everything that the package needs."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
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
    root = source / "src"
    files = {p.relative_to(root).as_posix() for p in (root / "carvyfl").rglob("*") if p.is_file()}
    assert files
    assert files <= packed
    for field in ("Author: ", "License-Expression: Apache-2.0", "Requires-Python: ", "Summary: "):
        assert field in metadata


def pinned(name: str) -> dict[str, str]:
    """Return the versions of a file of requirements, by the normal form of a package's name."""
    pins = re.findall(r"^([\w.-]+)==([^\s;]+)", (ROOT / name).read_text(), re.M)
    return {re.sub(r"[-_.]+", "-", package).lower(): version for package, version in pins}


def test_the_lock_file_holds_the_tested_versions_of_all_that_is_needed() -> None:
    locked, tested = pinned("requirements.lock"), pinned("constraints.txt")
    assert all(tested[name] == locked[name] for name in locked.keys() & tested.keys())
    about = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = about["optional-dependencies"]
    needed = [*about["dependencies"], *extras["flower"], *extras["ray"]]
    for requirement in [*needed, *extras["paper"]]:
        assert re.split(r"[\[<>=!~]", requirement)[0].lower() in locked
    # Every package has its hashes.
    entries = (ROOT / "requirements.lock").read_text()
    for entry in re.split(r"\n(?=\w)", entries.partition("-o requirements.lock\n")[2].strip()):
        assert "--hash=sha256:" in entry, entry
