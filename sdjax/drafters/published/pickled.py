"""Tensors out of PyTorch's files (.bin, .pt: a zip with a pickle in it) without PyTorch, and without running what they say.

The pickle may name storages, tensors on them and dictionaries; anything else is refused. Format: torch.save since 1.6.
"""

import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from sdjax.drafters.published.base import Tensors

DTYPES: dict[str, Any] = {
    "FloatStorage": np.float32,
    "HalfStorage": np.float16,
    "BFloat16Storage": jnp.bfloat16,
    "DoubleStorage": np.float64,
    "LongStorage": np.int64,
    "IntStorage": np.int32,
    "ShortStorage": np.int16,
    "CharStorage": np.int8,
    "ByteStorage": np.uint8,
    "BoolStorage": np.bool_,
}


class Lazy(NamedTuple):
    """A tensor that is not read yet."""

    storage: str
    dtype: Any
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def read_pickled(path: Path) -> Tensors:
    """The tensors of a state dict; ValueError for another kind of file or content, or a damaged one."""
    try:
        with zipfile.ZipFile(path) as archive:
            index = next((name for name in archive.namelist() if name.rpartition("/")[2] == "data.pkl"), None)
            if index is None:
                raise ValueError("it has no data.pkl")
            root = index.removesuffix("data.pkl")
            if f"{root}byteorder" in archive.namelist() and archive.read(f"{root}byteorder") != b"little":
                raise ValueError("its numbers are big-endian")
            with archive.open(index) as file:
                found = _Tensors(file).load()
            if not isinstance(found, dict):
                raise ValueError(f"it holds a {type(found).__name__}, not named tensors")
            return {name: _read(archive, root, lazy) for name, lazy in found.items() if isinstance(lazy, Lazy)}
    except (OSError, KeyError, TypeError, EOFError, ValueError, zipfile.BadZipFile, pickle.UnpicklingError) as error:
        raise ValueError(
            f"{path.name} cannot be read as tensors of torch.save ({error}); fetch it again, or convert it to safetensors"
        ) from error


class _Tensors(pickle.Unpickler):
    """Makes `Lazy` of tensors, and nothing else of anything."""

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and name in DTYPES:
            return DTYPES[name]
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _tensor
        if (module, name) == ("torch._utils", "_rebuild_parameter"):
            return lambda tensor, *_: tensor
        raise pickle.UnpicklingError(f"it names {module}.{name}, which no file of tensors needs")

    def persistent_load(self, pid: Any) -> tuple[str, Any]:
        """A storage: ("storage", its type, its file, its device, its length)."""
        if not isinstance(pid, tuple) or len(pid) < 3 or pid[0] != "storage":
            raise pickle.UnpicklingError(f"it refers to {pid!r}")
        return str(pid[2]), pid[1]


def _tensor(storage: tuple[str, Any], offset: int, shape: Sequence[int], strides: Sequence[int], *_: Any) -> Lazy:
    return Lazy(*storage, offset, tuple(shape), tuple(strides))


def _read(archive: zipfile.ZipFile, root: str, lazy: Lazy) -> np.ndarray:
    """A copy, so that no other tensor's numbers are kept alive."""
    data = np.frombuffer(archive.read(f"{root}data/{lazy.storage}"), lazy.dtype)
    steps = [(size - 1) * stride for size, stride in zip(lazy.shape, lazy.strides, strict=True)]
    if min((lazy.offset, *lazy.shape, *lazy.strides)) < 0 or (0 not in lazy.shape and lazy.offset + sum(steps) >= len(data)):
        raise ValueError(f"a tensor {list(lazy.shape)} reaches beyond its storage of {len(data)} numbers")
    strides = [stride * data.itemsize for stride in lazy.strides]
    return np.lib.stride_tricks.as_strided(data[lazy.offset :], lazy.shape, strides).copy()
