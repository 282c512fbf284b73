"""The paper's own numbers, as printed."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any, Final


@functools.cache
def paper() -> dict[str, Any]:
    """Return the numbers printed in the paper's tables and text."""
    file = Path(__file__).with_name("paper_numbers.json")
    numbers: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return numbers


def group_counts() -> list[int]:
    """Return the 18 values of G of the paper's sweep."""
    return [int(g) for g in paper()["ca_auc_by_groups"]["groups"]]


DATASETS: Final = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST"}
"""The data sets' names in print."""
SAMPLES: Final = (50, 100, 200, 500)
"""Training samples per client."""
SWEEP_SAMPLES: Final = 500
"""Attacks and the sweep over G use the largest size."""
BEST_GROUPS: Final = 20
"""The paper's own G: of the methods that do not find one, and the best of its sweep."""
METHODS: Final = ("carvy", "flcert", "cluster")
"""The methods of the paper's tables."""
LEVELS: Final = tuple(map(int, paper()["ca_mnist_50"]["largest_m_with_ca_over"]))
"""The paper gives the largest m at which CA is over these percentages."""
PRESETS: Final = ("paper", "default")
"""The paper's own settings, and ours."""
