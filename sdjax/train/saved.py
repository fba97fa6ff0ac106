"""Trained drafters for use: a folder with drafter.json (what it is, of which target) and drafter.safetensors.

Where the target was trained too, target.safetensors holds it: plain decoding with it is then the baseline.
"""

import difflib
import json
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from sdjax.core.plain import differences, write_json
from sdjax.core.spec import check_params
from sdjax.decode.state import Params
from sdjax.drafters.base import Drafter
from sdjax.targets.decoder import Decoder
from sdjax.targets.load import Model
from sdjax.train.described import describe, rebuild

ZOO = Path(__file__).resolve().parents[2] / "zoo"
CONFIG, DRAFTER, TARGET = "drafter.json", "drafter.safetensors", "target.safetensors"
FITS = ("vocab", "width", "layers", "heads", "kv_heads", "head_width", "rope")  # what a drafter of a target relies on


def save_drafter(
    folder: Path,
    drafter: Drafter,
    params: Params,
    target: Decoder,
    identity: str,
    dtype: str = "bfloat16",
    tuned: bool = False,
    notes: dict[str, Any] | None = None,
) -> None:
    """Writes the drafter of `target` (whose files have this identity), its floats as `dtype`; replaces what was there.

    `tuned` says that the target's parameters are its own, and writes them too. `notes` are kept for the reader.
    """
    check_params(drafter.specs(target), params.drafter, f"the drafter {type(drafter).__name__}")
    hidden = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(hidden, ignore_errors=True)
    hidden.mkdir(parents=True)
    save_file(flat(params.drafter, dtype), hidden / DRAFTER)
    if tuned:
        save_file(flat(params.target, dtype), hidden / TARGET)
    config = {"drafter": describe(drafter), "target": describe(target), "identity": identity, "tuned": tuned}
    write_json(hidden / CONFIG, config | {"notes": notes or {}})
    shutil.rmtree(folder, ignore_errors=True)
    hidden.replace(folder)


def load_drafter(name_or_path: str | Path, model: Model | None = None) -> tuple[Any, Any]:
    """A saved drafter and its parameters, widened to the target's dtype, by folder or by its name in zoo/.

    With `model`, the target it shall serve: ValueError, naming what differs, if it was trained on another. A drafter that
    was trained beside its target needs `load_tuned`'s model.
    """
    folder = drafter_folder(name_or_path)
    config = read_config(folder)
    drafter, trained_on = rebuild(config["drafter"]), rebuild(config["target"])
    if model is not None:
        check_target(folder, config, trained_on, model, tuned=config["tuned"])
    target = trained_on if model is None else model.target
    return drafter, read_params(folder / DRAFTER, drafter.specs(target), f"the drafter {type(drafter).__name__}")


def load_tuned(name_or_path: str | Path, model: Model) -> Model:
    """The model with the parameters that were trained beside a saved drafter; without such, the model as it is."""
    folder = drafter_folder(name_or_path)
    config = read_config(folder)
    check_target(folder, config, rebuild(config["target"]), model, tuned=False)
    if not config["tuned"]:
        return model
    return model._replace(
        params=read_params(folder / TARGET, model.target.specs(), "the target"), identity=tuned_identity(config)
    )


def tuned_identity(config: dict[str, Any]) -> str:
    """Of a target that was trained: its origin's, and a mark that it is that no more."""
    return f"{config['identity']}+tuned" if config["tuned"] else config["identity"]


def drafter_folder(name_or_path: str | Path) -> Path:
    """Where a saved drafter is; ValueError naming the nearest."""
    for folder in places(name_or_path):
        if (folder / CONFIG).is_file():
            return folder
    known = sorted(path.parent.name for path in ZOO.glob(f"*/{CONFIG}"))
    near = difflib.get_close_matches(str(name_or_path), known, 1, 0.4)
    hint = f"; did you mean {near[0]!r}?" if near else f"; {ZOO} has {', '.join(known) or 'none'}"
    raise ValueError(f"there is no saved drafter {str(name_or_path)!r} (a folder with {CONFIG}){hint}")


def is_saved(name_or_path: str | Path) -> bool:
    """Whether `load_drafter` would find something here."""
    return bool(name_or_path) and any((path / CONFIG).is_file() for path in places(name_or_path))


def places(name_or_path: str | Path) -> tuple[Path, Path]:
    """Where a saved drafter may be."""
    return Path(name_or_path).expanduser(), ZOO / str(name_or_path)


def notes_of(name_or_path: str | Path) -> dict[str, Any]:
    """What `save_drafter` was given as notes: how it was trained."""
    return read_config(drafter_folder(name_or_path)).get("notes", {})


def read_config(folder: Path) -> dict[str, Any]:
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{folder / CONFIG} is damaged ({error}); fetch or write it again") from error
    lacking = [key for key in ("drafter", "target", "identity", "tuned") if key not in config]
    if lacking:
        raise ValueError(f"{folder / CONFIG} has no {', '.join(lacking)}; it is no saved drafter of sdjax")
    return config


def check_target(folder: Path, config: dict[str, Any], trained_on: Decoder, model: Model, tuned: bool) -> None:
    """ValueError naming what differs between the target that a drafter was trained on and another."""
    old, new = ({name: describe(getattr(t, name)) for name in FITS} for t in (trained_on, model.target))
    wanted = tuned_identity(config) if tuned else config["identity"]
    changes = list(differences(old | {"identity": wanted}, new | {"identity": model.identity}))
    if changes:
        raise ValueError(f"{folder} holds a drafter of another target than {model.name}: {'; '.join(changes)}")


def flat(params: Any, dtype: str) -> dict[str, np.ndarray]:
    """Leaves by path ("layers.0.q"), floats as `dtype`."""
    name = lambda path: jax.tree_util.keystr(path, simple=True, separator=".")
    cast = lambda x: np.asarray(x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x)
    return {name(path): cast(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(params)}


def read_params(path: Path, specs: Any, owner: str) -> Any:
    """Parameters in the dtypes that the specs name; ValueError naming what is missing, unexpected or misshapen."""
    try:
        found = load_file(path)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{path} cannot be read ({error}); fetch or write it again") from error
    names = [jax.tree_util.keystr(p, simple=True, separator=".") for p, _ in jax.tree_util.tree_leaves_with_path(specs)]
    leaves, treedef = jax.tree.flatten(specs)
    faults = [f"missing {name}" for name in names if name not in found]
    faults += [f"unexpected {name}" for name in found if name not in names]
    faults += [
        f"{name} has shape {found[name].shape}, expected {spec.shape}"
        for name, spec in zip(names, leaves, strict=True)
        if name in found and found[name].shape != spec.shape
    ]
    if faults:
        raise ValueError(f"{path} does not fit {owner}: {'; '.join(faults[:8])}")
    made = [jnp.asarray(found[name]).astype(spec.dtype) for name, spec in zip(names, leaves, strict=True)]
    return jax.tree.unflatten(treedef, made)
