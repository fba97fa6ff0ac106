"""A run's folder: its resolved config, one line of results a (method, temperature, prompt, turn), its summary.

A run that was stopped goes on where it was: a half-written last line is dropped and its result made again.
"""

import dataclasses
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sdjax.core.metrics import Steps
from sdjax.core.plain import differences as differences
from sdjax.core.plain import plain_data as plain_data
from sdjax.core.plain import write_json as write_json
from sdjax.mesh.start import speaks
from sdjax.train.hosts import told_by_first

HASHED = re.compile(r' was "(sha256:)?[0-9a-f]{64}[^"]*", is "')
COLUMNS = {"l": "proposed", "reach": "reach", "a": "accepted", "e": "committed", "n": "verified"}


@dataclass(frozen=True)
class Record:
    """What one method made of one prompt. Seconds are the prompt's equal share of its batch's."""

    method: str
    temperature: float
    prompt: str
    turn: int
    category: str
    seed: int
    prompt_tokens: list[int]
    tokens: list[int]
    steps: Steps
    prefill_seconds: float
    decode_seconds: float
    text: str

    @property
    def arm(self) -> tuple[str, float]:
        return self.method, self.temperature

    @property
    def item(self) -> tuple[str, int]:
        return self.prompt, self.turn

    @property
    def batch(self) -> tuple[Any, ...]:
        """What tells its batch from others: whose rows have the very same share of what a clock measured."""
        return *self.arm, self.turn, self.prefill_seconds, self.decode_seconds

    @property
    def decoded(self) -> int:
        """Tokens that decoding made; the first came with prefill."""
        return len(self.tokens) - 1

    def to_json(self) -> dict[str, Any]:
        steps = {short: getattr(self.steps, name).tolist() for short, name in COLUMNS.items()}
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)} | {"steps": steps}

    @classmethod
    def from_json(cls, row: dict[str, Any]) -> "Record":
        steps = Steps(**{name: np.array(row["steps"][short], int) for short, name in COLUMNS.items()})
        return cls(**(row | {"steps": steps}))


@dataclass(frozen=True)
class RunFolder:
    """The folder of one run; `open_run` makes or resumes it. In a pod the first process alone reads and writes it.

    `config` is what `open_run` has left in config.json: where another run has put its own there since, nothing is added.
    """

    path: Path
    config: Any = None

    @property
    def results(self) -> Path:
        return self.path / "results.jsonl"

    def append(self, records: Sequence[Record]) -> None:
        """Adds whole lines in one write, and waits until they are on the disk; ValueError where the folder is another run's."""
        if not speaks():
            return
        self.check_ours()
        lines = "".join(json.dumps(record.to_json(), ensure_ascii=False) + "\n" for record in records)
        with self.results.open("ab", buffering=0) as file:
            file.write(lines.encode())
            os.fsync(file.fileno())

    def read(self) -> list[Record]:
        """All results so far; cuts a half-written last line off the file."""
        return [Record.from_json(row) for row in told_by_first([record.to_json() for record in self.read_here()])]

    def read_here(self) -> list[Record]:
        """Those that this process sees."""
        if not speaks() or not self.results.exists():
            return []
        content = self.results.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            os.truncate(self.results, len(whole))
        return [self.parse(line, number) for number, line in enumerate(whole.splitlines(), 1)]

    def parse(self, line: bytes, number: int) -> Record:
        try:
            return Record.from_json(json.loads(line))
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"{self.results}, line {number} is damaged ({error!r}); remove the line to redo it") from error

    def check_ours(self) -> None:
        """ValueError where another run has taken the folder."""
        if self.load_here("config.json", None) != self.config:
            raise ValueError(f"a run of another config has taken {self.path} since this one began; take another --name")

    def write(self, name: str, value: Any) -> None:
        """Writes a JSON file: never seen half-written; ValueError where the folder is another run's."""
        if speaks():
            self.check_ours()
            write_json(self.path / name, value)

    def load(self, name: str, default: Any) -> Any:
        """What `write` wrote, or the default."""
        return told_by_first(self.load_here(name, default))

    def load_here(self, name: str, default: Any) -> Any:
        """What this process sees of it."""
        path = self.path / name
        return json.loads(path.read_text()) if speaks() and path.exists() else default


def telling_differences(known: Any, wanted: Any) -> str:
    """What differs between two resolved configs; hashes are left out where a setting differs: most follow from it."""
    changes = list(differences(known, wanted))
    return "; ".join([change for change in changes if not HASHED.search(change)] or changes)


def open_run(path: Path, resolved: dict[str, Any]) -> RunFolder:
    """The folder of the run with this resolved config; ValueError naming what differs if it is another run's.

    A folder without any result is nobody's yet: a mistake that shows after it was made does not keep it from the command
    that mends it.
    """
    path.mkdir(parents=True, exist_ok=True)
    folder = RunFolder(path)
    resolved = json.loads(json.dumps(resolved))
    known = folder.load("config.json", None)
    if known is None and told_by_first(folder.results.exists()):
        raise ValueError(f"{path} holds results, but no config.json that says of what; take another name or remove the folder")
    if known is not None and known != resolved:
        if told_by_first(folder.results.exists() and folder.results.stat().st_size > 0):
            changes = telling_differences(known, resolved)
            raise ValueError(f"{path} holds a run of another config ({changes}); take another --name, or remove the folder")
        if speaks():
            (path / "costs.json").unlink(missing_ok=True)  # those of the other config
    if speaks():
        write_json(path / "config.json", resolved)
    return RunFolder(path, folder.load_here("config.json", None))
