"""Decodes several prompt sets by many methods, and writes one page of results.

    python -m experiments.sweep --config configs/sweep/smollm2.py

Each prompt set is a comparison of its own (as of experiments.decode, interleaved with plain decoding), in
runs/NAME/SET; a sweep that was stopped goes on there. The page, runs/NAME/results.md, is made from these folders alone:

    python -m experiments.sweep --config configs/sweep/smollm2.py --page docs/results/smollm2.md

`--beside runs/OTHER` adds the tables of a sweep that ran apart, such as one at another temperature on another core.

Exit codes are those of experiments.decode.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax
from rich.console import Console

from experiments.config import parse
from experiments.decode import decode, load_model
from experiments.launch import mistakes_end_the_program, use_compilation_cache
from experiments.sweep_config import SweepConfig
from sdjax.core.plain import write_json
from sdjax.mesh.start import join_pod, speaks
from sdjax.study.page import PromptSet, about_methods, results_page
from sdjax.study.prompts import Prompt, load_prompts
from sdjax.targets.load import Model


def main(arguments: Sequence[str]) -> int:
    join_pod()
    config = parse(arguments, "python -m experiments.sweep", "sweep", SweepConfig)
    use_compilation_cache()
    jax.config.update("jax_default_matmul_precision", "float32" if config.target.dtype == "float32" else None)
    prompts = {name: load_prompts(chosen) for name, chosen in config.sets.items()}
    return sweep(config, prompts, load_model(config.target))


def sweep(config: SweepConfig, prompts: Mapping[str, Sequence[Prompt]], model: Model, console: Console | None = None) -> int:
    """Runs or resumes every comparison and writes the page; the worst exit code."""
    if not config.sets:
        raise ValueError("sets is empty; name at least one prompt set")
    console = console or Console(quiet=not speaks())
    codes = [decode(config.comparison(name), prompts[name], model, console) for name in config.sets]
    if speaks():
        console.print(f"\nresults → {write_page(config, model)}", markup=False, soft_wrap=True)
    return max(codes)


def write_page(config: SweepConfig, model: Model) -> Path:
    """Makes the page from the run folders; where it is."""
    about = about_methods(config.methods, model)
    write_json(config.folder / "methods.json", about)
    folders = [config.folder, *map(Path, config.beside)]
    sets = [PromptSet.read(name, folder / name) for name in config.sets for folder in folders]
    page = Path(config.page) if config.page else config.folder / "results.md"
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(results_page(config.title, about, sets), encoding="utf-8")
    return page


if __name__ == "__main__":
    with mistakes_end_the_program():
        sys.exit(main(sys.argv[1:]))
