"""The worker processes of CPU cores."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.cli import alive, start

TESTS = Path(__file__).parents[1]

ENDLESS = """
from carvyfl.groups.methods import form_groups
from carvyfl.learning.backends import Cores
from carvyfl.learning.recipe import Recipe
from carvyfl.pipeline import Setup, plan_training
from support.federations import class_disjoint_federation, small_net

federation = class_disjoint_federation()
grouping = form_groups("balanced", num_clients=len(federation), seed=0, num_groups=4)
setup = Setup(federation, small_net(), Recipe(rounds=10**7), seed=0)
jobs = plan_training(setup, grouping)
list(Cores(2).train_groups(jobs, lambda position, rounds: print(position, flush=True)))
"""


@pytest.mark.slow
def test_workers_do_not_outlive_a_killed_parent(tmp_path: Path) -> None:
    """Two groups are at work and two wait: nobody goes on with either."""
    errors = tmp_path / "stderr"
    with errors.open("w") as file:
        parent = start(
            *(sys.executable, "-c", ENDLESS),
            env={**os.environ, "PYTHONPATH": f"{TESTS}:{os.environ.get('PYTHONPATH', '')}"},
            stdout=subprocess.PIPE,
            stderr=file,
            start_new_session=True,
        )
    try:
        assert parent.stdout
        at_work: set[str] = set()
        while len(at_work) < 2:  # a parent that fails ends its output
            line = parent.stdout.readline()
            assert line, errors.read_text()
            at_work.add(line)
        assert len(alive(parent.pid)) >= 3
        parent.kill()
        assert parent.wait(timeout=60) == -signal.SIGKILL
        deadline = time.monotonic() + 30
        while alive(parent.pid) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert alive(parent.pid) == []
    finally:
        for pid in alive(parent.pid):
            os.kill(pid, signal.SIGKILL)
        parent.wait()
        if parent.stdout:
            parent.stdout.close()
