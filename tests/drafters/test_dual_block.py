"""D²SD: branches leave the first draft where it is likely to be rejected, and are what the second block makes of it there."""

from dataclasses import replace
from functools import partial
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sdjax.core.types import Law
from sdjax.drafters.block import Block
from sdjax.drafters.dual_block import DualBlock, rejection_points
from sdjax.drafters.head import DraftHead
from sdjax.train.context import training_context
from tests.drafters.eagle_texts import LENGTHS, PACKED, TEXTS, WEIGHTS, prompted, propose, random_params, texts, traced
from tests.drafters.test_block import Oracle, known_states
from tests.tiny import TARGET, decode, plain

pytestmark = pytest.mark.families

FIRST = Block((0, 2), 4, layers=1, anchors=24, head=DraftHead(20))
SECOND = replace(FIRST, layout="anchor_first", layers=2, head=DraftHead(), visible_prefix=0.9)
DUAL = DualBlock(FIRST, SECOND, branches=2)


def test_boundaries_are_the_likeliest_places_of_the_first_rejection():
    """Against the probability of every outcome of independent drafts."""
    confidence = np.random.default_rng(1).uniform(0.05, 0.95, (20, 5))
    found = np.asarray(jax.jit(partial(rejection_points, count=3))(jnp.asarray(confidence)))
    for c, boundaries in zip(confidence, found, strict=True):
        rejected_at = np.zeros(6)
        for outcome in product([True, False], repeat=5):
            accepted = (*outcome, False).index(False)
            rejected_at[accepted] += np.prod(np.where(outcome, c, 1 - c))
        assert boundaries.tolist() == sorted(np.argsort(-rejected_at[:5])[:3].tolist())


@partial(jax.jit, static_argnames="block")
def slot_laws(block, params, trace, visible):
    """log-probabilities of the slots behind the prompts, as training has them: [B, N, V]."""
    ctx, place = training_context(TARGET, WEIGHTS, trace.batch), jnp.asarray(LENGTHS)[:, None]
    hidden = block.run_blocks(ctx, params, trace, place, visible[:, None])[:, 0]
    logp = jax.nn.log_softmax(block.head.logits(ctx, params["head"], hidden))
    ids = params["head"].get("ids", jnp.arange(TARGET.vocab))
    return jnp.full((*logp.shape[:2], TARGET.vocab), -jnp.inf).at[..., ids].set(logp)


def paths_of(draft, row):
    """{path of tokens: survival} of one sequence's nodes that are there."""
    tokens, parent, valid, survival = (np.asarray(x)[row] for x in (draft.tokens, draft.parent, draft.valid, draft.survival))
    paths = [()]
    for i in range(1, len(tokens)):
        paths.append((*paths[parent[i]], int(tokens[i])))
    return {path: value for path, there, value in list(zip(paths, valid, survival, strict=True))[1:] if there}


def test_branches_are_what_training_makes_of_prefixes():
    """The first chain, and each branch as the second block's training pass on a text with the first chain in it has it."""
    params = random_params(DUAL)
    draft = propose(DUAL, params, texts(), prompted(DUAL))
    assert draft.law == Law.ONE_HOT and draft.tokens.shape == (3, 1 + 4 + 4 + 3) and draft.max_depth == 4
    first = np.asarray(slot_laws(FIRST, params["first"], traced(texts(), DUAL.taps), jnp.zeros(3, int)))
    chain, c = first.argmax(-1), np.exp(first.max(-1))
    boundaries = np.sort(np.argsort(-np.cumprod(np.c_[np.ones(3), c[:, :-1]], 1) * (1 - c))[:, :2])
    written = TEXTS.copy()
    for b, at in enumerate(LENGTHS):
        written[b, at + 1 : at + 5] = chain[b]
    trace = traced(texts(TEXTS), DUAL.taps).replace(batch=texts(written))
    wanted = [{}, {}, {}]
    for branch in (None, 0, 1):
        start = np.full(3, 4) if branch is None else boundaries[:, branch]
        again = np.asarray(slot_laws(SECOND, params["second"], trace, jnp.asarray(np.minimum(start, 3))))
        behind = np.arange(4) >= start[:, None]
        tokens, p = np.where(behind, again.argmax(-1), chain), np.exp(np.where(behind, again.max(-1), np.log(c)).cumsum(1))
        for b, depth in product(range(3), range(4)):
            path = tuple(tokens[b, : depth + 1].tolist())
            wanted[b][path] = max(wanted[b].get(path, 0), p[b, depth])
    for b in range(3):
        found = paths_of(draft, b)
        assert found.keys() == wanted[b].keys() and len(found) > 4
        np.testing.assert_allclose([found[path] for path in wanted[b]], list(wanted[b].values()), rtol=1e-3)


def test_branches_that_agree_stand_once():
    """Behind the anchor alone a second block with the first one's weights drafts the same again: no node is new there."""
    block = replace(FIRST, visible_prefix=0.9)
    params, state = random_params(block), prompted(block)
    twin = DualBlock(block, block, branches=4)
    draft = propose(twin, dict.fromkeys(twin.blocks, params), texts(), dict.fromkeys(twin.blocks, state))
    alone = propose(block, params, texts(), state)
    for b in range(3):
        found = paths_of(draft, b)
        assert tuple(np.asarray(alone.tokens)[b, 1:].tolist()) in found
        assert len(found) <= 4 + 3 + 2 + 1


def known(keep, scale=1e3):
    """The target's states along its own texts, sharpened; where not `keep`[position of the token they predict], none."""
    states = known_states()
    return states * scale * keep[(np.arange(states.shape[1]) + 1) % len(keep)][:, None]


def test_an_oracle_behind_the_boundary_saves_the_draft():
    """The first block knows all but each third token, and says so; the second, asked in one place alone, knows the rest."""
    first = Oracle((0,), 3, layers=1)
    second = Oracle((0,), 3, layers=1, layout="anchor_first", ahead=1, visible_prefix=0.9)
    dual, params = DualBlock(first, second, branches=1), random_params(DualBlock(first, second, branches=1))
    failing, whole = known(np.array([0, 1, 1])), known(np.ones(3))
    params = {"first": params["first"] | {"known": failing}, "second": params["second"] | {"known": whole}}
    accepted = lambda drafter, params: np.concatenate([s.accepted for s in decode(drafter, 0.0, params=params).steps])
    assert (accepted(dual, params) == 3).all()
    assert accepted(first, params["first"]).mean() < 2
    swapped = {"first": params["first"], "second": params["second"] | {"known": failing}}
    assert accepted(dual, swapped).mean() < 2


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_few_tokens_and_other_layouts_change_no_token(temperature):
    assert decode(DUAL, temperature, params=random_params(DUAL)).tokens == plain(temperature)


def test_both_blocks_learn_as_they_do_alone():
    params, trace, key = random_params(DUAL), traced(PACKED, DUAL.taps), jax.random.key(4)
    ctx = training_context(TARGET, WEIGHTS, trace.batch)
    loss, metrics = DUAL.loss(ctx, params, trace, key)
    keys = jax.random.split(key)
    (one, figures), (other, second) = (
        block.loss(ctx, params[name], trace, keys[i]) for i, (name, block) in enumerate(DUAL.blocks.items())
    )
    np.testing.assert_allclose(loss, one + other, rtol=1e-6)
    assert metrics == figures | {f"second_{name}": value for name, value in second.items()}


def test_the_preset_is_as_published():
    d2sd = DualBlock.d2sd((1, 9), 5)
    assert (d2sd.branches, d2sd.depth, d2sd.second.visible_prefix) == (4, 15, 0.9)
    assert d2sd.nodes == 1 + 15 + 15 + 14 + 13 + 12 and d2sd.first == Block.dflash((1, 9), 5)


def test_what_cannot_be_is_named():
    with pytest.raises(ValueError, match="second block has no visible_prefix"):
        DualBlock(FIRST, FIRST)
    with pytest.raises(ValueError, match="first block's length is 4, the second's 3"):
        DualBlock(FIRST, replace(SECOND, length=3))
    with pytest.raises(ValueError, match=r"branches is 5; 4 tokens can be left in 1..4 places"):
        DualBlock(FIRST, SECOND, branches=5)
    with pytest.raises(ValueError, match="markov is 'gated'"):
        DualBlock(replace(FIRST, markov="gated"), SECOND)
