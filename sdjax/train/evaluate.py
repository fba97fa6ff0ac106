"""What a drafter is worth: τ on prompts that it was not trained on, decoded; and a guess at it from a loss's figures."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from typing import Any

from sdjax.core.metrics import Acceptance, acceptance
from sdjax.core.sampling import Warp
from sdjax.decode.generate import generate
from sdjax.decode.place import params_shardings
from sdjax.decode.state import Loop, Params
from sdjax.drafters.base import Drafter
from sdjax.mesh.layout import Layout
from sdjax.mesh.place import lay_out
from sdjax.targets.decoder import Decoder
from sdjax.verify.walk import Walk

PER_POSITION = re.compile(r"(?:accuracy|agreement)(?:_(\d+))?")


@dataclass(frozen=True)
class HeldOut:
    """Prompts to decode, `max_new` tokens each, in batches of `batch`."""

    prompts: tuple[tuple[int, ...], ...]
    stop: tuple[int, ...] = ()
    max_new: int = 64
    batch: int = 8
    chunk: int = 64

    def __post_init__(self):
        if not self.prompts or self.batch < 1 or self.max_new < 2:
            raise ValueError(
                f"held-out decoding has {len(self.prompts)} prompts, batch {self.batch} and max_new {self.max_new}; "
                "they must be at least 1, 1 and 2 (the first token comes with prefill)"
            )

    def acceptance(
        self, target: Decoder, drafter: Drafter, params: Params, temperature: float, layout: Layout | None = None
    ) -> Acceptance:
        """Decodes by walking, which is lossless for every drafter. Each prompt's noise is keyed by its place.

        With a training run's `layout`, on its devices (`Layout.decoding`); the parameters may be there or with every process.
        """
        loop = Loop(target, drafter, Walk(), Warp(temperature), self.stop, self.chunk)
        if layout is not None:
            layout = layout.decoding()
            params = lay_out(params, params_shardings(layout, loop))
        longest = max(map(len, self.prompts))
        rows = -(-(max(longest, 1) + self.max_new + drafter.depth + 1 + self.chunk) // self.chunk) * self.chunk
        steps = []
        for start in range(0, len(self.prompts), self.batch):
            part = self.prompts[start : start + self.batch]
            seeds = range(start, start + len(part))
            steps += generate(loop, params, part, self.max_new, seeds=seeds, capacity=rows, layout=layout).steps
        return acceptance(steps, drafter.depth)


def forced_acceptance(metrics: Mapping[str, Any], depth: int) -> tuple[list[float], float]:
    """Accuracy per position, and the τ that it makes, 1 + Σ of its running products; no accuracies: none, and 1.

    On the true prefix (teacher forcing), each position's accuracy standing for its chance to be accepted; the last that
    the loss measured stands for those behind it.
    """
    found = [(int(match[1] or 0), float(metrics[name])) for name in metrics if (match := PER_POSITION.fullmatch(name))]
    rates = [rate for _, rate in sorted(found)][:depth]
    whole = rates + rates[-1:] * (depth - len(rates))
    return rates, 1 + sum(accumulate(whole, mul))
