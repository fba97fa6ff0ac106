"""One text to learn from: its tokens, and which of them are supervised."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

Span = tuple[Sequence[int], bool]  # token ids, and whether they are learnt from


@dataclass(frozen=True, eq=False)
class Document:
    """`loss_mask` marks what is learnt from: in a rollout, what the target itself wrote. `id` is its name within `source`."""

    tokens: Int[np.ndarray, " T"]
    loss_mask: Bool[np.ndarray, " T"]
    id: str
    source: str

    def __post_init__(self):
        if self.tokens.shape != self.loss_mask.shape or self.tokens.ndim != 1:
            raise ValueError(f"document {self.id!r}: {self.tokens.shape} tokens, but a loss mask of {self.loss_mask.shape}")
        if self.loss_mask[:1].any():
            raise ValueError(f"document {self.id!r} supervises its first token, which nothing predicts; clear loss_mask[0]")

    @property
    def supervised(self) -> int:
        return int(self.loss_mask.sum())

    @classmethod
    def of_spans(cls, spans: Iterable[Span], id: str, source: str) -> "Document":
        """The spans one behind the other; the first token, which nothing predicts, is never supervised."""
        spans = list(spans)
        tokens = np.array([token for ids, _ in spans for token in ids], np.int32)
        mask = np.array([learnt for ids, learnt in spans for _ in ids], bool)
        mask[:1] = False
        return cls(tokens, mask, id, source)

    def cut(self, start: int, stop: int) -> "Document":
        """tokens[start:stop]."""
        mask = self.loss_mask[start:stop].copy()
        mask[:1] = False
        return Document(self.tokens[start:stop], mask, self.id, self.source)


@dataclass(frozen=True, eq=False)
class TracedDocument:
    """A document with the target's states on it: the tapped ones and, last, the final one."""

    document: Document
    states: Float[np.ndarray, "T M E"]


def windows(document: Document, length: int) -> list[Document]:
    """The document in pieces of at most `length` tokens that supervise each supervised token exactly once.

    Whole where it fits. Else, from the end: a window ends at the last supervised token that none holds yet, and reaches
    back as far as it can, so that what is learnt has context; what precedes the first answer by more is left out.
    """
    if len(document.tokens) <= length:
        return [document] if document.supervised else []
    pieces, marked = [], np.flatnonzero(document.loss_mask)
    while marked.size:
        stop = int(marked[-1]) + 1
        start = max(0, stop - length)
        piece = document.cut(start, stop)
        piece.loss_mask[int(marked[marked > start][-1]) + 1 - start :] = False
        pieces.append(piece)
        marked = marked[marked <= start]
    return pieces[::-1]
