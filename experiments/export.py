"""Writes a saved drafter in a published layout, for other engines.

    python -m experiments.export --drafter runs/train/NAME/drafter --layout eagle3 --out DIR
    python -m experiments.export --drafter NAME --layout speculators --verifier HuggingFaceTB/SmolLM2-135M-Instruct --out DIR

Layouts: eagle, eagle3 (the authors', SGLang, SpecForge), medusa, hydra, deepseek-mtp, qwen3-next-mtp, dflash (z-lab; JetSpec,
Domino), deepspec (DSpark), pard, and of PyPI's speculators: speculators (EAGLE-3), speculators-block (DFlash, DSpark),
speculators-peagle. What the layout cannot hold is printed, or refused with exit code 2.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

import sdjax
from experiments.launch import command_line, mistakes_end_the_program
from sdjax.core.plain import write_json
from sdjax.drafters.published.registry import CONFIG, LAYOUTS, layout_named, write_folder
from sdjax.targets.huggingface import read_json
from sdjax.targets.load import Model
from sdjax.train.saved import load_drafter, load_tuned


@dataclass(frozen=True)
class Export:
    """A saved drafter in a published layout."""

    drafter: str
    """A folder that training wrote, or a name in zoo/."""
    layout: Annotated[str, tyro.conf.arg(help=f"The layout's name: {', '.join(LAYOUTS)}.")]
    out: Path
    """The folder to write; it must not exist."""
    target: str = "smollm2-135m"
    """The drafter's target: a known name, a file, a folder or a Hub id."""
    dtype: str = "bfloat16"
    """float32, bfloat16 or float16: of the weights in the folder."""
    verifier: Annotated[str, tyro.conf.arg(metavar="ID")] = ""
    """For speculators' layouts alone, and needed there: the target's Hub id or path, which opening the folder opens, too."""


def main(arguments: Sequence[str]) -> int:
    with mistakes_end_the_program():
        config = command_line("export", Export, __doc__, arguments)
        layout_named(config.layout)
        export(config, sdjax.load(config.target))
    return 0


def export(config: Export, model: Model) -> None:
    """Loads, writes and tells."""
    if config.dtype not in ("float32", "bfloat16", "float16"):
        raise ValueError(f"--dtype is {config.dtype!r}; it must be float32, bfloat16 or float16")
    if bool(config.verifier) != config.layout.startswith("speculators"):
        raise ValueError(
            f"--verifier is {config.verifier!r} with the layout {config.layout!r}; speculators need one, others have none"
        )
    model = load_tuned(config.drafter, model)
    drafter, params = load_drafter(config.drafter, model)
    notes = write_folder(config.out, config.layout, drafter, params, model.target, model.params, config.dtype)
    if config.verifier:
        written = read_json(config.out / CONFIG)
        written["speculators_config"]["verifier"]["name_or_path"] = config.verifier
        write_json(config.out / CONFIG, written)
    print(f"{config.drafter} → {config.out} ({config.layout})", *notes, sep="\n  ")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
