"""Folders of published drafters: which layout one has, read into ours; and ours, written as one."""

import difflib
import json
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from sdjax.drafters.block import Block
from sdjax.drafters.published import (
    block,
    deepspec,
    eagle,
    eagle3,
    hydra,
    medusa,
    mtp,
    pard,
    speculators,
    speculators_block,
    speculators_peagle,
)
from sdjax.drafters.published.base import Imported, Layout, Tensors
from sdjax.drafters.published.pickled import read_pickled
from sdjax.targets.decoder import Decoder
from sdjax.targets.huggingface import INDEX, SINGLE, read_json, weight_files

LAYOUTS = {
    layout.name: layout
    for layout in (
        eagle.LAYOUT,
        eagle3.LAYOUT,
        speculators.LAYOUT,
        medusa.LAYOUT,
        hydra.LAYOUT,
        *mtp.LAYOUTS,
        block.LAYOUT,
        deepspec.LAYOUT,
        speculators_block.LAYOUT,
        speculators_peagle.LAYOUT,
        pard.LAYOUT,
    )
}
CONFIG = "config.json"
PICKLED = (".bin", ".pt", ".pth")


def layout_named(name: str) -> Layout:
    """Raises ValueError with the nearest name, and all."""
    if name in LAYOUTS:
        return LAYOUTS[name]
    near = difflib.get_close_matches(name, LAYOUTS, 1, 0.4)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    raise ValueError(f"no layout is called {name!r}{hint}; these are known: {', '.join(LAYOUTS)}")


def detect(names: Collection[str], config: Mapping[str, Any]) -> Layout:
    """The one layout that claims the tensors and the config; ValueError where none does, or several."""
    claimed = [layout for layout in LAYOUTS.values() if layout.claims(names, config)]
    if len(claimed) == 1:
        return claimed[0]
    if claimed:
        raise ValueError(f"this may be {' or '.join(layout.name for layout in claimed)}; name the layout")
    kind = config.get("speculators_model_type")
    said = f"speculators_model_type {kind!r}" if kind else f"architectures {config.get('architectures')}"
    raise ValueError(
        f"this is no known layout ({', '.join(LAYOUTS)}): {CONFIG} says {said}, and the first tensors of {len(names)} are "
        f"{', '.join(sorted(names)[:4]) or 'none'}"
    )


def read_folder(folder: Path, target: Decoder, target_params: Any, name: str | None = None) -> tuple[Layout, Imported]:
    """The published drafter in `folder`, for this target. `name` is its layout, where it shall not be detected."""
    config = read_json(folder / CONFIG)
    try:
        home = {tensor: path for path in tensor_files(folder) for tensor in tensor_names(path)}
        layout = detect(home, config) if name is None else layout_named(name)
        tensors = read_tensors({tensor: path for tensor, path in home.items() if layout.owns(tensor, config)})
        return layout, layout.read(tensors, config, target, target_params)
    except ValueError as error:
        raise ValueError(f"{folder}: {error}") from error


def write_folder(
    folder: Path, name: str, drafter: Any, params: Any, target: Decoder, target_params: Any, dtype: str = "bfloat16"
) -> list[str]:
    """Writes a drafter in a published layout, its floats as `dtype`; the notes on what the layout cannot hold.

    The folder appears when it is whole. ValueError if it exists, or if the layout does not hold this drafter.
    """
    layout = layout_named(name)
    if folder.exists():
        raise ValueError(f"{folder} already exists; give another name or remove it, so that no two drafters are ever mixed")
    made = layout.write(drafter, params, target, target_params)
    cast = lambda x: x.astype(jnp.dtype(dtype)) if jnp.issubdtype(x.dtype, jnp.floating) else x
    hidden = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(hidden, ignore_errors=True)
    hidden.mkdir(parents=True)
    tensors = {tensor: np.ascontiguousarray(cast(found)) for tensor, found in made.tensors.items()}
    save_file(tensors, hidden / layout.file, metadata={"format": "pt"})
    config = dict(made.config) | ({"torch_dtype": dtype} if "torch_dtype" in made.config else {})
    (hidden / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    hidden.replace(folder)
    return made.notes


def readings(drafter: Any) -> dict[str, Any]:
    """A block drafter with the same weights in each layout that its block may have; nothing for another drafter."""
    return block.readings(drafter) if isinstance(drafter, Block) else {}


def tensor_files(folder: Path) -> list[Path]:
    """Those of a checkpoint, or the only file of tensors that there is."""
    if (folder / SINGLE).is_file() or (folder / INDEX).is_file():
        return weight_files(folder)
    found = [path for path in sorted(folder.iterdir()) if path.suffix in (".safetensors", *PICKLED)]
    safe = [path for path in found if path.suffix not in PICKLED] or found
    if len(safe) == 1:
        return safe
    raise ValueError(f"{len(safe)} files of tensors without an index; one is expected, or {INDEX}")


def tensor_names(path: Path) -> list[str]:
    if path.suffix in PICKLED:
        return list(read_pickled(path))
    try:
        with safe_open(path, "numpy") as file:
            return list(file.keys())
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{path.name} is no whole safetensors file ({error}); fetch or write it again") from error


def read_tensors(home: Mapping[str, Path]) -> Tensors:
    """Tensors from the files that hold them, one file open at a time."""
    tensors: Tensors = {}
    for path in sorted(set(home.values())):
        here = [name for name, place in home.items() if place == path]
        if path.suffix in PICKLED:
            tensors |= {name: found for name, found in read_pickled(path).items() if name in here}
            continue
        with safe_open(path, "numpy") as file:
            tensors |= {name: file.get_tensor(name) for name in here}
    return tensors
