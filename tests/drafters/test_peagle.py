"""P-EAGLE: training sees what drafting sees, in any of EAGLE-3's forms; one layer of it is EAGLE-3's first step."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from sdjax.core.spec import check_params
from sdjax.drafters.eagle3 import Eagle3
from sdjax.drafters.head import DraftHead
from sdjax.drafters.mask_chains import Drop
from sdjax.drafters.peagle import PEagle
from sdjax.targets.rope import Rope
from sdjax.train.context import training_context
from sdjax.trees.tree import Tree
from tests.drafters.eagle_texts import (
    PACKED,
    TEXTS,
    WEIGHTS,
    check_gradients,
    check_history,
    check_packing,
    random_params,
    texts,
    traced,
    with_gradient,
)
from tests.drafters.mask_chains import (
    check_definition,
    check_length,
    check_nothing_behind_is_seen,
    check_parity,
    first_on,
    trained,
)
from tests.tiny import TARGET, decode, plain

pytestmark = pytest.mark.families

PAPER = PEagle((0, 1, 2), 4, layers=3, sampled=True, head=DraftHead(20, trained=True), text=0.5, soft=0.5)
LAYER = replace(TARGET, heads=2, kv_heads=1, ffw=20, rope=Rope(100.0), norm_eps=0.1)
NORMS = {"norm_before_residual": True, "fc_norm": True, "norm_before_fc": True}
LATER = PEagle(("embed", 1), 4, layers=2, sampled=True, layer=LAYER, mask_token=3, **NORMS)
WHOLE = replace(PAPER, drop=Drop(1, 1))
LOSS = with_gradient(PAPER)


@pytest.mark.parametrize("drafter", [PAPER, LATER], ids=["paper", "later"])
def test_training_sees_what_drafting_sees(drafter):
    check_parity(drafter, lag=1)


def test_a_chain_sees_nothing_behind_its_anchor():
    check_nothing_behind_is_seen(PAPER, lag=1)


def test_a_draft_does_not_depend_on_those_behind_it():
    check_length(PAPER, replace(PAPER, length=2))


def test_state_depends_on_no_history():
    check_history(PAPER, 0)


def test_packed_is_unpacked():
    check_packing(WHOLE, with_gradient(WHOLE))


def test_gradients_reach_all_and_leak_nowhere():
    check_gradients(PAPER, LOSS)


@pytest.mark.parametrize("drafter", [PAPER, WHOLE], ids=["drop", "whole"])
def test_loss_is_its_definition(drafter):
    check_definition(drafter, LOSS if drafter is PAPER else with_gradient(drafter), PACKED, lag=1)


def test_the_text_of_one_layer_is_eagle3s_first_step():
    """The masks aside, it is the same head: slot 0 of every row."""
    drafter = replace(LATER, layers=1)
    eagle = Eagle3(LATER.taps, Tree.chain(4), head=LATER.head, steps=1, layer=LAYER, **NORMS)
    params, trace = random_params(drafter), traced(texts(), drafter.taps)
    own = {name: params[name] for name in eagle.specs(TARGET)}

    @jax.jit
    def step(params):
        ctx = training_context(TARGET, WEIGHTS, trace.batch)
        return jax.nn.log_softmax(eagle.logits(ctx, params, eagle.unroll(ctx, params, trace)))[0]

    order = first_on([0] * len(TEXTS))
    np.testing.assert_allclose(trained(drafter, texts(), order, params)[0], step(own), atol=1e-4)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_argmaxes_change_no_token(temperature):
    assert decode(replace(LATER, sampled=False), temperature).tokens == plain(temperature)


def test_a_start_from_the_target_is_its_last_layers_behind_the_deepest_tap():
    drafter = replace(PAPER, layers=2, start="target", mask_token=7)
    params = drafter.initial(TARGET, WEIGHTS, np.ones(TARGET.vocab), jax.random.key(0))
    check_params(drafter.specs(TARGET), params, "P-EAGLE")
    np.testing.assert_array_equal(params["layer"]["q"][:, TARGET.width :], WEIGHTS["layers"][-2]["q"])
    for name, x in params["layers"][0].items():
        np.testing.assert_array_equal(x, WEIGHTS["layers"][-1][name])
    np.testing.assert_array_equal(params["mask"], WEIGHTS["embed"][7])


def test_what_cannot_be_is_named():
    with pytest.raises(ValueError, match="length is 1"):
        PEagle((0,), 1)
    with pytest.raises(ValueError, match="colliding: 1"):
        PEagle((1, 1))
    with pytest.raises(ValueError, match=r"no taps \[3\]"):
        PEagle((0, 3)).specs(TARGET)
    with pytest.raises(ValueError, match="layers is 0"):
        PEagle((0,), layers=0)
    with pytest.raises(ValueError, match="mask_token is -1"):
        PEagle((0,), mask_token=-1).specs(TARGET)
    with pytest.raises(ValueError, match="layers is 4, the target has 3"):
        many = replace(PAPER, layers=4, start="target")
        many.initial(TARGET, WEIGHTS, np.ones(TARGET.vocab), jax.random.key(0))
