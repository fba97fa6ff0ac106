"""Medusa and Hydra against the papers' formulas in plain numpy: logits, losses, drafts."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sdjax.core.sampling import Warp
from sdjax.core.types import Batch, Committed, Context, Trace
from sdjax.drafters.head import DraftHead
from sdjax.drafters.hydra import Hydra, HydraPlus, prefix_states
from sdjax.drafters.medusa import Medusa
from sdjax.trees.tree import Tree
from tests.drafters.planted import loss_of, propose, random_params
from tests.parity.formulas import hydra as hydra_formulas
from tests.parity.formulas import medusa as medusa_formulas
from tests.parity.formulas.layers import Geometry
from tests.tiny import TARGET, target_params

pytestmark = pytest.mark.families

T, K = 12, 3
OWN = DraftHead(trained=True)
MEDUSA = Medusa(Tree.chain(K), layers=2, head=OWN, own_heads=True)
HYDRA = Hydra(Tree.chain(K), layers=2, head=replace(OWN, bias=True), own_heads=True, text=0.5, teacher=2.0)
EMBED, UNEMBED = (np.asarray(target_params()[name]) for name in ("embed", "head"))
GEOMETRY = Geometry(TARGET.heads, TARGET.kv_heads, TARGET.rope.theta, TARGET.norm_eps)
NOISE = np.random.default_rng(3)
HIDDEN = NOISE.normal(size=(T, TARGET.width)).astype(np.float32)
TOKENS = NOISE.integers(0, TARGET.vocab, T)
MASK = NOISE.random(T) < 0.7


def context(anchor=0):
    """The target's own matrices, and an anchor behind all of HIDDEN."""
    tokens = jnp.full((1, 2 * T), anchor, jnp.int32)
    cache = TARGET.empty_cache(1, 1)
    return Context(target_params(), cache, tokens, jnp.array([T]), jnp.zeros(1, jnp.uint32), target=TARGET, warp=Warp())


def trace():
    place, ones = jnp.arange(T)[None], jnp.ones((1, T), jnp.int32)
    return Trace(Batch(jnp.asarray(TOKENS)[None], place, ones, jnp.asarray(MASK)[None]), None, jnp.asarray(HIDDEN)[None])


def block(name, block):
    return {f"{name}.linear.weight": block["w"], f"{name}.linear.bias": block["b"]}


def published_medusa(params):
    """The parameters under the names of the released code."""
    out = {}
    for k, (blocks, matrix) in enumerate(zip(params["heads"], params["head"], strict=True)):
        for j, one in enumerate(blocks):
            out |= block(f"medusa_head.{k}.{j}", one)
        out[f"medusa_head.{k}.{len(blocks)}.weight"] = matrix["weight"]
    return {name: np.asarray(leaf, np.float64) for name, leaf in out.items()}


def published_hydra(params):
    """The same for Hydra, and for Hydra++ where there is a prefix layer."""
    plus = "prefix" in params
    place = (lambda j: 2 * j + 1) if plus else (lambda j: j)
    out = published_prefix(params["prefix"]) if plus else {}
    for k, (head, matrix) in enumerate(zip(params["heads"], params["head"], strict=True)):
        for part, name in (("r", "res_connection"), ("a", "linear")):
            out[f"hydra_mlp.{k}.{place(0)}.{name}.weight"] = jnp.concatenate(head["first"][part], 1)
            out[f"hydra_mlp.{k}.{place(0)}.{name}.bias"] = head["first"][f"{part}_bias"]
        for j, one in enumerate(head["blocks"], 1):
            out |= block(f"hydra_mlp.{k}.{place(j)}", one)
        out |= {f"hydra_lm_head.{k}{'.1' if plus else ''}.{part}": matrix[part] for part in matrix}
    return {name: np.asarray(leaf, np.float64) for name, leaf in out.items()}


def published_prefix(prefix):
    names = {"attn_norm": "input_layernorm.weight", "mlp_norm": "post_attention_layernorm.weight"}
    names |= {part: f"self_attn.{part}_proj.weight" for part in "qkvo"}
    names |= {f"{part}_bias": f"self_attn.{part}_proj.bias" for part in "qkv"}
    names |= {f"{part}_norm": f"self_attn.{part}_norm.weight" for part in "qk"}
    names |= {part: f"mlp.{part}_proj.weight" for part in ("gate", "up", "down")}
    layer = {f"prefix_embeding_layer.layers.0.{names[name]}": leaf for name, leaf in prefix["layers"][0].items()}
    return layer | {"prefix_embeding_layer.norm.weight": prefix["norm"]}


def test_medusa():
    params = random_params(MEDUSA)
    W = published_medusa(params)
    logits = medusa_formulas.logits(W, UNEMBED, HIDDEN)
    states = MEDUSA.states(params, jnp.asarray(HIDDEN))
    ours = [OWN.logits(context(), matrix, x) for matrix, x in zip(params["head"], states, strict=True)]
    np.testing.assert_allclose(ours, logits, atol=1e-4)
    expected, _ = medusa_formulas.loss(logits, TOKENS, MASK, denominator="mask")
    loss, _ = loss_of(MEDUSA, context(), params, trace())
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    drafted, _ = medusa_formulas.draft(W, UNEMBED, HIDDEN[-1])
    np.testing.assert_array_equal(propose(MEDUSA, context(), params, jnp.asarray(HIDDEN[-1:])).tokens[0, 1:], drafted)


@pytest.mark.parametrize("drafter, geometry", [(HYDRA, None), (HydraPlus(HYDRA), GEOMETRY)], ids=["hydra", "hydra++"])
def test_hydra(drafter, geometry):
    params, anchor = random_params(drafter), 5
    W, ctx = published_hydra(params), context(anchor)
    states, logits = hydra_formulas.outputs(W, geometry, EMBED, HIDDEN, TOKENS)
    states_along = prefix_states(TARGET, params, trace()) if geometry else trace().hidden
    found = HYDRA.states(ctx, params, states_along, trace())
    for k, (matrix, ours, theirs) in enumerate(zip(params["head"], found, logits, strict=True), 1):
        np.testing.assert_allclose(OWN.logits(ctx, matrix, ours)[0, : T - k], theirs[: T - k], atol=1e-4)
    target = HIDDEN @ UNEMBED.T
    weights = {"lm": 0.5, "teacher": 2.0}
    expected, _ = hydra_formulas.loss(states, logits, HIDDEN, target, TOKENS, MASK, denominator="mask", **weights)
    np.testing.assert_allclose(loss_of(drafter, ctx, params, trace())[0], expected, rtol=1e-4)
    drafted, _ = hydra_formulas.draft(W, geometry, EMBED, HIDDEN, anchor, K)
    np.testing.assert_array_equal(propose(drafter, ctx, params, observed(drafter, ctx, params)).tokens[0, 1:], drafted)


def observed(drafter, ctx, params):
    """The drafter's state behind all of HIDDEN, taken in at once."""
    place, tokens = jnp.arange(T)[None], jnp.asarray(TOKENS)[None]
    seen = Committed(tokens, place, tokens, jnp.asarray(HIDDEN)[None, :, None], place, jnp.array([T]))
    return jax.jit(drafter.observe)(ctx, params, drafter.empty(TARGET, 1, 2 * T), seen)
