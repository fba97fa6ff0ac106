"""The config of a head's one layer, and single settings of any config."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from sdjax.drafters.eagle_layer import layer_for
from sdjax.drafters.published.base import Config
from sdjax.targets.decoder import Decoder
from sdjax.targets.hf_config import decoder_from_config, decoder_to_config

# What a config may leave open, and the rule of its readers.
OPEN = {
    "rope_theta": "10000, the readers' rule, whatever the target has",
    "rms_norm_eps": "1e-6, the readers' rule",
    "num_key_value_heads": "as many as query heads",
    "head_dim": "hidden_size / num_attention_heads",
}


def layer_from_config(config: Mapping[str, Any], target: Decoder, notes: list[str]) -> Decoder | None:
    """The shape of a head's layer; None: that of a Llama layer as the target's. ValueError where it cannot serve it."""
    layer = shape_from_config(config, target, notes)
    if layer.layers != 1:
        raise ValueError(f"config.json: num_hidden_layers is {layer.layers}; heads of one layer are supported")
    refuse_windows(layer)
    return None if layer == layer_for(target, None) else layer


def shape_from_config(config: Mapping[str, Any], target: Decoder, notes: list[str]) -> Decoder:
    """The shape of a drafter's layers; ValueError where they cannot serve the target."""
    given = {key: value for key, value in config.items() if value is not None}
    in_rope = given.get("rope_parameters") or given.get("rope_scaling") or {}
    for key, rule in OPEN.items():
        if key not in given and key not in in_rope:
            notes.append(f"{key} is not given: {rule}")
    layer = decoder_from_config(config, target.precision)
    for name, own, whose in (("hidden_size", layer.width, target.width), ("vocab_size", layer.vocab, target.vocab)):
        if own != whose:
            raise ValueError(f"config.json: {name} is {own}, the target's {whose}; this head is for another target")
    if layer.max_position < target.max_position:
        notes.append(
            f"max_position_embeddings is {layer.max_position}, the target's {target.max_position}: "
            "beyond it the head may draft badly"
        )
    return replace(layer, tied=target.tied)


def refuse_windows(layers: Decoder) -> None:
    """Raises ValueError for layers that see a part of the positions alone."""
    if any(layers.windows):
        raise ValueError(f"config.json: sliding_window is {layers.windows[0]}; a head's layer sees all positions here")


def layer_to_config(target: Decoder, layer: Decoder | None, known: tuple[str, ...], layout: str, layers: int = 1) -> Config:
    """The config of a head's `layers` layers; ValueError where they are of no architecture that the layout's readers know."""
    own = replace(layer_for(target, layer), layers=layers, vocab=target.vocab, tied=False)
    config = decoder_to_config(own)
    if config["model_type"] not in known:
        raise ValueError(
            f"the head's layer is {config['model_type']}'s; readers of the layout {layout!r} know {', '.join(known)}"
        )
    return config


def check_same(config: Mapping[str, Any], target: Decoder) -> None:
    """Raises ValueError for settings that are not the target's: a head inside the target's checkpoint shares its config."""
    own = decoder_to_config(target)
    keys = ("hidden_size", "vocab_size", "num_hidden_layers")
    lacking = [key for key in keys if config.get(key) is None]
    if lacking:
        raise ValueError(f"config.json has no {', '.join(lacking)}; it must be the target's own config")
    more = ("num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size", "rms_norm_eps")
    wrong = [
        f"{key} is {config[key]}, the target's {own[key]}" for key in (*keys, *more) if config.get(key, own[key]) != own[key]
    ]
    if wrong:
        raise ValueError(f"config.json is of another target: {'; '.join(wrong)}")


def refuse_unknown(inner: Mapping[str, Any], known: Collection[str], place: str) -> None:
    """Raises ValueError for a setting of the object `place` that we do not compute, and that is switched on."""
    neutral: tuple[Any, ...] = (None, False, [], {}, "", 0, 1.0)
    unknown = {key: value for key, value in inner.items() if key not in known}
    strange = {key: value for key, value in unknown.items() if value is True or value not in neutral}
    if strange:
        raise ValueError(f"config.json: {place} has {strange}, which are not supported; they change what the drafter computes")


def whole(config: Mapping[str, Any], key: str) -> int:
    """A positive integer that must be given."""
    value = config.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"config.json: {key} is {value!r}; it must be a positive integer")
    return value


def flag(config: Mapping[str, Any], key: str, default: bool, notes: list[str]) -> bool:
    """true or false; where it is open, the default, noted."""
    value = config.get(key)
    if value is None:
        notes.append(f"{key} is not given: {str(default).lower()}")
        return default
    if not isinstance(value, bool):
        raise ValueError(f"config.json: {key} is {value!r}; it must be true or false")
    return value
