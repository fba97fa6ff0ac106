"""A tiny config.json of every architecture that is supported, and random models of it."""

from typing import Any

import jax
import jax.numpy as jnp

from sdjax.core.spec import initialise
from sdjax.targets.decoder import Decoder, causal_mask
from sdjax.targets.hf_config import decoder_from_config

COMMON = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_act": "silu",
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
LLAMA = COMMON | {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "rope_theta": 10000.0}
QWEN2 = COMMON | {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "rope_theta": 1e6}
QWEN3 = COMMON | {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "rope_theta": 1e6, "head_dim": 16}
LLAMA3_SCALING = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}

FAMILIES: dict[str, dict[str, Any]] = {
    "llama2": LLAMA,
    "smollm2": LLAMA | {"tie_word_embeddings": True, "rope_interleaved": False, "is_llama_config": True},
    "llama3": LLAMA | {"rope_theta": 5e5, "rope_scaling": LLAMA3_SCALING},
    "llama3-v5": {k: v for k, v in LLAMA.items() if k != "rope_theta"}
    | {"rope_parameters": LLAMA3_SCALING | {"rope_theta": 5e5}},
    "llama-linear": LLAMA | {"rope_scaling": {"type": "linear", "factor": 2.0}},
    "llama-yarn": LLAMA | {"rope_scaling": YARN},
    "llama-yarn-mscale": LLAMA
    | {"rope_scaling": YARN | {"mscale": 1.0, "mscale_all_dim": 0.5, "beta_fast": 16.0, "truncate": False}},
    "llama-biases": LLAMA | {"attention_bias": True, "mlp_bias": True, "head_dim": 16},
    "mistral": LLAMA | {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 5},
    "mistral-full": LLAMA | {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": None},
    "qwen2": QWEN2 | {"use_sliding_window": False, "sliding_window": 5, "max_window_layers": 1},
    "qwen2-sliding": QWEN2 | {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    "qwen2-yarn": QWEN2
    | {"rope_scaling": {"type": "yarn"} | {k: v for k, v in YARN.items() if k != "rope_type"}, "tie_word_embeddings": True},
    "qwen3": QWEN3 | {"attention_bias": False, "use_sliding_window": False, "max_window_layers": 3},
    "qwen3-sliding": QWEN3
    | {
        "attention_bias": True,
        "use_sliding_window": True,
        "sliding_window": 4,
        "max_window_layers": 0,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
}


def random_params(target: Decoder, seed: int = 0) -> Any:
    """Weights large enough that every part of the model shows in its output; norms and biases random too."""
    drawn = initialise(target.specs(), jax.random.key(seed))
    leaves, tree = jax.tree.flatten(drawn)
    keys = jax.random.split(jax.random.key(seed + 1), len(leaves))
    noisy = [
        (10 * x if x.ndim > 1 else x + 0.3 * jax.random.normal(key, x.shape)).astype(x.dtype)
        for x, key in zip(leaves, keys, strict=True)
    ]
    return tree.unflatten(noisy)


def random_model(family: str, dtype: str = "float32", seed: int = 0) -> tuple[Decoder, Any]:
    target = decoder_from_config(FAMILIES[family], dtype)
    return target, random_params(target, seed)


def run(target: Decoder, params: Any, tokens: Any, taps: tuple = ()) -> tuple[jax.Array, jax.Array]:
    """Logits [B, T, V] and features of whole sequences, with nothing in the cache."""
    tokens = jnp.asarray(tokens)
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    out = target.forward(
        params,
        target.embed(params, tokens),
        positions,
        target.empty_cache(tokens.shape[0], 1),
        causal_mask(tokens.shape[1]),
        taps=taps,
    )
    return target.unembed(params, out.hidden), out.features


def assert_same(one: Any, other: Any) -> None:
    """Two trees with the same structure and bits."""
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert a.dtype == b.dtype
        assert (a == b).all()
