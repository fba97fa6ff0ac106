"""DFlash for Qwen3-8B on a pod, with the paper's settings (arXiv:2602.06036, §A.1).

    python -m experiments.train --config configs/train/dflash_qwen3_8b.py

Five layers behind layers 1, 9, 17, 25 and 33, blocks of sixteen (fifteen masks), 512 anchors in rows of 3072 tokens, weights
exp(-(k - 1) / 7); AdamW at 6e-4, warm-up over 4 % of the steps, then a cosine, clipped at 1: the paper's. The mask is token
151669, as in z-lab's release. `rows` is ours, the paper states none; make `steps` epochs (theirs are 6) · tokens of the
corpus / (rows · length). The corpus is the target's own answers, made as configs/train/eagle3_qwen3_8b.py says.
"""

from experiments.config import TargetConfig
from experiments.train_config import HeldOutConfig, TrainConfig
from sdjax.drafters.block import Block, spread_taps
from sdjax.study.prompts import Prompts
from sdjax.train.optimiser import Optimiser
from sdjax.train.recipe import Cadence


def get_config() -> TrainConfig:
    return TrainConfig(
        name="dflash_qwen3_8b",
        drafter=Block.dflash(spread_taps(36), mask_token=151_669),
        target=TargetConfig(name="Qwen/Qwen3-8B", dtype="bfloat16"),
        corpora=("runs/corpora/qwen3-8b-prompts",),
        rows=32,
        length=3072,
        optimiser=Optimiser(learning_rate=6e-4, steps=60_000, warmup=2400, b2=0.999, clip=1.0),
        held_out=HeldOutConfig(Prompts(count=80), batch=16),
        cadence=Cadence(save_every=500, eval_every=1000),
    )
