"""A language model drafting a static tree: the tree's rows against the same paths run one by one."""

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sdjax.core.cache import commit
from sdjax.core.sampling import Warp
from sdjax.core.types import Context, Law
from sdjax.drafters.chain import draft_chain
from sdjax.drafters.recursion import draft_tree
from sdjax.drafters.tree_model import TreeDraftModel, TreeSelfDraft, model_cell
from sdjax.targets.decoder import causal_mask, truncate_params
from sdjax.trees.tree import Tree
from sdjax.verify.recursive import Recursive
from sdjax.verify.traversal import Traversal
from tests.tiny import TARGET, target_params

TREE = Tree((-1, 0, 1, 0, 1, 2, 3, 3))  # sparse, nodes out of level order
MODEL = replace(TARGET, layers=1, windows=(6,))


@jax.jit
def fill(params, tokens, p):
    cache = MODEL.empty_cache(3, 16)
    positions = jnp.broadcast_to(jnp.arange(10), (3, 10))
    out = MODEL.forward(params, MODEL.embed(params, tokens[:, :10]), positions, cache, causal_mask(10))
    return commit(cache, out.staged, positions, p)


@cache
def context(temperature):
    """Two sequences with 9 and 4 tokens committed, a third that has only its anchor."""
    tokens = jax.random.randint(jax.random.key(5), (3, 16), 0, MODEL.vocab)
    p, seed = jnp.array([9, 4, 0]), jnp.arange(3, dtype=jnp.uint32)
    params = truncate_params(target_params(), MODEL.layers)
    return Context(params, fill(params, tokens, p), tokens, p, seed, target=MODEL, warp=Warp(temperature))


@cache
def drafted(law, temperature=1.0):
    run = lambda ctx: draft_tree(model_cell(MODEL, ctx.target_params, ctx.cache), ctx, TREE, law, leaves=True)
    return jax.jit(run)(context(temperature))


@cache
def path_by_path(law, temperature=1.0):
    """Logits [B, N, V] and scratch rows of every node of a draft, each path run as a chain of its own."""
    ctx = context(temperature)
    return run_paths(ctx.target_params, ctx.cache, ctx.p, drafted(law, temperature)[0].tokens)


@jax.jit
def run_paths(params, cache, p, tokens):
    logits, rows = {}, {}
    for leaf in [node for node in range(TREE.nodes) if not TREE.children[node]]:
        path = np.flatnonzero(TREE.ancestors[leaf])
        positions = p[:, None] + jnp.arange(len(path))
        out = MODEL.forward(params, MODEL.embed(params, tokens[:, path]), positions, cache, causal_mask(len(path)))
        for i, node in enumerate(path):
            logits[node] = MODEL.unembed(params, out.hidden[:, i])
            rows[node] = jax.tree.map(lambda kv, i=i: kv[:, :, i], out.staged.layers)
    in_order = [rows[i] for i in range(TREE.nodes)]
    return jnp.stack([logits[i] for i in range(TREE.nodes)], 1), jax.tree.map(lambda *x: jnp.stack(x, 2), *in_order)


def test_scratch_rows_are_those_of_the_paths():
    """Row i is node i's: committing an accepted path's rows equals running its tokens."""
    _, scratch = drafted(Law.WITHOUT_REPLACEMENT)
    _, rows = path_by_path(Law.WITHOUT_REPLACEMENT)
    np.testing.assert_array_equal(scratch.positions, context(1.0).p[:, None] + jnp.array(TREE.depths))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), scratch.layers, rows)


def test_q_rows_are_the_laws_along_each_path():
    draft, _ = drafted(Law.WITHOUT_REPLACEMENT)
    logits, _ = path_by_path(Law.WITHOUT_REPLACEMENT)
    inner = np.array(TREE.inner)
    np.testing.assert_allclose(draft.q, jax.nn.softmax(logits[:, inner]), atol=1e-5)
    np.testing.assert_array_equal(np.asarray(draft.q_row)[0, inner], np.arange(len(inner)))
    assert draft.law == Law.WITHOUT_REPLACEMENT and draft.valid.all()


def test_greedy_children_are_the_likeliest():
    draft, _ = drafted(Law.IID, 0.0)
    logits = np.asarray(path_by_path(Law.IID, 0.0)[0])
    assert draft.law == Law.ONE_HOT and draft.q is None
    for node, children in enumerate(TREE.children):
        if children:
            best = np.argsort(-logits[:, node], axis=-1, kind="stable")[:, : len(children)]
            np.testing.assert_array_equal(np.asarray(draft.tokens)[:, children], best)


@pytest.mark.parametrize("rule", [Recursive(), Traversal()], ids=lambda rule: type(rule).__name__)
def test_a_perfect_draft_model_is_always_accepted(rule):
    """With q = p, a rule takes the first child of every node: here down to node 5."""
    draft, _ = drafted(Law.WITHOUT_REPLACEMENT)
    logits, _ = path_by_path(Law.WITHOUT_REPLACEMENT)
    verdict = jax.jit(rule.judge)(context(1.0), draft, logits)
    np.testing.assert_array_equal(verdict.path, [[0, 1, 2, 5]] * 3)
    np.testing.assert_array_equal(verdict.accepted, 3)


def test_a_tree_without_branches_is_the_chain_drafters():
    """Same noise, same law, token for token: i.i.d. or without replacement, one child is one draw."""

    @jax.jit
    def run(ctx):
        laws = (Law.IID, Law.WITHOUT_REPLACEMENT)
        of = lambda law: draft_tree(model_cell(MODEL, ctx.target_params, ctx.cache), ctx, Tree.chain(3), law)[0]
        return [of(law) for law in laws], draft_chain(MODEL, ctx.target_params, ctx.cache, ctx, 3, sampled=True)[0]

    trees, chain = run(context(1.0))
    for tree in trees:
        np.testing.assert_array_equal(tree.tokens, chain.tokens)
        np.testing.assert_allclose(tree.q, chain.q, atol=1e-5)


def test_bad_trees_are_refused():
    with pytest.raises(ValueError, match="holds the anchor alone"):
        TreeSelfDraft(1, Tree.chain(0))
    with pytest.raises(ValueError, match="30 children, but the vocabulary 29 tokens"):
        TreeDraftModel(TARGET, Tree.branching(30))
    with pytest.raises(ValueError, match="30 children"):
        TreeSelfDraft(1, Tree.branching(30)).specs(TARGET)
    with pytest.raises(ValueError, match="cannot keep 4 layers"):
        TreeSelfDraft(4, TREE).specs(TARGET)
    assert TreeDraftModel(TARGET, Tree.branching(30), Law.IID).nodes == 31
