"""EAGLE-1 and 2 as their authors publish them: `fc`, `layers.0.*` without its first norm, and the target's embedding."""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from sdjax.drafters.eagle import Eagle
from sdjax.drafters.published.base import (
    Config,
    Exported,
    Imported,
    Layout,
    Tensors,
    drop_copy,
    layer_names,
    named,
    need_class,
    take,
)
from sdjax.drafters.published.settings import flag, layer_from_config, layer_to_config
from sdjax.targets.decoder import Decoder

NAME, PREFIX = "eagle", "layers.0."


def claims(names: Collection[str], config: Mapping[str, Any]) -> bool:
    pair = {"fc.weight", f"{PREFIX}self_attn.q_proj.weight"} <= set(names)
    others = {f"{PREFIX}hidden_norm.weight", "hidden_norm.weight"} & set(names)  # EAGLE-3's and block drafters'
    return pair and not others and "speculators_model_type" not in config


def to_published(drafter: Any, params: Any, target: Decoder, target_params: Any) -> Exported:
    need_class(drafter, Eagle, NAME)
    if drafter.head.trained:
        raise ValueError("the head's lm_head was trained; the layout 'eagle' has none, its readers take the target's")
    notes = ["the tree, its law and the recipe of training are left out"]
    if drafter.head.size is not None:
        notes.append(f"the draft vocabulary of {drafter.head.size} tokens is left out: readers draft from the target's whole")
    tensors = named(names_of(params), {name: part for name, part in params.items() if name != "head"})
    tensors["embed_tokens.weight"] = np.asarray(target_params["embed"])
    config = layer_to_config(target, drafter.layer, ("llama", "qwen2"), NAME)
    return Exported(tensors, config | {"bias": drafter.fc_bias, "tie_word_embeddings": target.tied}, notes)


def from_published(tensors: Tensors, config: Config, target: Decoder, target_params: Any) -> Imported:
    """Drafts the tree of the released code; fc has a bias unless the config says "bias": false."""
    notes: list[str] = []
    layer = layer_from_config({key: value for key, value in config.items() if key != "bias"}, target, notes)
    bias = flag(config, "bias", True, notes)
    if bias != ("fc.bias" in tensors):
        raise ValueError(
            f"config.json: bias is {config.get('bias')!r} (open means true), but fc.bias is "
            f"{'present' if 'fc.bias' in tensors else 'missing'}; set bias to {str(not bias).lower()} if the tensors are whole"
        )
    drafter = Eagle(fc_bias=bias, layer=layer)
    notes.append(f"the tree is not in the folder: the released code's, {drafter.nodes} nodes")
    tensors = drop_copy(tensors, "embed_tokens.weight", target_params["embed"], notes)
    specs = {name: spec for name, spec in drafter.specs(target).items() if name != "head"}
    return Imported(drafter, take(names_of(specs), specs, tensors, "an EAGLE-1") | {"head": {}}, notes)


def names_of(tree: Any) -> Any:
    """Published names, for parameters or specs."""
    names = {"fc": "fc.weight", "fc_bias": "fc.bias"}
    return {name: names[name] for name in names if name in tree} | {"layer": layer_names(tree["layer"], PREFIX)}


LAYOUT = Layout(NAME, claims, to_published, from_published)
