"""SmolLM2-135M writes both sides of conversations: a corpus that needs no data from outside.

    python -m experiments.rollout --config configs/rollout/smollm2_own.py

Expect about 50 tokens a second on two CPU cores, so some hours for all of it: `--prompts.count 200 --name smollm2_own_200`
is a start. The corpus is runs/corpora/smollm2_own; stop it at any time, the same command goes on. A corpus is not extended:
another count is another corpus, with a name of its own.
"""

from experiments.rollout_config import OwnText, RolloutConfig
from sdjax.core.sampling import Warp
from sdjax.drafters.no_draft import NoDraft


def get_config() -> RolloutConfig:
    return RolloutConfig(name="smollm2_own", drafter=NoDraft(), prompts=OwnText(count=2000), warp=Warp(temperature=1.0))
