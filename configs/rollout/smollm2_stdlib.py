"""SmolLM2-135M writes code: it completes functions of Python's standard library, asked for as HumanEval asks.

    python -m experiments.rollout --config configs/rollout/smollm2_stdlib.py

Some 1,500 prompts, by the running Python's version; nothing is downloaded. Answers are argmax, as in smollm2_prompts.
"""

from experiments.rollout_config import RolloutConfig
from sdjax.core.sampling import Warp
from sdjax.drafters.no_draft import NoDraft
from sdjax.study.stdlib_prompts import StandardLibrary


def get_config() -> RolloutConfig:
    return RolloutConfig(
        name="smollm2_stdlib", drafter=NoDraft(), prompts=StandardLibrary(), warp=Warp(temperature=0.0), longest_prompt=256
    )
