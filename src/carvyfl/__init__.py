"""CARVY-FL: federated learning that stays provably right when some clients are malicious.

The short face is :class:`CarvyFL`; every step is also a plain function in the
sub-package named after it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from carvyfl.core.errors import CarvyError
    from carvyfl.data.clients import Client, Federation, Samples
    from carvyfl.estimator import CarvyFL
    from carvyfl.learning.recipe import Recipe
    from carvyfl.voting.certificate import Certificate, certify

_HOMES = {
    "CarvyError": "carvyfl.core.errors",
    "CarvyFL": "carvyfl.estimator",
    "Certificate": "carvyfl.voting.certificate",
    "Client": "carvyfl.data.clients",
    "Federation": "carvyfl.data.clients",
    "Recipe": "carvyfl.learning.recipe",
    "Samples": "carvyfl.data.clients",
    "certify": "carvyfl.voting.certificate",
}

__all__ = [
    "CarvyError",
    "CarvyFL",
    "Certificate",
    "Client",
    "Federation",
    "Recipe",
    "Samples",
    "certify",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that ``carvy --help`` need not load torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'carvyfl' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOMES[name]), name)
