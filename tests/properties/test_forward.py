"""A forward pass over a tree equals, path by path, a forward pass over the text; committing equals prefilling."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sdjax.core.cache import commit
from sdjax.targets.decoder import causal_mask
from sdjax.trees.tree import Tree, ancestor_mask
from tests.tiny import TARGET, target_params

N, S, PREFIX = 7, 32, 9
parents = st.tuples(*(st.integers(0, i - 1) for i in range(1, N))).map(lambda p: (-1, *p))
token_lists = st.lists(st.integers(0, TARGET.vocab - 1), min_size=PREFIX + N, max_size=PREFIX + N)


@jax.jit
def forward(tokens, positions, cache, mask):
    params = target_params()
    out = TARGET.forward(params, TARGET.embed(params, tokens), positions, cache, mask)
    return TARGET.unembed(params, out.hidden), out.staged


@jax.jit
def logits_of_text(tokens):
    """Logits [S, V] of a text padded to S, without any cache."""
    return forward(tokens[None], jnp.arange(S)[None], TARGET.empty_cache(1, 1), causal_mask(S))[0][0]


def committed_prefix(tokens):
    positions = jnp.arange(PREFIX)[None]
    cache = TARGET.empty_cache(1, S)
    _, staged = forward(tokens[None, :PREFIX], positions, cache, causal_mask(PREFIX))
    return commit(cache, staged, positions, jnp.array([PREFIX]))


def padded(tokens):
    return jnp.zeros(S, jnp.int32).at[: len(tokens)].set(jnp.array(tokens))


@settings(max_examples=30)
@given(parents, token_lists)
def test_a_tree_is_all_its_paths_at_once(parents, tokens):
    tree, tokens = Tree(parents), jnp.array(tokens)
    mask = ancestor_mask(jnp.array([parents]), N)
    positions = PREFIX + jnp.array([tree.depths])
    logits, _ = forward(tokens[None, PREFIX:], positions, committed_prefix(tokens), mask)
    for leaf in (node for node in range(N) if not tree.children[node]):
        path = np.flatnonzero(tree.ancestors[leaf])
        text = [*tokens[:PREFIX].tolist(), *tokens[PREFIX + path].tolist()]
        alone = logits_of_text(padded(text))[PREFIX : len(text)]
        np.testing.assert_allclose(logits[0, path], alone, atol=2e-4)


@settings(max_examples=30)
@given(parents, token_lists, st.integers(0, N - 1), st.integers(0, TARGET.vocab - 1))
def test_commit_then_next_logits_equals_a_fresh_prefill(parents, tokens, leaf, following):
    tree, tokens = Tree(parents), jnp.array(tokens)
    cache = committed_prefix(tokens)
    mask = ancestor_mask(jnp.array([parents]), N)
    _, staged = forward(tokens[None, PREFIX:], PREFIX + jnp.array([tree.depths]), cache, mask)
    path = np.flatnonzero(tree.ancestors[leaf])
    cache = commit(cache, staged, jnp.array([[*path, *[0] * (N - len(path))]]), jnp.array([len(path)]))
    logits, _ = forward(jnp.array([[following]]), cache.length[:, None], cache, jnp.ones((1, 1, 1), bool))
    text = [*tokens[:PREFIX].tolist(), *tokens[PREFIX + path].tolist(), following]
    np.testing.assert_allclose(logits[0, 0], logits_of_text(padded(text))[len(text) - 1], atol=2e-4)


@settings(max_examples=20)
@given(token_lists, st.integers(1, PREFIX + N - 1))
def test_prefill_in_two_chunks_is_prefill_in_one(tokens, split):
    """The second chunk is padded, so that every split runs one compiled program."""
    tokens = padded(tokens)
    total, cache = PREFIX + N, TARGET.empty_cache(1, 2 * S)
    for start, count in ((0, split), (split, total - split)):
        positions = start + jnp.arange(S)[None]
        chunk = jnp.roll(tokens, -start)[None]
        logits, staged = forward(chunk, positions, cache, causal_mask(S))
        cache = commit(cache, staged, jnp.arange(S)[None], jnp.array([count]))
    np.testing.assert_allclose(logits[0, : total - split], logits_of_text(tokens)[split:total], atol=2e-4)


def test_the_future_has_no_gradient():
    """Causality by gradients: logits at t depend on inputs up to t and on none behind."""
    params = target_params()
    x = jax.random.normal(jax.random.key(0), (1, 8, TARGET.width))

    def logit_sums(x):
        out = TARGET.forward(params, x, jnp.arange(8)[None], TARGET.empty_cache(1, 1), causal_mask(8))
        return TARGET.unembed(params, out.hidden)[0].sum(-1)

    reach = jnp.abs(jax.jacobian(logit_sums)(x)).sum((1, 3))
    assert (np.triu(reach, 1) == 0).all()
    assert (np.diag(reach) > 0).all()
