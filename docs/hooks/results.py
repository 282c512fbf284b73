"""Put pictures, reports and records of results/ beside the pages that show them."""

from __future__ import annotations

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent.parent
SHOWN = (
    "reproduction/figures/*.svg",
    "reproduction/report.html",
    "end_to_end/*.svg",
    "one_shot/*.svg",
    "heterogeneity/*.svg",
    "privacy/*.json",
)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what the pages show and link to."""
    for path in sorted(path for shown in SHOWN for path in (ROOT / "results").glob(shown)):
        address = path.relative_to(ROOT).as_posix()
        files.append(File.generated(config, address, abs_src_path=str(path)))
    return files
