"""EAGLE-3 as vllm-project/speculators keeps it: `layers.0.*`, the target's embedding, and a config that names the verifier.

transformers writes what differs from its classes' defaults alone, so those defaults are part of the format.
"""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from sdjax.drafters.eagle3 import Eagle3
from sdjax.drafters.published.base import Config, Exported, Imported, Layout, Tensors, need_class
from sdjax.drafters.published.eagle3 import FLAGS, IDS, finish, head_to_config, to_tensors
from sdjax.drafters.published.settings import flag, layer_from_config, layer_to_config, whole
from sdjax.drafters.published.taps import default_taps, ids_of, taps_from
from sdjax.targets.decoder import Decoder
from sdjax.targets.hf_config import decoder_to_config
from sdjax.trees.tree import Tree

NAME, PREFIX = "speculators", "layers.0."
VERSION = "0.9.0"  # whose format this is
ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}
DEFAULTS: dict[str, Config] = {  # of transformers 5's LlamaConfig and Qwen3Config
    "llama": {
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
    },
    "qwen3": {
        "vocab_size": 151936,
        "hidden_size": 4096,
        "intermediate_size": 22016,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "head_dim": 128,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
    },
}


def claims(names: Collection[str], config: Mapping[str, Any]) -> bool:
    return config.get("speculators_model_type") == "eagle3"


def to_published(drafter: Any, params: Any, target: Decoder, target_params: Any) -> Exported:
    """`speculators_config.verifier.name_or_path` is left null, for who knows where the target lies: readers open it."""
    need_class(drafter, Eagle3, NAME)
    notes = [f"the tree, its law and the recipe of training are left out; readers draft a chain of {drafter.depth}"]
    tensors = to_tensors(drafter, params, target, target_params, PREFIX, notes)
    tensors["embed_tokens.weight"] = np.asarray(target_params["embed"])
    layer = layer_to_config(target, drafter.layer, tuple(ARCHITECTURES), NAME)
    config = {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "speculators_version": VERSION,
        **dict.fromkeys(FLAGS, False),
        **head_to_config(drafter, tensors, target),
        "norm_output": drafter.norm_output,
        "embed_requires_grad": False,
        IDS: ids_of(drafter.taps, "input", target.layers),
        "tie_word_embeddings": False,
        "transformer_layer_config": layer,
        "speculators_config": greedy_proposals("eagle3", drafter.depth, target),
    }
    return Exported(tensors, config, notes)


def greedy_proposals(algorithm: str, length: int, target: Decoder) -> Config:
    """`speculators_config` of a drafter of chains; the verifier has no name yet."""
    greedy = {"proposal_type": "greedy", "speculative_tokens": length, "verifier_accept_k": 1, "accept_tolerance": 0.0}
    return {
        "algorithm": algorithm,
        "default_proposal_method": "greedy",
        "proposal_methods": [greedy],
        "verifier": {"name_or_path": None, "architectures": decoder_to_config(target)["architectures"]},
    }


def from_published(tensors: Tensors, config: Config, target: Decoder, target_params: Any) -> Imported:
    """Drafts a chain of `speculative_tokens`, as the readers of this format do."""
    notes: list[str] = []
    layer = layer_from_config(layer_settings(config, notes), target, notes)
    flags: dict[str, Any] = {key: flag(config, key, False, notes) for key in (*FLAGS, "norm_output")}
    ids = config.get(IDS)
    taps = default_taps(target.layers, notes) if ids is None else taps_from(ids, "input", target.layers)
    tree = Tree.chain(chain_length(config))
    drafter = Eagle3(taps, tree=tree, layer=layer, **flags)
    return finish(drafter, tensors, config, target, target_params, PREFIX, notes)


def layer_settings(config: Mapping[str, Any], notes: list[str]) -> Config:
    """The layer's config, with its class's defaults where it is silent."""
    given = config.get("transformer_layer_config")
    if not isinstance(given, Mapping):
        raise ValueError(f"config.json: transformer_layer_config is {given!r}; it must be an object")
    kind = given.get("model_type")
    if kind not in ARCHITECTURES:
        raise ValueError(f"config.json: transformer_layer_config.model_type is {kind!r}; known: {', '.join(ARCHITECTURES)}")
    defaults = {key: value for key, value in DEFAULTS[kind].items() if given.get(key) is None}
    if defaults:
        taken = ", ".join(f"{key} {value}" for key, value in defaults.items())
        notes.append(f"transformer_layer_config leaves open what transformers has by default: {taken}")
    return {**given, **defaults, "architectures": [ARCHITECTURES[kind]], "tie_word_embeddings": False}


def chain_length(config: Mapping[str, Any]) -> int:
    """`speculative_tokens` of the default way to draft."""
    outer = config.get("speculators_config")
    methods = outer.get("proposal_methods") if isinstance(outer, Mapping) else None
    if not isinstance(outer, Mapping) or not isinstance(methods, list):
        raise ValueError("config.json: speculators_config.proposal_methods is missing; it says how many tokens are drafted")
    chosen = [method for method in methods if method.get("proposal_type") == outer.get("default_proposal_method")]
    if len(chosen) != 1:
        raise ValueError(
            f"config.json: default_proposal_method is {outer.get('default_proposal_method')!r}, but proposal_methods are "
            f"{[method.get('proposal_type') for method in methods]}"
        )
    return whole(chosen[0], "speculative_tokens")


LAYOUT = Layout(NAME, claims, to_published, from_published)
