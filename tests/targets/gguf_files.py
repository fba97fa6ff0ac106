"""Writes tiny GGUF files, with the package's own writer, as llama.cpp's converter lays them out."""

from pathlib import Path
from typing import Any

import gguf
import jax
import numpy as np

from sdjax.targets.decoder import Decoder
from sdjax.targets.gguf import NAMES
from sdjax.targets.weights import weight_names

BYTES = [chr(c) for c in [*range(33, 127), *range(161, 173), *range(174, 256)]] + [chr(256 + i) for i in range(68)]
MERGES = ["h e", "l l", "he ll", "hell o", "Ġ w", "o r", "Ġw or", "l d", "Ġwor ld"]
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool>", *BYTES, *(merge.replace(" ", "") for merge in MERGES)]
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def permute(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows (i, i + K/2) of each head put side by side: written out, row by row, against the loader's reshape."""
    half = rows.shape[0] // heads // 2
    order = [head * 2 * half + part * half + i for head in range(heads) for i in range(half) for part in (0, 1)]
    return rows[order]


def metadata(target: Decoder, arch: str) -> dict[str, Any]:
    return {
        f"{arch}.block_count": target.layers,
        f"{arch}.context_length": target.max_position,
        f"{arch}.embedding_length": target.width,
        f"{arch}.feed_forward_length": target.ffw,
        f"{arch}.attention.head_count": target.heads,
        f"{arch}.attention.head_count_kv": target.kv_heads,
        f"{arch}.attention.key_length": target.head_width,
        f"{arch}.attention.layer_norm_rms_epsilon": target.norm_eps,
        f"{arch}.rope.freq_base": target.rope.theta,
    }


def tokenizer_metadata(pre: str = "smollm", tokens: list[str] = TOKENS, merges: list[str] = MERGES) -> dict[str, Any]:
    kinds = [int(gguf.TokenType.CONTROL)] * 3 + [int(gguf.TokenType.USER_DEFINED)]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds + [int(gguf.TokenType.NORMAL)] * (len(tokens) - 4),
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.chat_template": TEMPLATE,
    }


def tensors(target: Decoder, params: Any, arch: str) -> dict[str, np.ndarray]:
    names = jax.tree.leaves(weight_names(target, NAMES))
    arrays = dict(zip(names, map(np.asarray, jax.tree.leaves(params)), strict=True))
    heads = {"attn_q": target.heads, "attn_k": target.kv_heads} if arch == "llama" else {}
    return {name: permute(x, heads[part]) if (part := name.split(".")[-2]) in heads else x for name, x in arrays.items()}


def write_gguf(path: Path, arch: str, values: dict[str, Any], arrays: dict[str, np.ndarray], kind: str = "F32") -> Path:
    """`kind` is the type of the matrices; vectors stay float32, as they do in practice."""
    writer = gguf.GGUFWriter(path, arch)
    for key, value in values.items():
        add(writer, key, value)
    for name, array in arrays.items():
        quantised = gguf.GGMLQuantizationType[kind if array.ndim > 1 else "F32"]
        writer.add_tensor(name, gguf.quants.quantize(array.astype(np.float32), quantised), raw_dtype=quantised)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    kinds = {
        bool: writer.add_bool,
        int: writer.add_uint32,
        float: writer.add_float32,
        str: writer.add_string,
        list: writer.add_array,
    }
    kinds[type(value)](key, value)
