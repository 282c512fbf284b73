"""The tests of the deployment need Flower, and share helpers that lie beside them."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr")
