"""`carvy report`, in a real browser: every section is there, and its numbers are the run's."""

from __future__ import annotations

import base64
import dataclasses
import html
import io
import json
import re
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image
from playwright.sync_api import Browser, Locator, Page

from carvyfl.core.schema import plain
from carvyfl.data.datasets import load
from carvyfl.groups.basis import READINGS
from carvyfl.plots.style import method_style
from carvyfl.report.certificates import _headline
from carvyfl.report.clients import letter
from carvyfl.report.finished_run import read_runs
from carvyfl.runs.folder import RunFolder
from carvyfl.runs.record import AttackResult, sealed
from carvyfl.voting.certificate import certify
from carvyfl.voting.votes import votes
from support.browser import PHONES, WellFormed, fits_sideways, opened
from support.cli import QUICK, assert_refused, carvy, naive_ca
from support.records import attack_result
from support.sealing import reseal

METHODS = ("carvy", "flcert", "cluster", "balanced", "single")
RUN = ("run", *QUICK, "--clients", "20", "--rounds", "2")
SECTIONS = [
    "Summary",
    "Three readings",
    "Certified accuracy",
    "Certified against whole runs",
    "Attacks",
    "How many groups",
    "Client map",
    "Vote margins",
    "Certified accuracy by class",
    "Smallest and largest margins",
    "Training",
    "What the certificate assumes",
    "Configuration",
    "Provenance",
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    flags = ("--methods", ",".join(METHODS), "--out", folder / "all", "--store", folder / "store")
    answer = carvy(*RUN, *flags)
    assert answer.code == 0, answer.err
    return folder / "all"


@pytest.fixture(scope="module")
def report(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("report") / "all.html", run)


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Path:
    return shutil.copytree(run, tmp_path / "copy")


def written(out: Path, *runs: Path) -> Path:
    """Write a report and check what holds for every one."""
    answer = carvy("report", *runs, "--out", out)
    assert answer.code == 0, answer.err
    assert answer.out == f"Wrote {out}\n"
    WellFormed(out.read_text(encoding="utf-8"))
    return out


def record_of(run: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((run / "run.json").read_text())
    return record


def change(run: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    reseal(run, edit)


def votes_of(run: Path, method: str) -> tuple[npt.NDArray[Any], npt.NDArray[Any], int]:
    with np.load(run / "votes" / f"{method}.npz", allow_pickle=False) as file:
        return file["votes"], file["labels"], int(file["num_classes"])


def naive_margins(run: Path, method: str) -> list[int]:
    """Eqs. 6 and 7 input by input, rival by rival."""
    votes, labels, classes = votes_of(run, method)
    margins = []
    for own, label in zip(votes.T.tolist(), labels.tolist(), strict=True):
        count = [own.count(c) for c in range(classes)]
        rivals = [c for c in range(classes) if c != label]
        margins.append(min(count[label] - count[c] - (1 if c < label else 0) for c in rivals))
    return margins


def section(page: Page, title: str) -> Locator:
    heading = page.locator("h2, h3").get_by_text(title, exact=True)
    return page.locator("section").filter(has=heading).last


def cells(table: Locator) -> list[list[str]]:
    """The texts of a table's body, folded away or not."""
    found: list[list[str]] = table.evaluate(
        "table => [...table.tBodies[0].rows].map(r => [...r.cells].map(c => c.textContent))"
    )
    return found


def title(method: str) -> str:
    return method_style(method).label


def hover_at(chart: Locator, number: str) -> list[str]:
    """Point above a number of the chart's x axis; return the lines that appear."""
    place = chart.locator(".plot .x text").get_by_text(number, exact=True).bounding_box()
    plot = chart.locator(".plot").bounding_box()
    assert place
    assert plot
    middle = place["x"] + place["width"] / 2 - plot["x"]
    chart.locator(".plot").hover(position={"x": middle, "y": plot["height"] / 2})
    return chart.locator(".tip span").all_text_contents()


# --- the whole page -----------------------------------------------------------------------------


def test_every_section_is_there_and_reached_from_the_contents(
    browser: Browser, report: Path
) -> None:
    with opened(browser, report) as page:
        assert page.locator("h2").all_text_contents() == SECTIONS
        assert page.locator("nav a").all_text_contents() == SECTIONS
        for name in SECTIONS:
            page.locator("nav a").get_by_text(name, exact=True).click()
            assert (
                page.evaluate("document.querySelector(location.hash + ' h2').textContent") == name
            )
            assert section(page, name).bounding_box()


@pytest.mark.parametrize("width", PHONES)
def test_a_phone_needs_no_scrolling_sideways(browser: Browser, report: Path, width: int) -> None:
    with opened(browser, report, width=width) as page:
        assert fits_sideways(page)
        page.locator("details").evaluate_all("all => all.forEach(d => { d.open = true; })")
        assert fits_sideways(page)
        size = "parseFloat(getComputedStyle(t).fontSize) * t.getScreenCTM().a"
        smallest = f"Math.min(...[...document.querySelectorAll('.plot text')].map(t => {size}))"
        assert page.evaluate(smallest) >= 9  # pixels on the screen
        chart = section(page, "Certified accuracy").locator("figure")
        hover_at(chart, "0")
        assert fits_sideways(page)


def test_it_prints(browser: Browser, report: Path) -> None:
    with opened(browser, report, width=720) as page:  # about A4 between its margins
        page.emulate_media(media="print")
        assert page.locator("nav").is_hidden()
        assert page.locator("summary").first.is_hidden()
        assert fits_sideways(page)
        for name in SECTIONS:
            assert section(page, name).is_visible()
        wider = (
            "[...document.querySelectorAll('table, svg, img, pre')].filter(e => e.checkVisibility()"
        )
        wider += " && e.getBoundingClientRect().right > window.innerWidth).length"
        assert page.evaluate(wider) == 0  # nothing is cut at the paper's edge
        assert page.pdf(format="A4").startswith(b"%PDF")


# --- numbers ------------------------------------------------------------------------------------


def test_hovering_and_the_arrow_keys_show_the_records_values(
    browser: Browser, report: Path, run: Path
) -> None:
    methods = record_of(run)["methods"]
    last = max(len(entry["ca"]) for entry in methods.values())

    def expected(m: int) -> list[str]:
        lines = [f"malicious clients m: {m}"]
        for name, entry in methods.items():
            ca, low, high = (
                (entry[key] + [entry[key][-1]] * last)[m] for key in ("ca", "ca_low", "ca_high")
            )
            lines.append(f"{title(name)}: {ca:.1f} ({low:.1f}–{high:.1f})")
        return lines

    with opened(browser, report) as page:
        chart = section(page, "Certified accuracy").locator("figure")
        assert chart.locator(".legend li").all_text_contents() == [title(m) for m in methods]
        numbers = chart.locator(".plot .x text").all_text_contents()
        assert len(numbers) >= 2
        for number in numbers:
            assert hover_at(chart, number) == expected(int(number))
        page.locator("h1").hover()
        assert chart.locator(".tip").is_hidden()
        chart.locator(".plot").focus()
        for m in (0, 1):
            page.keyboard.press("ArrowRight")
            assert chart.locator(".tip span").all_text_contents() == expected(m)
        page.keyboard.press("ArrowLeft")
        assert chart.locator(".tip span").all_text_contents() == expected(0)
        page.keyboard.press("Escape")
        assert chart.locator(".tip").is_hidden()
        rows = cells(chart.locator("table"))
        assert [row[0] for row in rows] == [str(m) for m in range(last)]


def test_the_summary_is_the_records(browser: Browser, report: Path, run: Path) -> None:
    with opened(browser, report) as page:
        rows = cells(section(page, "Summary").locator("table"))
    methods = record_of(run)["methods"]
    named = {
        "given_groups": "given these groups",
        "honest_only": "honest only",
        "all_honest": "all honest",
    }
    for row, (name, entry) in zip(rows, methods.items(), strict=True):
        curve, area = naive_ca(*votes_of(run, name))
        above = [m for m, share in enumerate(curve) if share > 50]
        interval = f"({entry['ca_low'][0]:.1f}–{entry['ca_high'][0]:.1f})"
        assert row == [
            title(name),
            f"{area:.1f}",
            f"{curve[0]:.1f} {interval}",
            str(above[-1]) if above else "–",
            str(entry["num_groups"]),
            ", ".join(words for name, words in named.items() if entry["readings"][name]),
        ]


def test_margins_and_classes_are_what_the_votes_give_by_naive_loops(
    browser: Browser, report: Path, run: Path
) -> None:
    with opened(browser, report) as page:
        charts = section(page, "Vote margins").locator("figure")
        margins = [cells(chart.locator("table")) for chart in charts.all()]
        tables = section(page, "Certified accuracy by class").locator("table")
        classes = [cells(table) for table in tables.all()]
        heads = [table.locator("thead th").all_text_contents() for table in tables.all()]
    names = load("embedded").class_names
    for method, bars, rows, head in zip(METHODS, margins, classes, heads, strict=True):
        votes, labels, count = votes_of(run, method)
        found = Counter(naive_margins(run, method))
        low, high = min(found), max(found)
        assert [bar[0] for bar in bars] == [str(v) for v in range(low, high + 1)]
        for value, kind, height in bars:
            assert int(height) == found[int(value)]
            assert kind == ("answered right" if int(value) >= 0 else "answered wrong")
        assert [row[0] for row in rows] == list(names)
        shown = [int(text.split()[-1]) for text in head[1:]]
        for c, row in enumerate(rows):
            curve, _ = naive_ca(votes[:, labels == c], labels[labels == c], count)
            padded = curve + [0.0] * (max(shown) + 1)
            assert row[1:] == [f"{padded[m]:.1f}" for m in shown]


def test_the_map_holds_every_client_once_with_its_type_and_group(
    browser: Browser, report: Path, run: Path
) -> None:
    types = json.loads((run / "types.json").read_text())["labels"]
    with opened(browser, report) as page:
        maps = section(page, "Client map").locator("ul.map").all()
        boxes = [[tiles(box) for box in one.locator("> li").all()] for one in maps]
        tables = section(page, "Client map").locator("table").all()
        listed = [cells(table) for table in tables]
    by_type, *by_group = boxes
    for number, members in enumerate(by_type):
        assert members == {c: letter(number) for c, kind in enumerate(types) if kind == number}
    for method, groups, rows in zip(METHODS, by_group, listed, strict=True):
        assignment = json.loads((run / "groups" / f"{method}.json").read_text())["assignment"]
        for number, members in enumerate(groups):
            own = [c for c, group in enumerate(assignment) if group == number]
            assert members == {c: letter(types[c]) for c in own}
            assert rows[number][0] == f"group {number}"
            assert rows[number][3] == ", ".join(map(str, own))


def tiles(box: Locator) -> dict[int, str]:
    """The clients in a box of tiles, and the letters they bear."""
    found: list[list[str]] = box.locator(".tile").evaluate_all(
        "tiles => tiles.map(tile => [tile.title, tile.textContent])"
    )
    return {int(name.removeprefix("client ")): text for name, text in found}


def test_types_have_letters() -> None:
    assert [letter(k) for k in (-1, 0, 25, 26, 51, 52, 701, 702)] == [
        *("?", "A", "Z", "AA", "AZ", "BA", "ZZ", "AAA")
    ]


def test_training_curves_are_the_records(browser: Browser, report: Path, run: Path) -> None:
    with opened(browser, report) as page:
        charts = section(page, "Training").locator("figure").all()
        shown = [cells(chart.locator("table")) for chart in charts]
        lines = [chart.locator(".faint path").count() for chart in charts]
    entries = record_of(run)["methods"].values()
    for rows, count, entry in zip(shown, lines, entries, strict=True):
        groups = entry["validation_accuracy"]
        assert count == len(groups)
        assert len(groups[0]) == 2
        assert all(group[0] is None for group in groups)  # without patience the last is enough
        own = [100 * group[1] for group in groups]
        mean = sum(own) / len(own)
        assert rows == [["2", f"{mean:.1f} ({min(own):.1f}–{max(own):.1f})"]]


def test_the_images_are_the_ones_with_the_extreme_margins(
    browser: Browser, report: Path, run: Path
) -> None:
    data = load("embedded")
    names = data.class_names
    where = {image.tobytes(): index for index, image in enumerate(data.test.inputs)}
    assert len(where) == len(data.test)  # no two images are alike
    with opened(browser, report) as page:
        lists = section(page, "Smallest and largest margins").locator("ul.cards").all()
        cards = [[read_card(card) for card in one.locator("> li").all()] for one in lists]
    for method, smallest, largest in zip(METHODS, cards[::2], cards[1::2], strict=True):
        votes, labels, _ = votes_of(run, method)
        margins = naive_margins(run, method)
        assert [margin for _, _, margin, _ in smallest] == sorted(margins)[:6]
        by_class = zip(labels.tolist(), margins, strict=True)
        best = dict(sorted(by_class))  # the last is the largest
        assert [margin for _, _, margin, _ in largest] == sorted(best.values())[::-1][:6]
        assert len({truth for _, truth, _, _ in largest}) == 6
        for pixels, truth, margin, listed in [*smallest, *largest]:
            index = where[pixels.tobytes()]
            assert margins[index] == margin
            assert names[labels[index]] == truth
            counted = Counter(names[c] for c in votes[:, index])
            for line in listed:
                number, _, name = line.partition(" ")
                if name != "for others":
                    assert counted.pop(name) == int(number)
                else:
                    assert int(number) == sum(counted.values())
        assert len({truth for _, truth, _, _ in smallest}) > 1 or margins.count(min(margins)) > 6


def test_the_method_that_certifies_the_most_is_named(
    browser: Browser, report: Path, run: Path
) -> None:
    areas = {m: record_of(run)["methods"][m]["auc"] for m in METHODS}
    best = max(areas, key=lambda method: areas[method])
    with opened(browser, report) as page:
        summary = section(page, "Summary").inner_text()
    assert f"{title(best)} certifies the most, read given these groups" in summary
    assert f"{title(best)} answers" in summary
    for method, area in areas.items():
        assert f"{title(method)} {area:.1f}" in summary


def test_one_client_is_singular(run: Path) -> None:
    method = read_runs([run])[0].methods[0]
    one = certify(votes([[0], [0]], 2), [0])  # a lead of two withstands one client, not two
    text = _headline(dataclasses.replace(method, certificate=one))
    assert "With up to 1 malicious client at least 100.0 %" in text


def test_every_reading_is_explained_once(report: Path) -> None:
    text = html.unescape(report.read_text(encoding="utf-8"))
    for words in READINGS.values():
        assert text.count(words.same_as) == 1


def test_the_page_can_be_read_in_the_dark(browser: Browser, report: Path) -> None:
    """Text, and the line of every method, differ from the background as WCAG asks (4.5 and 3)."""
    page = browser.new_page(color_scheme="dark")
    page.goto(report.as_uri())
    look = "(found, name) => getComputedStyle(found)[name]"
    paper = page.locator("body").evaluate(look, "backgroundColor")
    assert luminance(paper) < 0.05
    for place in ("body", "thead th", "nav a", "figcaption"):
        ink = page.locator(place).first.evaluate(look, "color")
        assert contrast(ink, paper) > 4.5, place
    lines = page.locator(".plot .line path").all()
    assert lines
    for line in lines:
        assert contrast(line.evaluate(look, "stroke"), paper) > 3
    page.emulate_media(media="print", color_scheme="dark")
    assert luminance(page.locator("body").evaluate(look, "backgroundColor")) == 1
    page.close()


def luminance(colour: str) -> float:
    """Relative luminance of a colour as a browser writes it, by WCAG's formula."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """WCAG's contrast ratio of two colours."""
    low, high = sorted([luminance(one), luminance(other)])
    return (high + 0.05) / (low + 0.05)


def read_card(card: Locator) -> tuple[npt.NDArray[np.uint8], str, int, list[str]]:
    """The picture's pixels, the true class, the margin and the votes listed below."""
    source = card.locator("img").get_attribute("src")
    assert source
    png = base64.b64decode(source.removeprefix("data:image/png;base64,"))
    margin = re.search(r"Δ = (-?\d+)", card.inner_text())
    assert margin
    votes = [text.strip() for text in card.locator(".votes li").all_text_contents()]
    truth = card.locator("b").text_content() or ""
    return np.asarray(Image.open(io.BytesIO(png))), truth, int(margin[1]), votes


def test_words_settings_and_provenance(browser: Browser, report: Path, run: Path) -> None:
    record = record_of(run)
    with opened(browser, report) as page:
        assumptions = section(page, "What the certificate assumes").inner_text()
        settings = section(page, "Configuration").locator("pre").text_content()
        made = dict(cells(section(page, "Provenance").locator("table")))
    for entry in record["methods"].values():
        for sentence in entry["certificate"]["assumptions"]:
            assert sentence in assumptions
    assert settings == (run / "config.yaml").read_text()
    for name, value in record["environment"].items():
        assert made[name] == ("none" if value is None else str(value))
    assert made["repeat it with"] == f"carvy run --config {run}/config.yaml --out again"
    assert made["seed"] == str(record["config"]["seed"])


# --- several runs, attacks, and what may be missing ---------------------------------------------


def test_several_runs_share_a_page(browser: Browser, run: Path, copy: Path, tmp_path: Path) -> None:
    flags = (
        "--methods",
        "carvy",
        "--seed",
        4,
        "--out",
        tmp_path / "other",
        "--store",
        tmp_path / "s",
    )
    assert carvy(*RUN, *flags).code == 0
    out = written(tmp_path / "three.html", run, copy, tmp_path / "other")
    with opened(browser, out) as page:
        titles = ["All runs", "Three readings", "Run all", "Run copy", "Run other"]
        assert page.locator("h2").all_text_contents() == titles
        of_a_run = [name for name in SECTIONS if name != "Three readings"]  # said once
        assert page.locator("h3").all_text_contents() == of_a_run * 3
        chart = section(page, "All runs").locator("figure")
        named = (
            [("all", m) for m in METHODS] + [("copy", m) for m in METHODS] + [("other", "carvy")]
        )
        shown = [
            f"{name}: {title(m)}: {record_of(path)['methods'][m]['ca'][0]:.1f}"
            for name, m in named
            for path in [{"all": run, "copy": copy, "other": tmp_path / "other"}[name]]
        ]
        assert hover_at(chart, "0") == ["malicious clients m: 0", *shown]
        looks = chart.locator(".legend svg").evaluate_all("all => all.map(svg => svg.innerHTML)")
        assert len({re.sub("#[0-9A-F]{6}", "", look) for look in looks}) == len(looks)
        page.set_viewport_size({"width": 320, "height": 700})
        assert fits_sideways(page)
    assert carvy("report", run, run / "." / "..", "--out", out).code == 2


def attack(run: Path, method: str, shift: float, **more: Any) -> AttackResult:
    """An attack's result whose clean accuracy lies ``shift`` percent above CA(m)."""
    ca = record_of(run)["methods"][method]["ca"][:3]
    curves = {"asr": (1.5, 20.25, 99.0), "asr_if_lost_votes_target": (1.5, 30.0, 100.0)}
    return attack_result(method, [share + shift for share in ca], ca, **curves | more)


def test_attacks_are_drawn_and_a_promise_kept_is_said(browser: Browser, copy: Path) -> None:
    first, other = attack(copy, "carvy", 0.0), attack(copy, "carvy", 2.0, placement="concentrated")
    RunFolder(copy).add_attacks([first, other])
    with opened(browser, written(copy.with_name("a.html"), copy)) as page:
        part = section(page, "Attacks")
        assert part.locator("p.good").all_text_contents() == [
            "Accuracy under attack never fell below CA(m)."
        ]
        assert part.locator(".alarm").count() == 0
        assert part.locator("figure").count() == 4
        success, clean = part.locator("figure").nth(0), part.locator("figure").nth(1)
        assert hover_at(success, "1")[1:] == [
            "CARVY-FL: 20.2",
            "CARVY-FL, if groups without a vote voted for the target: 30.0",
        ]
        accuracy, ca = first.accuracy[2], first.certified[2]
        assert hover_at(clean, "2")[1:] == [
            f"CARVY-FL, under attack: {accuracy:.1f}",
            f"CARVY-FL, promised: CA(m): {ca:.1f}",
        ]


def test_a_broken_promise_is_loud_whatever_the_record_says(browser: Browser, copy: Path) -> None:
    promised = attack(copy, "flcert", 0.0)
    low = (promised.accuracy[0], promised.accuracy[1] - 0.05, promised.accuracy[2])
    under = dataclasses.replace(promised, accuracy=low)
    for result in (under, attack(copy, "flcert", 1.0, promise_kept=False)):
        RunFolder(copy).add_attacks([result])
        with opened(browser, written(copy.with_name("a.html"), copy)) as page:
            part = section(page, "Attacks")
            assert part.locator(".good").count() == 0
            first, second = part.locator(".alarm").all_text_contents()
            assert first.startswith("The certificate was broken")
            assert second.startswith("FLCert, badnets, dispersed: ")
            assert ("m = 1: " in second) == (result is under)
            assert "m = 0: " not in second


def test_attacks_with_other_settings_are_not_mixed(browser: Browser, copy: Path) -> None:
    settings = ({"control": "none", "scale": 2}, {"control": "unscaled", "scale": 2})
    found = [attack(copy, "carvy", 1.0, settings=each) for each in settings]
    RunFolder(copy).add_attacks([*found, attack(copy, "flcert", 1.0, settings=settings[0])])
    with opened(browser, written(copy.with_name("s.html"), copy)) as page:
        part = section(page, "Attacks")
        assert part.locator("h4").all_text_contents() == [
            "badnets, control = none, malicious clients dispersed",
            "badnets, control = unscaled, malicious clients dispersed",
        ]
        assert part.locator("figure").count() == 4
        shown = hover_at(part.locator("figure").nth(0), "2")[1:]
        assert shown[:2] == ["CARVY-FL: 99.0", "FLCert: 99.0"]


def test_methods_are_drawn_together_where_the_paper_places_attackers_apart(
    browser: Browser, copy: Path
) -> None:
    found = [attack(copy, "carvy", 1.0), attack(copy, "flcert", 1.0, placement="hash")]
    found.append(attack(copy, "flcert", 1.0))
    RunFolder(copy).add_attacks(found)
    with opened(browser, written(copy.with_name("p.html"), copy)) as page:
        part = section(page, "Attacks")
        assert part.locator("h4").all_text_contents() == [
            "badnets, malicious clients placed by method (CARVY-FL dispersed, FLCert hash)",
            "badnets, malicious clients dispersed",
        ]
        for chart in (part.locator("figure").nth(0), part.locator("figure").nth(2)):
            assert hover_at(chart, "2")[1:3] == ["CARVY-FL: 99.0", "FLCert: 99.0"]


def test_without_attacks_the_report_names_the_command(browser: Browser, report: Path) -> None:
    with opened(browser, report) as page:
        part = section(page, "Attacks")
        assert "No attack was run" in part.inner_text()
        assert (part.locator("code").text_content() or "").startswith("carvy attack ")


def test_hostile_names_are_only_text(browser: Browser, copy: Path) -> None:
    evil = "<script>document.title='taken'</script><img src=x onerror=alert(1)>"
    folder = copy.rename(copy.with_name("<b onclick=alert(1)>run"))
    change(folder, lambda record: record["data"].update(name=evil, class_names=[evil] * 10))
    change(folder, lambda record: record["environment"].update(processor=evil))
    types = json.loads((folder / "types.json").read_text())
    types["names"][0] = evil
    types["warnings"] = [evil]
    (folder / "types.json").write_text(json.dumps(types))
    grouping = json.loads((folder / "groups" / "carvy.json").read_text())
    grouping["basis"]["because"] = evil
    (folder / "groups" / "carvy.json").write_text(json.dumps(grouping))
    reseal(folder)
    hit = attack(folder, "carvy", -1.0, attack=evil, placement=evil)
    RunFolder(folder).add_attacks([hit])
    with opened(browser, written(folder.with_name("a.html"), folder)) as page:
        assert page.title() == "CARVY-FL run <b onclick=alert(1)>run"
        assert page.locator("script").count() == 1
        assert page.locator("[onerror], [onclick], img:not([src^='data:'])").count() == 0
        for name in ("Attacks", "Client map", "Certified accuracy by class", "Provenance"):
            assert evil in (section(page, name).text_content() or "")
        page.set_viewport_size({"width": 320, "height": 700})
        assert fits_sideways(page)


def own_data(file: Path, inputs: Callable[[int], npt.NDArray[Any]], first: int = 0) -> None:
    """40 training and 20 test inputs of two classes by turns, beginning with the first."""
    train, test = ((np.arange(n) + first) % 2 for n in (40, 20))
    np.savez(file, x_train=inputs(40), y_train=train, x_test=inputs(20), y_test=test)


def own_run(folder: Path, inputs: Callable[[int], npt.NDArray[Any]]) -> Path:
    """A run on data of one's own."""
    data = folder / "own.npz"
    own_data(data, inputs)
    flags = ("--dataset", data, "--partition", "iid", "--clients", 4, "--samples", 5)
    more = ("--methods", "balanced", "--groups", 2, "--rounds", 1, "--model", "mlp", "--workers", 1)
    answer = carvy("run", *flags, *more, "--out", folder / "own", "--store", folder / "store")
    assert answer.code == 0, answer.err
    return folder / "own"


def test_colour_pictures_and_data_that_is_gone_or_another(browser: Browser, tmp_path: Path) -> None:
    """Floats are stretched to 0…255; without the data the votes remain."""

    def colours(n: int) -> npt.NDArray[Any]:
        return np.linspace(-1, 3, n * 3 * 4 * 5, dtype=np.float32).reshape(n, 3, 4, 5)

    run = own_run(tmp_path, colours)
    with opened(browser, written(tmp_path / "a.html", run)) as page:
        part = section(page, "Smallest and largest margins")
        assert "No method of this run needed" in section(page, "Client map").inner_text()
        pixels = read_card(part.locator("ul.cards > li").first)[0]
        assert pixels.shape == (4, 5, 3)
        assert pixels.min() == 0
        assert pixels.max() == 255
        assert np.all(np.diff(pixels[:, :, 0].astype(int).ravel()) >= 0)  # red rises, as made
    own_data(tmp_path / "own.npz", colours, first=1)
    expect_no_pictures(browser, run, "not the one the run had")
    (tmp_path / "own.npz").unlink()
    expect_no_pictures(browser, run, "no such file")


def test_inputs_that_are_no_pictures(browser: Browser, tmp_path: Path) -> None:
    run = own_run(tmp_path, lambda n: np.arange(n * 6, dtype=np.float32).reshape(n, 6))
    expect_no_pictures(browser, run, "are not images")


def expect_no_pictures(browser: Browser, run: Path, reason: str) -> None:
    with opened(browser, written(run.with_name("b.html"), run)) as page:
        part = section(page, "Smallest and largest margins")
        assert reason in part.locator(".note").inner_text()
        assert part.locator("img").count() == 0
        assert part.locator(".votes li").count() >= 12


def test_clients_and_groups_that_stand_apart_are_named(browser: Browser, copy: Path) -> None:
    types = json.loads((copy / "types.json").read_text())
    types["labels"][3], types["set_aside"] = -1, {"3": "holds NaN"}
    (copy / "types.json").write_text(json.dumps(types))
    grouping = json.loads((copy / "groups" / "carvy.json").read_text())
    grouping["assignment"][3] = -1
    (copy / "groups" / "carvy.json").write_text(json.dumps(grouping))

    def edit(record: dict[str, Any]) -> None:
        record["types"]["warnings"] = ["a warning"]
        entry = record["methods"]["carvy"]
        entry["set_aside"] = {"7": "NaN"}
        entry["stopped"][0] = "diverged"
        entry["validation_accuracy"][0] = [None, None]
        record["methods"]["single"]["validation_accuracy"] = [[None, None]]

    change(copy, edit)
    with opened(browser, written(copy.with_name("a.html"), copy)) as page:
        clients = section(page, "Client map")
        text = clients.inner_text()
        assert "Set aside in Step 1, by client: 1." in text
        assert "clients in no group: 1." in text
        assert "Reports that could not be used, by client: 1." in text
        assert ["3", "holds NaN"] in cells(clients.locator("table").first)
        assert tiles(clients.locator("ul.map").nth(1).locator("> li").last) == {3: "?"}
        training = section(page, "Training")
        assert "diverged: casts no vote" in (training.text_content() or "")
        assert "single global model: no validation accuracy was measured." in training.inner_text()


def test_more_than_a_thousand_clients_are_counted_not_drawn(browser: Browser, copy: Path) -> None:
    """The same run, every client but the last standing for 53."""

    def grow(values: list[int]) -> list[int]:
        return [value for value in values[:-1] for _ in range(53)] + values[-1:]

    for method in METHODS:
        file = copy / "groups" / f"{method}.json"
        grouping = json.loads(file.read_text())
        file.write_text(json.dumps(grouping | {"assignment": grow(grouping["assignment"])}))
    types = json.loads((copy / "types.json").read_text())
    labels = grow(types["labels"])
    (copy / "types.json").write_text(json.dumps(types | {"labels": labels}))
    change(copy, lambda record: record["config"].update(clients=len(labels)))
    with opened(browser, written(copy.with_name("a.html"), copy)) as page:
        part = section(page, "Client map")
        sizes = cells(part.locator("table"))
        assert part.locator(".tile").count() == 0
        assert "G = 1; clients per group: 1008" in part.inner_text()
    named = [f"{letter(number)}: {name}" for number, name in enumerate(types["names"])]
    assert sizes == [[name, str(labels.count(t))] for t, name in enumerate(named)]


# --- what cannot be reported --------------------------------------------------------------------


@pytest.mark.slow
def test_mistakes_are_one_line_and_nothing_is_written(
    run: Path, copy: Path, tmp_path: Path
) -> None:
    out = tmp_path / "r.html"
    assert_refused(carvy("report", tmp_path / "none", "--out", out), "does not exist")
    assert_refused(carvy("report", run, tmp_path / "none", "--out", out), "does not exist")
    before = (copy / "run.json").read_bytes()
    assert_refused(carvy("report", copy, "--out", copy / "run.json"), ".html")
    assert (copy / "run.json").read_bytes() == before
    assert_refused(carvy("report", run, "--out", "/proc/none/r.html"), "cannot write")
    (tmp_path / "folder.html").mkdir()
    assert_refused(carvy("report", run, "--out", tmp_path / "folder.html"), "cannot write")
    assert not out.exists()


def swap(run: Path, one: str, other: str) -> None:
    (run / one).write_bytes((run / other).read_bytes())


CONTRADICTIONS: dict[str, Callable[[Path], object]] = {
    "votes of another method": lambda run: swap(run, "votes/carvy.npz", "votes/flcert.npz"),
    "votes of a single model": lambda run: swap(run, "votes/carvy.npz", "votes/single.npz"),
    "groups of another method": lambda run: swap(run, "groups/carvy.json", "groups/single.json"),
    "another curve": lambda run: change(
        run, lambda record: record["methods"]["carvy"]["ca"].__setitem__(0, 99.5)
    ),
    "a shorter curve": lambda run: change(run, lambda r: r["methods"]["carvy"]["ca"].pop()),
    "fewer rounds": lambda run: change(run, lambda r: r["methods"]["carvy"]["rounds"].pop()),
    "fewer classes": lambda run: change(run, lambda r: r["data"]["class_names"].pop()),
    "accuracy in words": lambda run: change(
        run, lambda r: r["methods"]["carvy"]["validation_accuracy"].__setitem__(0, ["good"])
    ),
    "no environment": lambda run: change(run, lambda r: r.pop("environment")),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_files_that_contradict_each_other_are_refused(copy: Path, name: str) -> None:
    CONTRADICTIONS[name](copy)
    out = copy.with_name("r.html")
    assert_refused(carvy("report", copy, "--out", out), "restore it")
    assert not out.exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "damage",
    [
        {"m": []},
        {"asr": [1.0]},
        {"accuracy": ["high", 1, 2]},
        {"certified": None},
        {"attack": None},
    ],
    ids=str,
)
def test_damaged_attack_results_are_refused(copy: Path, damage: dict[str, Any]) -> None:
    hit = plain(attack(copy, "carvy", 1.0)) | damage
    if damage == {"attack": None}:
        del hit["attack"]
    kept = {"run": record_of(copy)["digest"], "attacks": [hit]}
    RunFolder(copy).attacks_file.write_text(sealed(kept))
    assert_refused(carvy("report", copy, "--out", copy.with_name("r.html")), "attack", "damaged")
