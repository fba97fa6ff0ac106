"""SmolLM2-135M on HumanEval: plain decoding, prompt lookup, and drafters that were trained for it (zoo/).

    make demo
    python -m experiments.decode --config configs/decode/smollm2_humaneval.py --target.dtype mixed

Expect two tables: at temperature 0 every method's tokens equal plain decoding's, and at temperature 1 so do those of
every method under the walk. The drafters stand on a tree of eight nodes, a width that CPUs verify cheaply in float32; the
first eight problems chose their checkpoints and are left out.
"""

from configs.smollm2 import on_trees
from experiments.config import DecodeConfig
from sdjax.drafters.ngram import NGram
from sdjax.drafters.no_draft import NoDraft
from sdjax.study.compare import Decoding
from sdjax.study.methods import Method, Sampling
from sdjax.study.prompts import Prompts

SHIPPED = {"medusa": "medusa-smollm2-135m", "hydra_plus": "hydra-plus-smollm2-135m", "eagle3": "eagle3-smollm2-135m"}


def get_config() -> DecodeConfig:
    drafters = on_trees()
    return DecodeConfig(
        name="smollm2_humaneval",
        prompts=Prompts(skip=8, count=16),
        rule=Sampling(temperature=(0.0, 1.0)),
        decode=Decoding(max_new=96),
        methods={
            "plain": Method(NoDraft()),
            # With the anchor they fill a pass of eight tokens, which costs little more than one of five.
            "lookup": Method(NGram(length=7, longest=3)),
        }
        | {family: Method(drafters[family], weights=name) for family, name in SHIPPED.items()},
    )
