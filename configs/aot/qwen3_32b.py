"""Qwen3-32B on v5p (16 chips): one module for multi-token prediction, DFlash's block of 16, DSpark's of 7.

    python -m experiments.aot --config configs/aot/qwen3_32b.py

With `model` 16 wide the 8 kv heads do not divide: they are whole on every chip, which costs cache.
"""

from configs.shapes import QWEN3_06B, QWEN3_32B
from experiments.aot_config import AotConfig
from sdjax.drafters.block import Block, spread_taps
from sdjax.drafters.deepseek_mtp import DeepSeekMTP
from sdjax.study.plan import Case
from sdjax.trees.tree import Tree
from sdjax.verify.token import TokenRejection


def get_config() -> AotConfig:
    v5p, taps, mask = "v5p:2x2x4", spread_taps(64), 151_669
    dspark = Block.dspark(taps, mask)
    return AotConfig(
        name="qwen3_32b",
        target=QWEN3_32B,
        draft=QWEN3_06B,
        cases={
            "mtp-b8": Case(v5p, DeepSeekMTP(modules=1, tree=Tree.chain(1), steps=1), batch=8),
            "dflash-32k": Case(v5p, Block.dflash(taps, mask), context=32_768),
            "dspark-b64": Case(v5p, dspark, batch=64, data=2, temperature=1.0, rule=TokenRejection()),
        },
        curves={v5p: 2},
    )
