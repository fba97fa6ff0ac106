"""SmolLM2-135M on HumanEval with the drafters that zoo/ ships, on trees of sixteen nodes, in mixed precision.

    python -m experiments.decode --config configs/decode/smollm2_trained.py

Made for CPUs with AMX, where a pass over sixteen tokens took 1.2 plain ones; with `--target.dtype float32`
any other runs it. The first eight problems chose the drafters' checkpoints and are left out. Near-ties, which bfloat16
matrices may flip, are listed with the gap that plain decoding chose by.
"""

from configs.smollm2 import PRECISION, SHIPPED, on_trees
from experiments.config import DecodeConfig, TargetConfig
from sdjax.drafters.ngram import NGram
from sdjax.drafters.no_draft import NoDraft
from sdjax.study.compare import Decoding
from sdjax.study.methods import Method, Sampling
from sdjax.study.prompts import Prompts


def get_config() -> DecodeConfig:
    return DecodeConfig(
        name="smollm2_trained",
        prompts=Prompts(skip=8, count=16),
        rule=Sampling(temperature=(0.0, 1.0)),
        target=TargetConfig(dtype=PRECISION),
        decode=Decoding(max_new=96),
        methods={
            "plain": Method(NoDraft()),
            "lookup": Method(NGram(length=7, longest=3)),
        }
        | {family: Method(drafter, weights=SHIPPED[family]) for family, drafter in on_trees().items() if family in SHIPPED},
    )
