"""What every drafter of SmolLM2-135M is trained on here, so that they compare: texts, token budget, prompts to be judged by.

The texts are the target's own, argmax (t0) and sampled (t1), and its states on them are kept. All of it runs in `mixed`
precision: bfloat16 matrices, float32 else.

    ROLL="python -m experiments.rollout --corpora corpora --target.dtype mixed --batch 32 --chunk 64 --config configs/rollout"
    $ROLL/smollm2_prompts.py --name smollm2-prompts-t0 --prompts.count 300
    $ROLL/smollm2_prompts.py --name smollm2-prompts-t1 --prompts.skip 300 --prompts.count 320 --warp.temperature 1
    $ROLL/smollm2_stdlib.py --name smollm2-stdlib-t0 --prompts.count 640 --max-new 128
    $ROLL/smollm2_stdlib.py --name smollm2-stdlib-t1 --prompts.skip 640 --prompts.count 320 --max-new 128 --warp.temperature 1
    python -m experiments.features --dtype mixed --taps 1 14 26 28 --corpus corpora/NAME --out features/NAME     for each

The first two read users' prompts from ../shared/data/prompts_train.jsonl, a file outside of this repository (GSM8K's training
questions and self-instruct's tasks): a line is {"id": …, "messages": [{"role": "user", "content": …}]}, or has `prompt` or
`turns`, and any such file will do, `--prompts.file PATH`. The other two need no file, nor does configs/rollout/smollm2_own.py.

Other texts can be taken by `--corpora` and `--features`. Without the states, train with an empty `--features`:
the target then runs in every step.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from configs.shapes import SMOLLM2_135M
from experiments.config import TargetConfig
from experiments.train_config import HeldOutConfig, TrainConfig
from sdjax.core.types import Law
from sdjax.drafters.eagle import Eagle
from sdjax.drafters.eagle3 import Eagle3, published_taps
from sdjax.drafters.head import DraftHead
from sdjax.drafters.hydra import Hydra, HydraPlus
from sdjax.drafters.medusa import Medusa
from sdjax.study.prompts import Prompts
from sdjax.targets.decoder import types
from sdjax.train.optimiser import Optimiser
from sdjax.train.recipe import Cadence
from sdjax.trees.dynamic import DynamicTree
from sdjax.trees.sequoia import sequoia_tree
from sdjax.trees.tree import Tree

PRECISION = "mixed"
TARGET = replace(SMOLLM2_135M, **types(PRECISION))
TEXTS = ("prompts-t0", "prompts-t1", "stdlib-t0", "stdlib-t1")
CHAIN = Tree.chain(3)  # drafted by all: with the anchor four tokens, a width that CPUs run cheaply (make bench-decode)
STEPS = 300
SHIPPED = {
    family: f"{family.replace('_', '-')}-smollm2-135m" for family in ("medusa", "hydra_plus", "eagle3", "dflash", "dspark")
}
VOCABULARY = DraftHead(size=8192)  # the target's rows for its commonest tokens; its whole head is a fifth of a plain step

BLOCK_TAPS = (1, 14, 26, 28)  # all that are kept

# How often each child of an accepted node is the accepted one: a guess that later measurements should replace.
RATES = (0.5, 0.12, 0.06, 0.03)
TREE = sequoia_tree(16, RATES, CHAIN.depth)


def training(name: str, drafter: Any, learning_rate: float, frozen: tuple[str, ...] = (), steps: int = STEPS) -> TrainConfig:
    """`steps` of 2 × 512 tokens. The rates are chosen by hand: the papers' are for runs a thousand times as long."""
    return TrainConfig(
        name=name,
        drafter=drafter,
        target=TargetConfig(dtype=PRECISION),
        corpora=tuple(f"corpora/smollm2-{text}" for text in TEXTS),
        features=tuple(f"features/smollm2-{text}" for text in TEXTS),
        rows=2,
        length=512,
        optimiser=Optimiser(learning_rate=learning_rate, steps=steps, warmup=30),
        frozen=frozen,
        held_out=HeldOutConfig(Prompts(count=8)),
        cadence=Cadence(save_every=150, eval_every=150),
    )


def eagle3(tree: Tree | DynamicTree, law: Law = Law.WITHOUT_REPLACEMENT) -> Eagle3:
    """As it is trained, drafting any tree."""
    return Eagle3(published_taps(TARGET.layers), tree, law, VOCABULARY, steps=3, start="target")


def block(preset: Callable[..., Any], **changes: Any) -> Any:
    """A block drafter of three layers, which cost a pass what EAGLE-3's one costs in three; or one that is made of such.

    Masks read the row of a token that no text here has, <gh_stars>. A quarter of a row's tokens are anchors (DFlash: a sixth).
    The layers start as the target's last ones, and so lack the norms of queries and keys that published ones have, and the
    deepest state is a layer nearer to the end than DFlash taps: the token budget is small.
    """
    small = {"length": CHAIN.depth, "layers": 3, "start": "target", "head": VOCABULARY, "anchors": 128}
    return preset(BLOCK_TAPS, 7, **small | changes)


def on_trees() -> dict[str, Any]:
    """Drafters of TREE, by the family whose weights they take."""
    hydra = Hydra(TREE, layers=4, heads=CHAIN.depth, head=VOCABULARY)
    return {
        "medusa": Medusa(TREE, heads=CHAIN.depth, head=VOCABULARY),
        "hydra_plus": HydraPlus(hydra),
        "eagle": Eagle(TREE, head=VOCABULARY),
        "eagle3": eagle3(TREE),
    }
