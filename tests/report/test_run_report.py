"""`carvy report`, in a real browser: every section is there, and its numbers are the run's."""

from __future__ import annotations

import base64
import dataclasses
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
from carvyfl.groups.basis import READINGS, Basis
from carvyfl.plots.style import method_style
from carvyfl.report.sections import _compared
from carvyfl.runs.config import split_data
from carvyfl.runs.folder import RunFolder
from carvyfl.runs.record import AttackResult, certified_method, sealed
from carvyfl.voting.certificate import certify
from support.browser import PHONES, WellFormed, fits_sideways, opened
from support.cli import QUICK, assert_refused, carvy, naive_ca
from support.records import attack_result
from support.sealing import reseal

METHODS = ("carvy", "flcert", "cluster", "balanced", "single")
RUN = ("run", *QUICK, "--clients", "20", "--rounds", "2")
SECTIONS = ["Summary", "Certified accuracy", "Groups and types"]
SECTIONS += ["Images and their radius", "Attacks and privacy", "Provenance"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    flags = ("--methods", ",".join(METHODS), "--out", folder / "all", "--store", folder / "store")
    answer = carvy(*RUN, *flags)
    assert answer.code == 0, answer.err
    return folder / "all"


@pytest.fixture(scope="module")
def report(run, tmp_path_factory):
    return written(tmp_path_factory.mktemp("report") / "all.html", run)


@pytest.fixture(scope="module")
def page(browser, report):
    """The report, for tests that change nothing of how it is shown."""
    with opened(browser, report) as shown:
        yield shown


@pytest.fixture
def copy(run, tmp_path):
    return shutil.copytree(run, tmp_path / "copy")


def written(out: Path, *runs: Path) -> Path:
    """Write a report and check what holds for every one."""
    answer = carvy("report", *runs, "--out", out)
    assert answer.code == 0, answer.err
    assert answer.out == f"Wrote {out}\n"
    WellFormed(out.read_text(encoding="utf-8"))
    return out


def read(file: Path) -> Any:
    return json.loads(file.read_text())


def edit(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps(read(file) | changes))


def methods_of(run: Path) -> dict[str, Any]:
    methods: dict[str, Any] = read(run / "run.json")["methods"]
    return methods


def votes_of(run: Path, method: str) -> tuple[npt.NDArray[Any], npt.NDArray[Any], int]:
    with np.load(run / "votes" / f"{method}.npz", allow_pickle=False) as file:
        return file["votes"], file["labels"], int(file["num_classes"])


def naive_margins(run: Path, method: str) -> list[int]:
    """Eqs. 6 and 7 input by input, rival by rival."""
    votes, labels, classes = votes_of(run, method)
    margins = []
    for cast, label in zip(votes.T.tolist(), labels.tolist(), strict=True):
        count = [cast.count(c) for c in range(classes)]
        rivals = [c for c in range(classes) if c != label]
        margins.append(min(count[label] - count[c] - (1 if c < label else 0) for c in rivals))
    return margins


def section(page: Page, title: str) -> Locator:
    heading = page.locator("h2, h3").get_by_text(title, exact=True)
    return page.locator("section").filter(has=heading).last


def cells(table: Locator) -> list[list[str]]:
    """The texts of a table's body, folded away or not."""
    body = "table => [...table.tBodies[0].rows].map(r => [...r.cells].map(c => c.textContent))"
    texts: list[list[str]] = table.evaluate(body)
    return texts


def title(method: str) -> str:
    return method_style(method).label


def chart(part: Locator, caption: str) -> list[list[str]]:
    """The numbers of the chart with this caption: its table's head, then its rows."""
    figure = part.locator("figure").filter(has_text=caption).first
    return [figure.locator("thead th").all_text_contents(), *cells(figure.locator("table"))]


def by_m(page: Page) -> Locator:
    """The tables of CA(m): that of all methods, and by class one for each."""
    tables = section(page, "Certified accuracy").locator("table")
    return tables.filter(has_text="a column for each m")


def under(part: Locator, summary: str) -> list[list[str]]:
    """The rows of the table that is unfolded by this summary."""
    return cells(part.locator("details").filter(has_text=summary).locator("table").first)


# --- the whole page -----------------------------------------------------------------------------


def test_every_section_is_there_and_reached_from_the_contents(page):
    assert page.locator("h2").all_text_contents() == SECTIONS
    assert page.locator("nav a").all_text_contents() == SECTIONS
    for name in SECTIONS:
        page.locator("nav a").get_by_text(name, exact=True).click()
        reached = page.evaluate("document.querySelector(location.hash + ' h2').textContent")
        assert reached == name
        assert section(page, name).bounding_box()


@pytest.mark.parametrize("width", PHONES)
def test_a_phone_needs_no_scrolling_sideways(browser, report, width):
    with opened(browser, report, width=width) as page:
        assert fits_sideways(page)
        page.locator("details").evaluate_all("all => all.forEach(d => { d.open = true; })")
        assert fits_sideways(page)
        drawn = "all => all.every(i => i.naturalWidth > 0)"
        assert page.locator(".drawing img").evaluate_all(drawn)


def test_it_prints(browser, report):
    with opened(browser, report, width=720) as page:  # about A4 between its margins
        page.emulate_media(media="print")
        assert page.locator("nav").is_hidden()
        assert page.locator("summary").first.is_hidden()
        assert fits_sideways(page)
        assert all(section(page, name).is_visible() for name in SECTIONS)
        shown = "[...document.querySelectorAll('table, svg, img, pre')].filter(e =>"
        wider = f"{shown} e.checkVisibility() && e.getBoundingClientRect().right > innerWidth)"
        assert page.evaluate(f"{wider}.length") == 0  # nothing is cut at the paper's edge
        assert page.pdf(format="A4").startswith(b"%PDF")


# --- numbers ------------------------------------------------------------------------------------


def test_the_charts_of_ca_hold_the_records_values(page, run):
    methods, part = methods_of(run), section(page, "Certified accuracy")
    last = max(len(entry["ca"]) for entry in methods.values())
    head, *rows = chart(part, "given these groups")
    assert head == ["malicious clients m", *(title(method) for method in methods)]
    for m, row in enumerate(rows):
        longer = [
            [(entry[key] + [entry[key][-1]] * last)[m] for key in ("ca", "ca_low", "ca_high")]
            for entry in methods.values()
        ]
        assert row == [str(m), *(f"{ca:.1f} ({low:.1f}–{high:.1f})" for ca, low, high in longer)]
    assert len(rows) == last
    for (name, entry), row in zip(methods.items(), cells(by_m(page).first), strict=True):
        proved = [words.label for reading, words in READINGS.items() if entry["readings"][reading]]
        assert row[:2] == [title(name), ", ".join(proved)]
        assert row[2 : 2 + len(entry["ca"])] == [f"{ca:.1f}" for ca in entry["ca"]]
    strict = [m for m, entry in methods.items() if entry["readings"]["honest_only"]]
    whole = chart(part, "Certified against whole runs")
    assert whole[0][1:] == [f"{title(m)}, honest only and all honest" for m in strict]


def test_the_summary_is_the_records(page, run):
    part, methods = section(page, "Summary"), methods_of(run)
    rows, text = cells(part.locator("table").first), part.inner_text()
    best = title(max(methods, key=lambda method: methods[method]["auc"]))
    assert f"{best} certifies the most, read given these groups" in text
    assert f"{best} answers" in text
    for words in READINGS.values():
        assert text.count(words.same_as) == 1
    for row, (name, entry) in zip(rows, methods.items(), strict=True):
        curve, area = naive_ca(*votes_of(run, name))
        above = [m for m, share in enumerate(curve) if share > 50]
        assert row == [
            title(name),
            f"{area:.1f}",
            f"{curve[0]:.1f} ({entry['ca_low'][0]:.1f}–{entry['ca_high'][0]:.1f})",
            str(above[-1]) if above else "–",
            str(entry["num_groups"]),
            ", ".join(READINGS[r].label for r in READINGS if entry["readings"][r]),
        ]


def test_classes_are_what_the_votes_give_by_naive_loops(page, run):
    names = load("embedded").class_names
    for method, table in zip(METHODS, by_m(page).all()[1:], strict=True):
        rows, head = cells(table), table.locator("thead th").all_text_contents()
        votes, labels, count = votes_of(run, method)
        assert [row[0] for row in rows] == list(names)
        for c, row in enumerate(rows):
            curve, _ = naive_ca(votes[:, labels == c], labels[labels == c], count)
            padded = curve + [0.0] * 100
            assert row[1:] == [f"{padded[int(m)]:.1f}" for m in head[1:]]


def test_groups_hold_every_client_once_with_its_type(page, run):
    types, part = read(run / "types.json"), section(page, "Groups and types")
    names, labels = types["names"], types["labels"]
    sizes = [[name, str(labels.count(kind))] for kind, name in enumerate(names)]
    assert under(part, "The size of every type") == sizes
    folded = part.locator("details").filter(has_text="The clients of every group").all()
    for method, details in zip(METHODS, folded, strict=True):
        assignment = read(run / "groups" / f"{method}.json")["assignment"]
        for number, row in enumerate(cells(details.locator("table"))):
            members = [c for c, group in enumerate(assignment) if group == number]
            kinds = Counter(names[labels[c]] for c in members)
            assert row[:2] == [f"group {number}", str(len(members))]
            listed = dict(part.split(" × ")[::-1] for part in row[2].split(", "))
            assert listed == {name: str(count) for name, count in kinds.items()}
            assert row[3] == ", ".join(map(str, members))


def test_shares_and_training_are_those_of_the_groups(page, run):
    """Every client of this run holds as many samples as any other, so shares are plain means."""
    federation = split_data(RunFolder(run).config(), load("embedded"))
    counts = np.array([np.bincount(c.train.labels, minlength=10) for c in federation.clients])
    assert len(set(counts.sum(axis=1))) == 1
    groups = np.array(read(run / "groups" / "carvy.json")["assignment"])
    part, record = section(page, "Groups and types"), read(run / "run.json")
    head, overall, *rows = chart(part, "CARVY-FL, G = ")
    assert head[1:] == record["data"]["class_names"]
    assert overall[1:] == [f"{share:.1f}" for share in 100 * counts.sum(axis=0) / counts.sum()]
    for g, (name, *shares) in enumerate(rows):
        members = counts[groups == g]
        expected = 100 * members.sum(axis=0) / members.sum()
        assert name == str(g)
        np.testing.assert_allclose([float(share) for share in shares], expected, atol=0.06)
    for method, entry in record["methods"].items():
        assert {group[0] for group in entry["validation_accuracy"]} == {None}  # without patience
        last = [100 * group[1] for group in entry["validation_accuracy"]]
        points = chart(part, f"Training, {title(method)}")[1:]
        mean = sum(last) / len(last)
        assert points == [["2", f"{mean:.1f} ({min(last):.1f}–{max(last):.1f})"]]


def test_what_is_not_certified_shows_its_accuracy_alone(browser, copy):
    basis = Basis("anybody could join", None)
    edit(copy / "groups" / "flcert.json", basis=basis.to_json())
    certificate = certify(*RunFolder(copy).votes("flcert"), basis)
    entry = plain(certified_method(certificate))
    reseal(copy, lambda record: record["methods"]["flcert"].update(entry))
    accuracy = f"{certificate.ca()[0]:.1f}"
    with opened(browser, written(copy.with_name("u.html"), copy)) as page:
        row = cells(section(page, "Summary").locator("table").first)[1]
        table, classes = cells(by_m(page).first)[1], by_m(page).nth(2)
        shown = (row[0], row[1], row[3], row[-1])
        assert shown == ("FLCert, not certified", "–", "–", "nothing")
        assert row[2].startswith(accuracy)
        assert table[:3] == ["FLCert", "not certified", accuracy]
        assert set(table[3:]) == {"–"}
        assert classes.locator("thead th").all_text_contents() == ["class", "0"]
        assert "FLCert" not in chart(section(page, "Certified accuracy"), "given these groups")[0]
        cards = section(page, "Images and their radius").locator("ul.cards")
        assert "radius" in cards.nth(1).inner_text()
        assert "radius" not in cards.nth(3).inner_text()


def test_the_images_are_the_ones_with_the_extreme_margins(page, run):
    data = load("embedded")
    names = data.class_names
    where = {image.tobytes(): index for index, image in enumerate(data.test.inputs)}
    assert len(where) == len(data.test)  # no two images are alike
    lists = section(page, "Images and their radius").locator("ul.cards").all()
    cards = [[read_card(card) for card in one.locator("> li").all()] for one in lists]
    radii = "".join(lists[1].locator("> li").all_inner_texts())
    shown = [margin // 2 for _, _, margin, _ in cards[1]]
    assert [int(r) for r in re.findall(r"radius (\d+)", radii)] == shown
    for method, smallest, largest in zip(METHODS, cards[::2], cards[1::2], strict=True):
        votes, labels, _ = votes_of(run, method)
        margins = naive_margins(run, method)
        assert [margin for _, _, margin, _ in smallest] == sorted(margins)[:6]
        best = dict(sorted(zip(labels.tolist(), margins, strict=True)))  # the last is the largest
        assert [margin for _, _, margin, _ in largest] == sorted(best.values())[::-1][:6]
        assert len({truth for _, truth, _, _ in largest}) == 6
        for pixels, truth, margin, listed in [*smallest, *largest]:
            index = where[pixels.tobytes()]
            assert (margins[index], names[labels[index]]) == (margin, truth)
            counted = Counter(names[c] for c in votes[:, index])
            for line in listed:
                number, _, name = line.partition(" ")
                others = name == "for others"
                assert int(number) == (sum(counted.values()) if others else counted.pop(name))
        assert len({truth for _, truth, _, _ in smallest}) > 1 or margins.count(min(margins)) > 6


def test_the_page_can_be_read_in_the_dark(browser, report):
    """Text and lines differ from the background as WCAG asks (4.5 and 3)."""
    page = browser.new_page(color_scheme="dark")
    page.goto(report.as_uri())
    look = "(found, name) => getComputedStyle(found)[name]"
    paper = page.locator("body").evaluate(look, "backgroundColor")
    assert luminance(paper) < 0.05
    for place in ("body", "thead th", "nav a", "figcaption"):
        ink = page.locator(place).first.evaluate(look, "color")
        assert contrast(ink, paper) > 4.5, place
    # The drawings: the colour of every method is found again, and stands out.
    screenshot = page.locator(".chart:not(.broad) .drawing").first.screenshot()
    pixels = np.asarray(Image.open(io.BytesIO(screenshot)).convert("RGB")).reshape(-1, 3)
    colours, counts = np.unique(pixels, axis=0, return_counts=True)
    strong = [f"rgb{tuple(c)}" for c in colours[counts > 40].tolist() if np.ptp(c) > 60]
    assert sum(contrast(colour, paper) > 3 for colour in strong) >= 3
    page.emulate_media(media="print", color_scheme="dark")
    assert luminance(page.locator("body").evaluate(look, "backgroundColor")) == 1
    page.close()


def contrast(*colours: str) -> float:
    """WCAG's contrast ratio of two colours as a browser writes them."""
    low, high = sorted(map(luminance, colours))
    return (high + 0.05) / (low + 0.05)


def luminance(colour: str) -> float:
    """Relative luminance by WCAG's formula."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


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


def test_words_settings_and_provenance(page, run):
    record, provenance = read(run / "run.json"), section(page, "Provenance")
    made = dict(cells(provenance.locator("table").first))
    attacks = section(page, "Attacks and privacy").inner_text()
    assert f"No attack was run. To run some: carvy attack {run}" in attacks
    assumptions = section(page, "Summary").inner_text()
    for entry in record["methods"].values():
        assert all(words in assumptions for words in entry["certificate"]["assumptions"])
    assert provenance.locator("pre").text_content() == (run / "config.yaml").read_text()
    assert dict(under(provenance, "The SHA-256 of every file")) == record["files"]
    expected = {n: "none" if v is None else str(v) for n, v in record["environment"].items()} | {
        "digest of the record": record["digest"],
        "verify it with": f"carvy verify {run}",
        "repeat it with": f"carvy run --config {run}/config.yaml --out again",
        "seed": str(record["config"]["seed"]),
    }
    assert expected.items() <= made.items()


# --- several runs, attacks, and what may be missing ---------------------------------------------


def test_several_runs_share_a_page(browser, run, copy, tmp_path):
    other = tmp_path / "other"
    flags = ("--methods", "carvy", "--seed", 4, "--out", other, "--store", tmp_path / "s")
    assert carvy(*RUN, *flags).code == 0
    out = written(tmp_path / "three.html", run, copy, other)
    with opened(browser, out) as page:
        assert page.locator("h2").all_text_contents() == [
            *("All runs", "Run all", "Run copy", "Run other")
        ]
        assert page.locator("h3").all_text_contents() == SECTIONS * 3
        assert page.get_by_text("Compared with what").count() == 1  # said once
        head, first, *_ = chart(section(page, "All runs"), "Certified accuracy, given")
        named = [(run, m) for run in (run, copy) for m in METHODS] + [(other, "carvy")]
        assert head[1:] == [f"{run.name}: {title(m)}" for run, m in named]
        starts = [methods_of(run)[m]["ca"][0] for run, m in named]
        assert first == ["0", *(f"{start:.1f}" for start in starts)]
        page.set_viewport_size({"width": 320, "height": 700})
        assert fits_sideways(page)
    assert carvy("report", run, run / "." / "..", "--out", out).code == 2


def attack(run: Path, method: str, shift: float, **more: Any) -> AttackResult:
    """An attack's result whose clean accuracy lies ``shift`` percent above CA(m)."""
    ca = methods_of(run)[method]["ca"][:3]
    curves = {"asr": (1.5, 20.25, 99.0), "asr_if_lost_votes_target": (1.5, 30.0, 100.0)}
    return attack_result(method, [share + shift for share in ca], ca, **curves | more)


def test_attacks_are_drawn_and_a_promise_kept_is_said(browser, copy):
    first, other = attack(copy, "carvy", 0.0), attack(copy, "carvy", 2.0, placement="concentrated")
    RunFolder(copy).add_attacks([first, other])
    with opened(browser, written(copy.with_name("a.html"), copy)) as page:
        part = section(page, "Attacks and privacy")
        good = part.locator("p.good").all_text_contents()
        assert good == ["Accuracy under attack never fell below CA(m)."]
        assert part.locator(".alarm").count() == 0
        assert part.locator("figure").count() == 4
        head, *rows = chart(part, "Attack success")
        lost = "CARVY-FL, if groups without a vote voted for the target"
        assert head[1:] == ["CARVY-FL", lost]
        assert rows[1][1:] == ["20.2", "30.0"]
        head, *rows = chart(part, "Accuracy under attack")
        assert head[1:] == ["CARVY-FL, under attack", "CARVY-FL, promised: CA(m)"]
        assert rows[2][1:] == [f"{first.accuracy[2]:.1f}", f"{first.certified[2]:.1f}"]


def test_a_broken_promise_is_loud_whatever_the_record_says(browser, copy):
    promised = attack(copy, "flcert", 0.0)
    low = (promised.accuracy[0], promised.accuracy[1] - 0.05, promised.accuracy[2])
    below = dataclasses.replace(promised, accuracy=low)
    for result in (below, attack(copy, "flcert", 1.0, promise_kept=False)):
        RunFolder(copy).add_attacks([result])
        with opened(browser, written(copy.with_name("a.html"), copy)) as page:
            part = section(page, "Attacks and privacy")
            assert part.locator(".good").count() == 0
            first, second = part.locator(".alarm").all_text_contents()
            assert first.startswith("The certificate was broken")
            assert second.startswith("FLCert, badnets, dispersed: ")
            assert ("m = 1: " in second) == (result is below)
            assert "m = 0: " not in second
            alarms = section(page, "Summary").locator(".alarm").all_text_contents()
            assert any("fell below CA(m)" in text for text in alarms)


def test_attacks_are_drawn_together_where_they_can_be_compared(copy):
    """By attack, settings and placement, and with the paper's placement of every method."""
    none, unscaled = ({"control": each, "scale": 2} for each in ("none", "unscaled"))
    first, other = (attack(copy, "carvy", 1.0, settings=each) for each in (none, unscaled))
    same = attack(copy, "flcert", 1.0, settings=none)
    assert _compared([first, other, same]) == [
        ("badnets, control = none, malicious clients dispersed", [first, same]),
        ("badnets, control = unscaled, malicious clients dispersed", [other]),
    ]
    apart = attack(copy, "flcert", 1.0, settings=none, placement="hash")
    where = "placed by method (CARVY-FL dispersed, FLCert hash)"
    assert _compared([first, apart, same]) == [
        (f"badnets, malicious clients {where}", [first, apart]),
        ("badnets, malicious clients dispersed", [first, same]),
    ]


def test_hostile_names_are_only_text(browser, copy):
    evil = "<script>document.title='taken'</script><img src=x onerror=alert(1)>"
    folder = copy.rename(copy.with_name("<b onclick=alert(1)>run"))
    types, grouping = folder / "types.json", folder / "groups" / "carvy.json"
    edit(types, names=[evil, *read(types)["names"][1:]], warnings=[evil])
    edit(grouping, basis=read(grouping)["basis"] | {"because": evil})
    reseal(folder, lambda record: record["data"].update(name=evil, class_names=[evil] * 10))
    reseal(folder, lambda record: record["environment"].update(processor=evil))
    RunFolder(folder).add_attacks([attack(folder, "carvy", -1.0, attack=evil, placement=evil)])
    with opened(browser, written(folder.with_name("a.html"), folder)) as page:
        assert page.title() == "CARVY-FL run <b onclick=alert(1)>run"
        assert page.locator("script").count() == 0
        assert page.locator("[onerror], [onclick], img:not([src^='data:'])").count() == 0
        assert all(evil in (section(page, name).text_content() or "") for name in SECTIONS)
        page.set_viewport_size({"width": 320, "height": 700})
        assert fits_sideways(page)


def own_data(file: Path, inputs: Callable[[int], npt.NDArray[Any]], first: int = 0) -> None:
    """40 training and 20 test inputs of two classes by turns, beginning with the first."""
    train, test = ((np.arange(n) + first) % 2 for n in (40, 20))
    np.savez(file, x_train=inputs(40), y_train=train, x_test=inputs(20), y_test=test)


def own_run(folder: Path, inputs: Callable[[int], npt.NDArray[Any]]) -> Path:
    """A run on data of one's own."""
    own_data(folder / "own.npz", inputs)
    flags = ("--dataset", folder / "own.npz", "--partition", "iid", "--clients", 4, "--samples", 5)
    more = ("--methods", "balanced", "--groups", 2, "--rounds", 1, "--model", "mlp", "--workers", 1)
    answer = carvy("run", *flags, *more, "--out", folder / "own", "--store", folder / "store")
    assert answer.code == 0, answer.err
    return folder / "own"


def test_colour_pictures_and_data_that_is_gone_or_another(browser, tmp_path):
    """Floats are stretched to 0…255; without the data the votes remain."""

    def colours(n: int) -> npt.NDArray[Any]:
        return np.linspace(-1, 3, n * 3 * 4 * 5, dtype=np.float32).reshape(n, 3, 4, 5)

    run = own_run(tmp_path, colours)
    with opened(browser, written(tmp_path / "a.html", run)) as page:
        part = section(page, "Images and their radius")
        assert "No method of this run needed" in section(page, "Groups and types").inner_text()
        pixels = read_card(part.locator("ul.cards > li").first)[0]
        assert (pixels.shape, pixels.min(), pixels.max()) == ((4, 5, 3), 0, 255)
        assert np.all(np.diff(pixels[:, :, 0].astype(int).ravel()) >= 0)  # red rises, as made
    own_data(tmp_path / "own.npz", colours, first=1)
    expect_no_pictures(browser, run, "not the one the run had")
    (tmp_path / "own.npz").unlink()
    expect_no_pictures(browser, run, "no such file")


def test_inputs_that_are_no_pictures(browser, tmp_path):
    run = own_run(tmp_path, lambda n: np.arange(n * 6, dtype=np.float32).reshape(n, 6))
    expect_no_pictures(browser, run, "are not images")


def expect_no_pictures(browser: Browser, run: Path, reason: str) -> None:
    with opened(browser, written(run.with_name("b.html"), run)) as page:
        part = section(page, "Images and their radius")
        assert reason in part.locator(".note").inner_text()
        assert part.locator("img").count() == 0
        assert part.locator(".votes li").count() >= 12


def test_clients_and_groups_that_stand_apart_are_named(browser, copy):
    types, grouping = copy / "types.json", copy / "groups" / "carvy.json"
    labels, assignment = read(types)["labels"], read(grouping)["assignment"]
    labels[3] = assignment[3] = -1
    edit(types, labels=labels, set_aside={"3": "holds NaN"}, warnings=["a warning"])
    edit(grouping, assignment=assignment)

    def change(record: dict[str, Any]) -> None:
        record["types"]["warnings"] = ["a warning"]
        entry = record["methods"]["carvy"]
        entry["set_aside"] = {"7": "NaN"}
        entry["stopped"][0] = "diverged"
        entry["validation_accuracy"][0] = [None, None]
        record["methods"]["single"]["validation_accuracy"] = [[None, None]]

    reseal(copy, change)
    with opened(browser, written(copy.with_name("a.html"), copy)) as page:
        alarms = section(page, "Summary").locator(".alarm").all_text_contents()
        groups = section(page, "Groups and types")
        assert "Warning: a warning." in alarms
        assert "Warning: clients set aside in Step 1: 1." in alarms
        assert "Warning: CARVY-FL: clients whose reports could not be used: 1." in alarms
        assert any("1 of" in text and "cast no vote" in text for text in alarms)
        assert "clients in no group: 1." in groups.inner_text()
        assert ["3", "holds NaN"] in under(groups, "Clients set aside in Step 1")
        nobody = under(groups, "The clients of every group")[-1]
        assert nobody == ["no group", "1", "1 × no type", "3"]
        assert "diverged: casts no vote" in (groups.text_content() or "")
        missing = "single global model: no validation accuracy was measured."
        assert missing in groups.inner_text()


# --- what cannot be reported --------------------------------------------------------------------


@pytest.mark.slow
def test_mistakes_are_one_line_and_nothing_is_written(run, copy, tmp_path):
    out, folder = tmp_path / "r.html", tmp_path / "folder.html"
    folder.mkdir()
    before = (copy / "run.json").read_bytes()
    for runs, file, words in (
        ([tmp_path / "none"], out, "does not exist"),
        ([run, tmp_path / "none"], out, "does not exist"),
        ([copy], copy / "run.json", ".html"),
        ([run], "/proc/none/r.html", "cannot write"),
        ([run], folder, "cannot write"),
    ):
        assert_refused(carvy("report", *runs, "--out", file), words)
    assert (copy / "run.json").read_bytes() == before
    assert not out.exists()


def swap(one: str, other: str) -> Callable[[Path], object]:
    return lambda run: (run / one).write_bytes((run / other).read_bytes())


def in_record(change: Callable[[dict[str, Any], dict[str, Any]], object]) -> Callable[[Path], None]:
    """Change the record, or the part on carvy, and seal it again."""
    return lambda run: reseal(run, lambda record: change(record, record["methods"]["carvy"]))


CONTRADICTIONS: dict[str, Callable[[Path], object]] = {
    "votes of another method": swap("votes/carvy.npz", "votes/flcert.npz"),
    "votes of a single model": swap("votes/carvy.npz", "votes/single.npz"),
    "groups of another method": swap("groups/carvy.json", "groups/single.json"),
    "another curve": in_record(lambda record, carvy: carvy["ca"].__setitem__(0, 99.5)),
    "a shorter curve": in_record(lambda record, carvy: carvy["ca"].pop()),
    "fewer rounds": in_record(lambda record, carvy: carvy["rounds"].pop()),
    "fewer classes": in_record(lambda record, carvy: record["data"]["class_names"].pop()),
    "accuracy in words": in_record(
        lambda record, carvy: carvy["validation_accuracy"].__setitem__(0, ["good"])
    ),
    "no environment": in_record(lambda record, carvy: record.pop("environment")),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_files_that_contradict_each_other_are_refused(copy, name):
    CONTRADICTIONS[name](copy)
    out = copy.with_name("r.html")
    assert_refused(carvy("report", copy, "--out", out), "restore it")
    assert not out.exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "damage", [{"m": []}, {"accuracy": ["high", 1, 2]}, {"attack": 1}], ids=str
)
def test_damaged_attack_results_are_refused(copy, damage):
    result = plain(attack(copy, "carvy", 1.0)) | damage
    results = {"run": read(copy / "run.json")["digest"], "attacks": [result]}
    RunFolder(copy).attacks_file.write_text(sealed(results))
    assert_refused(carvy("report", copy, "--out", copy.with_name("r.html")), "attack", "damaged")
