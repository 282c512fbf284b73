"""CARVY-FL: federated learning that stays provably right when some clients are malicious.

:class:`CarvyFL` is the high-level API. Every step is also a plain function, in the package named
after it; :mod:`carvyfl.pipeline` puts the steps in a row.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from carvyfl.core.version import __version__ as __version__

if TYPE_CHECKING:
    from carvyfl.comparison import compare
    from carvyfl.core.errors import CarvyError
    from carvyfl.data.clients import Client, Federation
    from carvyfl.data.datasets import load
    from carvyfl.data.partitions import build_federation
    from carvyfl.estimator import CarvyFL
    from carvyfl.learning.recipe import Recipe
    from carvyfl.plots.pictures import plot
    from carvyfl.voting.certificate import Certificate, certify

_HOMES = {
    "CarvyError": "carvyfl.core.errors",
    "CarvyFL": "carvyfl.estimator",
    "Certificate": "carvyfl.voting.certificate",
    "Client": "carvyfl.data.clients",
    "Federation": "carvyfl.data.clients",
    "Recipe": "carvyfl.learning.recipe",
    "build_federation": "carvyfl.data.partitions",
    "certify": "carvyfl.voting.certificate",
    "compare": "carvyfl.comparison",
    "load": "carvyfl.data.datasets",
    "plot": "carvyfl.plots.pictures",
}

__all__ = ["CarvyError", "CarvyFL", "Certificate", "Client", "Federation", "Recipe"]
__all__ += ["build_federation", "certify", "compare", "load", "plot"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that ``carvy --help`` need not load torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'carvyfl' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOMES[name]), name)
