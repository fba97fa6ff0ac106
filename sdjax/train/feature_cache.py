"""The frozen target's states on a corpus, on disk: training then runs no target at all.

A folder of ArrayRecord shards and features.json; record i is document i's states, [T, M + 1, E]: the tapped ones and,
last, the final hidden state. They are a rounding away from the ones made anew: float16 keeps 11 bits.
"""

import json
import math
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from array_record.python.array_record_data_source import ArrayRecordDataSource
from array_record.python.array_record_module import ArrayRecordWriter
from jaxtyping import Array, Float

from sdjax.core.types import Batch
from sdjax.targets.decoder import Decoder, Tap
from sdjax.targets.load import Model
from sdjax.targets.packed import trace_of
from sdjax.train.corpus import Corpus, Manifest
from sdjax.train.documents import Document, TracedDocument

MANIFEST = "features.json"
SHARD = 512  # documents a shard
TOLERANCE = 2e-2  # of the largest state: float16 and another packing


@dataclass(frozen=True)
class Features:
    """What a cache holds, of which corpus and target."""

    corpus: str
    target_identity: str
    taps: tuple[Tap, ...]
    width: int
    dtype: str
    documents: int


class CachedCorpus(Sequence[TracedDocument]):
    """A corpus with its cached states; `taps` picks some of those that the cache holds, the final state stays last."""

    def __init__(self, corpus: Corpus, folder: Path, held: Features, taps: Sequence[Tap]):
        self.corpus, self.folder, self.held, self.taps = corpus, folder, held, tuple(taps)
        columns = (*held.taps, "final")
        self._columns = [columns.index(tap) for tap in (*taps, "final")]
        self._records = ArrayRecordDataSource([str(path) for path in sorted(folder.glob("*.array_record"))])

    @property
    def manifest(self) -> Manifest:
        """The corpus' own."""
        return self.corpus.manifest

    def __len__(self) -> int:
        return len(self.corpus)

    def __getitem__(self, i: Any) -> Any:
        document = self.corpus[int(i)]
        flat = np.frombuffer(self._records[int(i)], self.held.dtype)
        states = flat.reshape(len(document.tokens), len(self.held.taps) + 1, self.held.width)
        return TracedDocument(document, states[:, self._columns])


def size_of(corpus: Corpus, target: Decoder, taps: Sequence[Tap], dtype: str = "float16") -> int:
    """Bytes that a cache of these taps will take."""
    return corpus.manifest.tokens * (len(taps) + 1) * target.width * np.dtype(dtype).itemsize


def write_features(
    folder: str | Path, corpus: Corpus, model: Model, taps: Sequence[Tap], rows: int = 4, length: int = 512
) -> Features:
    """Runs the target over the corpus, `rows` × `length` tokens at a time, and writes its states as float16.

    The folder appears when it is complete. ValueError if it exists, or a document is longer than a row.
    """
    folder = Path(folder)
    if folder.exists():
        raise ValueError(f"{folder} exists already; remove it, or write to another folder")
    held = Features(corpus.manifest.identity, model.identity, tuple(taps), model.target.width, "float16", len(corpus))
    hidden = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(hidden, ignore_errors=True)
    hidden.mkdir(parents=True)
    try:
        records = states_of_documents(corpus, model, held, rows, length)
        for shard in range(math.ceil(len(corpus) / SHARD)):
            writer = ArrayRecordWriter(str(hidden / f"{shard:05d}.array_record"), "group_size:1")
            for _ in range(min(SHARD, len(corpus) - shard * SHARD)):
                writer.write(next(records).tobytes())
            writer.close()
        (hidden / MANIFEST).write_text(json.dumps(asdict(held), indent=2) + "\n", encoding="utf-8")
        hidden.rename(folder)
    finally:
        shutil.rmtree(hidden, ignore_errors=True)
    return held


def open_features(folder: str | Path, corpus: Corpus, model: Model, taps: Sequence[Tap]) -> CachedCorpus:
    """The corpus with its cached states, a sample of which is made anew and compared.

    ValueError names what differs: the corpus, the target, a tap that was not cached, or the states themselves.
    """
    folder = Path(folder)
    if not (folder / MANIFEST).is_file():
        raise ValueError(f"{folder} holds no complete feature cache ({MANIFEST} is missing); write it again")
    fields = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    held = Features(**(fields | {"taps": tuple(fields["taps"])}))
    wanted = {"corpus": corpus.manifest.identity, "target_identity": model.identity, "width": model.target.width}
    for name, value in wanted.items():
        if getattr(held, name) != value:
            raise ValueError(f"{folder} was made with another {name} ({getattr(held, name)}, here {value}); write it again")
    lacking = [tap for tap in taps if tap not in (*held.taps, "final")]
    if lacking:
        raise ValueError(f"{folder} lacks the taps {lacking}; it holds {list(held.taps)}: write it again with all of them")
    cached = CachedCorpus(corpus, folder, held, taps)
    verify(cached, model)
    return cached


def verify(cached: CachedCorpus, model: Model, samples: int = 3) -> None:
    """Makes the states of a few documents anew; ValueError where the cached ones differ by more than rounding."""
    chosen = np.linspace(0, len(cached) - 1, min(samples, len(cached))).astype(int)
    kept = [cached[i] for i in chosen]
    length = max(len(one.states) for one in kept)  # one program serves them all
    for i, one in zip(chosen, kept, strict=True):
        batch = batch_of([[one.document]], 1, length)
        fresh = np.asarray(states_on(model.target, model.params, batch, cached.taps))[0, : len(one.states)]
        apart = np.abs(fresh - one.states).max() / np.abs(fresh).max()
        if not apart < TOLERANCE:
            raise ValueError(
                f"{cached.folder}: the states of document {i} differ from the target's by {apart:.2g} of their largest; "
                "the cache is damaged or of another arithmetic: write it again"
            )


def states_of_documents(
    corpus: Corpus, model: Model, held: Features, rows: int, length: int
) -> Iterator[Float[np.ndarray, "T M E"]]:
    """The states of each document in turn."""
    for group in in_rows(corpus, rows, length):
        states = np.asarray(states_on(model.target, model.params, batch_of(group, rows, length), held.taps), held.dtype)
        if not np.isfinite(states).all():
            raise ValueError(f"the target's states exceed {held.dtype}; this target needs them made anew at each step")
        for row, documents in zip(states, group, strict=False):
            start = 0
            for document in documents:
                stop = start + len(document.tokens)
                yield row[start:stop]
                start = stop


def in_rows(corpus: Sequence[Document], rows: int, length: int) -> Iterator[list[list[Document]]]:
    """The documents in order, filled into rows of at most `length` tokens, `rows` of them at a time."""
    group: list[list[Document]] = [[]]
    used = 0
    for document in corpus:
        size = len(document.tokens)
        if size > length:
            raise ValueError(f"document {document.id!r} has {size} tokens, but a row only {length}; raise length")
        if used + size > length:
            if len(group) == rows:
                yield group
                group = []
            group.append([])
            used = 0
        group[-1].append(document)
        used += size
    yield group


def batch_of(group: Sequence[Sequence[Document]], rows: int, length: int) -> Batch:
    """Documents, row by row, as a batch."""
    arrays = {name: np.zeros((rows, length), np.int32) for name in ("tokens", "positions", "segments", "loss_mask")}
    for row, documents in enumerate(group):
        start = 0
        for segment, document in enumerate(documents, 1):
            place = slice(start, start + len(document.tokens))
            arrays["tokens"][row, place] = document.tokens
            arrays["positions"][row, place] = np.arange(len(document.tokens))
            arrays["segments"][row, place] = segment
            arrays["loss_mask"][row, place] = document.loss_mask
            start = place.stop
    return Batch(**(arrays | {"loss_mask": arrays["loss_mask"].astype(bool)}))


@partial(jax.jit, static_argnames=("target", "taps"))
def states_on(target: Decoder, params: Any, batch: Batch, taps: tuple[Tap, ...]) -> Float[Array, "B T M E"]:
    """The tapped states and the final one."""
    trace = trace_of(target, params, batch, taps)
    return jnp.concatenate([trace.features, trace.hidden[:, :, None]], 2)
