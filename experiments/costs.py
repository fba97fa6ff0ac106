"""Measures the cost curve that Sequoia's choice needs: t(n), a pass over n tokens, and c, a draft step.

    python -m experiments.costs --config configs/decode/smollm2_sequoia.py --method wide --out runs/costs.json

Times are in steps of plain decoding (a pass over one token), behind the config's first prompt, medians of a few calls:
{"tokens": [1, 2, ..], "verify": [1.0, ..], "draft": c}. They belong to this machine, model, dtype and cache length; c is
the mean over the method's levels, so take one about as wide as the tree to be chosen.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from experiments.acceptance import arm_named
from experiments.config import DecodeConfig, read_config
from experiments.launch import command_line, decode_in_float32, launch_identity, mistakes_end_the_program
from sdjax.core.plain import write_json
from sdjax.decode.generate import bucket, rows_needed
from sdjax.study.methods import Arm
from sdjax.study.prompts import encode, load_prompts
from sdjax.study.timing import REPEATS, prefilled, propose, seconds, verify


@dataclass(frozen=True)
class Measurement:
    """What is measured, and where it goes."""

    config: str
    """a config of experiments.decode: its target, prompts and methods"""
    method: str
    """the method whose draft step is measured"""
    out: Path
    """the JSON file that is written"""
    tokens: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    """widths of the target's pass; the first must be 1"""
    max_new: int = 64
    """new tokens that the cache has room for behind the prompt"""


def main(measurement: Measurement) -> dict[str, Any]:
    """Measures, prints and writes."""
    if not measurement.tokens or measurement.tokens[0] != 1:
        raise ValueError(f"--tokens: the curve is relative to a pass over one token; start with 1, not {measurement.tokens}")
    config = read_config(measurement.config, "python -m experiments.costs", "decode", DecodeConfig)[0]
    model = config.target.load()
    arm = arm_named(measurement.method, config, model, 0.0)
    if not arm.loop.drafter.depth:
        raise ValueError(f"--method: {measurement.method!r} drafts nothing, so it has no draft step; take one that drafts")
    prompt = encode(model.tokenizer, load_prompts(config.prompts)[0], (), config.prompts.chat)
    found = measure(arm, prompt, measurement.tokens, measurement.max_new)
    measurement.out.parent.mkdir(parents=True, exist_ok=True)
    write_json(measurement.out, found | {"target": model.identity, "launch": launch_identity()})
    for n, t in zip(found["tokens"], found["verify"], strict=True):
        print(f"t({n}) {t:.2f}")
    print(f"c {found['draft']:.2f}")
    return found


def measure(arm: Arm, prompt: list[int], widths: tuple[int, ...], max_new: int) -> dict[str, Any]:
    """The curve behind one prompt. A pass costs the same for any tree of its width, so stars are timed."""
    state = prefilled(arm, [prompt], bucket(rows_needed(arm.loop, [prompt], max_new)), max_new)

    def star(n: int) -> dict[str, Any]:
        below = jnp.minimum(jnp.arange(n), 1)[None]
        return {"tokens": jnp.zeros((1, n), jnp.int32), "parent": below - 1, "depth": below}

    shape = arm.loop.target, arm.loop.drafter.taps, 1
    passes = [partial(verify, *shape, arm.params.target, state.cache, state.p, star(n)) for n in widths]
    *verifying, drafting = interleaved([*passes, lambda: propose(arm.loop, arm.params, state)])
    verify_times = [passed / verifying[0] for passed in verifying]
    return {"tokens": list(widths), "verify": verify_times, "draft": drafting / arm.loop.drafter.depth / verifying[0]}


def interleaved(calls: Sequence[Callable[[], Any]]) -> list[float]:
    """Median seconds of each call, once compiled; all take turns, so that a drift of the machine hits all alike."""
    for call in calls:
        seconds(call)
    rounds = [[seconds(call) for call in calls] for _ in range(REPEATS)]
    return np.median(rounds, 0).tolist()


if __name__ == "__main__":
    with mistakes_end_the_program():
        said = command_line("costs", Measurement, __doc__)
        decode_in_float32()
        main(said)
