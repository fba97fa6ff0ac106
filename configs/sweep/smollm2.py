"""Every drafter that was trained for SmolLM2-135M, on HumanEval: at T = 0 by walking, at T = 1 by several rules.

    python -m experiments.sweep --config configs/sweep/smollm2.py --page docs/results/smollm2.md

Trains nothing: the drafters are those of runs/train, made by configs/train/NAME_smollm2.py (`FAMILIES` says which). The
first eight problems chose the checkpoints and are left out. Chains are three deep, as trained; trees stand beside them.
All is float32: narrow passes over bfloat16 matrices pay on CPUs with AMX alone (there take `--target.dtype mixed`: a core
verified sixteen tokens in 1.2 times the time of one). A sweep that was stopped goes on where it was; one at another
temperature may run on another core, and join the page:

    S="python -m experiments.sweep --config configs/sweep/smollm2.py"
    taskset -c 0 $S --name smollm2-t1 --rule.temperature 1 & taskset -c 1 $S --rule.temperature 0; wait
    $S --rule.temperature 0 --beside runs/smollm2-t1 --page docs/results/smollm2.md
"""

from configs.smollm2 import CHAIN, TREE, eagle3, on_trees
from experiments.sweep_config import SweepConfig
from sdjax.core.types import Law
from sdjax.drafters.ngram import NGram
from sdjax.drafters.no_draft import NoDraft
from sdjax.study.compare import Decoding
from sdjax.study.methods import Method, Sampling
from sdjax.study.prompts import Prompts
from sdjax.trees.dynamic import DynamicTree
from sdjax.verify.block import BlockVerification
from sdjax.verify.recursive import Recursive
from sdjax.verify.token import TokenRejection
from sdjax.verify.traversal import Traversal

FAMILIES = ("draft_model", "gloeckle", "medusa", "hydra", "hydra_plus", "eagle", "eagle3", "deepseek_mtp")


def trained(family: str) -> str:
    """Where the drafter of a training run is."""
    return f"runs/train/{family}_smollm2/drafter"


def get_config() -> SweepConfig:
    methods = {"plain": Method(NoDraft()), "lookup": Method(NGram(length=7, longest=3))}
    methods |= {family: Method(weights=trained(family)) for family in FAMILIES}
    return SweepConfig(
        name="smollm2",
        title="Drafters of SmolLM2-135M at one token budget",
        methods=methods | trees() | rules(),
        sets={"HumanEval": Prompts(skip=8, count=40)},
        rule=Sampling(temperature=(0.0, 1.0)),
        decode=Decoding(max_new=48),
    )


def trees() -> dict[str, Method]:
    """The same weights on Sequoia's tree, and on EAGLE-2's of as many nodes."""
    methods = {f"{family}-tree": Method(drafter, weights=trained(family)) for family, drafter in on_trees().items()}
    return methods | {"eagle3-dynamic": Method(eagle3(DynamicTree(depth=3, nodes=16, width=4)), weights=trained("eagle3"))}


def rules() -> dict[str, Method]:
    """At T = 1, where rules differ: a sampled chain under rejection and block verification, a sampled tree under two more."""
    chain, tree = eagle3(CHAIN, Law.IID), eagle3(TREE, Law.WITHOUT_REPLACEMENT)
    cases = {
        "eagle3-token": (chain, TokenRejection()),
        "eagle3-block": (chain, BlockVerification()),
        "eagle3-tree-recursive": (tree, Recursive()),
        "eagle3-tree-traversal": (tree, Traversal()),
    }
    return {name: Method(*case, weights=trained("eagle3"), greedy=False) for name, case in cases.items()}
