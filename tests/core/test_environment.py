"""Where results say they come from."""

from __future__ import annotations

import runpy
import shutil
import subprocess
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "carvyfl"
IDENTITY = ("-c", "user.name=a", "-c", "user.email=a@example.org")


def git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", folder, *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def named_commit(folder: Path) -> str:
    """What a copy of the package in this folder says its commit is."""
    copied = runpy.run_path(str(folder / "carvyfl" / "core" / "environment.py"))
    return str(copied["commit"]())


def test_the_commit_is_the_packages_own(tmp_path: Path) -> None:
    """A package that lies in somebody else's repository is not of that repository's commit."""
    shutil.copytree(SOURCE, tmp_path / "carvyfl", ignore=shutil.ignore_patterns("__pycache__"))
    git(tmp_path, "init", "--quiet")
    git(tmp_path, *IDENTITY, "commit", "--quiet", "--allow-empty", "-m", "theirs")
    assert named_commit(tmp_path) == "None"
    git(tmp_path, "add", "carvyfl/core/environment.py")
    git(tmp_path, *IDENTITY, "commit", "--quiet", "-m", "ours")
    assert named_commit(tmp_path) == git(tmp_path, "rev-parse", "--short", "HEAD")


def test_a_changed_package_is_not_its_commit(tmp_path: Path) -> None:
    """Only what git knows of the package counts: results lie in the same tree."""
    shutil.copytree(SOURCE, tmp_path / "carvyfl", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "results.md").write_text("1\n")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, *IDENTITY, "commit", "--quiet", "-m", "ours")
    clean = git(tmp_path, "rev-parse", "--short", "HEAD")
    (tmp_path / "results.md").write_text("2\n")
    (tmp_path / "carvyfl" / "notes.txt").write_text("not added\n")
    assert named_commit(tmp_path) == clean
    with (tmp_path / "carvyfl" / "voting" / "votes.py").open("a") as file:
        file.write("# changed\n")
    assert named_commit(tmp_path) == f"{clean}-dirty"
    git(tmp_path, "add", "carvyfl/voting/votes.py")
    assert named_commit(tmp_path) == f"{clean}-dirty"
