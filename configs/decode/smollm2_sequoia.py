"""SmolLM2-135M drafts trees for itself with its first 24 layers: a wide one to measure, and Sequoia's choice from it.

    python -m experiments.acceptance --config configs/decode/smollm2_sequoia.py --method wide --out runs/acceptance.json
    python -m experiments.costs --config configs/decode/smollm2_sequoia.py --method wide --out runs/costs.json
    python -m experiments.sequoia --acceptance runs/acceptance.json --costs runs/costs.json
    python -m experiments.decode --config configs/decode/smollm2_sequoia.py --prompts.skip 8

The first eight problems, which acceptance measures (the rates kept here are of six), are left out of the comparison.
Expect more tokens a step from the tree than from a chain of any length (it is capped near 1.4), and no speed-up: a
draft level costs most of a target pass. With a drafter at a tenth of that price and a memory-bound target
(experiments.sequoia without --costs) the same rates ask for a tree.
"""

from experiments.config import DecodeConfig
from sdjax.drafters.no_draft import NoDraft
from sdjax.drafters.tree_model import TreeSelfDraft
from sdjax.study.compare import Decoding
from sdjax.study.methods import Method, Sampling
from sdjax.study.prompts import Prompts
from sdjax.trees.acceptance import isotonic
from sdjax.trees.sequoia import sequoia_tree
from sdjax.trees.tree import Tree
from sdjax.verify.recursive import Recursive

# As measured by "wide" at temperature 0 on HumanEval's first 6 problems (215 steps).
RATES = (
    (0.349, 0.116, 0.028, 0.033, 0.033, 0.014, 0.009, 0.005),
    (0.222, 0.048, 0, 0, 0, 0, 0, 0),
    (0.206, 0, 0, 0, 0, 0, 0, 0),
)


def get_config() -> DecodeConfig:
    sequoia = TreeSelfDraft(layers=24, tree=sequoia_tree(16, isotonic(RATES)))
    return DecodeConfig(
        name="smollm2_sequoia",
        prompts=Prompts(count=16),
        rule=Sampling(temperature=(0.0, 1.0)),
        decode=Decoding(max_new=64),
        methods={
            "plain": Method(NoDraft()),
            "wide": Method(TreeSelfDraft(layers=24, tree=Tree.branching(8, 2, 1))),
            "sequoia": Method(sequoia),
            "sequoia-recursive": Method(sequoia, rule=Recursive(), greedy=False),
            "chain": Method(TreeSelfDraft(layers=24, tree=Tree.chain(3))),
        },
    )
