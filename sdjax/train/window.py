"""Steps whose figures are still on the device, and the checks on them once they are read."""

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from sdjax.core.types import Batch, Trace
from sdjax.train.step import Metrics


@dataclass(frozen=True)
class Done:
    """One step: its number from 1, what it was given, what came of it."""

    number: int
    batch: Batch | Trace
    metrics: Metrics


class Window:
    """The steps since figures were last read."""

    def __init__(self, folder: Path):
        self._folder = folder
        self.restart()

    def restart(self) -> None:
        """Begins anew: what the clock saw so far counts for nothing."""
        self._steps: list[Done] = []
        self._began = time.perf_counter()

    def add(self, step: Done) -> None:
        self._steps.append(step)

    def read(self) -> list[dict[str, Any]]:
        """Waits for the steps: a row of figures each, the last with the speed of all.

        ValueError for a step that had nothing to learn from, or whose loss or gradient is not finite: its batch is written
        to the folder first.
        """
        found = jax.device_get([step.metrics for step in self._steps])
        seconds = time.perf_counter() - self._began
        rows = [
            {"step": step.number} | {name: float(value) for name, value in metrics.items()}
            for step, metrics in zip(self._steps, found, strict=True)
        ]
        for step, row in zip(self._steps, rows, strict=True):
            self._check(step, row)
        if rows:
            rows[-1]["tokens_per_second"] = sum(row["supervised"] for row in rows) / seconds
        self.restart()
        return rows

    def _check(self, step: Done, row: dict[str, Any]) -> None:
        if row["supervised"] == 0:
            raise ValueError(
                f"the batch of step {step.number} has no supervised token; check the loss mask, the chat template and the "
                "length that documents are cut to"
            )
        wrong = [name for name in ("loss", "gradient_norm") if not math.isfinite(row[name])]
        if wrong:
            path = self._folder / f"bad_batch_step_{step.number}_process_{jax.process_index()}.npz"
            batch = step.batch.batch if isinstance(step.batch, Trace) else step.batch
            np.savez(path, tokens=batch.tokens, positions=batch.positions, segments=batch.segments, loss_mask=batch.loss_mask)
            raise ValueError(
                f"{' and '.join(wrong)} of step {step.number} ({row['loss']}, {row['gradient_norm']}) are not finite; its "
                f"batch is in {path}: lower the learning rate, or look at that batch"
            )
