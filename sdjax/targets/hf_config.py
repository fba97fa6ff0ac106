"""A Hugging Face config.json as a `Decoder`, and back. What the file says and we do not do is refused, never skipped."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sdjax.targets.decoder import Decoder, types
from sdjax.targets.hf_rope import rope_from_config, rope_to_config

# Settings that leave the forward pass as it is: training, bookkeeping, generation defaults.
INERT = frozenset(
    """_name_or_path architectures attention_dropout auto_map bos_token_id classifier_dropout dtype eos_token_id
    hidden_dropout id2label initializer_range is_llama_config label2id model_type output_attentions
    output_hidden_states pad_token_id pretraining_tp problem_type return_dict torch_dtype transformers_version
    transformers.js_config use_cache _attn_implementation _attn_implementation_autoset chunk_size_feed_forward
    max_length min_length num_beams num_return_sequences repetition_penalty temperature top_k top_p typical_p
    diversity_penalty length_penalty encoder_no_repeat_ngram_size no_repeat_ngram_size num_beam_groups
    sep_token_id decoder_start_token_id""".split()
)

MOST_LAYERS = 10_000

# Settings read below, whatever the architecture.
COMMON = frozenset(
    """vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim
    max_position_embeddings original_max_position_embeddings rms_norm_eps rope_theta rope_scaling rope_parameters
    tie_word_embeddings""".split()
)

# Settings with one value that we compute.
FIXED: dict[str, tuple[Any, ...]] = {"hidden_act": ("silu", "swish"), "partial_rotary_factor": (1, None)}

WINDOWED = frozenset({"use_sliding_window", "sliding_window", "max_window_layers", "layer_types"})


@dataclass(frozen=True)
class Family:
    """What one architecture reads beyond `COMMON`, and what its configuration class assumes of absent settings."""

    model_type: str
    reads: frozenset[str]
    kv_heads: int | None = None  # None: as many as query heads
    head_width: int | None = None  # None: hidden_size / num_attention_heads
    window: int | None = None


FAMILIES = {
    "LlamaForCausalLM": Family("llama", frozenset({"attention_bias", "mlp_bias"})),
    "MistralForCausalLM": Family("mistral", frozenset({"sliding_window"}), kv_heads=8, window=4096),
    "Qwen2ForCausalLM": Family("qwen2", WINDOWED, kv_heads=32, window=4096),
    "Qwen3ForCausalLM": Family("qwen3", WINDOWED | {"attention_bias"}, kv_heads=32, head_width=128, window=4096),
}


def decoder_from_config(config: Mapping[str, Any], dtype: str = "float32") -> Decoder:
    """The model that a parsed config.json describes; ValueError names the setting that is missing, wrong or not supported."""
    name, family = _family(config)
    _refuse_unknown(config, name, family)
    width, heads = _size(config, "hidden_size"), _size(config, "num_attention_heads")
    layers = _size(config, "num_hidden_layers")
    if layers > MOST_LAYERS:  # before anything is made a layer at a time
        raise ValueError(f"config.json: num_hidden_layers is {layers}; more than {MOST_LAYERS} are taken for damage")
    biased = _flag(config, "attention_bias")
    return Decoder(
        vocab=_size(config, "vocab_size"),
        width=width,
        layers=layers,
        heads=heads,
        kv_heads=_size(config, "num_key_value_heads", family.kv_heads or heads),
        head_width=_size(config, "head_dim", family.head_width or _share(width, heads)),
        ffw=_size(config, "intermediate_size"),
        rope=rope_from_config(config),
        norm_eps=_epsilon(config),
        tied=_flag(config, "tie_word_embeddings"),
        qkv_bias=biased or family.model_type == "qwen2",
        o_bias=biased,
        mlp_bias=_flag(config, "mlp_bias"),
        qk_norm=family.model_type == "qwen3",
        windows=_windows(config, family, layers),
        max_position=_size(config, "max_position_embeddings"),
        **types(dtype),
    )


def decoder_to_config(target: Decoder) -> dict[str, Any]:
    """The config.json of `target`, as the architecture that computes the same; ValueError where none does."""
    name = _architecture(target)
    config = {
        "architectures": [name],
        "model_type": FAMILIES[name].model_type,
        "torch_dtype": target.dtype,
        "vocab_size": target.vocab,
        "hidden_size": target.width,
        "intermediate_size": target.ffw,
        "num_hidden_layers": target.layers,
        "num_attention_heads": target.heads,
        "num_key_value_heads": target.kv_heads,
        "head_dim": target.head_width,
        "hidden_act": "silu",
        "max_position_embeddings": target.max_position,
        "rms_norm_eps": target.norm_eps,
        "tie_word_embeddings": target.tied,
        # transformers puts its own ids in the place of absent ones, and refuses those outside a small vocabulary.
        "bos_token_id": None,
        "eos_token_id": None,
        **rope_to_config(target.rope),
    }
    reads = FAMILIES[name].reads
    if "attention_bias" in reads:
        config["attention_bias"] = target.o_bias
    if "mlp_bias" in reads:
        config["mlp_bias"] = target.mlp_bias
    if "layer_types" in reads:
        config |= _layer_types(target)
    elif "sliding_window" in reads:
        config["sliding_window"] = target.windows[0]
    return config


def _family(config: Mapping[str, Any]) -> tuple[str, Family]:
    names = config.get("architectures")
    if not isinstance(names, list) or len(names) != 1 or names[0] not in FAMILIES:
        raise ValueError(f"config.json: architectures is {names}; supported is one of {', '.join(FAMILIES)}")
    family = FAMILIES[names[0]]
    if config.get("model_type", family.model_type) != family.model_type:
        raise ValueError(f"config.json: model_type is {config['model_type']!r}, but {names[0]} is {family.model_type!r}")
    return names[0], family


def _refuse_unknown(config: Mapping[str, Any], name: str, family: Family) -> None:
    for key, value in config.items():
        if key in FIXED:
            if value not in FIXED[key]:
                raise ValueError(f"config.json: {key} is {value!r}; supported: {', '.join(map(repr, FIXED[key]))}")
        elif key not in INERT | COMMON | family.reads and value not in (None, False, [], {}, ""):
            raise ValueError(
                f"config.json: {key}={value!r} is not known for {name}; remove it if it does not change what the model computes"
            )


def _size(config: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = config.get(key)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"config.json: {key} is {value!r}; it must be a positive integer")
    return value


def _flag(config: Mapping[str, Any], key: str) -> bool:
    value = config.get(key) or False
    if not isinstance(value, bool):
        raise ValueError(f"config.json: {key} is {value!r}; it must be true or false")
    return value


def _epsilon(config: Mapping[str, Any]) -> float:
    value = config.get("rms_norm_eps", 1e-6)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise ValueError(f"config.json: rms_norm_eps is {value!r}; it must be a number from 0 to 1")
    return float(value)


def _share(width: int, heads: int) -> int:
    if width % heads:
        raise ValueError(f"config.json: hidden_size {width} is no multiple of {heads} heads; give head_dim")
    return width // heads


def _windows(config: Mapping[str, Any], family: Family, layers: int) -> tuple[int | None, ...]:
    """A sliding window per layer; () when no layer has one."""
    if "sliding_window" not in family.reads:
        return ()
    width = config.get("sliding_window", family.window)
    if width is not None:
        width = _size(config, "sliding_window", family.window)
    if "layer_types" not in family.reads:
        return () if width is None else (width,) * layers
    if not _flag(config, "use_sliding_window"):
        width = None
    kinds = config.get("layer_types")
    if kinds is None:
        first = layers if width is None else config.get("max_window_layers", 28)
        if not isinstance(first, int):
            raise ValueError(f"config.json: max_window_layers is {first!r}; it must be an integer")
        kinds = ["full_attention" if i < first else "sliding_attention" for i in range(layers)]
    return _windows_of(kinds, width, layers)


def _windows_of(kinds: Any, width: int | None, layers: int) -> tuple[int | None, ...]:
    known = ("full_attention", "sliding_attention")
    if not isinstance(kinds, list) or len(kinds) != layers or any(kind not in known for kind in kinds):
        raise ValueError(f"config.json: layer_types is {kinds!r}; it must hold one of {known} for each of {layers} layers")
    if "sliding_attention" not in kinds:
        return ()
    if width is None:
        raise ValueError("config.json: layer_types has sliding layers, but use_sliding_window is off or sliding_window null")
    return tuple(width if kind == "sliding_attention" else None for kind in kinds)


def _architecture(target: Decoder) -> str:
    windows = set(target.windows) - {None}
    biases = (target.qkv_bias, target.o_bias, target.mlp_bias)
    if target.qk_norm and biases in ((False,) * 3, (True, True, False)) and len(windows) < 2:
        return "Qwen3ForCausalLM"
    if not target.qk_norm and biases == (True, False, False) and len(windows) < 2:
        return "Qwen2ForCausalLM"
    if not target.qk_norm and not any(biases) and windows and len(set(target.windows)) == 1:
        return "MistralForCausalLM"
    if not target.qk_norm and target.qkv_bias == target.o_bias and not windows:
        return "LlamaForCausalLM"
    raise ValueError(
        f"no Hugging Face architecture among {', '.join(FAMILIES)} has qk_norm={target.qk_norm}, "
        f"qkv/o/mlp biases {biases} and windows {target.windows}"
    )


def _layer_types(target: Decoder) -> dict[str, Any]:
    windows = target.windows or (None,) * target.layers
    sliding = [i for i, window in enumerate(windows) if window is not None]
    return {
        "use_sliding_window": bool(sliding),
        "sliding_window": windows[sliding[0]] if sliding else None,
        "max_window_layers": sliding[0] if sliding else target.layers,
        "layer_types": ["full_attention" if window is None else "sliding_attention" for window in windows],
    }
