"""The packages keep their order, and the top level stays small."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from importlinter.cli import EXIT_STATUS_SUCCESS, lint_imports

ROOT = Path(__file__).parent.parent


def test_packages_import_only_what_lies_below(capsys: pytest.CaptureFixture[str]) -> None:
    """The contracts are those of [tool.importlinter] in pyproject.toml."""
    status = lint_imports(config_filename=str(ROOT / "pyproject.toml"), no_cache=True)
    assert status == EXIT_STATUS_SUCCESS, capsys.readouterr().out


def test_few_modules_are_at_the_top_level() -> None:
    modules = {path.name for path in (ROOT / "src" / "carvyfl").glob("*.py")}
    named = {"settings.py", "pipeline.py", "estimator.py", "comparison.py", "group_count.py"}
    assert modules == {"__init__.py", *named}


def test_what_is_imported_is_declared() -> None:
    """A package that comes along with another today may not come along tomorrow."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    asked = [*project["dependencies"], *extras["flower"], *extras["ray"], *extras["private"]]
    declared = {re.split(r"[^\w-]", line)[0].lower() for line in [*asked, *extras["paper"]]}
    declared |= {"triton", "carvyfl"}  # PyTorch's CUDA builds bring it
    providers = packages_distributions()
    for path in (ROOT / "src" / "carvyfl").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Import():
                    names = [alias.name for alias in node.names]
                case ast.ImportFrom(module=str(module), level=0):
                    names = [module]
                case _:
                    continue
            for name in {name.partition(".")[0] for name in names} - sys.stdlib_module_names:
                packages = {provider.lower() for provider in providers.get(name, [name])}
                assert packages & declared, f"{path} imports {name}"
