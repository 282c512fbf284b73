"""Certified accuracy end to end, and what attacks on Step 1 do to each grouping.

    python scripts/end_to_end votes --dataset fashion-mnist --samples 500 --data-dir DATA
    python scripts/end_to_end certified --dataset fashion-mnist --samples 500 --data-dir DATA
    python scripts/end_to_end attacks --dataset fashion-mnist --samples 500 --data-dir DATA
    python scripts/end_to_end cost --dataset fashion-mnist --samples 500 --data-dir DATA
    python scripts/end_to_end captured --dataset fashion-mnist --samples 500 --data-dir DATA
    python scripts/end_to_end present

*Votes* trains the groups that *certified* is computed from, where a GPU is, and keeps their votes.

*Certified*: E2E-CA(m), the expected certified accuracy, over the coins, of runs from which m
clients were taken away, for the worst way to choose them (all of one type, spread over the
types, at random). By the theorem no attack by m clients brings the expected accuracy below it.
Beside it CA(m) of FLCert and balanced random groups.

*Attacks*: every attack on Step 1 against every grouping: G, the share of the true types that a
group holds, whether the honest clients' types are exact, groups that are as if nobody had
attacked, CA(m) as the undisturbed and the attacked run state it, and the accuracy that is left
when every group with a malicious member votes against the truth. A certificate that covers Step 1
is never above that accuracy; others may be.

*Captured*: the attack success rate if every group with a malicious member, in training and
not in Step 1, answered the target: the most an attack by these clients could reach.

*Cost*: the seconds of Steps 1 and 2 beside those of Step 3, extrapolated from a few rounds.

Trained groups are kept in --store, so that an interrupted part goes on where it stopped; a part
whose JSON exists is not run again. *Present* draws and tabulates what is there.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from captured import captured
from certified import certified, draw_groupings
from cost import cost
from draw import present
from lab import Lab

from attacks import attacks
from carvyfl.attacks.step_one import STEP_ONE_ATTACKS
from carvyfl.core.environment import environment
from carvyfl.core.errors import CarvyError
from carvyfl.core.files import write_text
from carvyfl.data.datasets import cache_folder
from carvyfl.learning.engines import make_engine
from carvyfl.learning.store import GroupStore
from carvyfl.runs.config import preset, updated
from carvyfl.runs.execute import prepare


def main() -> None:
    """Run one part and write it down."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "part", choices=["votes", "certified", "attacks", "captured", "cost", "present"]
    )
    parser.add_argument("--dataset", default="embedded")
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--data-dir")
    parser.add_argument("--preset", default="default")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--groups", type=int, default=20)
    parser.add_argument("--rounds", type=int, help="default: the preset's")
    parser.add_argument("--draws", type=int, default=5, help="coins, and blind groupings")
    parser.add_argument("--most", type=int, default=10, help="the largest m of 'certified'")
    parser.add_argument("--m", type=int, nargs="+", default=[1, 5], help="for 'attacks'")
    parser.add_argument("--attacks", nargs="+", default=list(STEP_ONE_ATTACKS))
    parser.add_argument("--inputs", type=int, help="judge on the first test inputs only")
    parser.add_argument("--timed", type=int, default=5, help="rounds that 'cost' times")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--store", type=Path, default=cache_folder() / "groups")
    parser.add_argument("--commit", default="unknown", help="noted in the results")
    parser.add_argument("--out", type=Path, default=Path("results/end_to_end"))
    args = parser.parse_args()
    if args.part == "present":
        present(args.out)
        return
    name = f"{args.dataset}-{args.samples}"
    kept = args.out / f"votes-{name}.npz"
    out = kept if args.part == "votes" else args.out / f"{args.part}-{name}.json"
    if out.exists():
        print(f"{out} is there already; delete it to run this part again")
        return
    settings: dict[str, Any] = {"samples": args.samples, "clients": args.clients, "seed": args.seed}
    if args.data_dir:
        settings["data_dir"] = args.data_dir
    if args.rounds:
        settings["training"] = {"rounds": args.rounds}
    config = updated(preset(args.preset, args.dataset), settings)
    engine = make_engine(args.engine)
    setting = prepare(config)
    if args.inputs:
        test = setting.dataset.test.take(range(args.inputs))
        setting = replace(setting, dataset=replace(setting.dataset, test=test))
    lab = Lab(config, setting, engine, GroupStore(args.store))
    record: dict[str, Any] = {
        "commit": args.commit,
        "environment": environment(engine),
        "config": config.to_dict(),
        "test_inputs": len(setting.dataset.test),
    }
    if args.part == "votes":
        lab.train(draw_groupings(lab, args.groups, args.draws, args.most).groups)
        lab.save(kept, record)
        return
    if args.part in {"certified", "captured"} and kept.exists():
        record["votes"] = lab.load(kept)
    if args.part == "certified":
        record |= certified(lab, args.groups, args.draws, args.most)
        for method, curve in record.items():
            if isinstance(curve, dict) and "ca" in curve:
                print(f"{method}: {' '.join(f'{value:.1f}' for value in curve['ca'])}")
    elif args.part == "captured":
        record |= captured(lab, args.groups, args.draws)
        for method in ("slots", "flcert"):
            print(f"{method}: area of 100 − ASR {record[method]['auc']}")
    elif args.part == "cost":
        record |= cost(lab, args.groups, args.timed)
        print(f"grouping takes {record['share_of_training']:.2%} of training")
    else:
        record["rows"] = attacks(lab, args.groups, args.m, args.attacks)
        for row in record["rows"]:
            print(row)
    write_text(out, json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    try:
        main()
    except CarvyError as error:
        print(f"end_to_end: {error}", file=sys.stderr)
        sys.exit(2)
