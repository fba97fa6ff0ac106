"""Llama-3.3-70B on v5p (32 chips) and v6e (64): plain decoding, and Llama-3.1-8B and Llama-3.2-1B as its draft models.

    python -m experiments.aot --config configs/aot/llama33_70b.py

Its 8 kv heads divide 8 chips: `model` is 8 wide, the rest is `data`.
"""

from configs.shapes import LLAMA31_8B, LLAMA32_1B, LLAMA33_70B
from experiments.aot import AotConfig, Case
from sdjax.drafters.draft_model import DraftModel
from sdjax.drafters.no_draft import NoDraft


def get_config() -> AotConfig:
    return AotConfig(
        name="llama33_70b",
        target=LLAMA33_70B,
        draft=LLAMA31_8B,
        cases={
            "plain-b64-32k": Case("v5p:2x4x4", NoDraft(), batch=64, context=32_768, data=4),
            "draft-model-b8": Case("v5p:2x4x4", DraftModel(LLAMA31_8B, length=4), batch=8, data=4),
            "draft-model-b64": Case("v6e:8x8", DraftModel(LLAMA32_1B, length=4), batch=64, data=8),
        },
    )
