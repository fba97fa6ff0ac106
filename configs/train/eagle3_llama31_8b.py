"""EAGLE-3 for Llama-3.1-8B-Instruct on a pod, with the paper's settings (Li et al. 2025, arXiv:2503.01840).

    python -m experiments.train --config configs/train/eagle3_llama31_8b.py

Taps behind layers 1, 15 and 28; 32,000 tokens; seven unrolled steps of weights 0.8^k. AdamW (0.9, 0.95) at 5e-5, clipped at
0.5, is the paper's; 12,000 steps of warm-up, 800,000 in all, falling linearly, rows of 2048 tokens: the released code's, with
a batch of one a GPU. `rows` is ours: one a chip. The data were ShareGPT and UltraChat-200K, 532,000 prompts, 40 times.
The rotary base is the target's; the published head has 10,000.
The corpus is the target's own answers:

    python -m experiments.rollout --config configs/rollout/smollm2_prompts.py --name llama31-8b-prompts \
        --target.name meta-llama/Llama-3.1-8B-Instruct --target.dtype bfloat16 --prompts.file PATH \
        --longest-prompt 1024 --max-new 1024
"""

from experiments.config import TargetConfig
from experiments.train_config import HeldOutConfig, TrainConfig
from sdjax.drafters.eagle3 import Eagle3, published_taps
from sdjax.drafters.head import DraftHead
from sdjax.study.prompts import Prompts
from sdjax.train.optimiser import Optimiser
from sdjax.train.recipe import Cadence


def get_config() -> TrainConfig:
    return TrainConfig(
        name="eagle3_llama31_8b",
        drafter=Eagle3(published_taps(32), head=DraftHead(size=32_000, trained=True), steps=7, decay=0.8),
        target=TargetConfig(name="meta-llama/Llama-3.1-8B-Instruct", dtype="bfloat16"),
        corpora=("runs/corpora/llama31-8b-prompts",),
        rows=32,
        length=2048,
        optimiser=Optimiser(learning_rate=5e-5, steps=800_000, warmup=12_000, schedule="linear", clip=0.5),
        held_out=HeldOutConfig(Prompts(count=80), batch=16),
        cadence=Cadence(save_every=500, eval_every=1000),
    )
