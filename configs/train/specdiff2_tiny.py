"""SpecDiff-2 for the tiny world's target: four drafts from one denoising pass, taught long streaks (arXiv:2511.00606).

    python -m experiments.train --config configs/train/specdiff2_tiny.py

The diffusion model starts as both of the target's layers. The paper's own verdict: --rule self-selection.
"""

from experiments.config import TargetConfig
from experiments.train_config import TrainConfig
from sdjax.drafters.masked_diffusion import MaskedDiffusion
from sdjax.drafters.specdiff2 import SpecDiff2
from sdjax.train.optimiser import Optimiser
from sdjax.train.recipe import Cadence


def get_config() -> TrainConfig:
    return TrainConfig(
        name="specdiff2_tiny",
        target=TargetConfig(name="tiny"),
        drafter=SpecDiff2(MaskedDiffusion(length=3, layers=2, anchors=32), drafts=4),
        rows=8,
        length=128,
        optimiser=Optimiser(learning_rate=2e-3, steps=300, warmup=20),
        cadence=Cadence(save_every=100, eval_every=100),
    )
