"""Reads a published drafter's folder into one that `sdjax.load_drafter` and every command takes.

    python -m experiments.import_drafter --from DIR --target meta-llama/Llama-3.1-8B-Instruct --out runs/imported/NAME
    python -m experiments.decode --config configs/decode/CONFIG.py --methods.NAME.weights runs/imported/NAME

The layout is told from the folder's tensors and config; what they leave open is decided by rule, printed, and kept in the
folder's notes. A folder that contradicts itself or the target is refused with exit code 2.

With --prompt TEXT the drafter is tried on it, a block drafter in both of a block's layouts: where the other one accepts far
more than the one that the folder names, or leaves open, it is refused. --block-layout then says which to take.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

import sdjax
from experiments.launch import command_line, mistakes_end_the_program
from sdjax.decode.state import Params
from sdjax.drafters.base import Drafter, check_masks
from sdjax.drafters.published.registry import LAYOUTS, read_folder, readings
from sdjax.targets.load import Model
from sdjax.train.evaluate import HeldOut
from sdjax.train.saved import save_drafter

BEGINNINGS, TRIED = 8, 16  # of a prompt's text, and tokens behind each: few, before an answer falls into a loop
FAR = 1.5  # times as many drafts accepted


@dataclass(frozen=True)
class Import:
    """A published drafter as a saved one."""

    source: Annotated[Path, tyro.conf.arg(name="from")]
    """The published folder: config.json and safetensors."""
    out: Path
    """The folder to write; it must not exist."""
    target: str = "smollm2-135m"
    """The drafter's target: a known name, a file, a folder or a Hub id."""
    layout: Annotated[str, tyro.conf.arg(help=f"The layout's name; empty: detected. Known: {', '.join(LAYOUTS)}.")] = ""
    dtype: str = "bfloat16"
    """float32 or bfloat16: of the weights in the folder."""
    prompt: str = ""
    """A user's turn that the drafter is tried on, greedily."""
    block_layout: Literal["", "fill_in", "anchor_first"] = ""
    """Of a block drafter, whatever the folder says; empty: as it says."""


def main(arguments: Sequence[str]) -> int:
    with mistakes_end_the_program():
        config = command_line("import_drafter", Import, __doc__, arguments)
        import_drafter(config, sdjax.load(config.target))
    return 0


def import_drafter(config: Import, model: Model) -> None:
    """Reads, saves and tells."""
    if config.out.exists():
        raise ValueError(f"{config.out} already exists; give another name or remove it")
    if config.dtype not in ("float32", "bfloat16"):
        raise ValueError(f"--dtype is {config.dtype!r}; it must be float32 or bfloat16")
    layout, found = read_folder(config.source, model.target, model.params, config.layout or None)
    check_masks(found.drafter, model.tokenizer.stops)
    params = Params(model.params, found.params)
    if config.block_layout:
        found = found._replace(drafter=chosen(found.drafter, config.block_layout))
    if config.prompt:
        found.notes.append(tried(found.drafter, params, model, config.prompt))
    notes = {"imported": {"layout": layout.name, "folder": config.source.name, "notes": found.notes}}
    save_drafter(config.out, found.drafter, params, model.target, model.identity, config.dtype, notes=notes)
    print(f"{config.source} ({layout.name}) → {config.out}: {type(found.drafter).__name__}", *found.notes, sep="\n  ")


def chosen(drafter: Drafter, layout: str) -> Drafter:
    """The drafter under this layout of its blocks."""
    if layout not in readings(drafter):
        raise ValueError(f"--block-layout is for block drafters, and this is {type(drafter).__name__}")
    return readings(drafter)[layout]


def tried(drafter: Drafter, params: Params, model: Model, prompt: str) -> str:
    """What the drafter accepts behind beginnings of a prompt; ValueError where the other layout of a block accepts far more."""
    cuts = [prompt[: len(prompt) * (i + 1) // BEGINNINGS] for i in range(BEGINNINGS)]
    chat = lambda text: model.tokenizer.encode(model.tokenizer.chat([{"role": "user", "content": text}]))
    held_out = HeldOut(tuple(tuple(chat(text)) for text in cuts if text), model.tokenizer.stops, TRIED)
    accepts = lambda drafter: held_out.acceptance(model.target, drafter, params, 0.0).tau - 1
    own = accepts(drafter)
    note = f"on the prompt, {own:.2f} drafts are accepted a step"
    for layout, other in readings(drafter).items():
        if other == drafter:
            continue
        its = accepts(other)
        if its > FAR * own + 0.05:
            raise ValueError(
                f"the block's drafts are accepted {own:.2f} a step, and read as {layout} {its:.2f}: the folder's config says "
                f"another layout than it was trained in, or says none; add --block-layout {layout}"
            )
        note += f"; read as {layout}, {its:.2f}"
    return note


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
