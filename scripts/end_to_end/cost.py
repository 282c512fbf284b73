"""What Steps 1 and 2 cost beside Step 3."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import numpy as np
from lab import Lab

from carvyfl.groups.coins import coins_from_seed
from carvyfl.groups.methods import form_groups
from carvyfl.learning.job import plan
from carvyfl.learning.planner import train_groups
from carvyfl.profiles.methods import infer_types


def cost(lab: Lab, num_groups: int, timed: int) -> dict[str, Any]:
    """Time Steps 1 and 2, and some rounds of Step 3, which all take about as long."""
    federation, config = lab.setting.federation, lab.config
    rounds = config.training.rounds
    marks = [time.monotonic()]
    updates = lab.updates("bias-profile")
    marks.append(time.monotonic())
    types = infer_types("bias-profile", updates)
    marks.append(time.monotonic())
    grouping = form_groups(
        "slots",
        num_clients=len(federation),
        seed=config.seed,
        types=types,
        num_groups=num_groups,
        coins=coins_from_seed(config.seed),
    )
    marks.append(time.monotonic())
    recipe = dataclasses.replace(config.training, rounds=timed)
    train_groups(
        plan(federation, grouping, lab.setting.module, recipe, config.seed), engine=lab.engine
    )
    marks.append(time.monotonic())
    epoch, inference, forming, training = np.diff(marks).tolist()
    whole = training * rounds / timed
    return {
        "one_epoch_seconds": epoch,
        "inference_seconds": inference,
        "grouping_seconds": forming,
        "rounds_timed": timed,
        "seconds_per_round": training / timed,
        "rounds": rounds,
        "share_of_training": (epoch + inference + forming) / whole,
    }
