"""End to end: the seconds of Steps 1 and 2 beside those of Step 3, estimated from a few rounds."""

from __future__ import annotations

import time
from argparse import Namespace
from dataclasses import replace
from typing import Any

import numpy as np

from carvyfl.paper.experiment import TYPES, Experiment
from carvyfl.pipeline import GroupingSettings, form_methods, plan_training, train
from carvyfl.profiles.methods import read_profiles


def measure(experiment: Experiment, args: Namespace) -> dict[str, Any]:
    """Time Steps 1 and 2, and some rounds of Step 3, which all take about as long."""
    setup, steps = experiment.setup, GroupingSettings(TYPES, groups=args.groups)
    few = replace(setup, recipe=replace(setup.recipe, rounds=args.timed))
    compute = replace(experiment.compute, store=None)  # what was kept would take no time
    marks = [time.monotonic()]
    updates = experiment.one_epoch(steps.profiles)
    marks.append(time.monotonic())
    profiles = read_profiles(steps.profiles, updates)
    marks.append(time.monotonic())
    grouping = form_methods(["slots"], steps, setup, profiles)["slots"]
    marks.append(time.monotonic())
    train({"slots": plan_training(few, grouping)}, compute)
    marks.append(time.monotonic())
    epoch, inference, forming, training = np.diff(marks).tolist()
    share = (epoch + inference + forming) / (training * setup.recipe.rounds / args.timed)
    print(f"grouping takes {share:.2%} of training")
    return {
        "one_epoch_seconds": epoch,
        "inference_seconds": inference,
        "grouping_seconds": forming,
        "rounds_timed": args.timed,
        "seconds_per_round": training / args.timed,
        "rounds": setup.recipe.rounds,
        "share_of_training": share,
    }
