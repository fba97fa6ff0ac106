"""What a block drafter's settings must be to make sense together."""

import math
from typing import Any

from sdjax.drafters.base import check_length, check_taps
from sdjax.drafters.block_loss import DISTANCES


def check_block(block: Any) -> None:
    """Raises ValueError, naming the settings of a `Block` that are out of range or contradict each other."""
    check_length(block.length)
    check_taps(block.taps)
    for name, known in (
        ("layout", ("fill_in", "anchor_first")),
        ("block_mask", ("full", "causal")),
        ("markov", ("none", "vanilla", "gated", "rnn", "domino", "selector")),
        ("start", ("drawn", "target")),
    ):
        if getattr(block, name) not in known:
            raise ValueError(f"{name} is {getattr(block, name)!r}; it must be one of {', '.join(known)}")
    for name in ("layers", "rank", "gru", "anchors"):
        if getattr(block, name) < 1:
            raise ValueError(f"{name} is {getattr(block, name)}; it must be at least 1")
    if block.start == "target" and block.shape is not None:
        raise ValueError("layers that start as the target's have its shape; leave out `shape`, or take start='drawn'")
    weights = (block.text, block.soft, block.l1, block.lk)
    if (block.decay is not None and block.decay <= 0) or min(weights) < 0 or sum(weights) == 0:
        raise ValueError(
            "decay must be positive or None, and of the weights text, soft, l1 and lk none negative and one positive"
        )
    for name in ("confidence", "uncorrected", "base_steps"):
        if getattr(block, name) < 0:
            raise ValueError(f"{name} is {getattr(block, name)}; it must be at least 0")
    check_selector(block)
    if block.dpace is not None and not 0 <= block.dpace <= 1:
        raise ValueError(f"dpace is {block.dpace}; D-PACE's α lies in [0, 1] (None: the weights decay with the slot)")
    if block.temperatures and (len(block.temperatures) < block.length or min(block.temperatures) <= 0):
        raise ValueError(f"temperatures are {block.temperatures}; give a positive one for each of {block.length} slots")
    if block.temperatures and not block.confidence:
        raise ValueError("temperatures divide the logits of a confidence head, and there is none; give confidence, or ()")
    if block.markov != "none" and block.uncorrected >= block.length:
        raise ValueError(f"uncorrected is {block.uncorrected} of {block.length} slots; the Markov head would correct none")
    if block.soft_temperature <= 0:
        raise ValueError(f"soft_temperature is {block.soft_temperature}; the laws of a loss are compared at a positive one")
    if block.visible_prefix is not None and not (0 < block.visible_prefix <= 1 and block.length > 1):
        raise ValueError(
            f"visible_prefix is {block.visible_prefix} for blocks of {block.length}; it must lie in (0, 1] (1: all prefixes "
            "are as likely, None: no token is shown), and a block of one token has no prefix"
        )
    if block.visible_prefix is not None and block.dpace is not None:
        raise ValueError("dpace weighs whole blocks, and visible_prefix shows a part of each; take one of them")


def check_selector(block: Any) -> None:
    """Raises ValueError for candidates without a head that chooses among them, or losses that do not know of them."""
    if (block.markov == "selector") != (block.candidates is not None):
        raise ValueError(f"markov is {block.markov!r}, candidates {block.candidates}: a selector has candidates, others none")
    if block.candidates is not None and block.candidates < 2:
        raise ValueError(f"candidates is {block.candidates}; a selector chooses between at least 2")
    if not 0 <= block.choice < math.inf or (block.choice and block.candidates is None):
        raise ValueError(f"choice is {block.choice}; it weighs, by 0 or more, the loss of a selector")
    others = [name for name in (*DISTANCES, "dpace", "base_steps", "uncorrected") if getattr(block, name)]
    if block.candidates is not None and others:
        raise ValueError(f"a selector learns from the text alone, in all slots: leave out {', '.join(others)}")
