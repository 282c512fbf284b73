"""Write what is generated in the documentation: JSON schemas, tables of fields, included files.

``python scripts/reference.py`` writes them; with ``--check`` it only says which are stale.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from carvyfl.cli.answers import (
    ANSWERS,
    Attacked,
    Audit,
    CertifiedVotes,
    CollectiveShare,
    DataFiles,
    DataSets,
    Groups,
    MeanCurve,
    Prediction,
    Predictions,
    Reproduced,
    Run,
    Seeds,
    Targets,
    UnlabelledVotes,
)
from carvyfl.core.files import write_text
from carvyfl.core.schema import json_schema, table
from carvyfl.group_count import Candidate, GroupCount
from carvyfl.learning.recipe import Recipe
from carvyfl.runs.audit import Check
from carvyfl.runs.config import RunSettings
from carvyfl.runs.record import (
    AttackResult,
    Data,
    Deployment,
    Environment,
    MethodResult,
    ReadAgainst,
    Readings,
    Scope,
    Types,
)

DOCS = Path(__file__).parents[1] / "docs"
REFERENCE = DOCS / "reference"
ROOT = DOCS.parent

TABLES = {
    "certify": table(CertifiedVotes, UnlabelledVotes),
    "collective": table(CollectiveShare),
    "groups": table(Groups),
    "run": table(Run),
    "seeds": table(Seeds),
    "mean over seeds": table(MeanCurve),
    "data of a run": table(Data),
    "types of a run": table(Types),
    "number of groups": table(GroupCount),
    "candidate": table(Candidate),
    "method": table(MethodResult),
    "certificate": table(Scope),
    "readings": table(Readings, ReadAgainst),
    "environment": table(Environment),
    "deployment": table(Deployment),
    "verify": table(Audit),
    "check": table(Check),
    "attack": table(Attacked, AttackResult),
    "reproduce": table(Targets, Reproduced),
    "predict": table(Predictions),
    "prediction": table(Prediction),
    "data": table(DataSets, DataFiles),
    "settings": table(RunSettings, default=True),
    "training": table(Recipe, default=True),
}
MARKED = re.compile(r"(<!-- table: ([\w ]+) -->\n).*?(<!-- end -->)", re.DOTALL)
INCLUDED = re.compile(r"(<!-- file: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def included(name: str) -> str:
    """Return a file as a page shows it: a table as it is, an example as a block of code.

    The content is part of the page, so that it can be read where no site is built. Examples have
    tests of their own, and their fence is one that the tests of pages do not run.
    """
    text = (ROOT / name).read_text(encoding="utf-8").strip("\n")
    return f"``` {{ .python }}\n{text}\n```" if name.endswith(".py") else text


def generated() -> dict[Path, str]:
    """Return the text of every file that is generated, or holds a generated table."""
    found = {
        REFERENCE / "schemas" / f"{name}.schema.json": json.dumps(
            json_schema(title, *kinds), indent=2, ensure_ascii=False
        )
        + "\n"
        for name, (title, kinds) in ANSWERS.items()
    }
    for page in sorted(DOCS.rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        text = MARKED.sub(lambda m: f"{m[1]}\n{TABLES[m[2]]}\n{m[3]}", text)
        found[page] = INCLUDED.sub(lambda m: f"{m[1]}\n{included(m[2])}\n\n{m[3]}", text)
    return found


def stale() -> list[Path]:
    """Return the files that are not as they would be generated."""
    return [
        path
        for path, text in generated().items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]


if __name__ == "__main__":
    behind = stale()
    if "--check" in sys.argv[1:]:
        sys.exit("".join(f"{path} is stale; run scripts/reference.py\n" for path in behind) or 0)
    for path, text in generated().items():
        if path in behind:
            write_text(path, text)
