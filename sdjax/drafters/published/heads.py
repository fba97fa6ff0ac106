"""What the layouts of Medusa and Hydra share: a whole vocabulary matrix for every head, and blocks that are one object."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sdjax.drafters.head import DraftHead, target_head
from sdjax.drafters.published.base import all_equal
from sdjax.drafters.residual_heads import matrix_of
from sdjax.targets.decoder import Decoder
from sdjax.trees.published import named_tree
from sdjax.trees.tree import Tree

TREE = "mc_sim_7b_63"  # what both released codes draft


def whole_matrices(
    head: DraftHead, matrices: Sequence[Any], heads: int, target: Decoder, target_params: Any, layout: str, notes: list[str]
) -> list[np.ndarray]:
    """A matrix [V, E] for each head; ValueError for one that was trained for a draft vocabulary."""
    if head.trained and head.size is not None:
        raise ValueError(
            f"the heads' matrix was trained for a draft vocabulary of {head.size} tokens; the layout {layout!r} has "
            f"matrices over all {target.vocab} alone"
        )
    if not head.trained:
        cut = "" if head.size is None else f", and the draft vocabulary of {head.size} tokens is left out"
        notes.append(f"each head's matrix is a copy of the target's{cut}")
        return [np.asarray(target_head(target, target_params))] * heads
    if len(matrices) < heads:
        notes.append("each head's matrix is a copy of the one they share")
    return [np.asarray(matrix_of(matrices, k)["weight"]) for k in range(heads)]


def one_object(blocks: Sequence[Any], k: int, layout: str) -> None:
    """Raises ValueError unless the blocks are equal: the layout's readers hold one block, several times over."""
    if len(blocks) > 1 and not all_equal(blocks):
        raise ValueError(
            f"head {k} has {len(blocks)} blocks with weights of their own; readers of the layout {layout!r} build them as one "
            "block repeated, and would run the last of them everywhere; it holds heads with one such block, or equal ones"
        )


def note_tied(heads: Sequence[Sequence[Any]], notes: list[str]) -> None:
    """Says what became of blocks that were one."""
    if all(len(blocks) > 1 and all_equal(blocks) for blocks in heads):
        notes.append(f"each head's {len(heads[0])} equal blocks were one, repeated; here each has weights of its own")


def check_count(config: Mapping[str, Any], key: str, count: int, what: str) -> None:
    """Raises ValueError where the config counts otherwise than the tensors."""
    if config.get(key) != count:
        raise ValueError(f"config.json: {key} is {config.get(key)!r}, but the tensors are of {count} {what}")


def check_target(config: Mapping[str, Any], target: Decoder) -> None:
    """Raises ValueError for sizes, where the config has them, that are not the target's."""
    for key, own in (("hidden_size", target.width), ("vocab_size", target.vocab)):
        if config.get(key, own) != own:
            raise ValueError(f"config.json: {key} is {config[key]}, the target's {own}; these heads are for another target")


def default_tree(heads: int, vocab: int, notes: list[str]) -> Tree:
    """The released codes' tree, where there are heads and tokens enough for it; else a chain."""
    tree = named_tree(TREE)
    fits = heads >= tree.depth and vocab >= max(map(len, tree.children))
    name = TREE if fits else f"chain{heads}"
    notes.append(f"the tree is not in the folder: {name}")
    return named_tree(name)
