"""A draft vocabulary as published: d2t[i] = id of the drafter's token i, minus i; t2d[v]: whether the target's v is in it."""

import numpy as np
from jaxtyping import Int

from sdjax.drafters.published.base import Tensors


def to_offsets(ids: Int[np.ndarray, " D"], vocab: int) -> Tensors:
    """{d2t: int64 [D], t2d: bool [V]} of ascending ids."""
    ids = np.asarray(ids, np.int64)
    return {"d2t": ids - np.arange(len(ids)), "t2d": np.isin(np.arange(vocab), ids)}


def from_offsets(tensors: Tensors, size: int, vocab: int, notes: list[str]) -> Int[np.ndarray, " D"] | None:
    """The ids, or None for a whole vocabulary. ValueError where d2t, t2d and the sizes contradict each other."""
    if not 1 <= size <= vocab:
        raise ValueError(f"draft_vocab_size is {size}; it must lie in 1..{vocab}, the target's vocabulary")
    offsets, member = tensors.get("d2t"), tensors.get("t2d")
    if offsets is None and member is None and size == vocab:
        return None
    if offsets is None:
        raise ValueError(f"d2t is missing; a draft vocabulary of {size} of {vocab} tokens needs it")
    if offsets.shape != (size,) or not np.issubdtype(offsets.dtype, np.integer):
        raise ValueError(f"d2t is {offsets.dtype} {list(offsets.shape)}; expected integers [{size}] (draft_vocab_size)")
    ids = offsets.astype(np.int64) + np.arange(size)
    if ids[0] < 0 or ids[-1] >= vocab or (np.diff(ids) <= 0).any():
        raise ValueError(
            f"d2t does not give ascending ids below {vocab}: it must hold offsets (target id - draft id), not target ids"
        )
    if member is None:
        notes.append("t2d is missing: the members are those that d2t names")
    elif member.shape != (vocab,) or not np.isin(member, (0, 1)).all():
        raise ValueError(f"t2d is {member.dtype} {list(member.shape)}; expected booleans [{vocab}] (the target's vocabulary)")
    elif not np.array_equal(np.flatnonzero(member), ids):
        raise ValueError(f"t2d has {int(member.sum())} members that are not the {size} tokens of d2t; one of them is damaged")
    if size == vocab:
        notes.append("d2t and t2d left out: the draft vocabulary is the target's")
        return None
    return ids.astype(np.int32)


def without_offsets(tensors: Tensors) -> Tensors:
    return {name: found for name, found in tensors.items() if name not in ("d2t", "t2d")}
