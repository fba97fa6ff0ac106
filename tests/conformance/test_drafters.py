"""What every drafter must keep, whoever wrote it: the suite finds the classes by itself."""

import importlib
import inspect
import json
import pkgutil
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sdjax.drafters
from sdjax.core.cache import Cache
from sdjax.core.plain import finite
from sdjax.core.types import Committed, Law
from sdjax.decode.generate import prefill, run, start
from sdjax.decode.state import Params
from sdjax.drafters.pace import Pace
from sdjax.study.timing import propose
from sdjax.train.described import describe, rebuild
from tests.tiny import NEW, PROMPTS, SEEDS, TARGET, decode, drafter_params, loop_of, plain, target_params


def is_protocol(cls):
    return Protocol in cls.__bases__


def drafter_classes():
    for module in pkgutil.iter_modules(sdjax.drafters.__path__, "sdjax.drafters."):
        for _, cls in inspect.getmembers(importlib.import_module(module.name), inspect.isclass):
            if cls.__module__ == module.name and hasattr(cls, "tiny") and not is_protocol(cls):
                yield cls


every_drafter = pytest.mark.parametrize(
    "drafter", [cls.tiny(TARGET) for cls in drafter_classes()], ids=lambda d: type(d).__name__
)
at_both_temperatures = pytest.mark.parametrize("temperature", [0.0, 1.0])
CAPACITY = 256


def prefilled(drafter, temperature, prompts=PROMPTS):
    """A loop's parameters and state right after prefill."""
    loop, params = loop_of(drafter, temperature), Params(target_params(), drafter_params(drafter))
    state, lengths = start(loop, prompts, NEW, SEEDS[: len(prompts)], CAPACITY)
    return loop, params, prefill(loop, params, state, lengths)


def test_the_suite_finds_the_drafters():
    names = {cls.__name__ for cls in drafter_classes()}
    assert {"NoDraft", "NGram", "SelfDraft", "DraftModel"} <= names


@every_drafter
def test_configs_are_hashable_and_say_their_size(drafter):
    assert hash(drafter) == hash(type(drafter).tiny(TARGET))
    assert drafter.nodes >= drafter.depth + 1


@every_drafter
def test_a_saved_drafter_is_the_same_when_read(drafter):
    assert rebuild(json.loads(json.dumps(finite(describe(drafter))))) == drafter


@every_drafter
@at_both_temperatures
def test_output_equals_plain_decoding_token_for_token(drafter, temperature):
    assert decode(drafter, temperature).tokens == plain(temperature)


@every_drafter
def test_neighbours_padding_and_buckets_change_nothing(drafter):
    alone = decode(drafter, 1.0, prompts=PROMPTS[1:2], seeds=SEEDS[1:2], capacity=2 * CAPACITY)
    assert alone.tokens == plain(1.0)[1:2]


@every_drafter
@at_both_temperatures
def test_state_after_every_step_is_that_of_the_committed_tokens(drafter, temperature):
    """Caches hold p rows, equal to a fresh prefill of the committed tokens, and nothing behind them."""
    loop, params, state = prefilled(drafter, temperature)
    for rounds in (1, 1, 3):
        state = run(loop, params, state, jnp.int32(rounds))
        tokens, p = np.asarray(state.tokens), np.asarray(state.p)
        committed = [tokens[b, : p[b]].tolist() for b in range(len(p))]
        _, _, fresh = prefilled(drafter, temperature, committed)
        assert_same_state(state, fresh, p)


def assert_same_state(state, fresh, p):
    held, made = ((s.cache, s.drafter) for s in (state, fresh))
    is_whole = lambda x: isinstance(x, Cache | Pace)
    for kept, new in zip(jax.tree.leaves(held, is_leaf=is_whole), jax.tree.leaves(made, is_leaf=is_whole), strict=True):
        if isinstance(kept, Pace):  # of the drafts that were made, not of the text
            continue
        if not isinstance(kept, Cache):
            np.testing.assert_allclose(kept, new, atol=2e-5)
            continue
        np.testing.assert_array_equal(kept.length, p)
        for a, b in zip(jax.tree.leaves(kept.layers), jax.tree.leaves(new.layers), strict=True):
            np.testing.assert_allclose(a, b, atol=2e-5)


@every_drafter
@at_both_temperatures
def test_drafts_are_trees(drafter, temperature):
    loop, params, state = prefilled(drafter, temperature)
    draft, _ = propose(loop, params, state)
    parent, depth, tokens, valid = (np.asarray(x) for x in (draft.parent, draft.depth, draft.tokens, draft.valid))
    assert tokens.shape == (3, drafter.nodes)
    assert draft.max_depth == drafter.depth and draft.is_chain == drafter.is_chain
    assert not draft.is_chain or (parent == np.arange(-1, drafter.depth)).all()
    assert (parent[:, 0] == -1).all() and (depth[:, 0] == 0).all() and valid[:, 0].all()
    np.testing.assert_array_equal(tokens[:, 0], loop.context(params, state).anchor)
    assert ((tokens >= 0) & (tokens < TARGET.vocab))[valid].all()
    for b, i in np.ndindex(3, drafter.nodes):
        if i == 0:
            continue
        assert 0 <= parent[b, i] < i and depth[b, i] == depth[b, parent[b, i]] + 1 <= drafter.depth
        if draft.law == Law.ONE_HOT and valid[b, i]:
            siblings = (parent[b] == parent[b, i]) & valid[b]
            assert (tokens[b][siblings] == tokens[b, i]).sum() == 1
        if draft.q is not None:
            assert draft.q_row[b, parent[b, i]] >= 0
    if draft.survival is not None:
        survival = np.asarray(draft.survival)
        assert (survival[:, 0] == 1).all() and (survival >= 0).all()
        assert (survival[:, 1:] <= np.take_along_axis(survival, parent, 1)[:, 1:]).all()
    if temperature == 0:
        assert draft.law == Law.ONE_HOT and draft.q is None
    if draft.q is not None:
        np.testing.assert_allclose(draft.q.sum(-1), 1, atol=1e-5)


@every_drafter
def test_padding_rows_leave_no_trace(drafter):
    loop, params, state = prefilled(drafter, 0.0)
    ctx = loop.context(params, state)
    wide = 8
    features = jax.random.normal(jax.random.key(2), (3, wide, len(drafter.taps), TARGET.width))

    def seen(noise):
        """Two rows that count, then rows full of `noise`."""
        real = jnp.arange(wide) < 2
        fill = lambda x: jnp.where(real.reshape(1, -1, *[1] * (x.ndim - 2)), x, noise).astype(x.dtype)
        tokens = jnp.broadcast_to(jnp.arange(wide) + 3, (3, wide))
        return Committed(
            tokens=fill(tokens),
            positions=state.p[:, None] + jnp.arange(wide),
            next_tokens=fill(tokens + 1),
            features=fill(features),
            node=jnp.broadcast_to(jnp.arange(wide), (3, wide)),
            count=jnp.array([2, 0, 2]),
        )

    observe = jax.jit(drafter.observe)
    one, other = (observe(ctx, params.drafter, state.drafter, seen(noise)) for noise in (0, 17))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), one, other)
    untouched = lambda new, old: np.testing.assert_array_equal(new[1], old[1])
    jax.tree.map(untouched, one, state.drafter)


@every_drafter
def test_one_compilation_serves_every_prompt(drafter):
    decode(drafter, 0.0)
    before = prefill._cache_size(), run._cache_size()
    decode(drafter, 0.0, prompts=[[9, 8, 7], [1], [2] * 20], seeds=[1, 2, 3])
    assert (prefill._cache_size(), run._cache_size()) == before


@every_drafter
def test_a_round_moves_nothing_between_host_and_device(drafter):
    loop, params, state = prefilled(drafter, 0.0)
    rounds = jnp.int32(2)
    run(loop, params, state, rounds)
    loop, params, state = prefilled(drafter, 0.0)
    with jax.transfer_guard("disallow"):
        run(loop, params, state, rounds)


@every_drafter
def test_donated_buffers_are_reused(drafter):
    loop, params, state = prefilled(drafter, 0.0)
    before = [x.unsafe_buffer_pointer() for x in jax.tree.leaves((state.cache, state.drafter))]
    after = run(loop, params, state, jnp.int32(1))
    assert all(x.is_deleted() for x in jax.tree.leaves((state.cache, state.drafter)))
    assert sorted(before) == sorted(x.unsafe_buffer_pointer() for x in jax.tree.leaves((after.cache, after.drafter)))
