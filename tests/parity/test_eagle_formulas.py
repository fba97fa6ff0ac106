"""The EAGLE heads against transcriptions of their papers in plain loops, float64."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from sdjax.core.types import Law
from sdjax.drafters.eagle import Eagle
from sdjax.drafters.eagle3 import Eagle3
from sdjax.drafters.head import DraftHead
from sdjax.targets.rope import Rope
from sdjax.train.context import training_context
from sdjax.trees.tree import Tree
from tests.drafters.eagle_texts import TEXTS, WEIGHTS, batch_of, random_params, traced
from tests.parity.formulas import eagle1
from tests.parity.formulas import eagle3 as formulas
from tests.parity.formulas.layers import Geometry
from tests.tiny import TARGET

pytestmark = pytest.mark.families

TOKENS, LENGTH = TEXTS[0, :14], 14
BATCH = batch_of([[TOKENS.tolist()]], LENGTH)
EMBED, HEAD = np.asarray(WEIGHTS["embed"]), np.asarray(WEIGHTS["head"])
LAYER = replace(TARGET, heads=2, kv_heads=1, ffw=20, rope=Rope(100.0), norm_eps=0.1, qk_norm=False, qkv_bias=False)
FLAGS = {"norm_before_residual": True, "norm_output": True, "fc_norm": True, "norm_before_fc": True}
PAPER = Eagle3((0, 1, 2), Tree.chain(3), Law.IID, DraftHead(20, trained=True), steps=3)
LATER = Eagle3(("embed", 1), Tree.chain(3), Law.IID, DraftHead(trained=True), steps=3, layer=LAYER, **FLAGS)
NAMES = {name: f"self_attn.{name}_proj" for name in "qkvo"} | {name: f"mlp.{name}_proj" for name in ("gate", "up", "down")}


def layer_weights(params, prefix):
    tensors = {f"{prefix}.{name}.weight": np.asarray(params[ours]) for ours, name in NAMES.items()}
    return tensors | {f"{prefix}.post_attention_layernorm.weight": np.asarray(params["mlp_norm"])}


def geometry(layer):
    return Geometry(layer.heads, layer.kv_heads, layer.rope.theta, layer.norm_eps)


def published(params):
    """EAGLE-3's tensors under their published names."""
    names = {"midlayer.input_layernorm": "input_norm", "midlayer.hidden_norm": "hidden_norm", "norm": "norm", "fc": "fc"}
    tensors = {f"{name}.weight": np.asarray(params[ours]) for name, ours in names.items()}
    tensors |= layer_weights(params["layer"], "midlayer") | {"lm_head.weight": np.asarray(params["head"]["weight"])}
    if "ids" in params["head"]:
        ids = np.asarray(params["head"]["ids"])
        tensors |= {"d2t": ids - np.arange(len(ids)), "t2d": np.isin(np.arange(TARGET.vocab), ids)}
    if "fc_norm" in params:
        tensors |= {f"fc_norm.{m}.weight": np.asarray(weight) for m, weight in enumerate(params["fc_norm"])}
        tensors |= {"input_norm.weight": np.asarray(params["joined_norm"])}
    return tensors


@pytest.mark.parametrize("drafter", [PAPER, LATER], ids=["paper", "later"])
def test_eagle3(drafter):
    params, trace = random_params(drafter), traced(BATCH, drafter.taps)

    @jax.jit
    def run(params, trace):
        ctx = training_context(TARGET, WEIGHTS, BATCH)
        return drafter.logits(ctx, params, drafter.unroll(ctx, params, trace)), drafter.loss(ctx, params, trace, None)[0]

    logits, loss = run(params, trace)
    tensors, flags = published(params), FLAGS if drafter is LATER else {}
    config = formulas.Eagle3(geometry(drafter.layer or TARGET), **flags)
    expected = formulas.logits(tensors, config, EMBED, np.asarray(trace.features)[0], TOKENS, drafter.steps)
    known = ~np.isnan(expected)
    np.testing.assert_allclose(np.asarray(logits)[:, 0][known], expected[known], atol=1e-3, rtol=1e-4)
    teacher, mask = np.asarray(trace.hidden, np.float64)[0] @ HEAD.T, np.asarray(BATCH.loss_mask)[0].astype(float)
    np.testing.assert_allclose(loss, formulas.loss(tensors, expected, teacher, mask, denominator="mask")[0], rtol=1e-4)


def test_eagle1():
    drafter = Eagle(Tree.chain(3), noise=0.0)
    params, trace = random_params(drafter), traced(BATCH, drafter.taps)

    @jax.jit
    def run(params, trace):
        ctx = training_context(TARGET, WEIGHTS, BATCH)
        return drafter.predict(ctx, params, trace, trace.features[:, :, 0])[0], drafter.loss(
            ctx, params, trace, jax.random.key(0)
        )

    states, (loss, metrics) = run(params, trace)
    tensors = layer_weights(params["layer"], "layers.0")
    tensors |= {"fc.weight": np.asarray(params["fc"]), "fc.bias": np.asarray(params["fc_bias"])}
    hidden, mask = np.asarray(trace.hidden)[0], np.asarray(BATCH.loss_mask)[0].astype(float)
    expected, _ = eagle1.outputs(tensors, geometry(TARGET), EMBED, HEAD, hidden, TOKENS)
    np.testing.assert_allclose(np.asarray(states)[0, :-1], expected[:-1], atol=1e-3, rtol=1e-4)
    total, parts = eagle1.loss(expected, HEAD, hidden, mask, denominator="mask")
    np.testing.assert_allclose([loss, metrics["regression"], metrics["cross_entropy"]], [total, *parts], rtol=1e-4)
