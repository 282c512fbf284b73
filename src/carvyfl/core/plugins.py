"""A user's own file that registers variants, loaded by the command line."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from carvyfl.core.errors import CarvyError


def load_plugin(path: Path, count: Callable[[], int]) -> None:
    """Import a Python file that registers variants, such as ``GROUPINGS.add(…)``.

    It is imported under its own name, with its folder on the path, so that worker processes find
    it as well. A file that was loaded before is not loaded again. ``count`` counts all registered
    variants: a file that adds none is refused.
    """
    file, name = path.resolve(), path.stem
    if path.suffix != ".py" or not file.is_file():
        raise CarvyError(
            f"--plugin {path}: there is no such Python file; name one that ends in .py"
        )
    if not name.isidentifier():
        raise CarvyError(
            f"--plugin {path}: Python cannot import such a name; use letters, digits and _"
        )
    loaded = sys.modules.get(name)
    if loaded is not None and getattr(loaded, "__file__", None) == str(file):
        return
    spec = importlib.util.find_spec(name) if loaded is None else None
    if loaded is not None or (spec is not None and spec.origin != str(file)):
        raise CarvyError(f"--plugin {path}: there is a module '{name}' already; rename the file")
    before = count()
    if "joblib" in sys.modules:  # workers that run already would not find the file
        from joblib.externals.loky import get_reusable_executor

        get_reusable_executor().shutdown(wait=True)
    sys.path.insert(0, str(file.parent))
    importlib.invalidate_caches()  # the file may be younger than what Python knows of its folder
    try:
        importlib.import_module(name)
        if count() == before:
            raise CarvyError(
                "the file registers nothing; call GROUPINGS.add(…), ATTACKS.add(…) or the like in "
                "it (docs/howto/extend.md)"
            )
    except Exception as error:  # somebody else's code may fail in any way
        sys.modules.pop(name, None)
        sys.path.remove(str(file.parent))
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == str(file)]
        text: object = error
        if isinstance(error, SyntaxError):
            lines, text = [error.lineno], error.msg
        line = f", line {lines[-1]}" if lines else ""
        kind = "" if isinstance(error, CarvyError) else f"{type(error).__name__}: "
        reason = " ".join(str(text).split())
        raise CarvyError(f"--plugin {path}{line}: {kind}{reason}") from error
