"""The command `carvy`."""

from __future__ import annotations

import os
import signal
import sys
from concurrent.futures import BrokenExecutor
from pickle import PicklingError
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from carvyfl.core.errors import CarvyError, printable, refusal

if TYPE_CHECKING:
    from typer import Typer

INTERRUPTED = 130  # the exit code after Ctrl-C
LONGEST_MESSAGE = 1_000  # characters; a message may quote what somebody else wrote

SWITCH_INTERVAL = 0.0005
"""Seconds, not 0.005, for which a thread that was in hashlib or NumPy may have to wait."""


def main(app: Typer | None = None) -> None:
    """Run an application, by default carvy: a user's mistake is one line and exit code 2."""
    signal.signal(signal.SIGINT, interrupt)
    sys.setswitchinterval(SWITCH_INTERVAL)
    from carvyfl.cli.commands import app as carvy  # takes a moment
    from carvyfl.cli.commands import call
    from carvyfl.cli.options import in_flags

    try:
        sys.exit(call(app or carvy))
    except CarvyError as error:
        _fail(in_flags(str(error)))
    except BrokenPipeError:  # the reader (head, less) was closed
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:  # such as a full disk, where no other handler is nearer
        where = f"{error.filename}: " if error.filename else ""
        _fail(f"{where}{refusal(error)}, then try again")
    except MemoryError:
        _fail("there is not enough memory for this; use smaller files, or fewer clients or samples")
    except PicklingError:  # joblib hands large arrays over through files
        _fail(
            "cannot hand work to the worker processes; free some space in /dev/shm and /tmp, or "
            "run the same command with --workers 1: finished groups are kept"
        )
    except BrokenExecutor:
        _fail(
            "a worker process was killed, most likely for want of memory; finished groups are "
            "kept: run the same command with fewer --workers"
        )


def interrupt(signal_number: int, frame: FrameType | None) -> NoReturn:
    """Raise KeyboardInterrupt; while modules are loaded, which may swallow it, stop at once."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            sys.stderr.write("carvy: stopped\n")
            sys.stderr.flush()
            os._exit(INTERRUPTED)
        frame = frame.f_back
    raise KeyboardInterrupt


def _fail(message: str) -> NoReturn:
    sys.stderr.write(f"carvy: {printable(' '.join(message.split()), LONGEST_MESSAGE)}\n")
    sys.exit(2)
