"""End to end: the seconds of Steps 1 and 2 beside those of Step 3, estimated from a few rounds."""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from dataclasses import replace
from typing import Any

import numpy as np

from carvyfl.paper.studies.experiment import Experiment, add_experiment_options, run_part
from carvyfl.pipeline import GroupingSettings, form_methods, plan_training, train
from carvyfl.profiles.methods import read_profiles
from carvyfl.profiles.one_epoch import one_epoch_updates


def options(parser: ArgumentParser) -> None:
    """Add the options of this part."""
    add_experiment_options(parser)
    parser.add_argument("--timed", type=int, default=5, help="rounds; default: %(default)s")


def run(args: Namespace) -> None:
    """Time the steps and write the seconds."""
    run_part("cost", args, measure)


def measure(experiment: Experiment, args: Namespace) -> dict[str, Any]:
    """Time Steps 1 and 2, and some rounds of Step 3, which all take about as long."""
    setup = experiment.prepared.setup
    compute = replace(experiment.compute, store=None)  # what was kept would take no time
    steps = GroupingSettings(groups=args.groups)
    marks = [time.monotonic()]
    updates = one_epoch_updates(
        setup.federation,
        setup.module,
        setup.recipe,
        setup.seed,
        method=steps.profiles,
        workers=compute.workers,
        device=compute.device,
    )
    marks.append(time.monotonic())
    profiles = read_profiles(steps.profiles, updates)
    marks.append(time.monotonic())
    grouping = form_methods(["slots"], steps, setup, profiles)["slots"]
    marks.append(time.monotonic())
    few = replace(setup, recipe=replace(setup.recipe, rounds=args.timed))
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
