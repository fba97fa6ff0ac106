"""Measures how often each child of a drafted tree is the accepted one: what Sequoia's search is fed with.

    python -m experiments.acceptance --config configs/decode/smollm2_sequoia.py --method wide --out runs/acceptance.json

Decodes prompts by a method of the config whose drafter fills a static tree, and reads from the records of every step
which child was accepted below each accepted node. The tree should be as wide as the widest to be considered, and
uniform at each depth ("8x2x1"), so that all ranks are tried equally often. The file holds counts and rates: `rates`
for each depth, `pooled` over all of them. A rate belongs to one pair of models, temperature, law and kind of prompt.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import sdjax
from experiments.config import DecodeConfig, read_config
from experiments.launch import command_line, decode_in_float32, launch_identity, mistakes_end_the_program
from sdjax.core.plain import write_json
from sdjax.decode.generate import bucket, generate, rows_needed
from sdjax.study.methods import Arm, Sampling, arms
from sdjax.study.prompts import encode, load_prompts
from sdjax.targets.load import Model
from sdjax.trees.acceptance import Counts, count_accepted
from sdjax.trees.tree import Tree


@dataclass(frozen=True)
class Measurement:
    """What is measured, and where it goes."""

    config: str
    """a config of experiments.decode: its target, prompts and methods"""
    method: str
    """the method whose tree is measured"""
    out: Path
    """the JSON file that is written"""
    temperature: float = 0.0
    """of the target and the drafter; 0 is argmax"""
    prompts: int = 8
    """at most so many of the config's prompts"""
    skip: int = 0
    """leaves out the first so many of them"""
    max_new: int = 64
    """new tokens a prompt"""


def main(measurement: Measurement) -> dict[str, Any]:
    """Measures, prints and writes; raises ValueError for a method without a static tree."""
    config = read_config(measurement.config, "python -m experiments.acceptance", "decode", DecodeConfig)[0]
    model = sdjax.load(config.target.name, config.target.dtype)
    arm = arm_named(measurement.method, config, model, measurement.temperature)
    chosen = load_prompts(config.prompts)[measurement.skip :][: measurement.prompts]
    if not chosen:
        raise ValueError(f"--prompts {measurement.prompts} --skip {measurement.skip} leave none of the config's prompts")
    prompts = [encode(model.tokenizer, prompt, (), config.prompts.chat) for prompt in chosen]
    found = measure(arm, prompts, measurement.max_new, config.decode.batch)
    found |= {"target": model.identity, "temperature": measurement.temperature, "launch": launch_identity()}
    measurement.out.parent.mkdir(parents=True, exist_ok=True)
    write_json(measurement.out, found)
    show(found)
    return found


def arm_named(method: str, config: DecodeConfig, model: Model, temperature: float) -> Arm:
    """The config's method at a temperature, ready to run."""
    if method not in config.methods:
        raise ValueError(f"--method: the config has no method {method!r}; it has {', '.join(config.methods)}")
    sampling = Sampling((temperature,), config.rule.top_k, config.rule.top_p, config.rule.min_p)
    first = next(iter(config.methods))
    wanted = {name: config.methods[name] for name in dict.fromkeys([first, method])}
    return arms(wanted, sampling, model, config.decode.chunk)[0][-1]


def tree_of(arm: Arm) -> Tree:
    """The static tree that the arm's drafter fills."""
    tree = getattr(arm.loop.drafter, "tree", None)
    if not isinstance(tree, Tree):
        raise ValueError(
            f"method {arm.name!r} drafts no static tree ({type(arm.loop.drafter).__name__}), so ranks mean nothing; "
            "take a method whose drafter has one, such as TreeSelfDraft"
        )
    return tree


def measure(arm: Arm, prompts: Sequence[Sequence[int]], max_new: int, batch: int) -> dict[str, Any]:
    """Decodes the prompts, `batch` at a time, and counts which children were accepted."""
    tree = tree_of(arm)
    capacity = bucket(rows_needed(arm.loop, prompts, max_new))
    made = [
        generate(arm.loop, arm.params, prompts[at : at + batch], max_new, range(at, min(at + batch, len(prompts))), capacity)
        for at in range(0, len(prompts), batch)
    ]
    parts = [count_accepted(tree, np.asarray(m.records.node), np.asarray(m.records.committed)) for m in made]
    counts = Counts(np.sum([part.hits for part in parts], 0), np.sum([part.trials for part in parts], 0))
    committed = np.concatenate([steps.committed for m in made for steps in m.steps])
    return {
        "drafter": repr(arm.loop.drafter),
        "tree": tree.parents,
        "steps": len(committed),
        "tau": float(committed.mean()),
        "hits": counts.hits.tolist(),
        "trials": counts.trials.tolist(),
        "rates": counts.rates().tolist(),
        "pooled": counts.pooled().tolist(),
    }


def show(found: dict[str, Any]) -> None:
    """The rates, a line for each depth."""
    line = lambda rates: "  ".join(f"{rate:.3f}" for rate in rates)
    print(f"{found['drafter']}\n{found['steps']} steps, τ {found['tau']:.3f}; accepted child, first to last:")
    for depth, rates in enumerate(found["rates"], 1):
        print(f"depth {depth}  {line(rates)}")
    print(f"pooled   {line(found['pooled'])}")


if __name__ == "__main__":
    with mistakes_end_the_program():
        said = command_line("acceptance", Measurement, __doc__)
        decode_in_float32()
        main(said)
