"""What results are computed with: versions, hardware, and how much of it may be used."""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from carvyfl.core.version import __version__

PACKAGE = Path(__file__).parents[1]


def memory() -> int:
    """Return the bytes of memory this process may use: the machine's, or its container's."""
    size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with contextlib.suppress(OSError, ValueError):  # "max": no limit
        size = min(size, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return size


def usable_cores() -> int:
    """Return the number of cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def environment(engine: Any = None) -> dict[str, Any]:
    """Describe the machine and, where groups were trained, the engine."""
    import numpy as np
    import torch

    about: dict[str, Any] = {
        "carvyfl": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "processor": processor(),
        "cores": usable_cores(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }
    if engine is not None:
        about |= {"engine": engine.name, "precision": engine.precision}
    return about


def commit() -> str | None:
    """Return the commit of the source tree this package runs from, None outside of one.

    It ends in ``-dirty`` where a file of the package that git knows differs from it.
    """

    def git(*words: str) -> str:
        command = ["git", "-C", str(PACKAGE), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    with contextlib.suppress(OSError, subprocess.SubprocessError):
        # An installed package may lie inside a repository of somebody else's.
        git("ls-files", "--error-unmatch", str(Path(__file__).relative_to(PACKAGE)))
        changed = git("--no-optional-locks", "status", "--porcelain", "--untracked-files=no", ".")
        return git("rev-parse", "--short", "HEAD") + ("-dirty" if changed else "")
    return None


def processor() -> str:
    """Return the processor's name as it gives it itself."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
