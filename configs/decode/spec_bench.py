"""Spec-Bench's 480 questions with SmolLM2-135M: τ by category of prompt lookup at three draft lengths.

    python -m experiments.decode --config configs/decode/spec_bench.py --prompts.file PATH/question.jsonl

The questions are not part of this repository: take data/spec_bench/question.jsonl from hemingkx/Spec-Bench (Apache-2.0).
Expect hours on a laptop for all of them; `--prompts.count 20` or `--prompts.category qa summarization` is a start. Turn 2
stands behind plain decoding's answer to turn 1, the same for all methods. `tau_by_category` is in summary.json.
"""

from experiments.config import DecodeConfig
from sdjax.drafters.ngram import NGram
from sdjax.drafters.no_draft import NoDraft
from sdjax.study.compare import Decoding
from sdjax.study.methods import Method, Sampling
from sdjax.study.prompts import Prompts


def get_config() -> DecodeConfig:
    return DecodeConfig(
        name="spec_bench",
        prompts=Prompts(file="question.jsonl", turns=0),
        rule=Sampling(temperature=(0.0,)),
        decode=Decoding(max_new=256),
        methods={"plain": Method(NoDraft())} | {f"lookup-{n}": Method(NGram(length=n)) for n in (3, 7, 15)},
    )
