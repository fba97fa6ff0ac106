"""Blocks that are shown a prefix: drafting sees what training saw, branches see nothing of each other, and what is learnt."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sdjax.drafters.block import Block
from sdjax.train.context import training_context
from tests.drafters.eagle_texts import (
    LENGTHS,
    PACKED,
    TEXTS,
    WEIGHTS,
    check_gradients,
    context_of,
    prompted,
    random_params,
    texts,
    traced,
    with_gradient,
)
from tests.tiny import TARGET

pytestmark = pytest.mark.families

FILLED = Block((0, 2), 4, layers=1, anchors=24, decay=3.0, visible_prefix=0.9)
FIRST = replace(FILLED, layout="anchor_first", layers=2, block_mask="causal")
both_layouts = pytest.mark.parametrize("block", [FILLED, FIRST], ids=["fill_in-full", "anchor_first-causal"])
VISIBLE = jnp.broadcast_to(jnp.arange(4), (3, 4))


@partial(jax.jit, static_argnames="block")
def trained(block, params, trace, place, visible):
    return block.run_blocks(training_context(TARGET, WEIGHTS, trace.batch), params, trace, place, visible)


@partial(jax.jit, static_argnames="block")
def branches(block, params, batch, state, tokens, visible):
    return block.branches(context_of(batch), params, state, tokens, visible)


def behind_prompts():
    """The anchors and the three tokens behind them, [3, 4]."""
    return np.stack([row[at : at + 4] for row, at in zip(TEXTS, LENGTHS, strict=True)])


@both_layouts
def test_drafting_sees_what_training_sees(block):
    """Of any number of tokens behind the anchor, all numbers in one pass."""
    params, place = random_params(block), jnp.asarray(LENGTHS)[:, None]
    shown = jnp.broadcast_to(jnp.asarray(behind_prompts())[:, None], (3, 4, 4))
    drafted = branches(block, params, texts(), prompted(block), shown, VISIBLE)
    for k in range(4):
        learnt = trained(block, params, traced(texts(), block.taps), place, VISIBLE[:, k : k + 1])
        np.testing.assert_allclose(drafted[:, k, k:], learnt[:, 0, k:], atol=2e-5)


@both_layouts
def test_a_branch_sees_its_own_prefix_and_nothing_else(block):
    """Not the tokens behind it, nor other branches; each token of it matters to every slot behind it."""
    params, state, random = random_params(block), prompted(block), np.random.default_rng(0)
    shown = np.broadcast_to(behind_prompts()[:, None], (3, 4, 4)).copy()
    before = branches(block, params, texts(), state, jnp.asarray(shown), VISIBLE)
    for k in range(4):
        other = shown.copy()
        hidden = np.ones((3, 4, 4), bool)
        hidden[:, k, : k + 1] = False
        other[hidden] = random.integers(0, 29, hidden.sum())
        np.testing.assert_allclose(
            branches(block, params, texts(), state, jnp.asarray(other), VISIBLE)[:, k], before[:, k], atol=1e-5
        )
        other = shown.copy()
        other[:, k, k] = (other[:, k, k] + 1) % 29
        after = branches(block, params, texts(), state, jnp.asarray(other), VISIBLE)
        assert (np.abs(after - before)[:, k, k:].max(-1) > 1e-4).all()


@both_layouts
def test_loss_is_its_definition(block):
    """Slots behind the prefix alone, the first of them with weight 1; τ is that of blocks without a prefix."""
    params, trace, key = random_params(block), traced(PACKED, block.taps), jax.random.key(0)
    (loss, metrics), _ = with_gradient(block)(params, trace)
    place, drawn = block.draw_anchors(trace, key)
    visible = block.draw_prefixes(place.shape, jax.random.fold_in(key, 1))
    logits = TARGET.unembed(WEIGHTS, trained(block, params, trace, place, visible))
    logp = np.asarray(jax.nn.log_softmax(logits), np.float64)[0]
    tokens, segments, mask = (np.asarray(x)[0] for x in (PACKED.tokens, PACKED.segments, PACKED.loss_mask))
    pairs, whole = [], []
    for r, shown, block_logp, there in zip(*(np.asarray(x)[0] for x in (place, visible)), logp, drawn[0], strict=True):
        run = True
        for j in range(block.length):
            at = r + 1 + j
            if not there or at >= len(tokens) or not mask[at] or segments[at] != segments[r]:
                break
            if j >= shown:
                pairs.append((np.exp(-(j - shown) / block.decay), -block_logp[j, tokens[at]]))
            if shown == 0:
                run &= block_logp[j].argmax() == tokens[at]
                whole.append((j, run))
    assert {0, 1, 2, 3} == set(np.asarray(visible)[0].tolist())
    np.testing.assert_allclose(loss, np.prod(pairs, 1).sum() / np.array(pairs)[:, 0].sum(), rtol=1e-5)
    survival = [np.mean([hit for j, hit in whole if j == depth]) for depth in {j for j, _ in whole}]
    np.testing.assert_allclose(metrics["tau"], 1 + sum(survival), rtol=1e-6)


def test_prefixes_are_drawn_by_their_law():
    """20,000 of them: each length within five standard deviations of β^l / Σ β^l."""
    for beta in (0.9, 0.5, 1.0):
        drawn = np.asarray(replace(FILLED, visible_prefix=beta).draw_prefixes((20_000,), jax.random.key(3)))
        p = beta ** np.arange(4) / (beta ** np.arange(4)).sum()
        assert (np.abs(np.bincount(drawn, minlength=4) / 20_000 - p) < 5 * np.sqrt(p * (1 - p) / 20_000)).all()


def test_gradients_reach_all_and_leak_nowhere():
    check_gradients(FILLED, with_gradient(FILLED))


def test_what_cannot_be_is_named():
    with pytest.raises(ValueError, match=r"visible_prefix is 1.5 for blocks of 4"):
        replace(FILLED, visible_prefix=1.5)
    with pytest.raises(ValueError, match=r"a block of one token has no prefix"):
        replace(FILLED, length=1)
