"""Block drafters of SmolLM2-135M beside EAGLE-3 and Hydra++, trained on the same tokens, on HumanEval.

    python -m experiments.sweep --config configs/sweep/smollm2_blocks.py --page docs/results/smollm2_blocks.md

Trains nothing: the drafters are those of runs/train, made by configs/train/NAME_smollm2.py. The rest is as in
configs/sweep/smollm2.py, on fewer prompts; the way to run it on two cores is written there, too. "dd_tree" takes DFlash's
weights, and so do "dflash-7" and "dflash-15", blocks longer than what was learnt: their draft's cost is that of one pass.
"""

from dataclasses import replace

from configs.smollm2 import block
from configs.sweep import smollm2
from configs.sweep.smollm2 import trained
from experiments.sweep_config import SweepConfig
from sdjax.drafters.block import Block
from sdjax.drafters.block_tree import BlockTree
from sdjax.drafters.no_draft import NoDraft
from sdjax.study.methods import Method
from sdjax.study.prompts import Prompts
from sdjax.verify.block import BlockVerification
from sdjax.verify.token import TokenRejection

FAMILIES = ("hydra_plus", "eagle3", "dflash", "dspark", "domino", "peagle", "pard", "jetspec", "d2sd")


def get_config() -> SweepConfig:
    methods = {"plain": Method(NoDraft())} | {name: Method(weights=trained(name)) for name in FAMILIES}
    methods |= {f"dflash-{n}": Method(block(Block.dflash, length=n), weights=trained("dflash")) for n in (7, 15)}
    methods["dd_tree"] = Method(block(BlockTree.dd_tree, nodes=16), weights=trained("dflash"))
    return replace(
        smollm2.get_config(),
        name="smollm2_blocks",
        title="Block drafters of SmolLM2-135M",
        methods=methods | rules(),
        sets={"HumanEval": Prompts(skip=8, count=12)},
    )


def rules() -> dict[str, Method]:
    """At T = 1, for those whose drafts are drawn: rejection, which asks for their law, and for DSpark block verification."""
    drawn = ("eagle3", "dspark", "peagle", "pard")
    methods = {f"{name}-token": Method(rule=TokenRejection(), weights=trained(name), greedy=False) for name in drawn}
    return methods | {"dspark-block": Method(rule=BlockVerification(), weights=trained("dspark"), greedy=False)}
