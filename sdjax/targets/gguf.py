"""Models from GGUF, llama.cpp's format: Llama (with Mistral and SmolLM2), Qwen2 and Qwen3, of any type that dequantises."""

from pathlib import Path
from typing import Any

import numpy as np

from sdjax.targets.decoder import Decoder, types
from sdjax.targets.gguf_file import GgufFile, open_gguf
from sdjax.targets.rope import LinearScaling, Llama3Scaling, Rope, YarnScaling
from sdjax.targets.weights import check_weights, read_weights, weight_names

NAMES = {
    "embed": "token_embd.weight",
    "norm": "output_norm.weight",
    "head": "output.weight",
    "attn_norm": "blk.{}.attn_norm.weight",
    "q": "blk.{}.attn_q.weight",
    "k": "blk.{}.attn_k.weight",
    "v": "blk.{}.attn_v.weight",
    "o": "blk.{}.attn_output.weight",
    "q_bias": "blk.{}.attn_q.bias",
    "k_bias": "blk.{}.attn_k.bias",
    "v_bias": "blk.{}.attn_v.bias",
    "o_bias": "blk.{}.attn_output.bias",
    "q_norm": "blk.{}.attn_q_norm.weight",
    "k_norm": "blk.{}.attn_k_norm.weight",
    "mlp_norm": "blk.{}.ffn_norm.weight",
    "gate": "blk.{}.ffn_gate.weight",
    "up": "blk.{}.ffn_up.weight",
    "down": "blk.{}.ffn_down.weight",
    "gate_bias": "blk.{}.ffn_gate.bias",
    "up_bias": "blk.{}.ffn_up.bias",
    "down_bias": "blk.{}.ffn_down.bias",
}
ARCHITECTURES = ("llama", "qwen2", "qwen3")
FREQUENCIES = "rope_freqs.weight"

# Metadata of an architecture that is read below; another key that begins with its name is refused.
READ = frozenset(
    """block_count context_length embedding_length feed_forward_length vocab_size attention.head_count
    attention.head_count_kv attention.key_length attention.value_length attention.layer_norm_rms_epsilon
    attention.sliding_window rope.dimension_count rope.freq_base rope.scaling.type rope.scaling.factor
    rope.scaling.original_context_length rope.scaling.attn_factor rope.scaling.finetuned rope.scaling.yarn_beta_fast
    rope.scaling.yarn_beta_slow rope.scale_linear expert_count expert_used_count""".split()
)


def load_gguf(path: str | Path, dtype: str = "float32") -> tuple[Decoder, Any]:
    """The model in a GGUF file and its parameters, dequantised to `dtype`.

    ValueError names the file, and the architecture, key, tensor or type that is missing, damaged or not supported.
    """
    return decode_gguf(open_gguf(path), dtype)


def decode_gguf(file: GgufFile, dtype: str = "float32") -> tuple[Decoder, Any]:
    """`load_gguf` of a file that is open already."""
    try:
        target = decoder_from_gguf(file, dtype)
    except ValueError as error:
        prefix = "" if str(file.path) in str(error) else f"{file.path}: "
        raise ValueError(f"{prefix}{error}") from error
    names = weight_names(target, NAMES)
    shapes = {name: shape for name, shape in file.shapes().items() if name != FREQUENCIES}
    check_weights(target, names, shapes, file.path)
    heads = _interleaved(target) if file.get("general.architecture", str) == "llama" else {}

    def read(name: str) -> np.ndarray:
        array = file.read(name)
        part = name.split(".")[-2]
        return unpermute(array, heads[part]) if part in heads else array

    return target, read_weights(target, names, read, file.path)


def decoder_from_gguf(file: GgufFile, dtype: str = "float32") -> Decoder:
    """The model that the metadata and the presence of tensors describe."""
    arch = file.get("general.architecture", str)
    if arch not in ARCHITECTURES:
        raise ValueError(f"{file.path}: architecture {arch!r} is not supported; known: {', '.join(ARCHITECTURES)}")
    _refuse_unknown(file, arch)
    width, heads = file.size(f"{arch}.embedding_length"), file.size(f"{arch}.attention.head_count")
    head_width = file.size(f"{arch}.attention.key_length", width // heads)
    layers = file.size(f"{arch}.block_count")
    if layers > len(file.tensors):  # before anything is made a layer at a time: damaged counts run into billions
        raise ValueError(f"{file.path}: {arch}.block_count is {layers}, but the file holds {len(file.tensors)} tensors")
    window = file.get(f"{arch}.attention.sliding_window", int, 0)
    max_position = file.size(f"{arch}.context_length")
    return Decoder(
        vocab=_vocabulary(file, arch),
        width=width,
        layers=layers,
        heads=heads,
        kv_heads=file.size(f"{arch}.attention.head_count_kv", heads),
        head_width=head_width,
        ffw=file.size(f"{arch}.feed_forward_length"),
        rope=_rope(file, arch, head_width, max_position),
        norm_eps=file.number(f"{arch}.attention.layer_norm_rms_epsilon"),
        tied=NAMES["head"] not in file.tensors,
        qkv_bias=arch == "qwen2" or "blk.0.attn_q.bias" in file.tensors,
        o_bias="blk.0.attn_output.bias" in file.tensors,
        mlp_bias="blk.0.ffn_gate.bias" in file.tensors,
        qk_norm=arch == "qwen3",
        windows=(window,) * layers if window > 0 else (),
        max_position=max_position,
        **types(dtype),
    )


def unpermute(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a Llama query or key projection, from llama.cpp's order (pairs side by side) to halves.

    llama.cpp rotates rows 2i and 2i + 1 of a head together; `rotate` turns i and i + K/2.
    """
    return rows.reshape(heads, -1, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def _interleaved(target: Decoder) -> dict[str, int]:
    return {"attn_q": target.heads, "attn_k": target.kv_heads}


def _refuse_unknown(file: GgufFile, arch: str) -> None:
    known = {f"{arch}.{key}" for key in READ}
    unknown = [key for key in file.keys() if key.startswith(f"{arch}.") and key not in known]  # noqa: SIM118
    if unknown:
        raise ValueError(f"{file.path}: metadata {unknown} is not known for architecture {arch!r}")
    if file.get(f"{arch}.expert_count", int, 0) > 0:
        raise ValueError(f"{file.path}: is a mixture of experts ({arch}.expert_count); only dense models are supported")


def _vocabulary(file: GgufFile, arch: str) -> int:
    shape = file.shapes().get(NAMES["embed"])
    if shape is None or len(shape) != 2:
        raise ValueError(f"{file.path}: missing {NAMES['embed']}, or it is no matrix (shape {shape})")
    stated = file.size(f"{arch}.vocab_size", shape[0])
    if stated != shape[0]:
        raise ValueError(f"{file.path}: {arch}.vocab_size is {stated}, but {NAMES['embed']} has {shape[0]} rows")
    return shape[0]


def _rope(file: GgufFile, arch: str, head_width: int, max_position: int) -> Rope:
    rotated = file.size(f"{arch}.rope.dimension_count", head_width)
    values = file.size(f"{arch}.attention.value_length", head_width)
    if rotated != head_width or values != head_width:
        raise ValueError(
            f"{file.path}: keys are {head_width} wide, values {values}, rotated {rotated}; all three must be the same here"
        )
    plain = Rope(file.number(f"{arch}.rope.freq_base", 10_000.0))
    scaling = _scaling(file, arch, max_position)
    if FREQUENCIES not in file.tensors:
        return Rope(plain.theta, scaling)
    if scaling is not None:
        raise ValueError(f"{file.path}: holds both {FREQUENCIES} and {arch}.rope.scaling.type; one of them is expected")
    return Rope(plain.theta, _llama3_scaling(file, plain, head_width))


def _scaling(file: GgufFile, arch: str, max_position: int) -> LinearScaling | YarnScaling | None:
    prefix = f"{arch}.rope.scaling"
    kind = file.get(f"{prefix}.type", str, None)
    old = file.number(f"{arch}.rope.scale_linear", None)  # files from before rope.scaling.*
    if kind is None and old is not None:
        return None if old == 1 else LinearScaling(old)
    if kind in (None, "none"):
        return None
    factor = file.number(f"{prefix}.factor")
    if kind == "linear":
        return LinearScaling(factor)
    if kind == "yarn":
        plain = YarnScaling(
            factor,
            file.size(f"{prefix}.original_context_length", max_position),
            file.number(f"{prefix}.yarn_beta_fast", 32.0),
            file.number(f"{prefix}.yarn_beta_slow", 1.0),
        )
        weight = file.number(f"{prefix}.attn_factor", 1.0)  # llama.cpp multiplies YaRN's own factor with it
        return plain if weight == 1 else YarnScaling(**{**vars(plain), "attention_factor": weight * Rope(1e4, plain).magnitude})
    raise ValueError(f"{file.path}: rope scaling {kind!r} is not supported; known: none, linear, yarn")


def _llama3_scaling(file: GgufFile, plain: Rope, head_width: int) -> Llama3Scaling:
    """The scaling whose divisors the file lists: Llama 3.1 to 3.3 all share its three other numbers."""
    divisors = file.read(FREQUENCIES).astype(np.float64)
    scaling = Llama3Scaling(float(divisors.max(initial=1.0)), 1.0, 4.0, 8192)
    want = plain.frequencies(head_width) / Rope(plain.theta, scaling).frequencies(head_width)
    if divisors.shape != want.shape or not np.allclose(divisors, want, rtol=1e-4, atol=0):
        raise ValueError(
            f"{file.path}: {FREQUENCIES} is not Llama 3's scaling (factor {scaling.factor:g}); no other is supported"
        )
    return scaling
