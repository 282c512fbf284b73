"""Put the reproduction's pictures and report, made from its records, beside their page."""

from __future__ import annotations

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent.parent
SHOWN = Path("results/reproduction")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what the page shows and links to."""
    folder = ROOT / SHOWN
    for path in [*sorted(folder.glob("figures/*.svg")), folder / "report.html"]:
        address = path.relative_to(ROOT).as_posix()
        files.append(File.generated(config, address, abs_src_path=str(path)))
    return files
