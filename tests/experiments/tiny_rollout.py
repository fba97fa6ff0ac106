"""A rollout small enough to be repeated, of the tiny model.

    python -m tests.experiments.tiny_rollout FOLDER

makes FOLDER/tiny in 60 batches, or goes on there; tests kill it.
"""

import sys

import jax
from rich.console import Console

from experiments.rollout import rollout
from experiments.rollout_config import RolloutConfig
from sdjax.drafters.no_draft import NoDraft
from sdjax.study.prompts import Prompts
from tests.experiments.tiny_model import LETTERS, model

TEXTS = tuple(f"{a}{b} {b}" for a in LETTERS[:12] for b in LETTERS[:10])
BATCH = 2


def config(folder: str) -> RolloutConfig:
    return RolloutConfig(
        name="tiny", drafter=NoDraft(), prompts=Prompts(text=TEXTS), max_new=8, batch=BATCH, chunk=16, corpora=folder
    )


if __name__ == "__main__":
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    rollout(config(sys.argv[1]), model(), Console(file=sys.stdout, width=200))
