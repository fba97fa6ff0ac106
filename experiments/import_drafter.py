"""Reads a published drafter's folder into one that `sdjax.load_drafter` and every command takes.

    python -m experiments.import_drafter --from DIR --target meta-llama/Llama-3.1-8B-Instruct --out runs/imported/NAME
    python -m experiments.decode --config configs/decode/CONFIG.py --methods.NAME.weights runs/imported/NAME

The layout is told from the folder's tensors and config; what they leave open is decided by rule, printed, and kept in the
folder's notes. A folder that contradicts itself or the target is refused with exit code 2.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

import sdjax
from experiments.launch import mistakes_end_the_program
from sdjax.decode.state import Params
from sdjax.drafters.published.registry import read_folder
from sdjax.targets.load import Model
from sdjax.train.saved import save_drafter


@dataclass(frozen=True)
class Import:
    """A published drafter as a saved one."""

    source: Annotated[Path, tyro.conf.arg(name="from")]
    """The published folder: config.json and safetensors."""
    out: Path
    """The folder to write; it must not exist."""
    target: str = "smollm2-135m"
    """The drafter's target: a known name, a file, a folder or a Hub id."""
    layout: str = ""
    """The layout's name; empty: detected."""
    dtype: str = "bfloat16"
    """float32 or bfloat16: of the weights in the folder."""


def main(arguments: Sequence[str]) -> int:
    with mistakes_end_the_program():
        config = tyro.cli(Import, args=arguments, prog="python -m experiments.import_drafter")
        import_drafter(config, sdjax.load(config.target))
    return 0


def import_drafter(config: Import, model: Model) -> None:
    """Reads, saves and tells."""
    if config.out.exists():
        raise ValueError(f"{config.out} already exists; give another name or remove it")
    if config.dtype not in ("float32", "bfloat16"):
        raise ValueError(f"--dtype is {config.dtype!r}; it must be float32 or bfloat16")
    layout, found = read_folder(config.source, model.target, model.params, config.layout or None)
    params = Params(model.params, found.params)
    notes = {"imported": {"layout": layout.name, "folder": config.source.name, "notes": found.notes}}
    save_drafter(config.out, found.drafter, params, model.target, model.identity, config.dtype, notes=notes)
    print(f"{config.source} ({layout.name}) → {config.out}: {type(found.drafter).__name__}", *found.notes, sep="\n  ")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
