"""Programs that are killed (SIGKILL) again and again, and started again, until they are left to end."""

import os
import random
import signal
import subprocess
import sys
import time
from itertools import count
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]


class Struck(NamedTuple):
    """Folders of runs that ended: one `alone`, and those that were killed; how many lines were logged `at` each kill."""

    alone: Path
    ended: list[Path]
    at: list[int]


def after_kills(program: str, root: Path, kills: int, seed: int, log: str) -> Struck:
    """`python -m program FOLDER` in folders of `root`, killed `kills` times, then left to end.

    The moments are drawn over the seconds that a whole run takes, from its start: imports, work and the last write. A run
    that ends before its kill is followed by a fresh one. `log` is the pattern of the files that grow while it works.
    """
    moment, folders = random.Random(seed), (root / f"killed{i}" for i in count())
    run(program, root / "compiling")
    span = run(program, root / "alone")
    ended, at, folder = [], [], next(folders)
    while len(at) < kills:
        if run(program, folder, moment.uniform(0, span)) is None:
            at.append(sum(path.read_bytes().count(b"\n") for path in folder.glob(log)))
        else:
            ended.append(folder)
            folder = next(folders)
    run(program, folder)
    return Struck(root / "alone", [*ended, folder], at)


def run(program: str, folder: Path, limit: float | None = None) -> float | None:
    """The seconds until it ended by itself; None where it was killed at the limit. Folders side by side share compilations."""
    environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(folder.parent / "compiled")}
    command, begin = [sys.executable, "-m", program, str(folder)], time.monotonic()
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL) as process:
        try:
            process.wait(limit)
        except subprocess.TimeoutExpired:
            process.kill()
    assert process.returncode in (0, -signal.SIGKILL)
    return time.monotonic() - begin if process.returncode == 0 else None
