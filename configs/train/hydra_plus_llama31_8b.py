"""Hydra++ for Llama-3.1-8B-Instruct on a pod, with the published settings (Ankner et al. 2024, arXiv:2402.05109).

    python -m experiments.train --config configs/train/hydra_plus_llama31_8b.py

Four heads of four blocks behind a prefix layer, each with a vocabulary matrix of its own, learnt from the target's law with
dropout 0.2; AdamW at 5e-4, 100 steps of warm-up, a cosine down to a third, weights decaying at 0.1, 32 rows of 2048 tokens:
the command in zankner/Hydra's README. Its ten epochs of ShareGPT's 68,000 dialogues are some 21,000 steps.
The corpus is the target's own answers:

    python -m experiments.rollout --config configs/rollout/smollm2_prompts.py --name llama31-8b-prompts \
        --target.name meta-llama/Llama-3.1-8B-Instruct --target.dtype bfloat16 --prompts.file PATH \
        --longest-prompt 1024 --max-new 1024
"""

from experiments.config import TargetConfig
from experiments.train_config import HeldOutConfig, TrainConfig
from sdjax.drafters.head import DraftHead
from sdjax.drafters.hydra import Hydra, HydraPlus
from sdjax.study.prompts import Prompts
from sdjax.train.optimiser import Optimiser
from sdjax.train.recipe import Cadence
from sdjax.trees.published import named_tree


def get_config() -> TrainConfig:
    tree, matrices = named_tree("mc_sim_7b_63"), DraftHead(trained=True)
    heads = Hydra(tree, layers=4, head=matrices, own_heads=True, text=0.0, teacher=1.0, dropout=0.2)
    return TrainConfig(
        name="hydra_plus_llama31_8b",
        drafter=HydraPlus(heads),
        target=TargetConfig(name="meta-llama/Llama-3.1-8B-Instruct", dtype="bfloat16"),
        corpora=("runs/corpora/llama31-8b-prompts",),
        rows=32,
        length=2048,
        optimiser=Optimiser(learning_rate=5e-4, steps=21_000, warmup=100, final_fraction=0.33, weight_decay=0.1),
        held_out=HeldOutConfig(Prompts(count=80), batch=16),
        cadence=Cadence(save_every=500, eval_every=1000),
    )
