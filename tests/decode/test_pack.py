"""Packed verification: only what is there runs, and nothing but time depends on it."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdjax.core.pack import Pack
from sdjax.decode.generate import generate, prefill, run, start
from sdjax.decode.schedule import Prefix
from sdjax.decode.state import Params
from sdjax.drafters.ngram import NGram
from sdjax.drafters.self_draft import SelfDraft
from sdjax.trees.tree import Tree, ancestor_mask
from sdjax.verify.token import TokenRejection
from tests.decode.confident import SAMPLED, Sure, linear_costs
from tests.tiny import NEW, PROMPTS, SEEDS, TARGET, loop_of, plain, target_params

PARAMS = Params(target_params(), {})
TREE = Tree.branching(2, 1)
WIDTHS = (5, 9)
SCHEDULED = {"schedule": Prefix(linear_costs(15)), "pack": WIDTHS}


def decoded(drafter, temperature, rule=None, **changes):
    return generate(loop_of(drafter, temperature, rule, **changes), PARAMS, PROMPTS, NEW, seeds=SEEDS)


@given(wanted=st.lists(st.booleans(), min_size=6, max_size=6))
def test_rows_come_back_to_their_places(wanted):
    wanted = np.array(wanted).reshape(2, 3)
    pack, x = Pack.of(jnp.asarray(wanted), 6), np.arange(1.0, 13).reshape(2, 3, 2)
    taken = np.asarray(pack.take(jnp.asarray(x)))
    assert taken.shape == (1, 6, 2)
    np.testing.assert_array_equal(taken[0, : wanted.sum()], x[wanted])
    np.testing.assert_array_equal(pack.spread(jnp.asarray(taken)), np.where(wanted[..., None], x, 0))


def passes(wanted, width):
    """A pass over two trees behind caches of unequal length, whole and packed."""
    loop = loop_of(SelfDraft(layers=1, length=3), 0.0)
    state, lengths = start(loop, PROMPTS[:2], NEW, SEEDS[:2], 64)
    cache, p = prefill(loop, PARAMS, state, lengths).cache, lengths

    @partial(jax.jit, static_argnames="width")
    def states(wanted, width=None):
        pack = None if width is None else Pack.of(wanted, width)
        parent, depth = (jnp.broadcast_to(jnp.array(x), wanted.shape) for x in (TREE.parents, TREE.depths))
        tokens = jnp.arange(wanted.size).reshape(wanted.shape) % TARGET.vocab
        mask, positions = ancestor_mask(parent, TREE.depth), p[:, None] + depth
        x = TARGET.embed(PARAMS.target, tokens)
        out = TARGET.forward(PARAMS.target, x, positions, cache, mask, taps=("embed", 1, "final"), pack=pack)
        keys = jnp.stack([jnp.swapaxes(kv.k, 1, 2) for kv in out.staged.layers], 2)
        return out.hidden, out.features, keys

    return states(wanted), states(wanted, width)


def test_a_packed_pass_gives_each_row_what_the_whole_one_does():
    wanted = jnp.array([[1, 1, 0, 1, 0], [1, 1, 1, 0, 1]], bool)
    for whole, packed in zip(*passes(wanted, 8), strict=True):
        np.testing.assert_allclose(packed[wanted], whole[wanted], atol=2e-5)
        assert not packed[~wanted].any()


def test_a_row_that_is_missed_shows():
    """The same comparison fails where an ancestor does not run."""
    wanted = jnp.array([[1, 0, 1, 1, 0], [1, 1, 1, 0, 1]], bool)
    whole, packed = passes(wanted, 8)
    assert float(jnp.abs(packed[0] - whole[0])[0, 3].max()) > 1e-2


@pytest.mark.parametrize(
    ("drafter", "temperature", "changes"),
    [(NGram(3, longest=2), 0.0, {"pack": WIDTHS}), (Sure(tree=TREE), 1.0, SCHEDULED)],
    ids=["lookup", "scheduled tree"],
)
def test_packed_tokens_are_plain_decodings(drafter, temperature, changes):
    assert decoded(drafter, temperature, **changes).tokens == plain(temperature)


def test_packed_rejection_tosses_the_same_coins():
    padded, packed = (decoded(SAMPLED, 1.0, TokenRejection(), pack=pack) for pack in ((), (4, 8)))
    assert packed.tokens == padded.tokens
    np.testing.assert_array_equal(packed.records.accepted, padded.records.accepted)
    # Widths that fit whole drafts: sequences that are done take no row, and no other pays for them.
    np.testing.assert_array_equal(packed.records.verified, padded.records.verified)


def test_records_count_the_rows_that_ran():
    """The batch's rows of a step are those of a compiled width, the least that holds the nodes that were there."""
    records = decoded(NGram(3, longest=2), 0.0, pack=WIDTHS).records
    ran, there = np.asarray(records.verified).sum(0), np.asarray(records.proposed + (records.committed > 0)).sum(0)
    steps = there > 0
    widths = np.array([*WIDTHS, 12])
    np.testing.assert_array_equal(ran[steps], widths[np.searchsorted(widths, there[steps])])
    assert len(set(ran[steps])) > 1 and not ran[~steps].any()


def test_nothing_leaves_the_device_and_buffers_are_reused():
    loop = loop_of(Sure(tree=TREE), 1.0, **SCHEDULED)

    def fresh():
        state, lengths = start(loop, PROMPTS, NEW, SEEDS, 256)
        return prefill(loop, PARAMS, state, lengths)

    rounds = jnp.int32(2)
    run(loop, PARAMS, fresh(), rounds)
    state = fresh()
    before = [x.unsafe_buffer_pointer() for x in jax.tree.leaves(state.cache)]
    with jax.transfer_guard("disallow"):
        after = run(loop, PARAMS, state, rounds)
    assert sorted(before) == sorted(x.unsafe_buffer_pointer() for x in jax.tree.leaves(after.cache))
    np.testing.assert_array_equal(after.step, 2)


def test_a_pass_of_no_rows_is_refused():
    with pytest.raises(ValueError, match="pack is"):
        loop_of(NGram(3), 0.0, pack=(0, 4))
