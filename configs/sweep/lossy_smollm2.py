"""Lossy verification crossed with the shipped drafters on HumanEval: what it gains in τ and time, and how far it drifts.

    python -m experiments.sweep --config configs/sweep/lossy_smollm2.py

At T = 0 approximate speculative decoding (ASD), at three budgets of logit regret, beside the exact walk: "shared" is the
share of plain decoding's tokens before the first difference. At T = 1, on a sampled chain, lenience and typical acceptance
beside exact rejection; their drift is one of laws, so it is not counted here: `experiments.law --plot` draws it, exactly,
on small models. Answers are not executed, so there is no task score. Expect ASD to lift τ with its budget while outputs
that equal plain decoding's get rare (its authors: over 95 % of outputs change).
"""

from configs.smollm2 import CHAIN, SHIPPED, eagle3
from experiments.sweep_config import SweepConfig
from sdjax.core.types import Law
from sdjax.drafters.no_draft import NoDraft
from sdjax.study.compare import Decoding
from sdjax.study.methods import Method, Sampling
from sdjax.study.prompts import Prompts
from sdjax.verify.approximate import ApproximateGreedy
from sdjax.verify.lenience import Lenience
from sdjax.verify.token import TokenRejection
from sdjax.verify.typical import TypicalAcceptance

BUDGETS = (0.5, 2.0, 8.0)


def get_config() -> SweepConfig:
    return SweepConfig(
        name="lossy_smollm2",
        title="Lossy verification of SmolLM2-135M's drafters",
        methods={"plain": Method(NoDraft())} | greedy() | sampled(),
        sets={"HumanEval": Prompts(skip=8, count=16)},
        rule=Sampling(temperature=(0.0, 1.0)),
        decode=Decoding(max_new=48),
    )


def greedy() -> dict[str, Method]:
    """Each shipped drafter, as it was saved, exact and under ASD."""
    methods = {family: Method(weights=weights) for family, weights in SHIPPED.items()}
    for family, weights in SHIPPED.items():
        for budget in BUDGETS:
            rule = ApproximateGreedy(budget=budget, gate=budget / 8, exceptions=2)
            methods[f"{family}-asd-{budget:g}"] = Method(rule=rule, weights=weights)
    return methods


def sampled() -> dict[str, Method]:
    """EAGLE-3's chain drawn from its own law."""
    rules = {
        "token": TokenRejection(),
        "lenience-0.7": Lenience(0.7),
        "lenience-0.3": Lenience(0.3),
        "typical": TypicalAcceptance(),
    }
    weights = SHIPPED["eagle3"]
    return {f"eagle3-{name}": Method(eagle3(CHAIN, Law.IID), rule, weights, greedy=False) for name, rule in rules.items()}
