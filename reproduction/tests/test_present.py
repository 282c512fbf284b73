"""Figures and tables show the records; the folder is complete, repeatable and honest on gaps."""

from __future__ import annotations

import csv
import io
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageColor

from carvyfl.core.files import write_text
from carvyfl.plots.draw import draw, encoded
from carvyfl.plots.figure import Panel
from carvyfl.plots.style import method_style
from reproduction import exhibits, records
from reproduction.exhibits import EXHIBITS, Picture, Table, overview, shown
from reproduction.numbers import numbers
from reproduction.panels import Cloud
from reproduction.present import present
from reproduction.records import Record
from reproduction.summaries import frame
from reproduction.tests.trials import a_little_of_everything, asr_trial, ca_trial, types_trial
from reproduction.verdicts import verdicts
from support.browser import PHONES, fits_sideways, opened

ROOT = Path(__file__).parents[2]


FASHION: dict[str, Any] = {"dataset": "fashion-mnist"}
Lines = dict[str, tuple[list[float], list[float]]]


def lines_of(picture: Picture, panel: int) -> Lines:
    """Return what matplotlib really drew: by legend entry, the points."""
    axes = draw(picture.panels, picture.columns).axes[panel]
    points = {line.get_label(): (line.get_xdata(), line.get_ydata()) for line in axes.get_lines()}
    return {str(name): (list(x), list(y)) for name, (x, y) in points.items()}  # type: ignore[arg-type]


def cells_of(exhibit: Any, trials: list[Record], *more: str) -> Any:
    return exhibit(frame(trials), *more).cells


def test_certified_accuracy_draws_mean_and_spread():
    trials: list[Record] = [
        ca_trial("carvy", (90, 80, 0), seed=0, samples=100),
        ca_trial("carvy", (94, 0), seed=1, samples=100),
        ca_trial("single", (95, 0), seed=0, samples=100),
        ca_trial("carvy", (10, 0), seed=0, samples=100, groups=5),  # of the sweep: not here
        ca_trial("carvy", (20, 0), seed=0, samples=100, **FASHION),
    ]
    picture = exhibits.certified_accuracy(frame(trials), "mnist")
    figure = draw(picture.panels, picture.columns)
    titles = [axes.get_title() for axes in figure.axes]
    assert titles == [f"{samples} training samples" for samples in (50, 100, 200, 500)]
    assert lines_of(picture, 1) == {
        "CARVY-FL (n = 2)": ([0, 1, 2], [92, 40, 0]),
        "single global model (n = 1)": ([0, 1], [95, 0]),
    }
    (band,) = figure.axes[1].collections  # one trial has no spread
    edge = np.asarray(band.get_paths()[0].vertices)
    at_1 = edge[edge[:, 0] == 1][:, 1]
    # 80 and 0 have a standard deviation of 56.6: cut at 0, and 40 + 56.6 above.
    assert sorted({round(float(y), 1) for y in at_1}) == [0.0, 96.6]
    assert [text.get_text() for text in figure.axes[0].texts] == ["not run yet"]


def test_attack_success_takes_the_papers_attack_only():
    trials: list[Record] = [
        asr_trial("carvy", [0, 30]),
        asr_trial("carvy", [0, 50], seed=1),
        asr_trial("carvy", [99, 99], placement="worst"),
        asr_trial("carvy", [99, 99], attack="alie"),
        asr_trial("flcert", [98, 98], placement="dispersed"),
        asr_trial("flcert", [1, 2]),
        asr_trial("single", [0, 100], **FASHION),
    ]
    picture = exhibits.attack_success(frame(trials))
    assert lines_of(picture, 0) == {
        "CARVY-FL (n = 2)": ([0, 1], [0, 40]),
        "FLCert (n = 1)": ([0, 1], [1, 2]),
    }
    assert lines_of(picture, 1) == {"single global model (n = 1)": ([0, 1], [0, 100])}
    assert "FLCert hash" in picture.note
    assert len(picture.used) == 4


CARVY = "CARVY-FL"
SWEPT = [ca_trial("flcert", (g, 0), groups=g, num_groups=g, **FASHION) for g in (1, 20, 50)]
FAILED = [
    ca_trial("carvy", (80, 0), exact=True, seed=0, **FASHION),
    ca_trial("carvy", (60, 0), exact=False, num_groups=25, seed=1, **FASHION),
    ca_trial("carvy", (10, 0), exact=True, seed=0),  # MNIST: not here
]
AREAS = [
    ca_trial("carvy", (height, 0), groups=g, num_groups=g, seed=seed)
    for seed in (0, 1)
    for g, height in ((20, 90 + 4 * seed), (4, 50))
]
PROMISED = [asr_trial("carvy", [0, 1], accuracy=[90, 80], promised=[90, 60])]
DRAWN: list[tuple[str, tuple[str, ...], Sequence[Record], int, dict[str, list[float]]]] = [
    ("sweep", ("flcert",), SWEPT, 0, {}),
    ("sweep", ("flcert",), SWEPT, 2, {"G = 1 (n = 1)": [1, 0], "G = 20 (n = 1)": [20, 0]}),
    ("sweep", ("flcert",), SWEPT, 3, {"G = 20 (n = 1)": [20, 0], "G = 50 (n = 1)": [50, 0]}),
    (
        *("promise", (), PROMISED, 0),
        {f"{CARVY} (n = 1)": [90, 80], f"{CARVY}: CA(m) (n = 1)": [90, 60]},
    ),
    (
        *("failed_types", (), FAILED, 0),
        {f"{CARVY}, types found (n = 1)": [80, 0], f"{CARVY}, types not found (n = 1)": [60, 0]},
    ),
]


@pytest.mark.parametrize(("exhibit", "more", "trials", "panel", "curves"), DRAWN)
def test_a_panel_draws_these_curves(exhibit, more, trials, panel, curves):
    picture = getattr(exhibits, exhibit)(frame(trials), *more)
    assert lines_of(picture, panel) == {name: ([0, 1], curve) for name, curve in curves.items()}


def test_auc_over_groups_draws_the_areas():
    drawn = lines_of(exhibits.auc_over_groups(frame(AREAS)), 0)
    assert drawn == {"CARVY-FL (n = 2)": ([4, 20], [25, 46])}


def test_what_there_is_nothing_of_is_said():
    assert exhibits.sweep(frame(SWEPT), "carvy").used.empty
    assert exhibits.failed_types(frame(FAILED[:1])).note == "Type estimation failed in no trial."


def test_type_map_shows_the_first_success_and_the_first_failure():
    labels = {4: [0, 0, 0], 2: [0, 1, 1], 1: [0, 0, 1], 0: [0, 0, 1]}
    trials = [types_trial(types, [0, 0, 1], seed=seed) for seed, types in labels.items()]
    picture = exhibits.type_map(frame(trials), "mnist", 500)
    assert [panel.title for panel in picture.panels] == [
        "seed 0: 2 types found, exactly the true ones",
        "seed 2: 2 types found, not the true ones",
    ]
    assert "2 of 4 trials failed" in picture.note
    axes = draw(picture.panels, picture.columns).axes[1]
    where = {str(c.get_label()): np.asarray(c.get_offsets()).tolist() for c in axes.collections}
    assert where == {
        "found 1, true 1": [[0, 0]],
        "found 2, true 1": [[0, 1]],
        "found 2, true 2": [[1, 2]],
    }
    assert len(exhibits.type_map(frame(trials[:2]), "mnist", 500).panels) == 1


# Tables.


def test_groups_table_has_paper_ours_and_difference():
    trials = [ca_trial("carvy", (90, 80, 0), groups=20, seed=seed) for seed in (0, 1)]
    wide = exhibits.groups_auc(frame(trials), "mnist").wide()
    assert list(wide)[:4] == ["G", "CARVY-FL: paper", "CARVY-FL: ours", "CARVY-FL: difference"]
    lines = {line[0]: line for line in wide.to_numpy().tolist()}
    assert len(lines) == 18
    # (90 + 80) / 2 + 80 / 2 = 125; the paper has 852.67.
    assert lines["20"][1:4] == ["852.7", "125.0 ± 0.0 (2)", "−727.7"]
    assert lines["1"][1:4] == ["47.2", "–", "–"]


def test_asr_table_has_both_readings():
    cells = cells_of(exhibits.asr_areas, [asr_trial("carvy", [0] * 21, lost=[0] * 11 + [100] * 10)])
    ours = cells.loc["CARVY-FL", "MNIST"]
    assert (ours.paper, ours.difference) == (877, pytest.approx(2000 - 877))
    other = cells.loc["CARVY-FL, lost groups vote for the target", "MNIST"]
    assert other.ours == pytest.approx(1050)


def test_asr_details_pair_the_seeds():
    trials: list[Record] = [
        asr_trial("flcert", [50, 90], m=[6, 8], seed=0),
        asr_trial("flcert", [99, 99], m=[6, 8], seed=1),
        asr_trial("carvy", [10, 20], m=[6, 8], seed=0),
        asr_trial("flcert", [0], m=[10], hit=[9], **FASHION),
    ]
    cells = cells_of(exhibits.asr_details, trials)
    for m, reduction in ((6, 40), (8, 70)):
        cell = cells.loc[f"ASR reduction at m = {m}", "MNIST"]
        assert (cell.ours, cell.trials) == (reduction, 1)
    hit = "groups hit at m = 10, FLCert"
    assert np.isnan(cells.loc[hit, "MNIST"].ours)
    assert cells.loc[hit, "Fashion-MNIST"].difference == pytest.approx(9 - 8.7)


def test_type_failures_are_scaled_to_ten():
    trials = [types_trial([0, int(seed == 0)], [0, 1], seed=seed, **FASHION) for seed in range(4)]
    cell = cells_of(exhibits.type_failures, [*trials]).loc["500", "Fashion-MNIST"]
    assert (cell.paper, cell.difference) == (1, pytest.approx(7.5 - 1))
    failed = cells_of(exhibits.by_types, [*FAILED]).loc["groups", "CARVY-FL, types not found"]
    assert (failed.paper, failed.difference) == (25, 0)


def test_largest_sd_needs_two_trials():
    heights = enumerate([(90, 50, 0), (91, 70, 0)])
    trials: list[Record] = [
        ca_trial("carvy", curve, samples=50, seed=seed, **FASHION) for seed, curve in heights
    ]
    few, both = (
        cells_of(exhibits.largest_sd, trials[:n], "fashion-mnist").loc["50", "CARVY-FL"]
        for n in (1, 2)
    )
    assert np.isnan(few.ours)
    assert (both.paper, both.difference) == (15, pytest.approx(20 / 2**0.5 - 15))


def everything(trials: list[Record]) -> dict[str, list[Picture | Table]]:
    return {target: shown(target, frame(trials)) for target in EXHIBITS}


def all_parts(trials: list[Record]) -> list[Picture | Table]:
    return [part for parts in everything(trials).values() for part in parts]


def all_tables(trials: list[Record]) -> list[Table]:
    return [part for part in all_parts(trials) if isinstance(part, Table)]


@pytest.mark.slow
def test_both_forms_of_a_table_say_the_same():
    for table in all_tables(a_little_of_everything()):
        lines = table.markdown().splitlines()
        grid = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
        assert len({len(line) for line in grid}) == 1
        wide = {
            (line[0], name): text
            for line in grid[2:]
            for name, text in zip(grid[0][1:], line[1:], strict=True)
        }
        long = list(csv.DictReader(io.StringIO(table.csv())))
        assert len(long) == len(table.cells)
        for line in long:
            row, column = line[table.corner], line["column"]
            ours = wide[row, f"{column}: {table.parts[1]}"]
            if not line[table.parts[1]]:
                assert ours == "–"
                continue
            mean = float(ours.split()[0].replace("−", "-"))
            assert mean == pytest.approx(float(line[table.parts[1]]), abs=0.1**table.digits)
            assert ours.endswith(f"({line['trials']})")


# The folder.


def listed(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix != ".lock"
    }


def written(place: Path, preset: str, trials: list[Record]) -> Path:
    records.add(place / f"{preset}.jsonl", trials)
    present(place)
    return place


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return written(tmp_path_factory.mktemp("results"), "paper", a_little_of_everything())


@pytest.mark.slow
def test_folder_is_complete(folder):
    files = listed(folder)
    for target, parts in everything(a_little_of_everything()).items():
        assert {type(part) for part in parts} == {Picture, Table}
        for part in parts:
            if isinstance(part, Table):
                assert f"reproduction/tables/{part.name}-paper.csv" in files
            else:
                stem = f"reproduction/figures/{part.name}-paper"
                assert files[f"{stem}.svg"].startswith(b"<?xml")
                assert files[f"{stem}.png"].startswith(b"\x89PNG")
        text = files[f"reproduction/{target}.md"].decode()
        assert text.count("not run yet") == 1  # the default preset
        for address in re.findall(r"!\[[^]]*\]\(([^)]+)\)", text):
            assert address in files
        # Every picture and table names what computed it.
        assert text.count("commit abc1234; one core, torch 2.13") == len(parts)
    assert "paper.json" in files
    assert "default.json" not in files


@pytest.mark.slow
def test_the_same_records_give_the_same_bytes_in_another_process(tmp_path):
    few: list[Record] = [
        *(ca_trial("carvy", (90, 50 + seed, 0), seed=seed, preset="default") for seed in (0, 1)),
        types_trial([0, 1], [0, 1], preset="default"),
    ]
    here = written(tmp_path / "here", "default", few)
    there = tmp_path / "there"
    there.mkdir()
    shutil.copy(here / "default.jsonl", there)
    subprocess.run([sys.executable, "-m", "reproduction.studies", "draw", there], check=True)
    assert listed(there) == listed(here)
    assert "reproduction/figures/ca-mnist-default.svg" in listed(here)


class Texts(HTMLParser):
    """Collects a page's headings, table cells and what would be fetched from elsewhere."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tag = ""
        self.headings: list[str] = []
        self.cells: set[str] = set()
        self.fetched: list[str] = []
        self.images = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tag = tag
        self.images += tag == "img"
        self.fetched += [v for k, v in attrs if k == "src" and v and not v.startswith("data:")]

    def handle_data(self, data: str) -> None:
        if re.fullmatch("h[1-3]", self.tag):
            self.headings.append(data.strip())
        elif self.tag in ("td", "th"):
            self.cells.add(data.strip())


@pytest.mark.slow
def test_report_holds_every_section_and_number(folder):
    page = Texts((folder / "reproduction/report.html").read_text(encoding="utf-8"))
    for title, _ in EXHIBITS.values():
        assert title in page.headings
    assert page.headings.count("Preset paper") == len(EXHIBITS) + 1
    assert page.headings.count("Preset default") == len(EXHIBITS) + 1
    assert not page.fetched
    parts = all_parts(a_little_of_everything())
    pictures = [part for part in parts if isinstance(part, Picture)]
    maps = sum(isinstance(picture.panels[0], Cloud) for picture in pictures)
    charts = [p for picture in pictures for p in picture.panels if isinstance(p, Panel)]
    assert page.images == maps + sum(bool(panel.curves) for panel in charts)
    assert maps > 0
    for table in all_tables(a_little_of_everything()):
        assert set(table.wide().to_numpy().flatten()) <= page.cells, table.name
    for verdict in verdicts(frame(a_little_of_everything())):
        assert {verdict.claim, verdict.ours, verdict.why} <= page.cells


def test_nothing_run_yet(tmp_path):
    report = present(tmp_path).read_text(encoding="utf-8")
    for target in EXHIBITS:
        for preset in ("paper", "default"):
            missing = f"not run yet: python -m reproduction {target} --preset {preset}"
            assert missing in (tmp_path / f"reproduction/{target}.md").read_text()
            assert missing in report
    assert not (tmp_path / "reproduction/figures").exists()
    assert not (tmp_path / "paper.json").exists()


def test_smaller_trials_are_shown_but_not_set_beside_the_papers():
    small: list[Record] = [
        ca_trial("carvy", (90, 0), groups=20, samples=50),
        asr_trial("carvy", [0] * 21, samples=50),
        ca_trial("carvy", (70, 0), samples=50, dataset="fashion-mnist", exact=True),
    ]
    assert lines_of(exhibits.attack_success(frame(small)), 0) == {
        "CARVY-FL (n = 1)": (list(range(21)), [0] * 21)
    }
    for table in (exhibits.groups_auc(frame(small), "mnist"), exhibits.asr_areas(frame(small))):
        assert "50 samples a client; the paper's numbers are for 500" in table.note
        assert table.cells["paper"].isna().all()
        assert table.cells["ours"].notna().sum() in (1, 2)
    title = exhibits.failed_types(frame(small)).panels[0].title
    assert title == "Fashion-MNIST, 50 training samples"
    judged = {v.verdict for v in verdicts(frame(small)) if "never below" not in v.claim}
    assert judged == {"no data"}
    ours = numbers(frame(small), "paper")
    assert set(ours["ca_auc_by_groups"]["mnist"]["carvy"]) == {None}
    assert ours["asr_auc"]["mnist"]["carvy"] is None
    nothing = {"paper": frame([]), "default": frame([])}
    assert overview(nothing | {"paper": frame(small)}) == overview(nothing)
    # With one trial of the paper's size, the smaller ones step back.
    whole = [*small, ca_trial("carvy", (80, 0), groups=20)]
    assert lines_of(exhibits.auc_over_groups(frame(whole)), 0) == {"CARVY-FL (n = 1)": ([20], [40])}


def test_overview_puts_the_presets_side_by_side():
    lines = overview(
        {
            "paper": frame([ca_trial("carvy", (90, 80, 0)), asr_trial("flcert", [0] * 21)]),
            "default": frame(ca_trial("carvy", (92, 84, 0), seed=s) for s in (0, 1)),
        }
    )
    table = {title: numbers for title, *numbers in lines}
    assert len(table) == 12
    # (90 + 80) / 2 + 80 / 2 and (92 + 84) / 2 + 84 / 2.
    assert table["MNIST, CA: CARVY-FL"] == ["852.7", "125.0 (1)", "130.0 ± 0.0 (2)"]
    assert table["MNIST, 100 − ASR: FLCert"] == ["789.4", "2000.0 (1)", "–"]
    assert table["Fashion-MNIST, 100 − ASR: CARVY-FL"] == ["844.6", "–", "–"]


@pytest.mark.slow
@settings(max_examples=6)
@given(st.integers(0, 10**6), st.integers(1, 6))
def test_any_part_of_the_records_can_be_shown(seed: int, size: int):
    part = random.Random(seed).sample(a_little_of_everything(), size)
    numbers(frame(part), "paper")
    verdicts(frame(part))
    for one in all_parts(part):
        assert one.caption
        if isinstance(one, Table):
            assert len(one.wide())
            assert one.markdown()
        else:
            assert any(isinstance(p, Cloud) or p.curves for p in one.panels)


@pytest.mark.slow
def test_every_curve_keeps_its_colour():
    """A thin short curve is a small part of a picture: its colour must not be averaged away."""
    picture = exhibits.certified_accuracy(frame(a_little_of_everything()), "mnist")
    with Image.open(io.BytesIO(encoded(draw(picture.panels, picture.columns), "png"))) as image:
        colours = {colour for _, colour in image.convert("RGB").getcolors(1 << 20) or []}
    for method in ("carvy", "flcert", "cluster", "single"):
        assert ImageColor.getrgb(method_style(method).colour) in colours, method
    assert (255, 255, 255) in colours


@pytest.mark.parametrize("width", PHONES)
def test_a_phone_needs_no_scrolling_sideways(browser, folder, width):
    with opened(browser, folder / "reproduction" / "report.html", width=width) as page:
        page.locator("details").evaluate_all("all => all.forEach(d => { d.open = true; })")
        assert fits_sideways(page)


@pytest.mark.slow
@pytest.mark.parametrize("trial", a_little_of_everything()[::13], ids=lambda r: "-".join(r.key()))
def test_a_single_trial_can_be_drawn(trial):
    for picture in all_parts([trial]):
        if isinstance(picture, Picture):
            with Image.open(
                io.BytesIO(encoded(draw(picture.panels, picture.columns), "png"))
            ) as image:
                assert len(image.convert("RGB").getcolors(1 << 20) or []) > 2


def test_panels_stay_readable_with_many_curves():
    trials = [
        ca_trial("carvy", (g, 0), groups=g, num_groups=g) for g in (1, 2, 4, 5, 8, 10, 11, 12, 20)
    ]
    panel = exhibits.sweep(frame(trials), "carvy").panels[0]
    assert isinstance(panel, Panel)
    looks = {(c.style.colour, c.style.marker) for c in panel.curves if c.style}
    assert len(looks) == len(trials)


def no_pictures(drawing: None, *paths: Path) -> None:
    """Write empty files in place of a drawing."""
    for path in paths:
        write_text(path, "")


@pytest.mark.slow
def test_committed_pages_are_what_the_committed_records_give(tmp_path, monkeypatch):
    # Pictures differ between versions of matplotlib; numbers and words do not. None is drawn.
    monkeypatch.setattr("reproduction.present.draw", lambda panels, columns: None)
    monkeypatch.setattr("reproduction.present.encoded", lambda drawing, kind: b"")
    monkeypatch.setattr("reproduction.present.save", no_pictures)
    committed = ROOT / "results"
    for path in [*committed.glob("paper.jsonl"), *committed.glob("default.jsonl")]:
        shutil.copy(path, tmp_path)
    present(tmp_path)
    made = listed(tmp_path)
    there = {
        name: data
        for name, data in listed(committed).items()
        if name.startswith("reproduction/") or re.fullmatch(r"(paper|default)\.jsonl?", name)
    }
    assert made.keys() == there.keys(), "run: python -m reproduction.studies draw"
    for name in made:
        if name.endswith((".md", ".csv", ".json")):
            assert made[name] == there[name], f"{name}: run: python -m reproduction.studies draw"
