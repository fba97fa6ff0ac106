"""DSpark for Qwen3-8B on a pod, with DeepSpec's settings (deepseek-ai/DeepSpec; arXiv:2607.05147, §4).

    python -m experiments.train --config configs/train/dspark_qwen3_8b.py

Five layers behind layers 1, 9, 17, 25 and 33, seven slots, a Markov head of rank 256, 512 anchors in rows of 4096 tokens;
0.1 CE + 0.9 L1 + the confidence's BCE, weights exp(-j / 4) (the paper's text has 7); AdamW at 6e-4 without weight decay,
warm-up over 4 % of the steps, then a cosine to 0, clipped at 1, 512 rows a step: DeepSpec's. The mask is token 151669.
`steps` are ten epochs of its 1.3 million prompts, one a row; ours are packed, so fewer make as many epochs. The corpus is the
target's own answers, made as configs/train/eagle3_qwen3_8b.py says; theirs were drawn at temperature 0.7, top-p 0.8, top-k 20.
Calibrate the confidence at the temperature that is served: python -m experiments.calibrate.
"""

from experiments.config import TargetConfig
from experiments.train_config import HeldOutConfig, TrainConfig
from sdjax.drafters.block import Block, spread_taps
from sdjax.study.prompts import Prompts
from sdjax.train.optimiser import Optimiser
from sdjax.train.recipe import Cadence


def get_config() -> TrainConfig:
    return TrainConfig(
        name="dspark_qwen3_8b",
        drafter=Block.dspark(spread_taps(36), mask_token=151_669),
        target=TargetConfig(name="Qwen/Qwen3-8B", dtype="bfloat16"),
        corpora=("runs/corpora/qwen3-8b-prompts",),
        rows=512,
        length=4096,
        optimiser=Optimiser(learning_rate=6e-4, steps=25_400, warmup=1016, b2=0.999, clip=1.0, micro_batches=8),
        held_out=HeldOutConfig(Prompts(count=80), batch=16),
        cadence=Cadence(save_every=500, eval_every=1000),
    )
