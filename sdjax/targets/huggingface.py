"""Checkpoints as Hugging Face keeps them: a folder with config.json and safetensors, in one file or in shards."""

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from sdjax.core.spec import check_params
from sdjax.targets.decoder import Decoder
from sdjax.targets.hf_config import decoder_from_config, decoder_to_config
from sdjax.targets.weights import check_weights, read_weights, weight_names

NAMES = {
    "embed": "model.embed_tokens.weight",
    "norm": "model.norm.weight",
    "head": "lm_head.weight",
    "attn_norm": "model.layers.{}.input_layernorm.weight",
    "q": "model.layers.{}.self_attn.q_proj.weight",
    "k": "model.layers.{}.self_attn.k_proj.weight",
    "v": "model.layers.{}.self_attn.v_proj.weight",
    "o": "model.layers.{}.self_attn.o_proj.weight",
    "q_bias": "model.layers.{}.self_attn.q_proj.bias",
    "k_bias": "model.layers.{}.self_attn.k_proj.bias",
    "v_bias": "model.layers.{}.self_attn.v_proj.bias",
    "o_bias": "model.layers.{}.self_attn.o_proj.bias",
    "q_norm": "model.layers.{}.self_attn.q_norm.weight",
    "k_norm": "model.layers.{}.self_attn.k_norm.weight",
    "mlp_norm": "model.layers.{}.post_attention_layernorm.weight",
    "gate": "model.layers.{}.mlp.gate_proj.weight",
    "up": "model.layers.{}.mlp.up_proj.weight",
    "down": "model.layers.{}.mlp.down_proj.weight",
    "gate_bias": "model.layers.{}.mlp.gate_proj.bias",
    "up_bias": "model.layers.{}.mlp.up_proj.bias",
    "down_bias": "model.layers.{}.mlp.down_proj.bias",
}
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
FLOATS = ("F32", "F16", "BF16", "F64")


def load_huggingface(folder: str | Path, dtype: str = "float32") -> tuple[Decoder, Any]:
    """The model in `folder` and its parameters in `dtype`.

    ValueError names the setting, weight or file that is missing, unexpected, damaged or not supported.
    """
    folder = Path(folder)
    config = read_json(folder / "config.json")
    try:
        target = decoder_from_config(config, dtype)
    except ValueError as error:
        raise ValueError(f"{folder}: {error}") from error
    with ExitStack() as stack:
        weights = _Weights([stack.enter_context(_open(path)) for path in weight_files(folder)], folder)
        weights.drop_derived(target)
        names = weight_names(target, NAMES)
        check_weights(target, names, weights.shapes(), folder)
        return target, read_weights(target, names, weights.read, folder)


def save_huggingface(folder: str | Path, target: Decoder, params: Any, shard_bytes: int = 5_000_000_000) -> None:
    """Writes config.json and safetensors so that `load_huggingface` and transformers read them.

    The folder appears under its name only when it is whole. ValueError if it already exists or parameters do not fit.
    """
    folder = Path(folder)
    check_params(target.specs(), params, f"the model to be saved in {folder}")
    config = decoder_to_config(target)
    if folder.exists():
        raise ValueError(f"{folder} already exists; give another name or remove it, so that no two models are ever mixed")
    folder.parent.mkdir(parents=True, exist_ok=True)
    hidden = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        _save_weights(hidden, target, params, shard_bytes)
        (hidden / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        hidden.chmod(0o755)  # mkdtemp makes it private
        hidden.rename(folder)
    except BaseException:
        shutil.rmtree(hidden, ignore_errors=True)
        raise


def weight_files(folder: Path) -> list[Path]:
    """The safetensors of a folder: the single file, or the shards that its index lists. ValueError if one is absent."""
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    if not (folder / INDEX).is_file():
        raise ValueError(f"{folder}: holds neither {SINGLE} nor {INDEX}; other weight formats must be converted first")
    shards = read_json(folder / INDEX).get("weight_map")
    if not isinstance(shards, dict) or not all(isinstance(name, str) and Path(name).name == name for name in shards.values()):
        raise ValueError(f"{folder / INDEX}: weight_map must map each weight to a file beside it; fetch the file again")
    paths = [folder / name for name in sorted(set(shards.values()))]
    absent = [path.name for path in paths if not path.is_file()]
    if absent:
        raise ValueError(f"{folder}: {INDEX} lists {absent}, which are absent; fetch the missing shards")
    return paths


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; ValueError naming the file if it is absent, damaged or something else."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not valid JSON ({error}); fetch the file again") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path}: holds a {type(content).__name__}; a JSON object is expected")
    return content


def _open(path: Path) -> Any:
    try:
        return safe_open(path, "numpy")
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path}: not a whole safetensors file ({error}); fetch or write it again") from error


class _Weights:
    """The tensors of several open files as one mapping."""

    def __init__(self, files: list[Any], folder: Path):
        self.folder = folder
        self.home: dict[str, Any] = {}
        for file in files:
            for name in file.keys():  # noqa: SIM118 (not a dict)
                if name in self.home:
                    raise ValueError(f"{folder}: {name} stands in two shards; fetch the checkpoint again")
                self.home[name] = file

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(file.get_slice(name).get_shape()) for name, file in self.home.items()}

    def read(self, name: str) -> np.ndarray:
        """The tensor as float32 (float64 is rounded: no target here has more)."""
        kind = self.home[name].get_slice(name).get_dtype()
        if kind not in FLOATS:
            raise ValueError(f"{self.folder}: {name} is stored as {kind}; supported: {', '.join(FLOATS)}")
        return self.home[name].get_tensor(name).astype(np.float32, copy=False)

    def drop_derived(self, target: Decoder) -> None:
        """Forgets tensors that repeat what the model has already, after a look that they do."""
        if target.tied and NAMES["head"] in self.home and NAMES["embed"] in self.home:
            if not np.array_equal(self.read(NAMES["head"]), self.read(NAMES["embed"])):
                raise ValueError(f"{self.folder}: tie_word_embeddings is true, but lm_head.weight differs from the embedding")
            del self.home[NAMES["head"]]
        plain = target.rope.frequencies(target.head_width)
        for i in range(target.layers):  # early Llama checkpoints carry the rotation's frequencies
            name = f"model.layers.{i}.self_attn.rotary_emb.inv_freq"
            if name in self.home and np.allclose(self.read(name), plain, rtol=1e-2, atol=0):
                del self.home[name]


def _save_weights(folder: Path, target: Decoder, params: Any, shard_bytes: int) -> None:
    leaves = list(zip(jax.tree.leaves(weight_names(target, NAMES)), jax.tree.leaves(params), strict=True))
    shards = list(_shards(leaves, np.dtype(jax.numpy.dtype(target.dtype)).itemsize, shard_bytes))
    names = [SINGLE] if len(shards) == 1 else [f"model-{i + 1:05}-of-{len(shards):05}.safetensors" for i in range(len(shards))]
    where: dict[str, str] = {}
    total = 0
    for file, shard in zip(names, shards, strict=True):
        tensors = {name: np.ascontiguousarray(np.asarray(leaf, jax.numpy.dtype(target.dtype))) for name, leaf in shard}
        save_file(tensors, folder / file, metadata={"format": "pt"})
        where |= dict.fromkeys(tensors, file)
        total += sum(tensor.nbytes for tensor in tensors.values())
    if len(shards) > 1:
        (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": where}, indent=2) + "\n")


def _shards(leaves: list[tuple[str, Any]], item_bytes: int, shard_bytes: int) -> Iterator[list[tuple[str, Any]]]:
    """Runs of weights of at most `shard_bytes` together (a larger weight has a shard of its own)."""
    shard: list[tuple[str, Any]] = []
    size = 0
    for name, leaf in leaves:
        if shard and size + leaf.size * item_bytes > shard_bytes:
            yield shard
            shard, size = [], 0
        shard.append((name, leaf))
        size += leaf.size * item_bytes
    yield shard
