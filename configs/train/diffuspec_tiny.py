"""DiffuSpec for the tiny world's target: a path through three slots of one denoising pass (arXiv:2510.02358).

    python -m experiments.train --config configs/train/diffuspec_tiny.py

The diffusion model starts as both of the target's layers; a bigram model is trained beside it.
"""

from experiments.config import TargetConfig
from experiments.train_config import TrainConfig
from sdjax.drafters.diffuspec import DiffuSpec
from sdjax.drafters.masked_diffusion import MaskedDiffusion
from sdjax.train.optimiser import Optimiser
from sdjax.train.recipe import Cadence


def get_config() -> TrainConfig:
    return TrainConfig(
        name="diffuspec_tiny",
        target=TargetConfig(name="tiny"),
        drafter=DiffuSpec(MaskedDiffusion(length=3, layers=2, anchors=32), shortest=2, growth=1),
        rows=8,
        length=128,
        optimiser=Optimiser(learning_rate=2e-3, steps=300, warmup=20),
        cadence=Cadence(save_every=100, eval_every=100),
    )
