"""DiffuSpec for SmolLM2-135M (Li et al. 2025, arXiv:2510.02358): a diffusion model that starts as its first two layers.

    python -m experiments.train --config configs/train/diffuspec_smollm2.py

Lengths follow where drafts end: with <|endoftext|> or <|im_end|>. The paper takes a pretrained model of 7B, and drafts 20 to
30 tokens. Texts, token budget and the commands that make the corpora are in configs/smollm2.py.
"""

from configs.smollm2 import CHAIN, VOCABULARY, training
from experiments.train_config import TrainConfig
from sdjax.drafters.diffuspec import DiffuSpec
from sdjax.drafters.masked_diffusion import MaskedDiffusion


def get_config() -> TrainConfig:
    model = MaskedDiffusion(CHAIN.depth, layers=2, head=VOCABULARY, anchors=128)
    return training("diffuspec_smollm2", DiffuSpec(model, shortest=1, growth=1, stops=(0, 2)), learning_rate=1e-3)
