"""Medusa-1 for Llama-3.1-8B-Instruct on a pod, with the paper's settings (Cai et al. 2024, arXiv:2401.10774).

    python -m experiments.train --config configs/train/medusa_llama31_8b.py

Five heads of one block, each with a vocabulary matrix of its own, decay 0.8; 2e-3 (4 · 5e-4), 40 steps of warm-up, a cosine,
no decay of weights, 64 rows of 4096 tokens, twice over some 60,000 dialogues (§B.2-B.3). Drafts the paper's tree for 7B
models, which uses four heads. The paper's Adam has 8 bits; here all is float32: with gradients some 45 GB for the heads,
by arithmetic, beside the target's 16 GB, on every chip.
The corpus is the target's own answers:

    python -m experiments.rollout --config configs/rollout/smollm2_prompts.py --name llama31-8b-prompts \
        --target.name meta-llama/Llama-3.1-8B-Instruct --target.dtype bfloat16 --prompts.file PATH \
        --longest-prompt 1024 --max-new 1024
"""

from experiments.config import TargetConfig
from experiments.train_config import HeldOutConfig, TrainConfig
from sdjax.drafters.head import DraftHead
from sdjax.drafters.medusa import Medusa
from sdjax.study.prompts import Prompts
from sdjax.train.optimiser import Optimiser
from sdjax.train.recipe import Cadence
from sdjax.trees.published import named_tree


def get_config() -> TrainConfig:
    return TrainConfig(
        name="medusa_llama31_8b",
        drafter=Medusa(named_tree("mc_sim_7b_63"), heads=5, head=DraftHead(trained=True), own_heads=True),
        target=TargetConfig(name="meta-llama/Llama-3.1-8B-Instruct", dtype="bfloat16"),
        corpora=("runs/corpora/llama31-8b-prompts",),
        rows=64,
        length=4096,
        optimiser=Optimiser(learning_rate=2e-3, steps=1875, warmup=40),
        held_out=HeldOutConfig(Prompts(count=80), batch=16),
        cadence=Cadence(save_every=500, eval_every=1000),
    )
