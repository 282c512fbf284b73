"""The ways in which a group learns, by name."""

from __future__ import annotations

LEARNERS = {
    "scaffold": "in rounds: every client trains, the server averages (Algorithms 3 and 4)",
    "one-shot": "one message per client, and a head on fixed features in closed form",
}
"""What Step 3 can be."""

RIDGE = 0.05
"""λ by default, chosen on federations that are not reported (docs/results/one-shot.md)."""

UNSCALED = 0.0, 1.0
"""The mean and std of one-shot learning: a feature map sees inputs as they are stored."""

OWN_TYPES = "class-means"
"""What Step 1 learns of clients unless said otherwise."""
