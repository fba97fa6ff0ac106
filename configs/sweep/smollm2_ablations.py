"""What a block drafter's parts are worth: D-PACE's weights, and what corrects the slots, each trained on the same tokens.

T="python -m experiments.train --config configs/train"
$T/dflash_smollm2.py; $T/dspark_smollm2.py
$T/dflash_smollm2.py --name dflash_dpace_smollm2 --drafter.dpace 0.5      D-PACE's weights of the slots
$T/dspark_smollm2.py --name dspark_none_smollm2 --drafter.markov none     no Markov head
$T/dspark_smollm2.py --name dspark_rnn_smollm2 --drafter.markov rnn       one that remembers all tokens of the block
python -m experiments.sweep --config configs/sweep/smollm2_ablations.py --page docs/results/smollm2_ablations.md
"""

from dataclasses import replace

from configs.sweep import smollm2_blocks
from configs.sweep.smollm2 import trained
from experiments.sweep_config import SweepConfig
from sdjax.drafters.no_draft import NoDraft
from sdjax.study.methods import Method
from sdjax.verify.token import TokenRejection

GREEDY = ("dflash", "dflash_dpace")
DRAWN = ("dspark_none", "dspark", "dspark_rnn")


def get_config() -> SweepConfig:
    methods = {"plain": Method(NoDraft())} | {name: Method(weights=trained(name)) for name in GREEDY + DRAWN}
    methods |= {f"{name}-token": Method(rule=TokenRejection(), weights=trained(name), greedy=False) for name in DRAWN}
    return replace(
        smollm2_blocks.get_config(),
        name="smollm2_ablations",
        title="Ablations of SmolLM2-135M's block drafters",
        methods=methods,
    )
