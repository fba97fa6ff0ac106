"""Qwen3-8B: DFlash's training step on 256 chips of v6e, and what wider passes cost on eight.

    python -m experiments.aot --config configs/aot/qwen3_8b.py

Training: 512 anchors in each text of 3072 tokens, one text a chip. By the curve configs/decode/qwen3_8b_pod.py schedules.
The paper states lengths and anchors, not its batch; SpecForge's recipe has four texts a GPU. It does not fit: a step with
512 blocks of 16 rows a text takes 38 GiB in all, and a chip has 32.
"""

from configs.shapes import QWEN3_06B, QWEN3_8B
from experiments.aot_config import AotConfig
from sdjax.drafters.block import Block, spread_taps
from sdjax.study.plan_train import TrainCase


def get_config() -> AotConfig:
    dflash = Block.dflash(spread_taps(36), mask_token=151_669)
    return AotConfig(
        name="qwen3_8b",
        target=QWEN3_8B,
        draft=QWEN3_06B,
        cases={},
        curves={"v6e:2x4": 1},
        steps={"train-dflash": TrainCase("v6e:16x16", dflash, rows=256, length=3072, fsdp=8, fits=False)},
    )
