"""Certified accuracy end to end, and what attacks on Step 1 do to each grouping.

    python scripts/end_to_end.py votes --dataset fashion-mnist --samples 500 --data-dir DATA
    python scripts/end_to_end.py certified --dataset fashion-mnist --samples 500 --data-dir DATA
    python scripts/end_to_end.py attacks --dataset fashion-mnist --samples 500 --data-dir DATA
    python scripts/end_to_end.py cost --dataset fashion-mnist --samples 500 --data-dir DATA
    python scripts/end_to_end.py figure

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

*Cost*: the seconds of Steps 1 and 2 beside those of Step 3, extrapolated from a few rounds.

Trained groups are kept in --store, so that an interrupted part goes on where it stopped; a part
whose JSON exists is not run again. *Figure* draws what is there, and writes tables of the attacks.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import t as student

from carvyfl.attacks.step_one import GONE, STEP_ONE_ATTACKS, attacked
from carvyfl.certificate import certify
from carvyfl.config import RunConfig, preset, updated
from carvyfl.environment import environment
from carvyfl.errors import CarvyError
from carvyfl.federation.datasets import cache_folder
from carvyfl.files import replacing, write_text
from carvyfl.grouping import form_groups
from carvyfl.grouping.coins import coins_from_seed
from carvyfl.grouping.grouping import Grouping
from carvyfl.grouping.slots import without, without_wrapped
from carvyfl.inference import ClientTypes, infer_types
from carvyfl.randomness import derive, generator
from carvyfl.runs.execute import Setting, prepare
from carvyfl.steps import gather_models
from carvyfl.training.engines import device_of, make_engine
from carvyfl.training.job import Engine, group_job, plan
from carvyfl.training.one_epoch import one_epoch_updates
from carvyfl.training.planner import train_groups
from carvyfl.training.store import GroupStore
from carvyfl.voting import NO_VOTE, votes

Members = tuple[int, ...]
Groups = list[Members]
Ballots = npt.NDArray[np.integer[Any]]

GROUPINGS = {
    "paper": ("xmeans", "carvy", True),
    "xmeans": ("xmeans", "carvy", False),
    "anticlustering": ("bias-profile", "carvy", False),
    "slots": ("bias-profile", "slots", False),
    "wrap": ("bias-profile", "wrap", False),
    "flcert": ("bias-profile", "flcert", False),
    "balanced": ("bias-profile", "balanced", False),
}
"""What is attacked: name → types, method, Algorithm 2 word for word. The paper's is the first."""

FIXED = {"slots", "wrap", "flcert", "balanced"}
"""Groupings whose G is set beforehand; their certificates must hold under every attack."""

TYPED = {"paper", "xmeans", "anticlustering", "slots", "wrap"}
"""Groupings that read the types."""

PROMISED = {"wrap": 2}
"""How many groups a client can change, where that is not one."""


@dataclasses.dataclass
class Lab:
    """A federation, and the votes of every group that was trained on it so far."""

    config: RunConfig
    setting: Setting
    engine: Engine
    store: GroupStore
    ballots: dict[Members, Ballots] = dataclasses.field(default_factory=dict)

    def train(self, wanted: Iterable[Members]) -> None:
        """Train groups, each once, and have them vote on the test set."""
        todo = sorted({members for members in wanted if members not in self.ballots})
        if not todo:
            return
        federation, module = self.setting.federation, self.setting.module
        jobs = [
            group_job(federation, members, module, self.config.training, self.config.seed)
            for members in todo
        ]
        started = time.monotonic()
        results = train_groups(jobs, store=self.store, engine=self.engine)
        models = gather_models(federation, module, results)
        device = device_of(self.engine)
        cast = models.votes(self.setting.dataset.test.inputs, device=device).groups
        self.ballots |= dict(zip(todo, cast, strict=True))
        print(f"  {len(todo)} groups in {time.monotonic() - started:.0f} s", flush=True)

    def save(self, path: Path) -> None:
        """Keep the votes of the groups trained so far."""
        known = sorted(self.ballots)
        cast = np.stack([self.ballots[members] for members in known]).astype(np.int8)
        names = np.array([" ".join(map(str, members)) for members in known])
        with replacing(path) as file:
            np.savez_compressed(file, members=names, votes=cast)

    def load(self, path: Path) -> None:
        """Take the votes that were kept: these groups need not be trained again."""
        with np.load(path) as kept:
            for name, cast in zip(kept["members"].tolist(), kept["votes"], strict=True):
                self.ballots[tuple(map(int, name.split()))] = cast

    def cast(self, groups: Groups) -> Ballots:
        """Return what trained groups vote, shape (G, n)."""
        return np.stack([self.ballots[members] for members in groups])

    def margins(self, ballots: Ballots) -> npt.NDArray[np.int32]:
        """Return the margin of the true class on every test input."""
        test = self.setting.dataset.test
        return certify(votes(ballots, self.setting.dataset.num_classes), test.labels).margin

    def ca(self, ballots: Ballots, m: int, per_client: int = 1) -> float:
        """Return CA(m) in percent, where a client changes ``per_client`` groups."""
        return 100 * float(np.mean(self.margins(ballots) >= 2 * m * per_client))


def members(assignment: npt.NDArray[np.int64], num_groups: int) -> Groups:
    """Return each group's clients, ascending; a group may be empty."""
    return [tuple(np.flatnonzero(assignment == g).tolist()) for g in range(num_groups)]


def interval(samples: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean and Student's 95 % interval of independent samples."""
    mean = float(np.mean(samples))
    if len(samples) < 2:
        return mean, 0.0, 100.0
    half = float(
        student.ppf(0.975, len(samples) - 1) * np.std(samples, ddof=1) / np.sqrt(len(samples))
    )
    return mean, max(0.0, mean - half), min(100.0, mean + half)


def departures(types: ClientTypes, most: int, draw: int) -> dict[str, list[int]]:
    """Return, for each way to choose them, the clients to take away one after another."""
    by_type = [np.flatnonzero(types.labels == kind) for kind in range(types.num_types)]
    shuffled = [generator(draw, "departures", k).permutation(c) for k, c in enumerate(by_type)]
    longest = max(len(clients) for clients in shuffled)
    spread = [int(c[i]) for i in range(longest) for c in shuffled if i < len(c)]
    anybody = generator(draw, "departures").permutation(len(types))
    ways = {f"all of type {k}": c.tolist() for k, c in enumerate(shuffled) if len(c) >= most}
    ways |= {"spread over types": spread, "at random": anybody.tolist()}
    return {name: order[:most] for name, order in ways.items()}


Runs = dict[str, dict[str, list[list[Groups]]]]
"""Method → way to take clients away → a draw of the coins → the groups without the first m."""


@dataclasses.dataclass(frozen=True)
class Draws:
    """The groupings that E2E-CA is measured on."""

    types: ClientTypes
    runs: Runs
    blind: dict[str, list[Groups]]

    @property
    def groups(self) -> Iterable[Members]:
        """Every group of them."""
        for ways in self.runs.values():
            for drawn in ways.values():
                for nested in drawn:
                    for groups in nested:
                        yield from groups
        for found in self.blind.values():
            for groups in found:
                yield from groups


def draw_groupings(lab: Lab, num_groups: int, draws: int, most: int) -> Draws:
    """Draw random slots, all ways to take up to ``most`` clients away, and blind groupings."""
    federation, config = lab.setting.federation, lab.config
    updates = one_epoch_updates(
        federation,
        lab.setting.module,
        config.training,
        config.seed,
        method="bias-profile",
        device=device_of(lab.engine),
    )
    types = infer_types("bias-profile", updates)
    runs: Runs = {"slots": {}, "wrap": {}}
    blind: dict[str, list[Groups]] = {"flcert": [], "balanced": []}
    for i in range(draws):
        coins = coins_from_seed(derive(config.seed, "end to end", i))
        for method in runs:
            full = form_groups(
                method,
                num_clients=len(federation),
                seed=config.seed,
                types=types,
                num_groups=num_groups,
                coins=coins,
            )
            for way, order in departures(types, most, derive(config.seed, "away", i)).items():
                runs[method].setdefault(way, []).append(_nested(method, full, types, order))
        for method, found in blind.items():
            drawn = form_groups(
                method,
                num_clients=len(federation),
                seed=derive(config.seed, method, i),
                num_groups=num_groups,
            )
            found.append(members(drawn.assignment, num_groups))
    return Draws(types, runs, blind)


def certified(lab: Lab, num_groups: int, draws: int, most: int) -> dict[str, Any]:
    """Measure E2E-CA(m) of random slots for m = 0 … ``most``, and CA(m) of blind groupings."""
    drawn = draw_groupings(lab, num_groups, draws, most)
    types, runs, blind = drawn.types, drawn.runs, drawn.blind
    lab.train(drawn.groups)
    record: dict[str, Any] = {"num_groups": num_groups, "draws": draws}
    for method, ways in runs.items():
        record[method] = _worst(lab, ways, most, per_client=1 if method == "slots" else 2)
    whole = [nested[0] for nested in runs["slots"]["at random"]]
    record["slots, all behave"] = _curve(lab, whole, most, per_client=2)
    for method, found in blind.items():
        record[method] = _curve(lab, found, most, per_client=1)
    truth = lab.setting.federation.types
    record["types_exact"] = None if truth is None else types.agree_with(truth)
    return record


def cost(lab: Lab, num_groups: int, timed: int) -> dict[str, Any]:
    """Time Steps 1 and 2, and some rounds of Step 3, which all take about as long."""
    federation, config = lab.setting.federation, lab.config
    rounds = config.training.rounds
    marks = [time.monotonic()]
    updates = one_epoch_updates(
        federation,
        lab.setting.module,
        config.training,
        config.seed,
        method="bias-profile",
        device=device_of(lab.engine),
    )
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


def _nested(method: str, full: Grouping, types: ClientTypes, order: list[int]) -> list[Groups]:
    """Return the groups of runs from which the first 0, 1, … clients of an order are gone.

    By the couplings of the proof, which have the same distribution as fresh draws and leave
    most groups as they were: those need not be trained again.
    """
    assert full.coins is not None
    assignment, labels = full.assignment, types.labels.copy()
    found = [members(assignment, full.num_groups)]
    for client in order:
        draw = generator(full.coins.key, "moving up", client)
        if method == "slots":
            assignment = without(assignment, labels, [client], draw)
        else:
            assignment = without_wrapped(assignment, labels, client, full.num_groups, draw)
        labels[client] = -1
        found.append(members(assignment, full.num_groups))
    return found


def _curve(lab: Lab, drawn: list[Groups], most: int, per_client: int) -> dict[str, Any]:
    """Return the mean of CA(m) over independent draws, with its interval."""
    found = [
        interval([lab.ca(lab.cast(groups), m, per_client) for groups in drawn])
        for m in range(most + 1)
    ]
    return dict(zip(("ca", "low", "high"), map(list, zip(*found, strict=True)), strict=True))


def _worst(
    lab: Lab, ways: dict[str, list[list[Groups]]], most: int, per_client: int
) -> dict[str, Any]:
    """Return the least mean of CA(m) over the ways to take m clients away, with its interval."""
    rows, names = [], []
    for m in range(most + 1):
        found = {
            way: interval([lab.ca(lab.cast(nested[m]), m, per_client) for nested in drawn])
            for way, drawn in ways.items()
        }
        names.append(min(found, key=lambda way: found[way][0]))
        rows.append(found[names[-1]])
    curve = dict(zip(("ca", "low", "high"), map(list, zip(*rows, strict=True)), strict=True))
    return {**curve, "worst": names}


def attacks(
    lab: Lab, num_groups: int, numbers: list[int], names: list[str], kept: Path
) -> list[Any]:
    """Attack every grouping in every way, keep the votes and return a row for each."""
    federation, config = lab.setting.federation, lab.config
    updates = one_epoch_updates(
        federation,
        lab.setting.module,
        config.training,
        config.seed,
        device=device_of(lab.engine),
    )
    undisturbed = _form(updates, config, num_groups)
    nobody = np.empty(0, dtype=np.int64)
    plans = [(g, "none", nobody, *formed, formed[1]) for g, formed in undisturbed.items()]
    for name in names:
        for m in numbers:
            chosen = generator(config.seed, "malicious", m).choice(
                len(federation), m, replace=False
            )
            sent = attacked(updates, name, chosen, generator(config.seed, name, m))
            plans += [
                (g, name, chosen, *formed, undisturbed[g][1])
                for g, formed in _form(sent, config, num_groups).items()
            ]
    plans.sort(key=lambda plan: list(GROUPINGS).index(plan[0]))  # stable: attacks keep their order
    rows: list[tuple[Any, ...]] = []
    wanted: list[Members] = []
    for grouping, name, chosen, types, formed, undisturbed_groups in plans:
        if formed is None:
            rows.append((grouping, name, chosen, types, None, None, None))
            continue
        groups = members(formed.assignment, formed.num_groups)
        reference = _reference(grouping, types, formed, chosen, undisturbed_groups)
        taking_part = [_remaining(g, chosen) if name in GONE else g for g in groups]
        rows.append((grouping, name, chosen, types, groups, taking_part, reference))
        wanted += taking_part + reference
    lab.train(wanted)
    lab.save(kept)
    return [_row(lab, *row) for row in rows]


def _form(
    updates: Any, config: RunConfig, num_groups: int
) -> dict[str, tuple[ClientTypes | None, Grouping | None]]:
    """Run Steps 1 and 2 of every grouping; None for groups that an attack made impossible."""
    found: dict[str, ClientTypes] = {}
    formed: dict[str, tuple[ClientTypes | None, Grouping | None]] = {}
    for grouping, (method, name, literal) in GROUPINGS.items():
        try:
            if method not in found:
                found[method] = infer_types(method, updates, seed=config.seed)
            groups = form_groups(
                name,
                num_clients=len(updates),
                seed=config.seed,
                types=found[method],
                num_groups=num_groups if grouping in FIXED else None,
                literal=literal,
            )
            formed[grouping] = found[method], groups
        except CarvyError as error:
            print(f"  {grouping}: {error}", flush=True)
            formed[grouping] = None, None
    return formed


def _reference(
    grouping: str,
    types: ClientTypes | None,
    formed: Grouping,
    malicious: npt.NDArray[np.int64],
    undisturbed: Grouping | None,
) -> Groups:
    """Return the groups that nobody attacked: the undisturbed run's.

    For random slots, whose draw changes with the reports, those of the proof's coupling: a run
    without the malicious clients that has the right distribution.
    """
    if formed.coins is not None and types is not None:
        return _nested(grouping, formed, types, malicious.tolist())[-1]
    assert undisturbed is not None
    return members(undisturbed.assignment, undisturbed.num_groups)


def _remaining(group: Members, gone: npt.NDArray[np.int64]) -> Members:
    return tuple(client for client in group if client not in gone)


def _row(
    lab: Lab,
    grouping: str,
    attack: str,
    malicious: npt.NDArray[np.int64],
    types: ClientTypes | None,
    groups: Groups | None,
    taking_part: Groups | None,
    reference: Groups | None,
) -> dict[str, Any]:
    """Describe one grouping under one attack; "broken" where no groups could be formed."""
    m = len(malicious)
    row: dict[str, Any] = {"grouping": grouping, "attack": attack, "m": m}
    if groups is None or taking_part is None or reference is None:
        return row | {"broken": True}
    truth = lab.setting.federation.types
    if grouping in TYPED and types is not None and truth is not None:
        row["types_exact"] = honest_exact(types, truth, malicious)
    touched = np.array([bool(set(group) & set(malicious.tolist())) for group in groups])
    clean = {group for group, t in zip(groups, touched, strict=True) if not t}
    cast = lab.cast(taking_part)
    row |= {
        "num_groups": len(groups),
        "types_covered": _coverage(groups, truth, malicious),
        "groups_touched": int(touched.sum()),
        "groups_unchanged": len(clean & set(reference)),
        "accuracy": lab.ca(cast, 0),
        "ca": lab.ca(cast, m),
        "accuracy_worst": 100 * float(np.mean(lab.margins(_turned(lab, cast, touched)) >= 0)),
    }
    # What was promised: by the undisturbed run, or for random slots by one without the malicious.
    row["ca_promised"] = lab.ca(lab.cast(reference), m, PROMISED.get(grouping, 1))
    row["kept"] = row["accuracy_worst"] >= row["ca_promised"]
    assert row["kept"] or grouping not in FIXED, row
    return row


def honest_exact(
    types: ClientTypes, truth: npt.NDArray[np.int64], malicious: npt.NDArray[np.int64]
) -> bool:
    """Whether every honest client has a type, and two share one iff their true types agree."""
    found, true = np.delete(types.labels, malicious), np.delete(truth, malicious)
    pairs = set(zip(found.tolist(), true.tolist(), strict=True))
    return -1 not in found and len(pairs) == len(np.unique(found)) == len(np.unique(true))


def _coverage(
    groups: Groups, truth: npt.NDArray[np.int64] | None, malicious: npt.NDArray[np.int64]
) -> float | None:
    """Return the mean share of the true types that a group holds, honest members only."""
    if truth is None:
        return None
    shares = [len({int(truth[c]) for c in _remaining(group, malicious)}) for group in groups]
    return float(np.mean(shares)) / len(np.unique(truth))


def _turned(lab: Lab, cast: Ballots, touched: npt.NDArray[np.bool_]) -> Ballots:
    """Have every touched group vote for the strongest rival of the true class."""
    labels = lab.setting.dataset.test.labels
    num_classes = lab.setting.dataset.num_classes
    honest = cast[~touched]
    counts = np.stack([(honest == c).sum(axis=0) for c in range(num_classes)], axis=1)
    counts[np.arange(len(labels)), labels] = NO_VOTE  # below any count
    turned = cast.copy()
    turned[touched] = np.argmax(counts, axis=1)
    return turned


def figure(folder: Path) -> None:
    """Draw E2E-CA(m) of every data set that is there."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    from carvyfl.report.plots import style

    found = sorted(folder.glob("certified-*.json"))
    if not found:
        raise CarvyError(f"{folder} holds no certified-*.json; run the part 'certified' first")
    picture = Figure(figsize=(5.5 * len(found), 4.2), layout="constrained")
    for axes, path in zip(picture.subplots(1, len(found), squeeze=False)[0], found, strict=True):
        record = json.loads(path.read_text())
        for method in ("slots", "wrap", "flcert", "balanced"):
            name, colour, marker = style(method)
            curve = record[method]
            axes.plot(curve["ca"], marker=marker, color=colour, label=name, clip_on=False)
            axes.fill_between(
                range(len(curve["ca"])), curve["low"], curve["high"], color=colour, alpha=0.2
            )
        axes.set(
            title=path.stem.removeprefix("certified-"),
            xlabel="malicious clients m",
            ylabel="certified end to end, %",
            ylim=(0, 100),
        )
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.3)
    axes.legend()
    with replacing(folder / "certified.png") as file:
        picture.savefig(file, format="png", dpi=150)


def tables(folder: Path) -> None:
    """Write a table of every study of attacks that is there."""
    for path in folder.glob("attacks-*.json"):
        lines = [
            "| grouping | attack | m | G | types in a group | groups unchanged | CA(m) promised | "
            "CA(m) under attack | accuracy left | kept |",
            "|---|---|---|---|---|---|---|---|---|---|",
        ]
        for row in json.loads(path.read_text())["rows"]:
            head = f"| {row['grouping']} | {row['attack']} | {row['m']} |"
            if row.get("broken"):
                lines.append(f"{head} none | | | | | | |")
                continue
            covered = row["types_covered"]
            lines.append(
                f"{head} {row['num_groups']} | {'' if covered is None else f'{covered:.0%}'} | "
                f"{row['groups_unchanged']} | {row['ca_promised']:.1f} | {row['ca']:.1f} | "
                f"{row['accuracy_worst']:.1f} | {'yes' if row['kept'] else 'no'} |"
            )
        write_text(path.with_suffix(".md"), "\n".join(lines) + "\n")


def main() -> None:
    """Run one part and write it down."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=["votes", "certified", "attacks", "cost", "figure"])
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
    parser.add_argument("--timed", type=int, default=5, help="rounds that 'cost' times")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--store", type=Path, default=cache_folder() / "groups")
    parser.add_argument("--commit", default="unknown", help="noted in the results")
    parser.add_argument("--out", type=Path, default=Path("results/end_to_end"))
    args = parser.parse_args()
    if args.part == "figure":
        tables(args.out)
        figure(args.out)
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
    lab = Lab(config, prepare(config), engine, GroupStore(args.store))
    if args.part == "votes":
        lab.train(draw_groupings(lab, args.groups, args.draws, args.most).groups)
        lab.save(kept)
        return
    if args.part == "attacks":
        kept = args.out / f"attacks-votes-{name}.npz"
    if kept.exists():
        lab.load(kept)
    record: dict[str, Any] = {
        "commit": args.commit,
        "environment": environment(engine),
        "config": config.to_dict(),
    }
    if args.part == "certified":
        record |= certified(lab, args.groups, args.draws, args.most)
        for method in ("slots", "wrap", "slots, all behave", "flcert", "balanced"):
            print(f"{method}: {' '.join(f'{value:.1f}' for value in record[method]['ca'])}")
    elif args.part == "cost":
        record |= cost(lab, args.groups, args.timed)
        print(f"grouping takes {record['share_of_training']:.2%} of training")
    else:
        record["rows"] = attacks(lab, args.groups, args.m, args.attacks, kept)
        for row in record["rows"]:
            print(row)
    write_text(out, json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
