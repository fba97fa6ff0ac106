"""What a person sees while a comparison runs: a progress bar on a terminal, plain lines elsewhere, text as it comes."""

import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from sdjax.study.methods import Arm
from sdjax.study.runs import Record
from sdjax.targets.tokenizer import TextStream


class Screen:
    """Shows progress; decides nothing. Use it as a context manager."""

    def __init__(self, console: Console, streams: bool = False):
        self.console, self.streams = console, streams
        self._shown = 0
        self._began = time.monotonic()
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        self._bar = Progress(*columns, console=console, transient=True, disable=streams or not console.is_terminal)
        self._task = self._bar.add_task("starting", total=0)

    def __enter__(self) -> "Screen":
        self._bar.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self._bar.stop()

    def count(self, done: int, left: Sequence[tuple[Arm, Sequence[Any]]]) -> None:
        """Another wave of work is known: `done` results are there already, and `left` is to do."""
        todo = sum(len(batch) for _, batch in left)
        task = self._bar.tasks[self._task]
        self._bar.update(self._task, total=(task.total or 0) + done + todo, completed=task.completed + done)
        if done:
            self.say(f"{done} results are there already, {todo} are left")

    def status(self, text: str) -> None:
        """What is going on before the next result."""
        self._bar.update(self._task, description=text)
        if self._bar.disable:
            self.say(f"{text} …")

    def begin(self, arm: Arm, batch: Sequence[Any]) -> None:
        self._shown = 0
        self._bar.update(self._task, description=f"{arm.label} on {batch[0].prompt.id}")
        if self.streams:
            self.say(f"\n── {arm.label} on {batch[0].prompt.id}")

    def end(self, records: Sequence[Record]) -> None:
        self._bar.advance(self._task, len(records))
        if self._bar.disable:
            for record in records:
                self.say(progress_line(record, time.monotonic() - self._began))

    def show(self, stream: TextStream, tokens: Sequence[int], end: bool = False) -> None:
        """Prints what is new of a sequence's text; half a character waits for its other half."""
        text = stream.push(tokens[self._shown :]) + (stream.flush() if end else "")
        self._shown = len(tokens)
        print(text, end="\n" if end else "", flush=True, file=self.console.file)

    def say(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)


def progress_line(record: Record, elapsed: float) -> str:
    """One result in a line: "[ 12 s] lookup T=0 on HumanEval/3: 96 tokens, τ 1.92, 41.0 tok/s"."""
    steps = len(record.steps.committed)
    tau = f"{record.steps.committed.sum() / steps:.2f}" if steps else "–"
    speed = f"{record.decoded / record.decode_seconds:.1f}" if record.decoded else "–"
    where = f"{record.prompt}, turn {record.turn + 1}" if record.turn else record.prompt
    name = f"{record.method} T={record.temperature:g}"
    return f"[{elapsed:4.0f} s] {name} on {where}: {len(record.tokens)} tokens, τ {tau}, {speed} tok/s"
