"""Llama-3.1-8B on 8 chips of v5e and v6e: plain decoding, EAGLE-3's tree of 60 nodes, Medusa's of 64, DFlash's block of 10.

    python -m experiments.aot --config configs/aot/llama31_8b.py

And EAGLE-3's training step on 64 chips of v5p, a text of 2048 tokens a chip, as published.

Expect two all-reduces a layer. On v5e a batch of 64 at 32k does not fit: its caches alone are 256 GiB, the machine has 128.
"""

from configs.shapes import LLAMA31_8B, LLAMA32_1B
from experiments.aot_config import AotConfig
from sdjax.drafters.block import Block, spread_taps
from sdjax.drafters.eagle3 import Eagle3, published_taps
from sdjax.drafters.head import DraftHead
from sdjax.drafters.medusa import Medusa
from sdjax.drafters.no_draft import NoDraft
from sdjax.study.plan import Case
from sdjax.study.plan_train import TrainCase
from sdjax.trees.published import named_tree


def get_config() -> AotConfig:
    v5e, v6e = "v5e:2x4", "v6e:2x4"
    eagle3 = Eagle3(published_taps(32), head=DraftHead(size=32_000, trained=True))
    medusa = Medusa(named_tree("mc_sim_7b_63"), heads=5, head=DraftHead(trained=True), own_heads=True)
    dflash = Block.dflash(spread_taps(32), mask_token=128_255, length=9)
    return AotConfig(
        name="llama31_8b",
        target=LLAMA31_8B,
        draft=LLAMA32_1B,
        cases={
            "plain": Case(v5e, NoDraft()),
            "plain-b64-32k": Case(v5e, NoDraft(), batch=64, context=32_768, fits=False),
            "eagle3": Case(v5e, eagle3),
            "medusa-b8": Case(v5e, medusa, batch=8),
            "dflash-b8-32k": Case(v5e, dflash, batch=8, context=32_768),
            "eagle3-b8": Case(v6e, eagle3, batch=8, data=2),
            "medusa-32k": Case(v6e, medusa, context=32_768),
            "dflash-b8-sampled": Case(v6e, dflash, batch=8, temperature=1.0, top_k=20, top_p=0.95),
        },
        steps={"train-eagle3": TrainCase("v5p:4x4x4", eagle3, rows=64, length=2048, fsdp=8)},
        curves={v5e: 1, v6e: 1},
    )
