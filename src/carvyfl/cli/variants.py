"""All registries: their names for help texts, and the files of a user's own that add to them."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import re
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from carvyfl.core.errors import CarvyError

if TYPE_CHECKING:
    from carvyfl.core.registry import Registry

REGISTRIES = {
    "aggregation_rules": "carvyfl.learning.scaffold.aggregation:AGGREGATION_RULES",
    "attacks": "carvyfl.attacks.registry:ATTACKS",
    "datasets": "carvyfl.data.datasets:DATASETS",
    "features": "carvyfl.learning.one_shot.features:FEATURES",
    "groupings": "carvyfl.groups.methods:GROUPINGS",
    "learners": "carvyfl.learning.learners:LEARNERS",
    "models": "carvyfl.learning.models:MODELS",
    "partitions": "carvyfl.data.partitions:PARTITIONS",
    "placements": "carvyfl.attacks.placement:PLACEMENTS",
    "profile_methods": "carvyfl.profiles.methods:PROFILE_METHODS",
    "shifts": "carvyfl.data.shifts:SHIFTS",
    "step_one_attacks": "carvyfl.attacks.step_one:STEP_ONE_ATTACKS",
}
"""What stands in braces in a help text, and where its names come from."""

PLUGINS: dict[str, Path] = {}
"""The files that were loaded, by their whole path, as the user named them."""


def with_names(text: str) -> str:
    """Fill in the names that stand in braces in a help text."""
    return re.sub(
        r"{(\w+)}", lambda match: ", ".join(pkgutil.resolve_name(REGISTRIES[match[1]])), text
    )


def _registries() -> list[Registry[Any]]:
    return [pkgutil.resolve_name(place) for place in REGISTRIES.values()]


def load_plugin(path: Path) -> None:
    """Import a Python file that registers variants, such as ``GROUPINGS.add(…)``, once.

    Its folder is put on the path, so that worker processes find it as well.
    """
    file, name = path.resolve(), path.stem
    if path.suffix != ".py" or not file.is_file():
        missing = "there is no such Python file; name one that ends in .py"
        raise CarvyError(f"--plugin {path}: {missing}")
    if not name.isidentifier():
        wrong = "Python cannot import such a name; use letters, digits and _"
        raise CarvyError(f"--plugin {path}: {wrong}")
    loaded = sys.modules.get(name)
    if loaded is not None and getattr(loaded, "__file__", None) == str(file):
        return
    spec = importlib.util.find_spec(name) if loaded is None else None
    if loaded is not None or (spec is not None and spec.origin != str(file)):
        raise CarvyError(f"--plugin {path}: there is a module '{name}' already; rename the file")
    before = sum(map(len, _registries()))
    if "joblib" in sys.modules:  # workers that run already would not find the file
        from joblib.externals.loky import get_reusable_executor

        get_reusable_executor().shutdown(wait=True)
    sys.path.insert(0, str(file.parent))
    importlib.invalidate_caches()  # the file may be younger than what Python knows of its folder
    try:
        importlib.import_module(name)
        if sum(map(len, _registries())) == before:
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
        raise CarvyError(f"--plugin {path}{line}: {kind}{' '.join(str(text).split())}") from error
    PLUGINS[str(file)] = path


def plugin_fault(error: Exception) -> CarvyError | None:
    """Say which of a plugin's variants was called, and where it failed; None if none was."""
    trace = "".join(traceback.format_exception(error))  # with those of worker processes
    frames = re.findall(r'^ *File "(.+)", line (\d+), in (.+)$', trace, re.MULTILINE)
    places = [frame for frame in frames if frame[0] in PLUGINS]
    if not places:
        return None
    file, line, _ = places[-1]
    called = Path(places[0][0]).stem, places[0][2]
    variants = [
        f"{registry.what} '{entry.name}'"
        for registry in _registries()
        for entry in registry.values()
        for part in getattr(entry, "__dict__", {}).values()
        if (getattr(part, "__module__", None), getattr(part, "__name__", None)) == called
    ]
    named = f" ({' or '.join(variants)})" if variants else ""
    reason = " ".join(f"{type(error).__name__}: {error}".split())
    return CarvyError(f"--plugin {PLUGINS[file]}, line {line}{named}: {reason}; mend the file")
