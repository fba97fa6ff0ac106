"""A run's figures: one line of JSON a step, TensorBoard's files, and a line on the screen; on the first process alone."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from tensorboardX import SummaryWriter

from sdjax.core.plain import finite
from sdjax.mesh.start import speaks
from sdjax.train.evaluate import forced_acceptance

Row = Mapping[str, Any]


class Log:
    """Lines of metrics.jsonl hold `step` and its figures. What a run has written beyond `step` is taken back."""

    def __init__(self, folder: Path, step: int, console: Console):
        self.speaks = speaks()
        self.folder, self.path, self.console = folder, folder / "metrics.jsonl", console
        if self.speaks:
            rewind(self.path, step)
            self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)

    def write(self, rows: Sequence[Row]) -> None:
        """Appends rows, and waits until they are on the disk."""
        if not self.speaks:
            return
        text = "".join(json.dumps(finite(dict(row))) + "\n" for row in rows)
        with self.path.open("ab", buffering=0) as file:
            file.write(text.encode())
            os.fsync(file.fileno())
        for row in rows:
            for name, value in row.items():
                if name != "step":
                    self._board.add_scalar(name, value, row["step"])

    def say(self, text: str) -> None:
        if self.speaks:
            self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def warn_of_gap(self, step: int) -> None:
        """Says where lines up to `step` are missing: a checkpoint outlived them, and sums over the run are too low."""
        last = max((row["step"] for row in read(self.path) if "loss" in row), default=0) if self.path.exists() else 0
        if self.speaks and last < step:
            self.say(f"{self.path} ends at step {last}: of the steps behind it, tokens and seconds are in no account")

    def window(self, rows: Sequence[Row], steps: int, depth: int) -> None:
        """Writes the rows and shows the last: over the line before on a terminal."""
        self.write(rows)
        if self.speaks and rows:
            end = "\r" if self.console.is_terminal else "\n"
            self.console.print(describe(rows[-1], steps, depth), markup=False, highlight=False, soft_wrap=True, end=end)

    def close(self) -> None:
        if self.speaks:
            self._board.close()


def describe(row: Row, steps: int, depth: int) -> str:
    """One line on a step."""
    rates, tau = forced_acceptance(row, depth)
    parts = [f"step {row['step']}/{steps}", f"loss {row['loss']:.4f}", f"{row['tokens_per_second']:,.0f} supervised tokens/s"]
    if rates:
        parts += ["accuracy " + " ".join(f"{rate:.2f}" for rate in rates), f"τ (teacher-forced) {tau:.2f}"]
    return "  ".join(parts)


def rewind(path: Path, step: int) -> None:
    """Keeps the lines of steps up to `step`; cuts what is behind them, a half-written line included."""
    if not path.exists():
        return
    lines = path.read_bytes().splitlines(keepends=True)
    kept = [line for line in lines if line.endswith(b"\n") and json.loads(line)["step"] <= step]
    os.truncate(path, sum(map(len, kept)))


def read(path: Path) -> list[dict[str, Any]]:
    """All whole lines."""
    return [json.loads(line) for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]


def account(rows: Sequence[Row], upto: int) -> dict[str, float]:
    """Supervised tokens that the steps up to `upto` learnt from, and the seconds they took (evaluations apart)."""
    tokens, waiting, seconds = 0.0, 0.0, 0.0
    for row in (row for row in rows if "supervised" in row and row["step"] <= upto):
        tokens, waiting = tokens + row["supervised"], waiting + row["supervised"]
        if "tokens_per_second" in row:  # of all steps since the last such row
            seconds, waiting = seconds + waiting / row["tokens_per_second"], 0.0
    return {"supervised": tokens, "seconds": seconds}
