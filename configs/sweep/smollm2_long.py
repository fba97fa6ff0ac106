"""What four times the training is worth to EAGLE-3 of SmolLM2-135M, by the length of its chain, on HumanEval at T = 0.

    python -m experiments.sweep --config configs/sweep/smollm2_long.py --page docs/results/smollm2_long.md

Trains nothing: the drafters are those of configs/train/eagle3_smollm2.py and eagle3_long_smollm2.py. On CPUs a pass gets
dearer with every token, so that short chains pay while few of the later drafts are accepted.
"""

from configs.smollm2 import eagle3
from configs.sweep.smollm2 import trained
from experiments.sweep_config import SweepConfig
from sdjax.core.types import Law
from sdjax.drafters.no_draft import NoDraft
from sdjax.study.compare import Decoding
from sdjax.study.methods import Method, Sampling
from sdjax.study.prompts import Prompts
from sdjax.trees.tree import Tree


def get_config() -> SweepConfig:
    chains = {
        f"{run}-{depth}": Method(eagle3(Tree.chain(depth), Law.IID), weights=trained(run))
        for run, depths in (("eagle3", (3,)), ("eagle3_long", (1, 2, 3)))
        for depth in depths
    }
    return SweepConfig(
        name="smollm2_long",
        title="EAGLE-3 of SmolLM2-135M after four times the training",
        methods={"plain": Method(NoDraft())} | chains,
        sets={"HumanEval": Prompts(skip=8, count=40)},
        rule=Sampling(temperature=(0.0,)),
        decode=Decoding(max_new=64),
    )
