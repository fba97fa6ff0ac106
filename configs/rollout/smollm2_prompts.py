"""SmolLM2-135M answers users' prompts: GSM8K's training questions and self-instruct's tasks.

    python -m experiments.rollout --config configs/rollout/smollm2_prompts.py --prompts.file PATH/prompts.jsonl

The prompts are not part of this repository: without `--prompts.file` they are looked for beside it, in ../shared/data. Any
JSONL file will do whose lines have `messages`, `turns` or `prompt`; give each an `id`, which keys its noise. Prompts of more
than 192 tokens are left out (`--longest-prompt`). Answers are argmax; `--warp.temperature 1 --name smollm2_prompts_t1` samples
them.
"""

from experiments.rollout_config import RolloutConfig
from sdjax.core.sampling import Warp
from sdjax.drafters.no_draft import NoDraft
from sdjax.study.prompts import Prompts


def get_config() -> RolloutConfig:
    return RolloutConfig(
        name="smollm2_prompts",
        drafter=NoDraft(),
        prompts=Prompts(file="../shared/data/prompts_train.jsonl"),
        warp=Warp(temperature=0.0),
        max_new=192,
        longest_prompt=192,
    )
