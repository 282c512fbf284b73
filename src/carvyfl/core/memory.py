"""How much memory there is."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def memory() -> int:
    """Return the bytes of memory this process may use: the machine's, or its container's."""
    size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with contextlib.suppress(OSError, ValueError):  # "max": no limit
        size = min(size, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return size
