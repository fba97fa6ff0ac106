"""Dynamic trees against plain Python searches over the same probabilities."""

import heapq
from functools import partial
from itertools import combinations, product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sdjax.core.types import Law
from sdjax.trees.grow import expand, rerank, slot_tree, start, top_children, worth

VOCAB, LEVELS, BATCH = 7, 3, 2


def logits_after(tables, path):
    """A toy drafter: the law after a path follows from its depth and its last two tokens."""
    older, last = (0, 0, *path)[-2:]
    return tables[len(path), older, last]


def grown_by_jax(tables, k, nodes):
    """EAGLE-2 over the toy drafter, with the growth's own bookkeeping: the tree, and the last frontier's mask."""
    growth = start(BATCH)
    older = last = jnp.zeros((BATCH, 1), jnp.int32)
    seen = jnp.zeros((BATCH, 0), jnp.int32)
    for depth in range(LEVELS):
        logits = jax.vmap(lambda table, a, b, depth=depth: table[depth, a, b])(tables, older, last)
        growth = expand(growth, *top_children(logits, k), frontier=k)
        older = jnp.take_along_axis(last, growth.came_from, 1)
        last = growth.frontier_tokens
        seen = jnp.concatenate([seen, last], 1)
    return rerank(growth, nodes), growth, seen


def log_softmax(x):
    x = x.astype(np.float32)
    return x - np.log(np.exp(x - x.max()).sum()) - x.max()


def grown_by_hand(tables, k, nodes):
    """The pool as a dictionary from path to score; the best nodes of it."""
    pool, frontier = {}, {(): 0.0}
    for _ in range(LEVELS):
        level = {}
        for path, score in frontier.items():
            logp = log_softmax(logits_after(tables, path))
            for token in np.argsort(-logp, kind="stable")[:k]:
                level[(*path, int(token))] = score + float(logp[token])
        pool |= level
        frontier = dict(sorted(level.items(), key=lambda item: -item[1])[:k])
    return dict(sorted(pool.items(), key=lambda item: -item[1])[: nodes - 1]), set(frontier)


def paths_of(grown, row):
    """{path of tokens: score} of one sequence's tree, checking on the way that it is one."""
    tokens, parent, depth, score = (np.asarray(x)[row] for x in (grown.tokens, grown.parent, grown.depth, grown.score))
    assert parent[0] == -1 and depth[0] == 0
    paths = [()]
    for i in range(1, len(tokens)):
        assert 0 <= parent[i] < i and depth[i] == depth[parent[i]] + 1
        assert score[i] <= score[parent[i]]
        paths.append((*paths[parent[i]], int(tokens[i])))
    assert len(set(paths)) == len(paths)
    siblings = [np.asarray(score)[parent == i] for i in range(len(tokens))]
    assert all((np.diff(s) <= 0).all() for s in siblings)
    return dict(zip(paths[1:], score[1:].tolist(), strict=True))


tables = st.integers(0, 2**31 - 1).map(
    lambda seed: np.random.default_rng(seed).normal(0, 2, (BATCH, LEVELS, VOCAB, VOCAB, VOCAB)).astype(np.float32)
)


@pytest.mark.parametrize("k, nodes", [(3, 9), (4, 20), (1, 4)])
def test_expansion_and_rerank(k, nodes):
    run = jax.jit(partial(grown_by_jax, k=k, nodes=nodes))

    @settings(max_examples=25)
    @given(tables)
    def check(tables):
        grown, growth, seen = run(tables)
        assert grown.tokens.shape == (BATCH, nodes) and sum(growth.sizes) == k + (LEVELS - 1) * k * k
        for row in range(BATCH):
            wanted, frontier = grown_by_hand(tables[row], k, nodes)
            found = paths_of(grown, row)
            assert set(found) == set(wanted)
            for path, score in wanted.items():
                assert found[path] == pytest.approx(score, abs=1e-4)
            on_rows = [tuple(np.asarray(seen)[row][mask].tolist()) for mask in np.asarray(growth.mask)[row]]
            assert set(on_rows) == frontier
        np.testing.assert_allclose(worth(growth, nodes), 1 + np.exp(np.asarray(grown.score)[:, 1:]).sum(1), rtol=1e-5)

    check()


def test_no_tree_of_as_many_nodes_is_worth_more():
    """OPT-Tree's objective, over every tree of 4 drafts within two levels of three tokens."""
    nodes = [*product(range(3), repeat=1), *product(range(3), repeat=2)]
    closed = [some for some in combinations(nodes, 4) if all(len(path) == 1 or path[:1] in some for path in some)]

    @jax.jit
    def run(logp):
        growth = expand(start(1), *top_children(logp[None, :1], 3), frontier=3)
        before = worth(growth, 4)
        # The frontier comes in the order of its scores: hand each node its own law.
        growth = expand(growth, *top_children(logp[1 + growth.frontier_tokens], 3), frontier=3)
        return before, worth(growth, 5), rerank(growth, 5)

    @settings(max_examples=25)
    @given(st.integers(0, 2**31 - 1))
    def check(seed):
        logp = np.log(np.random.default_rng(seed).dirichlet([0.5] * 3, 4)).astype(np.float32)
        value = lambda path: np.exp(logp[0, path[0]] + (logp[1 + path[0], path[1]] if len(path) == 2 else 0))
        best = 1 + max(sum(map(value, some)) for some in closed)
        before, after, grown = run(logp)
        assert before[0] == pytest.approx(2, rel=1e-5) and after[0] >= before[0] - 1e-5
        assert after[0] == pytest.approx(best, rel=1e-5)
        assert 1 + sum(map(np.exp, paths_of(grown, 0).values())) == pytest.approx(best, rel=1e-5)

    check()


def test_ties_go_to_the_shallower_and_parents_always_stay():
    """Certain children tie with their parents; absent ones tie with each other."""

    @jax.jit
    def run(first, second):
        growth = expand(start(1), jnp.array([[[5, 6, 7]]]), first, frontier=3)
        growth = expand(growth, jnp.arange(9).reshape(1, 3, 3), second, frontier=3)
        return rerank(growth, 3), rerank(growth, 13), rerank(growth, 13, least=0.3)

    small, whole, pruned = run(jnp.array([[[0.0, -1.0, -jnp.inf]]]), jnp.array([[[0.0, -2.0, -jnp.inf]] * 3]))
    assert small.depth.tolist() == [[0, 1, 2]]
    assert small.tokens.tolist() == [[0, 5, 0]]
    assert whole.parent.tolist() == [[-1, 0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]]
    assert whole.valid.tolist() == [[True, True, True, False, True, True, False, True, True, False, False, False, False]]
    assert pruned.valid.sum() == 1 + 1 + 1 + 1 + 1  # anchor, 1, e⁻¹, and below them 1, e⁻¹


def test_a_score_that_rises_or_is_nan_cannot_break_the_tree():

    @jax.jit
    def run(first, second):
        growth = expand(start(1), jnp.array([[[1, 2]]]), first, frontier=2)
        return rerank(expand(growth, jnp.array([[[3, 4], [5, 6]]]), second, frontier=2), 7)

    grown = run(jnp.array([[[-1.0, -2.0]]]), jnp.array([[[0.5, jnp.nan], [jnp.nan, -1.0]]]))
    assert grown.score.tolist() == [[0, -1, -2, -1, -np.inf, -np.inf, -3]]
    assert grown.valid.tolist() == [[True, True, True, True, False, False, True]]


def test_draft_is_one_hot_and_estimates_survival():
    growth = expand(start(2), jnp.array([[[1, 2]]] * 2), jnp.log(jnp.array([[[0.6, 0.3]]] * 2)), frontier=2)
    draft = rerank(growth, 3).draft(jnp.array([8, 9]))
    assert draft.law == Law.ONE_HOT and draft.max_depth == 1 and draft.q is None
    assert draft.tokens.tolist() == [[8, 1, 2], [9, 1, 2]]
    np.testing.assert_allclose(draft.survival, [[1, 0.6, 0.3]] * 2, rtol=1e-6)


def slots_by_heap(tokens, logp, nodes):
    """DDTree as published: a heap over sums of per-slot log-probabilities."""
    heap, found = [(-logp[0][0], 1, (0,))], {}
    while heap and len(found) < nodes - 1:
        score, depth, ranks = heapq.heappop(heap)
        found[tuple(int(tokens[d][r]) for d, r in enumerate(ranks))] = -score
        if ranks[-1] + 1 < len(logp[0]):
            sibling = score + logp[depth - 1][ranks[-1]] - logp[depth - 1][ranks[-1] + 1]
            heapq.heappush(heap, (sibling, depth, (*ranks[:-1], ranks[-1] + 1)))
        if depth < len(logp):
            heapq.heappush(heap, (score - logp[depth][0], depth + 1, (*ranks, 0)))
    return found


@pytest.mark.parametrize("slots, width, nodes", [(4, 3, 10), (3, 5, 31), (5, 2, 6)])
def test_slot_tree_is_the_best_first_heaps(slots, width, nodes):
    run = jax.jit(lambda logits: slot_tree(*top_children(logits, width), nodes))

    @settings(max_examples=25)
    @given(st.integers(0, 2**31 - 1))
    def check(seed):
        logits = np.random.default_rng(seed).normal(0, 2, (BATCH, slots, VOCAB)).astype(np.float32)
        grown = run(logits)
        assert grown.max_depth == slots
        tokens, logp = map(np.asarray, top_children(logits, width))
        for row in range(BATCH):
            wanted = slots_by_heap(tokens[row], logp[row].astype(np.float64), nodes)
            found = paths_of(grown, row)
            assert set(found) == set(wanted)
            assert sum(map(np.exp, found.values())) == pytest.approx(sum(map(np.exp, wanted.values())), rel=1e-5)

    check()


def test_budgets_that_cannot_be_met_are_refused():
    growth = expand(start(1), jnp.zeros((1, 1, 2), jnp.int32), jnp.zeros((1, 1, 2)), frontier=2)
    with pytest.raises(ValueError, match="needs 4 candidates besides the anchor, but 1 levels brought 2"):
        rerank(growth, 5)
    with pytest.raises(ValueError, match="a tree of 3 nodes cannot use 4 slots"):
        slot_tree(jnp.zeros((1, 4, 2), jnp.int32), jnp.zeros((1, 4, 2)), 3)
    with pytest.raises(ValueError, match="8 children are asked for, but the vocabulary has 7"):
        top_children(jnp.zeros((1, 7)), 8)
