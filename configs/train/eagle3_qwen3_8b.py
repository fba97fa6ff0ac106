"""EAGLE-3 for Qwen3-8B on a pod, with SpecForge's settings (sgl-project/SpecForge, 0.2.0).

    python -m experiments.train --config configs/train/eagle3_qwen3_8b.py

Taps behind layers 1, 17 and 32; 32,000 tokens; seven unrolled steps of weights 0.8^k; AdamW at 1e-4 (PyTorch's β), warm-up
over 1.5 % of the steps, then a cosine, clipped at 0.5, rows of 4096 tokens: SpecForge's. `rows` and `steps` are ours; make
the latter epochs (theirs are 10) · tokens of the corpus / (rows · length).
The corpus is the target's own answers:

    python -m experiments.rollout --config configs/rollout/smollm2_prompts.py --name qwen3-8b-prompts \
        --target.name Qwen/Qwen3-8B --target.dtype bfloat16 --prompts.file PATH \
        --longest-prompt 1024 --max-new 2048
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
        name="eagle3_qwen3_8b",
        drafter=Eagle3(published_taps(36), head=DraftHead(size=32_000, trained=True), steps=7, decay=0.8),
        target=TargetConfig(name="Qwen/Qwen3-8B", dtype="bfloat16"),
        corpora=("runs/corpora/qwen3-8b-prompts",),
        rows=32,
        length=4096,
        optimiser=Optimiser(learning_rate=1e-4, steps=40_000, warmup=600, b2=0.999, clip=0.5),
        held_out=HeldOutConfig(Prompts(count=80), batch=16),
        cadence=Cadence(save_every=500, eval_every=1000),
    )
