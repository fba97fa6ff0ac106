"""Multi-token prediction modules in their target's checkpoint: DeepSeek-V3's and GLM-4.5's names, and Qwen3-Next's.

Both put the embedding before the state, as ours do. Neither says which state of the target the first module reads: readers
take the one behind the final norm.
"""

import re
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from sdjax.drafters.deepseek_mtp import DeepSeekMTP
from sdjax.drafters.head import DraftHead, target_head
from sdjax.drafters.published.base import (
    Config,
    Exported,
    Imported,
    Layout,
    Tensors,
    drop_copy,
    is_copy,
    layer_names,
    named,
    need_class,
    need_no_bias,
    take,
)
from sdjax.drafters.published.settings import check_same, whole
from sdjax.targets.decoder import Decoder
from sdjax.targets.hf_config import decoder_to_config
from sdjax.targets.hf_rope import rope_from_config

DEEPSEEK, QWEN = "deepseek-mtp", "qwen3-next-mtp"
FUSION = re.compile(r"model\.layers\.(\d+)\.eh_proj\.weight")
BEYOND = ("qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text")
HEAD, EMBED = "shared_head.head.weight", "embed_tokens.weight"


def claims_deepseek(names: Collection[str], config: Mapping[str, Any]) -> bool:
    return any(map(FUSION.fullmatch, names))


def claims_qwen(names: Collection[str], config: Mapping[str, Any]) -> bool:
    return "mtp.fc.weight" in names


def to_deepseek(drafter: Any, params: Any, target: Decoder, target_params: Any) -> Exported:
    """Modules as layers behind the target's last, each with the copies of embedding and head that DeepSeek-V3 has."""
    notes = check_export(drafter, DEEPSEEK)
    modules = params["modules"]
    head = params["head"].get("weight") if drafter.head.trained else None
    if head is None:
        head = target_head(target, target_params)
    tensors = named([deepseek_names(module, target.layers + m) for m, module in enumerate(modules)], modules)
    for m in range(len(modules)):
        prefix = f"model.layers.{target.layers + m}."
        tensors |= {f"{prefix}{EMBED}": np.asarray(target_params["embed"]), f"{prefix}{HEAD}": np.asarray(head)}
    return Exported(tensors, decoder_to_config(target) | {"num_nextn_predict_layers": len(modules)}, notes)


def from_deepseek(tensors: Tensors, config: Config, target: Decoder, target_params: Any) -> Imported:
    """The modules of a target whose layers are ours; a head of their own must be one for all of them."""
    notes: list[str] = []
    check_config(config, target)
    count = whole(config, "num_nextn_predict_layers")
    layers = sorted(int(match[1]) for match in map(FUSION.fullmatch, tensors) if match)
    if layers != list(range(target.layers, target.layers + count)):
        raise ValueError(
            f"config.json: num_nextn_predict_layers is {count} behind num_hidden_layers {target.layers}, but the tensors are "
            f"of modules at layers {layers}"
        )
    prefixes = [f"model.layers.{layer}." for layer in layers]
    for prefix in prefixes:
        tensors = drop_copy(tensors, f"{prefix}{EMBED}", target_params["embed"], notes)
    own = own_head(tensors, prefixes, target_head(target, target_params), notes)
    tensors = {name: found for name, found in tensors.items() if not name.endswith(HEAD)}
    drafter = imported(count, DraftHead(trained=own is not None), notes)
    specs = drafter.specs(target)
    names = [deepseek_names(module, layer) for module, layer in zip(specs["modules"], layers, strict=True)]
    modules = take(names, specs["modules"], tensors, "a DeepSeek MTP")
    head = {} if own is None else take({"weight": HEAD}, specs["head"], {HEAD: own}, "a DeepSeek MTP")
    return Imported(drafter, {"modules": modules, "head": head}, notes)


def to_qwen(drafter: Any, params: Any, target: Decoder, target_params: Any) -> Exported:
    """One module; embedding and head are the target's."""
    notes = check_export(drafter, QWEN)
    if drafter.modules > 1 or drafter.head.trained:
        raise ValueError(
            f"the layout {QWEN!r} holds one module and no head; this drafter has {drafter.modules} and {drafter.head}"
        )
    return Exported(named(qwen_names(params["modules"][0]), params["modules"][0]), decoder_to_config(target), notes)


def from_qwen(tensors: Tensors, config: Config, target: Decoder, target_params: Any) -> Imported:
    """Refuses Qwen3-Next and Qwen3.5 themselves, whose layers are not ours."""
    notes: list[str] = []
    kind = config.get("model_type")
    if kind is None:
        raise ValueError("config.json: model_type is missing; on it hangs whether norms multiply by w or by 1 + w")
    if kind in BEYOND:
        raise ValueError(
            f"config.json: model_type is {kind!r}, whose module has gated attention, heads that are partly rotated and norms "
            "by 1 + w; only modules of plain Llama and Qwen3 layers are supported"
        )
    check_config(config, target)
    drafter = imported(1, DraftHead(), notes)
    specs = drafter.specs(target)["modules"][0]
    return Imported(drafter, {"modules": [take(qwen_names(specs), specs, tensors, "a Qwen MTP")], "head": {}}, notes)


def check_export(drafter: Any, layout: str) -> list[str]:
    """Raises ValueError for what neither layout holds; else the notes on what is left out."""
    need_class(drafter, DeepSeekMTP, layout)
    need_no_bias(drafter.head, layout)
    if drafter.tap != "final":
        raise ValueError(
            f"the first module reads tap {drafter.tap!r}; readers of {layout!r} feed it the state behind the final norm"
        )
    if drafter.head.trained and drafter.head.size is not None:
        raise ValueError(f"the head was trained for a draft vocabulary of {drafter.head.size} tokens; {layout!r} has none")
    notes = ["the tree, its law and the recipe of training are left out"]
    if drafter.head.size is not None:
        notes.append(f"the draft vocabulary of {drafter.head.size} tokens is left out: readers draft from the target's whole")
    return notes


def check_config(config: Mapping[str, Any], target: Decoder) -> None:
    """Raises ValueError unless the config is the target's."""
    check_same(config, target)
    rope = rope_from_config(config)
    if rope != target.rope:
        raise ValueError(f"config.json: the rotary settings are {rope}, the target's {target.rope}")


def imported(modules: int, head: DraftHead, notes: list[str]) -> DeepSeekMTP:
    drafter = DeepSeekMTP(modules, head=head, steps=max(modules, 3))
    notes.append("the state that the first module reads is not in the folder: the one behind the target's final norm")
    notes.append(f"the tree is not in the folder: a chain of {drafter.depth}")
    return drafter


def own_head(tensors: Tensors, prefixes: list[str], target_matrix: Any, notes: list[str]) -> np.ndarray | None:
    """The matrix that all modules share, where it is not the target's."""
    found = [tensors[f"{prefix}{HEAD}"] for prefix in prefixes if f"{prefix}{HEAD}" in tensors]
    if not found:
        notes.append(f"{HEAD} is missing: the modules share the target's")
        return None
    if len(found) < len(prefixes) or any(not np.array_equal(other, found[0]) for other in found[1:]):
        raise ValueError(f"{HEAD} differs between modules, or some lack it; modules with heads of their own are not supported")
    if is_copy(found[0], target_matrix):
        notes.append(f"{HEAD} left out: it is the target's")
        return None
    return found[0]


def deepseek_names(module: Any, layer: int) -> Any:
    prefix = f"model.layers.{layer}."
    names = {"embed_norm": "enorm", "hidden_norm": "hnorm", "fuse": "eh_proj", "norm": "shared_head.norm"}
    return {ours: f"{prefix}{name}.weight" for ours, name in names.items()} | {"layer": layer_names(module["layer"], prefix)}


def qwen_names(module: Any) -> Any:
    names = {"embed_norm": "pre_fc_norm_embedding", "hidden_norm": "pre_fc_norm_hidden", "fuse": "fc", "norm": "norm"}
    return {ours: f"mtp.{name}.weight" for ours, name in names.items()} | {
        "layer": layer_names(module["layer"], "mtp.layers.0.")
    }


def owns_deepseek(name: str, config: Mapping[str, Any]) -> bool:
    """Modules stand behind the target's own layers."""
    place, own = re.match(r"model\.layers\.(\d+)\.", name), config.get("num_hidden_layers")
    return place is not None and (not isinstance(own, int) or int(place[1]) >= own)


def owns_qwen(name: str, config: Mapping[str, Any]) -> bool:
    return name.startswith("mtp.")


LAYOUTS = (
    Layout(DEEPSEEK, claims_deepseek, to_deepseek, from_deepseek, owns=owns_deepseek),
    Layout(QWEN, claims_qwen, to_qwen, from_qwen, owns=owns_qwen),
)
