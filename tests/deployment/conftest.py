"""The tests of the deployment need Flower, and share helpers that lie beside them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr")
sys.path.insert(0, str(Path(__file__).parent))
