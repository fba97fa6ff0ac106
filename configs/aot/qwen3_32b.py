"""Qwen3-32B on v5p (16 chips): plain decoding, and Qwen3-0.6B as its draft model.

    python -m experiments.aot --config configs/aot/qwen3_32b.py

With `model` 16 wide the 8 kv heads do not divide: they are whole on every chip, which costs cache.
"""

from configs.shapes import QWEN3_06B, QWEN3_32B
from experiments.aot import AotConfig, Case
from sdjax.drafters.draft_model import DraftModel
from sdjax.drafters.no_draft import NoDraft


def get_config() -> AotConfig:
    v5p = "v5p:2x2x4"
    return AotConfig(
        name="qwen3_32b",
        target=QWEN3_32B,
        draft=QWEN3_06B,
        cases={
            "plain": Case(v5p, NoDraft()),
            "plain-b8-32k": Case(v5p, NoDraft(), batch=8, context=32_768, data=2),
            "draft-model": Case(v5p, DraftModel(QWEN3_06B, length=4)),
        },
    )
