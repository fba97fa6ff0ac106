"""Llama-3.3-70B on v5p (32 chips) and v6e (64): plain decoding, EAGLE-3's tree, and Llama-3.1-8B as its draft model.

    python -m experiments.aot --config configs/aot/llama33_70b.py

Its 8 kv heads divide 8 chips: `model` is 8 wide, the rest is `data`.
"""

from configs.shapes import LLAMA31_8B, LLAMA33_70B
from experiments.aot_config import AotConfig
from sdjax.drafters.draft_model import DraftModel
from sdjax.drafters.eagle3 import Eagle3, published_taps
from sdjax.drafters.head import DraftHead
from sdjax.drafters.no_draft import NoDraft
from sdjax.study.plan import Case
from sdjax.verify.token import TokenRejection


def get_config() -> AotConfig:
    v5p, v6e = "v5p:2x4x4", "v6e:8x8"
    eagle3 = Eagle3(published_taps(80), head=DraftHead(size=32_000, trained=True))
    draft = DraftModel(LLAMA31_8B, length=4)
    return AotConfig(
        name="llama33_70b",
        target=LLAMA33_70B,
        draft=LLAMA31_8B,
        cases={
            "plain-b64-32k": Case(v5p, NoDraft(), batch=64, context=32_768, data=4),
            "eagle3-b8": Case(v5p, eagle3, batch=8, data=4),
            "draft-model-b64": Case(v6e, draft, batch=64, data=8, temperature=1.0, rule=TokenRejection()),
        },
        curves={v5p: 4, v6e: 8},
    )
