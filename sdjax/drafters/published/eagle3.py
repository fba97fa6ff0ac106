"""EAGLE-3 as its authors, SpecForge and SGLang publish it: `midlayer.*` and a flat config of the head's one layer."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from sdjax.core.spec import Spec, normal
from sdjax.drafters.eagle3 import Eagle3
from sdjax.drafters.head import DraftHead, target_head
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
    need_no_bias,
    take,
)
from sdjax.drafters.published.settings import flag, layer_from_config, layer_to_config, refuse_unknown, whole
from sdjax.drafters.published.taps import Counting, as_list, default_taps, ids_of, taps_from
from sdjax.drafters.published.vocabulary import from_offsets, to_offsets, without_offsets
from sdjax.targets.decoder import Decoder, Tap

NAME, FORGED = "eagle3", "LlamaForCausalLMEagle3"
IDS = "eagle_aux_hidden_state_layer_ids"
FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm")
INNER, INNER_IDS = "eagle_config", "layer_ids"
EVERY_HEAD = ("use_aux_hidden_state", "use_input_layernorm_in_first_layer", "use_last_layernorm")
INNER_KEYS = {IDS, INNER_IDS, "next_layer_regular", *EVERY_HEAD}  # regular: layers behind the first, of which a head has none
OWN_KEYS = {"draft_vocab_size", "target_hidden_size", "norm_output", INNER, IDS, *FLAGS}
LATER_PREFIX = "layers.0."  # SGLang's name since 2026; it reads the old one too


def claims(names: Collection[str], config: Mapping[str, Any]) -> bool:
    ours = {"midlayer.hidden_norm.weight", f"{LATER_PREFIX}hidden_norm.weight"} & set(names)
    return bool(ours) and "speculators_model_type" not in config


def to_published(drafter: Any, params: Any, target: Decoder, target_params: Any) -> Exported:
    """Taps, where they are not the released code's, stand in `eagle_config` for SGLang and above it for vLLM."""
    need_class(drafter, Eagle3, NAME)
    if drafter.norm_output:
        raise ValueError(
            "norm_output, the final norm on what is fed back, has no place in the layout 'eagle3' (SpecForge's key of that "
            "name means another thing); export as 'speculators'"
        )
    notes = ["the tree, its law and the recipe of training are left out"]
    tensors = to_tensors(drafter, params, target, target_params, "midlayer.", notes)
    config = layer_to_config(target, drafter.layer, ("llama",), NAME) | {"architectures": [FORGED]}
    config |= head_to_config(drafter, tensors, target) | taps_to_config(drafter.taps, target.layers)
    return Exported(tensors, config, notes)


def from_published(tensors: Tensors, config: Config, target: Decoder, target_params: Any) -> Imported:
    """Drafts the default tree of `Eagle3`, which the layout does not hold."""
    notes: list[str] = []
    forged = config.get("architectures") == [FORGED]
    shape = {key: value for key, value in config.items() if key not in OWN_KEYS}
    layer = layer_from_config(as_llama(shape) if forged else shape, target, notes)
    check_fed_back(config, forged, notes)
    taps = taps_from_config(config, target.layers, notes)
    prefix = "midlayer." if "midlayer.hidden_norm.weight" in tensors else LATER_PREFIX
    flags: dict[str, Any] = {key: flag(config, key, False, notes) for key in FLAGS}
    drafter = Eagle3(taps, layer=layer, **flags)
    return finish(drafter, tensors, config, target, target_params, prefix, notes)


def as_llama(shape: Config) -> Config:
    """SpecForge's architecture as Llama's, without what its configs keep of Qwen targets: windows that are switched off."""
    if flag(shape, "use_sliding_window", False, []):
        raise ValueError("config.json: use_sliding_window is true; a head's layer sees all positions here")
    off = shape.get("use_sliding_window") is False  # without that switch a width may well be meant
    inert = {"max_window_layers", "use_sliding_window"} | ({"sliding_window"} if off else set())
    kinds = shape.get("layer_types") or []
    if isinstance(kinds, list) and all(kind == "full_attention" for kind in kinds):
        inert |= {"layer_types"}
    return {key: value for key, value in shape.items() if key not in inert} | {"architectures": ["LlamaForCausalLM"]}


def check_fed_back(config: Mapping[str, Any], forged: bool, notes: list[str]) -> None:
    """`norm_output` is two settings: SpecForge's, whether the head norms at all; and speculators', what is fed back."""
    value = config.get("norm_output")
    if value is None:
        return
    if not forged:
        raise ValueError(
            f"config.json: norm_output is {value!r}, which means one thing to SpecForge and another to speculators, and "
            f"architectures {config.get('architectures')} does not say which; remove it, or write [{FORGED!r}]"
        )
    if value is not True:
        raise ValueError(f"config.json: norm_output is {value!r}; heads without a norm before lm_head are not supported")
    notes.append("norm_output is SpecForge's here: the norm stands before lm_head, and the state before it is fed back")


def taps_to_config(taps: tuple[Tap, ...], layers: int) -> Config:
    ids = ids_of(taps, "input", layers)
    if ids == [2, layers // 2, layers - 3]:
        return {}
    if ids[0] == 1:
        raise ValueError(
            f"the taps {taps} are inputs of layers {ids}; SGLang takes ids that start with 1 for outputs, and would read "
            "other states; export as 'speculators'"
        )
    return {IDS: ids, INNER: {IDS: ids, "use_aux_hidden_state": True}}


def taps_from_config(config: Mapping[str, Any], layers: int, notes: list[str]) -> tuple[Tap, ...]:
    """Ids above `eagle_config` are inputs of layers (vLLM); in it, outputs where the first is 1, else inputs (SGLang).

    `layer_ids` in it, an older name, are inputs (vLLM).
    """
    nested = inner_settings(config)
    found: dict[str, tuple[Tap, ...]] = {}
    if config.get(IDS) is not None:
        found[IDS] = taps_from(config[IDS], "input", layers)
    if nested.get(IDS) is not None:
        counting: Counting = "output" if as_list(nested[IDS])[:1] == [1] else "input"
        found[f"{INNER}.{IDS}"] = taps_from(nested[IDS], counting, layers)
        notes.append(f"{INNER}'s layer ids {nested[IDS]} are {counting}s of layers, by SGLang's rule")
    if nested.get(INNER_IDS) is not None:
        found[f"{INNER}.{INNER_IDS}"] = taps_from(nested[INNER_IDS], "input", layers)
        notes.append(f"{INNER}.{INNER_IDS} {nested[INNER_IDS]} are inputs of layers, by vLLM's rule")
    if len(set(found.values())) > 1:
        raise ValueError(
            f"config.json names different states: {', '.join(f'{key} means {taps}' for key, taps in found.items())}"
        )
    return next(iter(found.values())) if found else default_taps(layers, notes)


def inner_settings(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """`eagle_config`; ValueError for a setting in it that makes the head another one."""
    nested = config.get(INNER) or {}
    if not isinstance(nested, Mapping):
        raise ValueError(f"config.json: {INNER} is {nested!r}; it must be an object")
    lacking = [key for key in EVERY_HEAD if not flag(nested, key, True, [])]
    if lacking:
        raise ValueError(f"config.json: {INNER}.{lacking[0]} is false; every EAGLE-3 head here has what it names")
    refuse_unknown(nested, INNER_KEYS, INNER)
    return nested


def finish(
    drafter: Eagle3,
    tensors: Tensors,
    config: Mapping[str, Any],
    target: Decoder,
    target_params: Any,
    prefix: str,
    notes: list[str],
) -> Imported:
    """The head's vocabulary and its weights, for a drafter that has all but them."""
    if flag(config, "tie_word_embeddings", False, []):
        if "lm_head.weight" not in tensors:
            raise ValueError(
                "config.json: tie_word_embeddings is true and lm_head.weight is missing, but an EAGLE-3 head has an lm_head of "
                "its own; fetch or write the tensors again"
            )
        notes.append("tie_word_embeddings is true, but lm_head.weight is there: the head is not tied")
    if config.get("target_hidden_size", target.width) not in (None, target.width):
        raise ValueError(f"config.json: target_hidden_size is {config['target_hidden_size']}, the target's {target.width}")
    if drafter.norm_before_fc and drafter.fc_norm:
        raise ValueError("config.json: norm_before_fc and fc_norm are both true; readers know one or the other")
    size = whole(config, "draft_vocab_size")
    ids = from_offsets(tensors, size, target.vocab, notes)
    drafter = replace(drafter, head=DraftHead(None if ids is None else size, trained=True))
    notes.append(f"the tree is not in the folder: {drafter.tree}")
    tensors = drop_copy(without_offsets(tensors), "embed_tokens.weight", target_params["embed"], notes)
    names, specs = tree_of(drafter, target, prefix)
    params = take(names, specs, tensors, "an EAGLE-3")
    if drafter.fc_norm:
        params["fc_norm"] = jnp.stack(params["fc_norm"])
    if ids is not None:
        params["head"]["ids"] = jnp.asarray(ids)
    return Imported(drafter, params, notes)


def head_to_config(drafter: Eagle3, tensors: Tensors, target: Decoder) -> Config:
    """The settings beside those of the layer; `norm_before_residual` is always written, since readers differ without it."""
    if drafter.norm_before_fc and drafter.fc_norm:
        raise ValueError("norm_before_fc and fc_norm are both on; readers of published heads know one or the other")
    own = {"draft_vocab_size": len(tensors["lm_head.weight"]), "target_hidden_size": target.width}
    written = {key: getattr(drafter, key) for key in FLAGS if getattr(drafter, key) or key == "norm_before_residual"}
    return own | written


def to_tensors(
    drafter: Eagle3, params: Any, target: Decoder, target_params: Any, prefix: str, notes: list[str]
) -> dict[str, np.ndarray]:
    need_no_bias(drafter.head, NAME)
    names, _ = tree_of(drafter, target, prefix)
    if drafter.fc_norm:
        params = params | {"fc_norm": list(params["fc_norm"])}
    head = params["head"]
    weight = head.get("weight")
    if weight is None:
        weight = target_head(target, target_params)
        notes.append("lm_head.weight is a copy of the target's: the head has none of its own")
    offsets = to_offsets(head["ids"], target.vocab) if "ids" in head else {}
    return named(names, params | {"head": {"weight": weight}}) | offsets


def tree_of(drafter: Eagle3, target: Decoder, prefix: str) -> tuple[Any, Any]:
    """Published names and specs of all weights, at the same places; of `fc_norm`, one for each tap."""
    specs = drafter.specs(target)
    size = drafter.head.size or target.vocab
    specs["head"] = {"weight": Spec((size, target.width), target.matrix_dtype, ("vocab", "embed"), normal())}
    names: dict[str, Any] = {name: f"{name}.weight" for name in ("fc", "norm")}
    names |= {"input_norm": f"{prefix}input_layernorm.weight", "hidden_norm": f"{prefix}hidden_norm.weight"}
    names |= {"layer": layer_names(specs["layer"], prefix), "head": {"weight": "lm_head.weight"}}
    if drafter.norm_before_fc:
        names["joined_norm"] = "input_norm.weight"
    if drafter.fc_norm:
        names["fc_norm"] = [f"fc_norm.{m}.weight" for m in range(len(drafter.taps))]
        specs["fc_norm"] = [specs["norm"]] * len(drafter.taps)
    return names, specs


LAYOUT = Layout(NAME, claims, to_published, from_published)
