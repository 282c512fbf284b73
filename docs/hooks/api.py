"""Put docstrings in place of the lines of the API page.

In the repository such a line names a module and what it offers; on the site mkdocstrings fills in
what their docstrings say.
"""

from __future__ import annotations

import re
from typing import Any

LINE = re.compile(r"^- `([\w.]+)`(?:: (.+))?$", re.MULTILINE)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn the lines of the API page into mkdocstrings' directives."""
    return LINE.sub(_directive, markdown) if page.file.src_uri == "reference/api.md" else markdown


def _directive(line: re.Match[str]) -> str:
    module, names = line[1], re.findall(r"`(\w+)`", line[2] or "")
    if len(names) == 1:
        return f"::: {module}.{names[0]}\n"
    members = f"\n    options:\n      members: [{', '.join(names)}]" if names else ""
    return f"::: {module}{members}\n"
