"""What the training benchmark compares and counts: the naive loss is EAGLE-3's, and no operation is counted twice."""

import jax
import numpy as np
import pytest

from experiments.bench_train import naive_loss, packed, traced, useful_flops
from sdjax.drafters import eagle3
from sdjax.drafters.eagle3 import Eagle3
from sdjax.drafters.head import DraftHead
from sdjax.train.context import training_context
from sdjax.train.flops import matmul_flops
from sdjax.train.recipe import Recipe
from sdjax.train.step import train_step
from sdjax.trees.tree import Tree
from tests.tiny import TARGET, drafter_params, target_params

pytestmark = pytest.mark.families

DRAFTER = Eagle3((0, 2), Tree.chain(2), head=DraftHead(20, trained=True), steps=3)
BATCH = packed(2, 24, TARGET.vocab)
TRACE = traced(TARGET, 2, BATCH)


def test_batch_is_packed():
    assert np.asarray(BATCH.segments[0]).tolist() == [1] * 8 + [2] * 8 + [3] * 8
    assert np.asarray(BATCH.loss_mask).sum() == 2 * 3 * 6
    assert int(BATCH.ahead(1)[1].sum()) == 2 * 3 * 6


def test_naive_loss_is_the_loss(monkeypatch):
    monkeypatch.setattr(eagle3, "ROWS", 32)  # six chunks of eight rows
    params, ctx = drafter_params(DRAFTER), training_context(TARGET, target_params(), BATCH)
    float_params = {name: part for name, part in params.items() if name != "head"} | {"weight": params["head"]["weight"]}

    def of(loss):
        def alone(learnt):
            own = {name: part for name, part in learnt.items() if name != "weight"}
            own["head"] = params["head"] | {"weight": learnt["weight"]}
            return loss(ctx, own, TRACE, jax.random.key(0))[0]

        return jax.jit(jax.value_and_grad(alone))(float_params)

    ours, naive = of(DRAFTER.loss), of(lambda *given: naive_loss(DRAFTER, *given))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), ours, naive)


def test_flops_are_counted_once(monkeypatch):
    """As many in chunks as without, where all is learnt from; with less supervision less; recomputation is left out."""
    recipe = Recipe(TARGET, DRAFTER)
    state = recipe.begin(target_params(), drafter_params(DRAFTER), 0)
    every = TRACE.replace(batch=BATCH.replace(loss_mask=np.ones_like(BATCH.loss_mask)))
    whole = useful_flops(recipe, state, target_params(), every)
    monkeypatch.setattr(eagle3, "ROWS", 32)
    assert useful_flops(recipe, state, target_params(), every) == whole
    share = useful_flops(recipe, state, target_params(), TRACE)
    heads = 2 * (3 * 3 * 20 + 20 + TARGET.vocab) * TARGET.width  # a row's: three steps forward and twice back; the target's
    assert share == whole - heads * BATCH.tokens.size / 4
    ran = matmul_flops(lambda *given: train_step(recipe.loss, recipe.optimiser, *given), state, target_params(), TRACE)
    assert ran > whole
