"""Show the roles in docstrings, such as :func:`carvyfl.voting.certificate.certify`, as plain code.

Docstrings use Sphinx's roles because editors understand them; mkdocstrings leaves
the role's name standing in the page.
"""

from __future__ import annotations

import re
from typing import Any

ROLE = re.compile(r":(?:func|class|meth|mod|data|attr):<code>(~?)([\w.]+)</code>")


def on_page_content(html: str, **_: Any) -> str:
    """Drop the role, and with a leading ~ all but the last part of the name."""
    return ROLE.sub(
        lambda role: f"<code>{role[2].rpartition('.')[2] if role[1] else role[2]}</code>", html
    )
