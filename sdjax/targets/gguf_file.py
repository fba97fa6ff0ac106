"""A GGUF file opened for reading: typed metadata, tensors by name, and every fault as a ValueError that names the file."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, ReaderTensor
from gguf.quants import dequantize

REQUIRED: Any = object()


class _BoundedReader(GGUFReader):
    """The package's reader, but a read past the end is an error; its own slices are silently short, or never end."""

    def _get(self, offset: int, dtype: Any, count: int = 1, override_order: Any = None) -> Any:
        end = int(offset) + np.dtype(dtype).itemsize * int(count)
        if end > len(self.data):
            raise ValueError(f"it ends at byte {len(self.data)}, but its contents go on to byte {end}")
        return super()._get(offset, dtype, count, override_order)


@dataclass(frozen=True)
class GgufFile:
    """`path`, and the reader's view of it; weights stay on disk until they are read."""

    path: Path
    reader: GGUFReader = field(repr=False)
    tensors: dict[str, ReaderTensor] = field(repr=False)

    def get(self, key: str, kind: type | tuple[type, ...], default: Any = REQUIRED) -> Any:
        """The value of a metadata key; ValueError if it is absent without a default, or not of `kind`."""
        entry = self.reader.get_field(key)
        if entry is None:
            if default is REQUIRED:
                raise ValueError(f"{self.path}: metadata key {key} is missing")
            return default
        try:
            value = entry.contents()
        except Exception as error:  # bytes that are no text, parts that are not there
            raise ValueError(f"{self.path}: metadata key {key} cannot be read ({error}); fetch the file again") from error
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise ValueError(f"{self.path}: metadata key {key} is {value!r:.80}; a {kind} is expected")
        return value

    def size(self, key: str, default: Any = REQUIRED) -> Any:
        """A positive integer."""
        value = self.get(key, int, default)
        if value is not default and value < 1:
            raise ValueError(f"{self.path}: metadata key {key} is {value}; it must be positive")
        return value

    def number(self, key: str, default: Any = REQUIRED) -> Any:
        """A positive finite number. Floats are stored in 32 bits; read as the shortest decimal that gives the same bits."""
        value = self.get(key, (int, float), default)
        if value is not default:
            value = float(str(np.float32(value)))
            if not 0 < value < math.inf:
                raise ValueError(f"{self.path}: metadata key {key} is {value}; it must be positive and finite")
        return value

    def keys(self) -> list[str]:
        return list(self.reader.fields)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Logical shapes, rows first."""
        return {name: tuple(int(n) for n in reversed(tensor.shape)) for name, tensor in self.tensors.items()}

    def read(self, name: str) -> np.ndarray:
        """A tensor as float32, dequantised; ValueError if its type is not supported."""
        tensor = self.tensors[name]
        try:
            with np.errstate(all="ignore"):  # damaged scales overflow; the caller finds the infinities
                return dequantize(tensor.data, tensor.tensor_type).reshape(self.shapes()[name])
        except NotImplementedError as error:
            raise ValueError(
                f"{self.path}: {name} is of type {tensor.tensor_type.name}, which cannot be dequantised"
            ) from error
        except Exception as error:
            raise ValueError(f"{self.path}: {name} cannot be read ({error}); fetch the file again") from error


def open_gguf(path: str | Path) -> GgufFile:
    """Opens and indexes a file. ValueError naming it if it is absent, no GGUF, truncated, damaged or one part of several."""
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"{path}: no such file")
    try:
        reader = _BoundedReader(path)
    except Exception as error:  # the reader trusts its input: damaged bytes surface as almost any exception
        raise ValueError(f"{path}: not a whole GGUF file ({error}); fetch it again") from error
    file = GgufFile(path, reader, {tensor.name: tensor for tensor in reader.tensors})
    if file.get("split.count", int, 0) > 1:
        raise ValueError(f"{path}: is one part of several; merge them first (llama.cpp's gguf-split --merge)")
    return file
