"""SmolLM2-135M on HumanEval: plain decoding, prompt lookup, and the drafters that zoo/ ships, each a chain of three.

    make demo
    python -m experiments.decode --config configs/decode/smollm2_humaneval.py

Expect two tables: at temperature 0 every method's tokens equal plain decoding's, and at temperature 1 so do those of
every method under the walk; rejection sampling keeps the law alone, and accepts more. The first eight problems chose the
drafters' checkpoints and are left out. `smollm2_trained.py` compares the same drafters on trees.
"""

from configs.smollm2 import SHIPPED
from experiments.config import DecodeConfig
from sdjax.drafters.ngram import NGram
from sdjax.drafters.no_draft import NoDraft
from sdjax.study.compare import Decoding
from sdjax.study.methods import Method, Sampling
from sdjax.study.prompts import Prompts
from sdjax.verify.token import TokenRejection


def get_config() -> DecodeConfig:
    return DecodeConfig(
        name="smollm2_humaneval",
        prompts=Prompts(skip=8, count=12),
        rule=Sampling(temperature=(0.0, 1.0)),
        decode=Decoding(max_new=64),
        methods={
            "plain": Method(NoDraft()),
            # With the anchor they fill a pass of eight tokens, which costs little more than one of five.
            "lookup": Method(NGram(length=7, longest=3)),
        }
        | {family: Method(weights=name) for family, name in SHIPPED.items()}
        | {
            f"{family}-sampled": Method(weights=SHIPPED[family], rule=TokenRejection(), greedy=False)
            for family in ("eagle3", "dspark")
        },
    )
