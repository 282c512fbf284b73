"""Make the reproduction's numbers, pictures, tables, verdicts and report from its records.

    python scripts/present.py [FOLDER]

FOLDER (default: results) holds paper.jsonl and default.jsonl; nothing is trained.
"""

from __future__ import annotations

import sys
from pathlib import Path

from carvyfl.paper.present import present

if __name__ == "__main__":
    print(present(Path(sys.argv[1] if len(sys.argv) > 1 else "results")))
