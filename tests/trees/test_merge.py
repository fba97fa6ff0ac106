"""Chains merged into one tree, against a dictionary of their paths."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sdjax.core.types import Law
from sdjax.trees.merge import merge_chains

BATCH, LENGTH, STARTS = 2, 4, (1, 1, 2, 3)
merge = jax.jit(partial(merge_chains, starts=STARTS))


def chains(seed, vocab):
    """Chain c leaves the first one at depth STARTS[c] or later; survivals fall along each."""
    random = np.random.default_rng(seed)
    tokens = random.integers(0, vocab, (BATCH, len(STARTS), LENGTH))
    p = random.uniform(0.1, 1, tokens.shape)
    for b, c in np.ndindex(BATCH, len(STARTS)):
        shared = random.integers(STARTS[c] - 1, LENGTH)
        tokens[b, c, :shared], p[b, c, :shared] = tokens[b, 0, :shared], p[b, 0, :shared]
    return tokens, np.cumprod(p, -1).astype(np.float32)


@settings(max_examples=50)
@given(st.integers(0, 2**31 - 1), st.integers(1, 4))
def test_each_path_stands_once_and_nothing_else_does(seed, vocab):
    tokens, survival = chains(seed, vocab)
    draft = jax.tree.map(np.asarray, merge(jnp.array([90, 91]), jnp.asarray(tokens), jnp.asarray(survival)))
    assert draft.law == Law.ONE_HOT and draft.max_depth == LENGTH and draft.tokens.shape == (BATCH, 1 + 4 + 4 + 3 + 2)
    for b in range(BATCH):
        wanted = {}
        for chain, value in zip(tokens[b], survival[b], strict=True):
            for depth in range(1, LENGTH + 1):
                path = tuple(chain[:depth].tolist())
                wanted[path] = max(wanted.get(path, 0), value[depth - 1])
        paths, found = [()], {}
        for i in range(1, draft.tokens.shape[1]):
            parent = draft.parent[b, i]
            assert 0 <= parent < i and draft.depth[b, i] == draft.depth[b, parent] + 1
            assert draft.valid[b, parent]
            paths.append((*paths[parent], int(draft.tokens[b, i])))
            if draft.valid[b, i]:
                assert paths[i] not in found
                found[paths[i]] = draft.survival[b, i]
                assert draft.survival[b, i] <= draft.survival[b, parent]
        assert found == wanted
        assert (draft.tokens[b, 0], draft.parent[b, 0], draft.survival[b, 0]) == (90 + b, -1, 1)
