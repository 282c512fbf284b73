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
    """Not that of a repository it happens to lie in; and only what git knows of it counts."""
    shutil.copytree(SOURCE, tmp_path / "carvyfl", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "results.md").write_text("1\n")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "results.md")
    git(tmp_path, *IDENTITY, "commit", "--quiet", "-m", "theirs")
    assert named_commit(tmp_path) == "None"
    git(tmp_path, "add", "carvyfl")
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
