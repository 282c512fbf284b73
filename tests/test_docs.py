"""The documentation is true: it builds, its links hold, its code runs, and nothing is left out.

How code in the README and in docs/ is run, page by page, in one namespace and an empty
working folder, commands in processes of their own: see "Documentation runs" in CONTRIBUTING.md.
"""

from __future__ import annotations

import dataclasses
import doctest
import json
import os
import pkgutil
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
import typer
import yaml

from carvyfl import __version__
from carvyfl.attacks.attack import AttackContext
from carvyfl.attacks.registry import ATTACKS
from carvyfl.cli.commands import app
from carvyfl.cli.variants import REGISTRIES
from carvyfl.data.datasets import DATASETS
from carvyfl.data.partitions import PARTITIONS
from carvyfl.groups.methods import GROUPINGS, GroupingInputs
from carvyfl.learning.models import MODELS
from carvyfl.learning.one_shot.features import FEATURES
from carvyfl.learning.one_shot.training import SumsView
from carvyfl.learning.private.model import MessageView
from carvyfl.learning.scaffold.adversary import RoundView
from carvyfl.profiles.methods import PROFILE_METHODS
from carvyfl.runs.config import PRESETS, RunConfig, preset
from support.cli import imported_by_threads, noting_imports, process
from support.pages import DOCS, FENCE, ROOT, blocks, commands
from support.registries import restored

PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
TEXTS = [*PAGES, ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md"]

# The site: it builds without a warning, and every link and anchor in it leads somewhere.


class Links(HTMLParser):
    """Collects what a page links to, and the places in it that can be linked to."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.targets: set[str] = set()
        self.anchors: set[str] = set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.targets |= {value or "" for name, value in attrs if name in ("href", "src")}
        self.anchors |= {value or "" for name, value in attrs if name in ("id", "name")}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    # The theme's own announcement about its future is no fault of these pages.
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


@pytest.mark.slow
def test_links_and_anchors(site: Path):
    pages = {page: Links(page) for page in site.rglob("*.html")}
    for page in pages:  # which need nothing from elsewhere
        content = page.read_text(encoding="utf-8")
        loaded = re.findall(r"<(?:script|img|iframe)[^>]*\ssrc=\"?([^\"\s>]+)", content)
        loaded += re.findall(r"<link[^>]*rel=\"?stylesheet[^>]*href=\"?([^\"\s>]+)", content)
        assert not [a for a in loaded if "//" in a and not a.startswith("data:")], page
    broken = []
    for page, links in pages.items():
        if page.name == "404.html":  # its links are meant for a server's root
            continue
        for target in links.targets:
            url = urlsplit(target)
            if url.scheme or url.netloc:
                continue
            place = (page.parent / unquote(url.path)).resolve() if url.path else page
            place = place / "index.html" if place.is_dir() else place
            anchors = pages[place].anchors if place in pages else None
            fragment = unquote(url.fragment)
            if not place.exists() or (fragment and anchors is not None and fragment not in anchors):
                broken.append(f"{page.relative_to(site)}: {target}")
    assert not broken

    # The README, changelog and guide are read beside the sources, not in the site.
    for text in [path for path in TEXTS if path.parent == ROOT]:
        content = FENCE.sub("", text.read_text(encoding="utf-8"))
        headings = {
            re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
            for title in re.findall(r"^#+ (.+)$", content, re.MULTILINE)
        }
        for target in re.findall(r"\]\(([^)]+)\)", content):
            url = urlsplit(target)
            if url.scheme:
                continue
            if not url.path:
                assert url.fragment in headings, f"{text.name}: no heading for {target}"
                continue
            assert (ROOT / url.path).exists(), f"{text.name}: {target} does not exist"
            if url.fragment:
                built = site / Path(url.path).relative_to("docs").with_suffix(".html")
                assert url.fragment in pages[built].anchors, f"{text.name}: {target}"


# The code: every block of Python, and every command.


def run_command(arguments: list[str], shown: list[str], folder: Path) -> None:
    """Run a command in a process of its own, as a reader does; no thread may import a module.

    The lines shown in the page must come in this order, "..." being any.
    """
    done = process(*arguments, env={**noting_imports(folder), "COLUMNS": "120"})
    assert done.code == 0, f"carvy {shlex.join(arguments)}: {done.err}"
    assert imported_by_threads(folder) == [], f"carvy {shlex.join(arguments)}"
    lines = iter([line.strip() for line in (done.out + done.err).splitlines()])
    for expected in shown:
        assert expected == "..." or expected in lines, f"{expected!r} not in: {done.out}{done.err}"


def check_options(arguments: list[str]) -> None:
    """Check a command that is not run: it must exist, and so must its options."""
    command: Any = typer.main.get_command(app)
    words = list(arguments)
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    assert not hasattr(command, "commands"), f"carvy {shlex.join(arguments)}: no such command"
    known = {option for parameter in command.params for option in parameter.opts}
    used = {word.partition("=")[0] for word in words if word.startswith("-")}
    assert used <= known, f"carvy {shlex.join(arguments)}: {used - known} unknown"


@pytest.fixture
def registries_kept() -> Iterator[None]:
    """Forget afterwards what a page registers: other tests go through all that is there."""
    with restored(ATTACKS, DATASETS, FEATURES, GROUPINGS, MODELS, PARTITIONS, PROFILE_METHODS):
        yield


@pytest.mark.slow
@pytest.mark.usefixtures("registries_kept")
@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if "```" in page.read_text(encoding="utf-8")],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_code_runs(
    page: Path,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    log = tmp_path_factory.mktemp("imports")
    namespace: dict[str, Any] = {"__name__": "__page__"}
    for block in blocks(page):
        if block.title:  # blocks of one title make one file
            with Path(block.title).open("a", encoding="utf-8") as file:
                file.write(block.text)
        if block.language == "console":
            for arguments, shown in commands(block.text):
                if block.skip:
                    check_options(arguments)
                else:
                    run_command(arguments, shown, log)
        elif block.language == "python" and not block.skip:
            # As it stands in the page: this file's own __future__ imports are not its.
            exec(compile(block.text, str(page), "exec", dont_inherit=True), namespace)
        elif block.language == "pycon":
            test = doctest.DocTestParser().get_doctest(block.text, namespace, page.name, None, 0)
            assert test.examples
            assert doctest.DocTestRunner().run(test).failed == 0
        elif block.language == "json":
            json.loads(block.text)
        elif block.language == "toml":
            tomllib.loads(block.text)


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="no OpenSSH")
def test_a_record_is_signed_and_checked_as_the_page_says(tmp_path: Path):
    record = tmp_path / "runs" / "small" / "run.json"
    record.parent.mkdir(parents=True)
    record.write_bytes(b"{}\n")
    content = (DOCS / "howto" / "verify.md").read_text(encoding="utf-8")
    page = content.partition("\n## Signatures\n")[2].partition("\n## ")[0]
    lines = re.findall(r"^\$ ((?:ssh-keygen|echo) .+)$", page, re.M)

    def shell(line: str) -> str:
        words: Any = {"capture_output": True, "text": True, "timeout": 60}
        answer = subprocess.run(["sh", "-c", line], cwd=tmp_path, **words)
        return f"{answer.returncode} {answer.stdout}"

    *before, check = lines
    assert [shell(line)[0] for line in before] == ["0"] * 3
    expected = re.search(r"^Good .+(?=…$)", page, re.M)
    assert expected
    assert shell(check).startswith(f"0 {expected[0]}")
    record.write_bytes(b"{ }\n")
    assert not shell(check).startswith("0")


def test_python_is_always_marked_as_such():
    """Only these languages are used, so that no code escapes the tests by its name."""
    known = {"python", "pycon", "console", "text", "yaml", "csv", "json", "toml"}
    examples = {example.read_text() for example in (ROOT / "examples").glob("*.py")}
    for page in TEXTS:
        assert {block.language for block in blocks(page)} <= known
        # Other fences hold whole examples, which have tests of their own.
        whole = re.findall(r"^``` \{[^\n]*\n(.*?)^```$", page.read_text(), re.M | re.S)
        assert set(whole) <= examples


def test_the_citation_names_this_version():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert cited["version"] == __version__
    assert cited["license"] == "Apache-2.0"


def test_pages_can_be_read_where_no_site_is_built():
    """Nothing is left to be included by the site, and no private place is named."""
    for page in PAGES:
        assert not re.search("--8<--|^:::", page.read_text(encoding="utf-8"), re.M), page
    for text in [*TEXTS, ROOT / "mkdocs.yml", *(ROOT / "examples").glob("*.py")]:
        assert not re.search(r"/tmp/|/home/", text.read_text(encoding="utf-8")), text


# The reference: nothing is left out.


def test_generated_parts_of_the_reference_are_up_to_date():
    stale = runpy.run_path(str(ROOT / "scripts" / "reference.py"))["stale"]
    assert stale() == [], "run scripts/reference.py"


def test_every_field_of_a_schema_is_described():
    def undescribed(part: Any) -> Iterator[str]:
        if isinstance(part, dict):
            properties = part.get("properties", {}).items()
            yield from (name for name, field in properties if "description" not in field)
            for inner in part.values():
                yield from undescribed(inner)

    schemas = sorted((DOCS / "reference" / "schemas").glob("*.schema.json"))
    assert len(schemas) == 8
    for file in schemas:
        assert list(undescribed(json.loads(file.read_text(encoding="utf-8")))) == [], file


@pytest.mark.parametrize(
    ("page", "function", "name", "kind"),
    [
        ("howto/extend.md", "form(given)", "given", GroupingInputs),
        ("howto/attack.md", "forge(view)", "view", RoundView),
        ("howto/attack.md", "forge_sums(view)", "view", SumsView),
        ("howto/attack.md", "forge_message(view)", "view", MessageView),
        ("howto/attack.md", "poisoned(data, rank, context)", "context", AttackContext),
    ],
)
def test_every_field_that_a_variant_sees_is_documented(
    page: str, function: str, name: str, kind: type
):
    content = (DOCS / page).read_text(encoding="utf-8")
    table = content[content.index(f"| `{function}` |") :].partition("\n\n")[0]
    first = " ".join(line.split(" | ")[0] for line in table.splitlines())
    shown = re.findall(rf"`{name}\.(\w+)`", first)
    fields = [field.name for field in dataclasses.fields(kind)]
    fields += [name for name, value in vars(kind).items() if isinstance(value, property)]
    assert sorted(shown) == sorted(fields)


def test_every_registry_is_known_to_the_command_line_and_on_the_page():
    """A plugin may add to any of them: one that is not known would count as "adds nothing"."""
    registries = set()
    for file in (ROOT / "src" / "carvyfl").rglob("*.py"):
        module = ".".join(file.relative_to(ROOT / "src").with_suffix("").parts)
        names = re.findall(r"^(\w+): Registry\[", file.read_text(encoding="utf-8"), re.M)
        registries |= {f"{module}:{name}" for name in names}
    assert registries == set(REGISTRIES.values())
    rows = (DOCS / "howto" / "extend.md").read_text(encoding="utf-8").splitlines()
    for place in registries:
        module, name = place.split(":")
        (row,) = (row for row in rows if row.startswith(f"| `{name}` |"))
        assert row.endswith(f"| `{module}` | `{pkgutil.resolve_name(place).group}` |")


def test_presets_are_documented_as_they_are():
    page = (DOCS / "concepts/presets.md").read_text(encoding="utf-8")
    names = re.findall(r"`([\w-]+)`", page[page.index("| setting |") :].partition("\n")[0])
    assert set(names) == set(PRESETS)

    def settings(config: RunConfig) -> dict[str, Any]:
        top = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
        recipe = top.pop("training")
        return top | {f"training.{key}": entry for key, entry in vars(recipe).items()}

    def cell(value: Any) -> str:
        if isinstance(value, tuple):
            return ", ".join(f"`{item}`" for item in value) or "none"
        plain = "none" if value in (None, {}) else str(value)
        return f"`{value}`" if isinstance(value, str) else plain.replace("False", "false")

    columns = [settings(preset(name)) for name in names]
    for setting in columns[0]:
        cells = " | ".join(cell(column[setting]) for column in columns)
        assert f"| `{setting}` | {cells} |" in page
