"""Decodes prompts by several methods and compares them: acceptance, speed, equality with plain decoding.

    python -m experiments.decode --config configs/decode/smollm2_humaneval.py --rule.temperature 0.7

The run's folder (runs/NAME) holds config.json, results.jsonl and summary.json. Exit codes: 0; 1 where a method's tokens
differ from plain decoding's by more than rounding can explain; 2 for a mistake in config or input; 130 where stopped.
"""

import hashlib
import json
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import jax
from rich.console import Console

from experiments.config import DecodeConfig, TargetConfig, parse
from experiments.launch import folder_for, in_host_memory, launch_identity, use_compilation_cache
from sdjax.core.plain import plain_data
from sdjax.mesh.layout import DECODE
from sdjax.mesh.place import lay_out
from sdjax.mesh.start import join_pod, speaks
from sdjax.study.compare import Comparison
from sdjax.study.equality import Mismatch, mismatches
from sdjax.study.methods import Promise, arms
from sdjax.study.prompts import Prompt, load_prompts
from sdjax.study.report import Summary, show, summarise
from sdjax.study.runs import open_run
from sdjax.study.screen import Screen
from sdjax.targets.load import Model

WITHOUT_TOKENS = {
    Promise.LAW: "Lossless in law, by a rule that draws its own coins, so not compared",
    Promise.NOTHING: "Lossy by design, so not compared",
}


def main(arguments: Sequence[str]) -> int:
    try:
        join_pod()
        config = parse(arguments, "python -m experiments.decode", "decode")
        use_compilation_cache()
        # Accelerators multiply float32 in fewer bits by default; equality is promised for all of them.
        jax.config.update("jax_default_matmul_precision", "float32" if config.target.dtype == "float32" else None)
        prompts = load_prompts(config.prompts)
        return decode(config, prompts, load_model(config.target))
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped; the same command goes on from here", file=sys.stderr)
        return 130


def load_model(config: TargetConfig) -> Model:
    """The target; its weights are in the host's memory where several devices are to share them."""
    with in_host_memory() if jax.device_count() > 1 else nullcontext():
        return config.load()


def decode(config: DecodeConfig, prompts: Sequence[Prompt], model: Model, console: Console | None = None) -> int:
    """Runs or resumes the comparison, shows it and writes it down; the exit code."""
    console = console or Console(quiet=not speaks())
    if config.stream and jax.process_count() > 1:
        raise ValueError("stream shows what one process decodes, but there are several; leave it out")
    folder_for(Path(config.runs), "--runs")
    layout = config.mesh.layout(DECODE)
    if layout is not None:
        model = model._replace(params=lay_out(model.params, layout.params(model.target.specs())))
    with in_host_memory() if layout is not None else nullcontext():  # draft models and tuned targets are loaded there, too
        groups = arms(config.methods, config.rule, model, config.decode.chunk, layout)
    comparison = Comparison(model, groups, prompts, config.prompts.turns, config.prompts.chat, config.decode)
    folder = open_run(Path(config.runs) / config.name, resolved(config, prompts, model))
    launches = [*folder.load("launches.json", []), launch_identity()]
    with Screen(console, config.stream) as screen:
        screen.say(f"{model.name} on {len(prompts)} prompts, {config.decode.max_new} new tokens each → {folder.path}")
        before = len(folder.read())
        records, costs = comparison.run(folder, screen)
        if len(records) == before:
            screen.say(f"nothing was left to decode; remove {folder.path} or take another --name to decode again")
        else:
            folder.write("launches.json", launches)
        faults = mismatches(groups, records)
    summaries = summarise(groups, records, costs, faults)
    folder.write("summary.json", {"arms": [s.to_json() for s in summaries], "mismatches": [f.to_json() for f in faults]})
    show(console, summaries)
    for fault in faults:
        console.print(str(fault), markup=False, highlight=False, soft_wrap=True)
    console.print(verdict(summaries, faults), markup=False, highlight=False, soft_wrap=True)
    return int(any(fault.fails for fault in faults))


def resolved(config: DecodeConfig, prompts: Sequence[Prompt], model: Model) -> dict[str, Any]:
    """All that decides a run's results: the config, without what only shows them, and hashes of what it names."""
    fields = plain_data(config)
    shown_only = {"stream", "runs", "mesh"}
    conversations = [[prompt.id, prompt.category, prompt.turns, prompt.history] for prompt in prompts]
    inputs = {
        "target": model.identity,
        "tokenizer": model.tokenizer.identity,
        "stops": list(model.tokenizer.stops),
        "prompts": hashlib.sha256(json.dumps(conversations).encode()).hexdigest(),
    }
    return {"config": {key: value for key, value in fields.items() if key not in shown_only}, "inputs": inputs}


def verdict(summaries: Sequence[Summary], faults: Sequence[Mismatch]) -> str:
    """What the equality check says, in a sentence or two."""
    compared = [s.equality for s in summaries if s.equality.promise is Promise.TOKENS and s.acceptance.survival]
    total, equal = sum(e.compared for e in compared), sum(e.equal for e in compared)
    lines = [f"\n{equal} of {total} outputs that must equal plain decoding's do, token for token."] if total else []
    for promise, words in WITHOUT_TOKENS.items():
        names = [f"{s.method} (T={s.temperature:g})" for s in summaries if s.equality.promise is promise]
        if names:
            lines.append(f"{words}: {', '.join(names)}.")
    if any(fault.fails for fault in faults):
        lines.append("FAILED: rounding does not explain the differences above.")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
