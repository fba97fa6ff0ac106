"""The input of training: documents of corpora, shuffled, packed into rows, dealt to hosts; its position is exact.

grain does the work. A run has rows of one length and no length buckets: answers of about 200 tokens fill 86 % of rows of 512.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import grain
import numpy as np
from jaxtyping import Int

from sdjax.core.types import Batch, Trace
from sdjax.train.corpus import Corpus
from sdjax.train.documents import Document, TracedDocument, windows
from sdjax.train.feature_cache import CachedCorpus

READ = grain.ReadOptions(num_threads=8, prefetch_buffer_size=64)  # documents ahead; what is ahead is read again on restoring
LEAST_BINS = 16  # rows packed side by side: with more, less is padding, and a resumed run reads more again


@dataclass(frozen=True)
class Cut(grain.experimental.FlatMapTransform):
    """Documents longer than a row become several (`windows`)."""

    length: int
    max_fan_out: int = 1 << 30

    def flat_map(self, element: Document | TracedDocument) -> list[dict[str, np.ndarray]]:
        if isinstance(element, Document):
            return [columns(piece) for piece in windows(element, self.length)]
        if len(element.document.tokens) > self.length:
            raise ValueError(
                f"document {element.document.id!r} has {len(element.document.tokens)} tokens, a row only {self.length}; one "
                "whose states are cached cannot be cut: make rows longer"
            )
        return [columns(element.document) | {"states": element.states}] if element.document.supervised else []


def columns(document: Document) -> dict[str, np.ndarray]:
    return {"tokens": document.tokens, "loss_mask": document.loss_mask}


class Batches(Iterator[Batch | Trace]):
    """Endless batches; `position` says where it is, as JSON data, and `restore` goes there exactly.

    Where the target's states are cached, a batch comes with them.
    """

    def __init__(self, rows: Iterator[Any], run: dict[str, Any]):
        self._rows, self._run = rows, run

    def __next__(self) -> Batch | Trace:
        packed = next(self._rows)
        batch = Batch(
            tokens=packed["tokens"],
            positions=packed["tokens_positions"],
            segments=packed["tokens_segment_ids"],
            loss_mask=packed["loss_mask"],
        )
        if "states" not in packed:
            return batch
        return Trace(batch, packed["states"][:, :, :-1], packed["states"][:, :, -1])

    def position(self) -> dict[str, Any]:
        """Where the next batch comes from."""
        return self._run | {"state": self._rows.get_state()}  # type: ignore[attr-defined]

    def restore(self, position: dict[str, Any]) -> None:
        """Goes to a position. ValueError if it is of other corpora, shapes, seeds or hosts."""
        changed = [
            f"{key} was {position.get(key)!r}, is {here!r}" for key, here in self._run.items() if position.get(key) != here
        ]
        if changed:
            raise ValueError(
                f"the data position is of another run: {'; '.join(changed)}; resume with the config it was made by"
            )
        self._rows.set_state(position["state"])  # type: ignore[attr-defined]


def batches(
    corpora: Sequence[Corpus] | Sequence[CachedCorpus], rows: int, length: int, seed: int, host: int = 0, hosts: int = 1
) -> Batches:
    """Batches [rows, length] of numpy arrays, endless over epochs, each epoch in an order of its own.

    Whole documents are packed into rows, first-fit; those longer than a row are cut so that every supervised token is
    learnt from once. Every `hosts`-th document of the shuffled stream is this host's.
    """
    check(corpora, rows, length, host, hosts)
    documents = grain.MapDataset.concatenate([grain.MapDataset.source(corpus) for corpus in corpora])
    mine = documents.seed(seed).shuffle().repeat()[host::hosts]
    names = ["tokens", "loss_mask"] + ["states"] * isinstance(corpora[0], CachedCorpus)
    pieces = grain.experimental.FlatMapIterDataset(mine.to_iter_dataset(READ), Cut(length))
    packed = grain.experimental.FirstFitPackIterDataset(
        pieces,
        length_struct=dict.fromkeys(names, length),
        num_packing_bins=rows * -(-LEAST_BINS // rows),
        shuffle_bins=False,
    )
    run = {"corpora": [corpus.manifest.identity for corpus in corpora], "rows": rows, "length": length, "seed": seed}
    return Batches(iter(packed.batch(rows)), run | {"host": host, "hosts": hosts})


def check(corpora: Sequence[Corpus] | Sequence[CachedCorpus], rows: int, length: int, host: int, hosts: int) -> None:
    if not corpora:
        raise ValueError("no corpora were given; make one with: python -m experiments.rollout")
    for corpus in corpora:
        if not corpus.manifest.supervised:
            raise ValueError(f"{corpus.folder} has no supervised token; there is nothing to learn from")
    if rows < 1 or length < 2:
        raise ValueError(f"rows is {rows} and length {length}; a batch needs a row, and a row two tokens")
    if not 0 <= host < hosts:
        raise ValueError(f"host is {host} of {hosts}; it must lie in 0..hosts - 1")


def token_counts(corpora: Sequence[Corpus], vocab: int) -> Int[np.ndarray, " V"]:
    """How often each token is supervised, int64[V]: what a draft vocabulary is chosen by."""
    counts = np.zeros(vocab, np.int64)
    for corpus in corpora:
        for document in corpus:
            found = np.bincount(document.tokens[document.loss_mask], minlength=vocab)
            if len(found) > vocab:
                raise ValueError(
                    f"{corpus.folder}: document {document.id!r} has token {len(found) - 1}, beyond {vocab} of the target"
                )
            counts += found
    return counts
