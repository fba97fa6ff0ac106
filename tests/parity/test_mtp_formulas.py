"""The heads of multi-token prediction against formulas transcribed independently of them, in float64 numpy."""

import jax
import numpy as np
import pytest

from sdjax.drafters.deepseek_mtp import DeepSeekMTP
from sdjax.drafters.gloeckle import Gloeckle
from sdjax.trees.tree import Tree
from tests.drafters.packed_texts import TEXT, loss_of, pack, random_params, traced
from tests.parity.formulas import deepseek_mtp, gloeckle
from tests.parity.formulas.layers import Geometry
from tests.tiny import TARGET, target_params

pytestmark = pytest.mark.families

GEOMETRY = Geometry(TARGET.heads, TARGET.kv_heads)
MASK = np.ones(len(TEXT))
NAMES = {
    "attn_norm": "input_layernorm.weight",
    "mlp_norm": "post_attention_layernorm.weight",
    **{f"{x}_norm": f"self_attn.{x}_norm.weight" for x in "qk"},
    **{x: f"self_attn.{x}_proj.weight" for x in "qkvo"},
    **{f"{x}_bias": f"self_attn.{x}_proj.bias" for x in "qkv"},
    **{x: f"mlp.{x}_proj.weight" for x in ("gate", "up", "down")},
}


def layer_weights(layer, name):
    return {f"{name}.{NAMES[key]}": np.asarray(value, np.float64) for key, value in layer.items()}


def case(drafter):
    """Parameters, the target's as numpy, the context and the trace of one text."""
    params = random_params(drafter)
    ctx, trace = traced(drafter, pack([[TEXT]], len(TEXT)))
    return params, jax.tree.map(lambda x: np.asarray(x, np.float64), target_params()), ctx, trace


@pytest.mark.parametrize(("modules", "steps"), [(3, 3), (1, 4)])
def test_mtp_modules(modules, steps):
    """As many steps as modules are the paper's chain; one module's further steps are its recursion."""
    drafter = DeepSeekMTP(modules=modules, steps=steps, tree=Tree.chain(steps), decay=0.6 if modules == 1 else 1.0, weight=0.3)
    params, target, ctx, trace = case(drafter)
    weights = {}
    for m, module in enumerate(params["modules"]):
        name = f"model.layers.{m}"
        weights |= layer_weights(module["layer"], name)
        weights |= {f"{name}.enorm.weight": module["embed_norm"], f"{name}.hnorm.weight": module["hidden_norm"]}
        weights |= {f"{name}.eh_proj.weight": module["fuse"], f"{name}.shared_head.norm.weight": module["norm"]}
    shared = (GEOMETRY, target["embed"], target["head"], np.asarray(trace.features[0, :, 0]), np.array(TEXT))
    if modules == 1:
        expected = deepseek_mtp.recursive_logits(weights, 0, *shared, steps)
        share = 0.3 * deepseek_mtp.step_weights(steps)
    else:
        expected = deepseek_mtp.logits(weights, range(modules), *shared)
        share = deepseek_mtp.depth_weights(modules)
    for step, hidden in enumerate(drafter.unroll(ctx, params, trace)):
        rows = len(TEXT) - 1 - step
        np.testing.assert_allclose(hidden[0, :rows] @ target["head"].T, expected[step, :rows], atol=1e-4)
    loss, _ = deepseek_mtp.loss(expected, np.array(TEXT), MASK, share, denominator="mask")
    np.testing.assert_allclose(loss_of(drafter, ctx, params, trace), loss, rtol=1e-5)


@pytest.mark.parametrize("variant", gloeckle.VARIANTS)
def test_gloeckle_heads(variant):
    drafter = Gloeckle(layers=TARGET.layers, variant=variant)
    params, target, ctx, trace = case(drafter)
    weights = {}
    for k, head in enumerate(params["heads"]):
        name = f"extra_heads.{k}"
        weights |= {f"{name}.weight": head["matrix"]} if variant == "linear" else layer_weights(head, name)
    state = np.asarray(trace.features[0, :, 0])  # of which the formula reads the one that the variant is fed with
    expected = gloeckle.logits(weights, GEOMETRY, target["norm"], target["head"], state, state, variant)
    loss, _ = gloeckle.loss(expected, np.array(TEXT), MASK, denominator="mask", with_first=False)
    np.testing.assert_allclose(loss_of(drafter, ctx, params, trace), loss, rtol=1e-5)
