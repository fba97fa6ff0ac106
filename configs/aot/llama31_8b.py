"""Llama-3.1-8B on 8 chips of v5e and v6e: plain decoding, and Llama-3.2-1B as its draft model.

    python -m experiments.aot --config configs/aot/llama31_8b.py

Expect two all-reduces a layer. On v5e a batch of 64 at 32k does not fit: its caches alone are 256 GiB, the machine has 128.
"""

from configs.shapes import LLAMA31_8B, LLAMA32_1B
from experiments.aot import AotConfig, Case
from sdjax.drafters.draft_model import DraftModel
from sdjax.drafters.no_draft import NoDraft
from sdjax.drafters.tree_model import TreeDraftModel
from sdjax.trees.tree import Tree


def get_config() -> AotConfig:
    v5e, v6e = "v5e:2x4", "v6e:2x4"
    return AotConfig(
        name="llama31_8b",
        target=LLAMA31_8B,
        draft=LLAMA32_1B,
        cases={
            "plain": Case(v5e, NoDraft()),
            "plain-b8": Case(v5e, NoDraft(), batch=8),
            "plain-b64-32k": Case(v5e, NoDraft(), batch=64, context=32_768, fits=False),
            "draft-model": Case(v5e, DraftModel(LLAMA32_1B, length=4)),
            "draft-tree-b8-data2": Case(v6e, TreeDraftModel(LLAMA32_1B, Tree.branching(4, 2, 2)), batch=8, data=2),
            "sampled-b8-32k": Case(v6e, DraftModel(LLAMA32_1B, length=4), batch=8, context=32_768, temperature=1.0),
        },
    )
