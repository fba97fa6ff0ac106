"""SmolLM2-135M on HumanEval: plain decoding, prompt lookup and the target's own first layers as drafter.

    make demo
    python -m experiments.decode --config configs/decode/smollm2_humaneval.py

Expect two tables: at temperature 0 every method's tokens equal plain decoding's, and at temperature 1 so do those of
every method under the walk. The self-draft (27 of 30 layers) costs most of a target pass a token and cannot win: it is there
to be checked, and to show what a drafter's price is.
"""

from experiments.config import DecodeConfig
from sdjax.drafters.ngram import NGram
from sdjax.drafters.no_draft import NoDraft
from sdjax.drafters.self_draft import SelfDraft
from sdjax.study.compare import Decoding
from sdjax.study.methods import Method, Sampling
from sdjax.study.prompts import Prompts
from sdjax.verify.token import TokenRejection


def get_config() -> DecodeConfig:
    return DecodeConfig(
        name="smollm2_humaneval",
        prompts=Prompts(count=16),
        rule=Sampling(temperature=(0.0, 1.0)),
        decode=Decoding(max_new=96),
        methods={
            "plain": Method(NoDraft()),
            # With the anchor they fill a pass of eight tokens, which costs little more than one of five.
            "lookup": Method(NGram(length=7, longest=3)),
            "self-draft": Method(SelfDraft(layers=27, length=1, sampled=False)),
            "self-draft-sampled": Method(SelfDraft(layers=27, length=1), rule=TokenRejection(), greedy=False),
        },
    )
