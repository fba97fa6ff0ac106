"""Prompt lookup against a search by hand."""

import jax
import jax.numpy as jnp
from hypothesis import given, settings
from hypothesis import strategies as st

from sdjax.drafters.ngram import NGram

S = 14
KINDS = [NGram(3, 3, 1), NGram(4, 2, 2), NGram(2, 3, 1, window=5)]
look_up = jax.jit(lambda drafter, tokens, p: drafter.look_up(tokens, p), static_argnums=0)


def by_hand(drafter, tokens, p):
    """What followed the longest suffix that stands earlier too, at its latest place (None: no match)."""
    for size in range(min(drafter.longest, p + 1), drafter.shortest - 1, -1):
        suffix = tokens[p - size + 1 : p + 1]
        first = max(size - 1, p - drafter.window + 1 if drafter.window else 0)
        for end in range(p - 1, first - 1, -1):
            if tokens[end - size + 1 : end + 1] == suffix:
                text = tokens[: p + 1]
                for i in range(drafter.length):
                    text = [*text, text[end + 1 + i]]
                return text[p + 1 :]
    return None


@settings(max_examples=200)
@given(st.sampled_from(KINDS), st.lists(st.integers(0, 2), min_size=S, max_size=S), st.integers(0, S - 1))
def test_lookup_equals_the_search_by_hand(drafter, tokens, p):
    drafts, found = look_up(drafter, jnp.array(tokens), jnp.int32(p))
    expected = by_hand(drafter, tokens, p)
    assert bool(found) == (expected is not None)
    if expected is not None:
        assert drafts.tolist() == expected
