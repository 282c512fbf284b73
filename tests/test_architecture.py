"""The packages keep their order, and the top level stays small."""

from __future__ import annotations

from pathlib import Path

import pytest
from importlinter.cli import EXIT_STATUS_SUCCESS, lint_imports

ROOT = Path(__file__).parent.parent


def test_packages_import_only_what_lies_below(capsys: pytest.CaptureFixture[str]) -> None:
    """The contracts are those of [tool.importlinter] in pyproject.toml."""
    found = lint_imports(config_filename=str(ROOT / "pyproject.toml"), no_cache=True)
    assert found == EXIT_STATUS_SUCCESS, capsys.readouterr().out


def test_the_top_level_holds_the_pipeline_and_the_estimator_alone() -> None:
    modules = {path.name for path in (ROOT / "src" / "carvyfl").glob("*.py")}
    assert modules == {"__init__.py", "pipeline.py", "estimator.py"}
