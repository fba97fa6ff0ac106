"""Trained drafters for use: a folder with drafter.json (what it is, of which target) and drafter.safetensors.

Where the target was trained too, target.safetensors holds it: plain decoding with it is then the baseline.
"""

import difflib
import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
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
from sdjax.drafters.base import Drafter, with_parts
from sdjax.drafters.head import borrowed, target_head
from sdjax.targets.decoder import Decoder, types
from sdjax.targets.load import Model
from sdjax.train.described import describe, rebuild

ZOO = Path(__file__).resolve().parents[2] / "zoo"
CONFIG, DRAFTER, TARGET = "drafter.json", "drafter.safetensors", "target.safetensors"
SCALE = ".scale"
TINY = np.finfo(np.float32).tiny
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

    What the target's parameters hold already is left out (`without_borrowed`). `tuned` says that they are the
    drafter's own, and writes them too. `notes` are kept for the reader.
    """
    check_params(drafter.specs(target), params.drafter, f"the drafter {type(drafter).__name__}")
    hidden = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(hidden, ignore_errors=True)
    hidden.mkdir(parents=True)
    save_file(flat(without_borrowed(drafter, params, target), dtype), hidden / DRAFTER)
    if tuned:
        save_file(flat(params.target, dtype), hidden / TARGET)
    config = {"drafter": describe(drafter), "target": describe(target), "identity": identity, "tuned": tuned}
    write_json(hidden / CONFIG, config | {"notes": notes or {}})
    shutil.rmtree(folder, ignore_errors=True)
    hidden.replace(folder)


def change_drafter(name_or_path: str | Path, drafter: Drafter, notes: dict[str, Any]) -> None:
    """Gives a saved drafter other settings and further notes; its weights stay. ValueError where they do not fit these."""
    folder = drafter_folder(name_or_path)
    config = read_config(folder)
    target = rebuild(config["target"])
    of = lambda drafter: {name: (spec.shape, str(spec.dtype)) for name, spec in by_path(drafter.specs(target)).items()}
    changes = list(differences(of(rebuild(config["drafter"])), of(drafter)))
    if changes:
        raise ValueError(f"{folder} holds other weights than the changed drafter needs: {'; '.join(changes)}")
    changed = {"drafter": describe(drafter), "notes": config.get("notes", {}) | notes}
    write_json(folder / CONFIG, config | changed)


def load_drafter(name_or_path: str | Path, model: Model | None = None) -> tuple[Any, Any]:
    """A saved drafter and its parameters, in the target's precision, by folder or by its name in zoo/.

    With `model`, the target it shall serve: ValueError, naming what differs, if it was trained on another. A drafter that
    was trained beside its target needs `load_tuned`'s model; one whose head is the target's rows needs a model.
    """
    folder = drafter_folder(name_or_path)
    config = read_config(folder)
    drafter, trained_on = rebuild(config["drafter"]), rebuild(config["target"])
    if model is not None:
        check_target(folder, config, trained_on, model, tuned=config["tuned"])
        drafter = with_parts(drafter, Decoder, lambda own: in_step(own, trained_on, model.target))
    specs = drafter.specs(trained_on if model is None else model.target)
    found = read_leaves(folder / DRAFTER)
    for weight, ids in borrowed(by_path(specs)).items():
        if weight not in found and ids in found:
            if model is None:
                raise ValueError(
                    f"{folder} leaves {weight} to the target, whose rows it is: load_drafter({folder.name!r}, model)"
                )
            found[weight] = target_head(model.target, model.params)[found[ids]]
    return drafter, fitted(found, specs, folder / DRAFTER, f"the drafter {type(drafter).__name__}")


def in_step(own: Decoder, trained_on: Decoder, target: Decoder) -> Decoder:
    """A drafter's own model: where it had the precision of the target that it was trained on, it follows that of `target`."""
    return replace(own, **types(target.precision)) if own.precision == trained_on.precision else own


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
    hint = f"did you mean {near[0]!r}?" if near else f"{ZOO} has {', '.join(known) or 'none'}"
    if not ZOO.is_dir():
        hint = "names are of zoo/ in sdjax's repository, which is not part of an installed package: clone it, or give a folder"
    raise ValueError(f"there is no saved drafter {str(name_or_path)!r} (a folder with {CONFIG}); {hint}")


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


def without_borrowed(drafter: Drafter, params: Params, target: Decoder) -> dict[str, Any]:
    """A drafter's leaves by path; those that are the target's vocabulary rows, bit for bit, are left for loading to take."""
    leaves = by_path(params.drafter)
    if params.target is None:
        return leaves
    rows = target_head(target, params.target)
    for weight, ids in borrowed(by_path(drafter.specs(target))).items():
        if np.array_equal(leaves[weight], rows[leaves[ids]]):
            del leaves[weight]
    return leaves


def by_path(tree: Any) -> dict[str, Any]:
    """Leaves by path: "layers.0.q"."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


def flat(params: Any, dtype: str) -> dict[str, np.ndarray]:
    """Leaves by path, floats as `dtype`.

    As "int8", the rows of matrices are multiples of their own float32 `<path>.scale`; vectors are bfloat16.
    """
    made: dict[str, np.ndarray] = {}
    for name, leaf in by_path(params).items():
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            made[name] = np.asarray(leaf)
        elif dtype == "int8" and leaf.ndim > 1:
            made[name], made[name + SCALE] = quantised(np.asarray(leaf, np.float32))
        else:
            made[name] = np.asarray(leaf.astype("bfloat16" if dtype == "int8" else dtype))
    return made


def quantised(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Integers of -127..127, and for each row what they are multiples of: no entry is off by more than half of it."""
    scale = np.maximum(np.abs(x).max(-1) / np.float32(127), TINY)
    return np.rint(x / scale[..., None]).astype(np.int8), scale


def read_params(path: Path, specs: Any, owner: str) -> Any:
    """Parameters in the dtypes that the specs name; ValueError naming what is missing, unexpected or misshapen."""
    return fitted(read_leaves(path), specs, path, owner)


def read_leaves(path: Path) -> dict[str, Any]:
    """What `flat` made."""
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{path} cannot be read ({error}); fetch or write it again") from error


def fitted(found: Mapping[str, Any], specs: Any, path: Path, owner: str) -> Any:
    """Leaves of `path` as the tree that the specs describe, widened."""
    named = by_path(specs)
    shapes = {name: spec.shape for name, spec in named.items()}
    integers = [name for name in named if name in found and found[name].dtype == np.int8]
    shapes |= {name + SCALE: shapes[name][:-1] for name in integers}
    faults = [f"missing {name}" for name in shapes if name not in found]
    faults += [f"unexpected {name}" for name in found if name not in shapes]
    faults += [
        f"{name} has shape {found[name].shape}, expected {shape}"
        for name, shape in shapes.items()
        if name in found and found[name].shape != shape
    ]
    if faults:
        raise ValueError(f"{path} does not fit {owner}: {'; '.join(faults[:8])}")
    whole = {name: found[name] * found[name + SCALE][..., None] for name in integers}
    made = [jnp.asarray(whole.get(name, found[name])).astype(spec.dtype) for name, spec in named.items()]
    return jax.tree.unflatten(jax.tree.structure(specs), made)
