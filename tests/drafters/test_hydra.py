"""Hydra and Hydra++: heads that see the drafted path, drafted node by node and trained along the text."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sdjax.core.types import Law, Trace
from sdjax.drafters.head import DraftHead
from sdjax.drafters.hydra import Hydra, HydraPlus, dropout, prefix_states
from sdjax.trees.tree import Tree
from tests.drafters.planted import (
    bare_context,
    batch_of,
    gradients,
    loss_of,
    packed,
    prefilled,
    propose,
    random_params,
    traced,
    unpacked,
)
from tests.tiny import PROMPTS, TARGET, target_params

pytestmark = pytest.mark.families

PLAIN, PLUS = Hydra.tiny(TARGET), HydraPlus.tiny(TARGET)
TAUGHT = replace(PLAIN, text=0.25, teacher=0.75)
STILL = HydraPlus(replace(PLUS.heads, dropout=0.0))
COUNTS = np.ones(TARGET.vocab)


@partial(jax.jit, static_argnames="drafter")
def logits_along(drafter, ctx, params, trace):
    """Of every head at every position of a text, as the loss sees them: [K, B, T, D]."""
    plus = isinstance(drafter, HydraPlus)
    context = prefix_states(ctx.target, params, trace) if plus else trace.hidden
    heads = drafter.heads if plus else drafter
    states = heads.states(ctx, params, context, trace)
    matrices = params["head"] * (1 if heads.own_heads else len(states))
    return jnp.stack([heads.head.logits(ctx, matrix, x) for matrix, x in zip(matrices, states, strict=True)])


@pytest.mark.parametrize("drafter", [PLAIN, PLUS], ids=["hydra", "hydra++"])
def test_decoding_runs_what_is_trained(drafter):
    """The law below every node is that of the loss in a text that goes on along the node's path."""
    params = random_params(drafter)
    tree = (drafter.heads if isinstance(drafter, HydraPlus) else drafter).tree
    ctx, state = prefilled(drafter, params, 1.0)
    draft = propose(drafter, ctx, params, state)
    tokens, anchor = np.asarray(draft.tokens), np.asarray(ctx.anchor)
    lowest = [node for node in tree.inner if not any(tree.children[child] for child in tree.children[node])]
    places = [(b, node) for b in range(3) for node in lowest]
    path = lambda node: [i for i in range(tree.nodes) if tree.ancestors[node, i]]
    batch = batch_of(*([[*PROMPTS[b], anchor[b], *tokens[b, path(node)[1:]]]] for b, node in places))
    ids = np.asarray(params["head"][0].get("ids", np.arange(TARGET.vocab)))
    ctx, trace = traced(batch)
    laws = np.asarray(jax.nn.softmax(logits_along(drafter, ctx, params, trace)))
    for row, (b, node) in enumerate(places):
        for head, above in enumerate(path(node)):
            q = np.asarray(draft.q[b, draft.q_row[b, above]])
            np.testing.assert_allclose(q[ids], laws[head, row, len(PROMPTS[b]) - 1], atol=1e-4)
            np.testing.assert_allclose(q.sum(), q[ids].sum(), atol=1e-6)


@pytest.mark.parametrize("drafter", [TAUGHT, STILL], ids=["hydra", "hydra++"])
def test_packing_changes_nothing(drafter):
    params = random_params(drafter)
    (ctx, one), (alone, other) = packed(), unpacked()
    one, other = loss_of(drafter, ctx, params, one), loss_of(drafter, alone, params, other)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), one, other)
    assert one[0] > 0


@pytest.mark.parametrize("drafter", [PLAIN, STILL], ids=["hydra", "hydra++"])
def test_every_head_learns(drafter):
    ctx, trace = packed()
    found = gradients(drafter, ctx, random_params(drafter), trace)
    assert not [name for name, gradient in found.items() if not np.abs(gradient).max() > 0]
    kinds = {"hydra": ("r", "a", "w", "head"), "hydra++": ("r", "a", "w", "prefix")}
    for kind in kinds["hydra" if drafter is PLAIN else "hydra++"]:
        assert any(f"['{kind}']" in name for name in found)


def test_the_loss_is_that_of_the_token_and_of_the_targets_law_of_that_very_token():
    """Against the definition: p at t + k, all heads alike, both over the drafter's tokens alone."""
    params, (ctx, trace) = random_params(TAUGHT), packed()
    ids = np.asarray(params["head"][0]["ids"])
    target = np.asarray(jax.nn.softmax(TARGET.unembed(target_params(), trace.hidden)[..., ids]), np.float64)
    mine = np.asarray(jax.nn.log_softmax(logits_along(TAUGHT, ctx, params, trace)), np.float64)
    expected = 0
    for k in range(1, len(mine) + 1):
        labels, weight = (np.asarray(x) for x in trace.ahead(k + 1))
        places = [(b, t) for b, t in np.argwhere(weight > 0)]
        text = [-mine[k - 1, b, t][ids == labels[b, t]].item() for b, t in places if labels[b, t] in ids]
        law = [-(target[b, t + k] * mine[k - 1, b, t]).sum() for b, t in places]
        expected += 0.25 * np.mean(text) + 0.75 * np.mean(law)
    np.testing.assert_allclose(loss_of(TAUGHT, ctx, params, trace)[0], expected, rtol=1e-4)


def test_head_k_reads_its_path_and_is_right_about_the_token_k_plus_one_ahead():
    """In a text that counts, any one vector of the path tells what comes: h the most distant, E(x_{t+k}) the last."""
    v = 13
    target = replace(TARGET, vocab=v, width=v)
    drafter = Hydra(Tree.chain(3), head=DraftHead(trained=True), own_heads=True)
    batch = batch_of([list(np.arange(3, 16) % v), list(np.arange(6, 13) % v)])
    ctx = bare_context(target, {"embed": jnp.eye(v)}, batch)
    zero, one = jnp.zeros((v, v)), jnp.eye(v)
    bias = {"r_bias": jnp.zeros(v), "a_bias": jnp.zeros(v)}
    trace = Trace(batch, None, jax.nn.one_hot(batch.tokens, v))
    for part, slip in ((0, 0), (1, 0), (2, 0), (3, 0), (3, 1), (3, -1), (0, 1)):
        chosen = [min(part, k) for k in (1, 2, 3)]
        only = lambda k: [one if j == chosen[k - 1] else zero for j in range(k + 1)]  # noqa: B023
        first = lambda k: {"r": only(k), "a": [zero] * (k + 1)} | bias  # noqa: B023
        ahead = [k + 1 - j + slip for k, j in zip((1, 2, 3), chosen, strict=True)]
        params = {
            "heads": [{"first": first(k), "blocks": []} for k in (1, 2, 3)],
            "head": [{"weight": 50 * jnp.roll(one, n, 0)} for n in ahead],
        }
        loss, metrics = loss_of(drafter, ctx, params, trace)
        np.testing.assert_allclose(loss, 150 * (slip != 0), atol=1e-3)
        assert metrics["tau"] == (1 if slip else 4)


def test_dropout_follows_its_key_and_keeps_the_mean():
    drafter = Hydra(Tree.chain(1), layers=2, dropout=0.2)
    params, (ctx, trace) = random_params(drafter), packed()
    losses = [loss_of(drafter, ctx, params, trace, jax.random.key(seed))[0] for seed in (0, 0, 1)]
    assert losses[0] == losses[1] != losses[2]
    x = np.asarray(dropout(0.2, jax.random.key(0))(jnp.ones((100, 100)), 0))
    assert set(np.unique(x)) == {np.float32(0), np.float32(1.25)}
    np.testing.assert_allclose(x.mean(), 1, atol=0.03)


def test_training_starts_from_random_paths_and_the_targets_matrix():
    drafter = replace(PLAIN, layers=3)
    params = drafter.initial(TARGET, target_params(), COUNTS, jax.random.key(0))
    for k, head in enumerate(params["heads"], 1):
        assert len(head["first"]["r"]) == len(head["first"]["a"]) == k + 1
        assert all(np.abs(r).max() > 0 for r in head["first"]["r"]) and not any(np.abs(a).max() for a in head["first"]["a"])
        assert len(head["blocks"]) == 2
    for matrix in params["head"]:
        np.testing.assert_array_equal(matrix["weight"], target_params()["head"][matrix["ids"]])


def test_misfits_are_refused():
    with pytest.raises(ValueError, match="4 deep, but there are 3 heads"):
        Hydra(Tree.chain(4), heads=3)
    with pytest.raises(ValueError, match="6 children, but the vocabulary 5"):
        Hydra(Tree.branching(6), head=DraftHead(5)).specs(TARGET)
    Hydra(Tree.branching(6), head=DraftHead(5), law=Law.IID).specs(TARGET)
    with pytest.raises(ValueError, match="anchor alone"):
        Hydra(Tree.chain(0))
    with pytest.raises(ValueError, match="none negative, one positive"):
        Hydra(Tree.chain(1), text=0.0)
    with pytest.raises(ValueError, match="dropout is 1"):
        Hydra(Tree.chain(1), dropout=1.0)
