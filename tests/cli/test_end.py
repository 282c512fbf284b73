"""How the command line ends after a GPU was used."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import atexit, threading, time
from concurrent.futures import ThreadPoolExecutor
import joblib, torch
from carvyfl.cli import _end

def late():
    time.sleep(0.2)
    print("thread", flush=True)

if __name__ == "__main__":
    torch.cuda.is_initialized = lambda: True
    joblib.Parallel(n_jobs=2)(joblib.delayed(abs)(number) for number in range(4))
    pool = ThreadPoolExecutor(2)
    pool.submit(abs, 1)
    threading.Thread(target=late).start()
    atexit.register(print, "atexit")
    print("unflushed", end="")
    _end(3)
"""


def test_worker_processes_and_idle_pools_do_not_keep_it_from_ending() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 3, ended.stderr
    assert ended.stdout == "unflushedthread\natexit\n"
