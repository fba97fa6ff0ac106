"""DSpark for Qwen3-4B on a pod: as dspark_qwen3_8b.py has it, whose 36 layers and tokens are this target's, too.

python -m experiments.train --config configs/train/dspark_qwen3_4b.py
"""

from dataclasses import replace

from configs.train import dspark_qwen3_8b
from experiments.config import TargetConfig
from experiments.train_config import TrainConfig


def get_config() -> TrainConfig:
    larger = dspark_qwen3_8b.get_config()
    target = TargetConfig(name="Qwen/Qwen3-4B", dtype="bfloat16")
    return replace(larger, name="dspark_qwen3_4b", target=target, corpora=("runs/corpora/qwen3-4b-prompts",))
