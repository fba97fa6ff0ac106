"""Trees from a block's slots: exactly the best ones, from the very weights of the block."""

from dataclasses import replace
from functools import partial
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sdjax.core.types import Law
from sdjax.drafters.anchored import tokens_behind
from sdjax.drafters.block import Block
from sdjax.drafters.block_tree import BlockTree
from sdjax.drafters.head import DraftHead
from sdjax.train.context import training_context
from tests.drafters.eagle_texts import LENGTHS, PACKED, WEIGHTS, prompted, propose, random_params, texts, traced, with_gradient
from tests.tiny import TARGET, decode, plain

pytestmark = pytest.mark.families

FULL = Block((0, 2), 3, layers=1, anchors=24, head=DraftHead(20))
CAUSAL = replace(FULL, layout="anchor_first", block_mask="causal", head=DraftHead())


def sharp_params(block):
    """Random weights whose laws are far from flat: their best trees are deep."""
    params = random_params(block)
    return params | {"norm": 12 * params["norm"]}


@partial(jax.jit, static_argnames="block")
def slot_logits(block, params, trace, place):
    """Of the blocks behind the anchors, as training has them: [B, A, N, D]."""
    ctx = training_context(TARGET, WEIGHTS, trace.batch)
    return block.head.logits(ctx, params["head"], block.run_blocks(ctx, params, trace, place))


def laws(block):
    """{token: log-probability} of each slot behind each prompt, from training's pass and in float64."""
    params = sharp_params(block)
    logits = slot_logits(block, params, traced(texts(), block.taps), jnp.asarray(LENGTHS)[:, None])
    logits = np.asarray(logits, np.float64)[:, 0]
    logp = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    ids = np.asarray(params["head"].get("ids", np.arange(TARGET.vocab)))
    return [[dict(zip(ids.tolist(), slot, strict=True)) for slot in row] for row in logp]


def best_paths(slots, count):
    """All paths through the slots, of any length, by brute force: the best of them with their scores."""
    scores = {(): 0.0}
    for depth in range(1, len(slots) + 1):
        for path in product(*slots[:depth]):
            scores[path] = scores[path[:-1]] + slots[depth - 1][path[-1]]
    del scores[()]
    return dict(sorted(scores.items(), key=lambda item: -item[1])[:count])


def drafted_paths(draft, row):
    """{path of tokens: survival} of one sequence's tree."""
    tokens, parent, survival = (np.asarray(x)[row] for x in (draft.tokens, draft.parent, draft.survival))
    paths = [()]
    for i in range(1, len(tokens)):
        paths.append((*paths[parent[i]], int(tokens[i])))
    return dict(zip(paths[1:], survival[1:].tolist(), strict=True))


@pytest.mark.parametrize("block", [FULL, CAUSAL], ids=["full", "causal"])
@pytest.mark.parametrize("nodes", [8, 24])
def test_the_tree_is_the_best_of_all(block, nodes):
    """Of its size, by the laws that training sees: every path of every length was tried."""
    drafter = BlockTree(block, nodes)
    draft = propose(drafter, sharp_params(block), texts(), prompted(block))
    assert draft.law == Law.ONE_HOT and draft.valid.all()
    for row, slots in enumerate(laws(block)):
        found, best = drafted_paths(draft, row), best_paths(slots, nodes - 1)
        assert set(found) == set(best)
        for path, score in best.items():
            assert found[path] == pytest.approx(np.exp(score), rel=1e-3)
        assert max(map(len, found)) > 1 and set(found) != set(best_paths(slots[::-1], nodes - 1)), "too flat to tell"


def test_a_width_cuts_every_slot():
    """The best tree of tokens that are among the two likeliest of their slot."""
    draft = propose(BlockTree(FULL, 12, width=2), sharp_params(FULL), texts(), prompted(FULL))
    for row, slots in enumerate(laws(FULL)):
        kept = [dict(sorted(slot.items(), key=lambda item: -item[1])[:2]) for slot in slots]
        assert set(drafted_paths(draft, row)) == set(best_paths(kept, 11))


def test_a_chain_is_the_blocks_own():
    drafter, params, state = BlockTree(FULL, 4, width=1), sharp_params(FULL), prompted(FULL)
    tree, chain = (propose(one, params, texts(), state) for one in (drafter, FULL))
    np.testing.assert_array_equal(tree.tokens, chain.tokens)
    np.testing.assert_array_equal(tree.parent, chain.parent)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_no_token_changes_and_more_of_them_are_accepted(temperature):
    """With a block's weights as they are; the law is one-hot though the block would sample."""
    block = replace(FULL, sampled=True, head=DraftHead())
    out = decode(BlockTree(block, 28), temperature, params=sharp_params(block))
    assert out.tokens == plain(temperature)
    accepted = lambda out: np.concatenate([step.accepted for step in out.steps]).mean()
    assert accepted(out) > accepted(decode(replace(block, sampled=False), temperature, params=sharp_params(block)))


def test_jetspec_learns_the_softened_law_of_every_slot_alike():
    """T² · CE(p_T, q_T), the mean over slots: in float64, and not what T = 1 gives."""
    drafter = BlockTree.jetspec((0, 2), None, 3, nodes=9, width=3, layers=1, anchors=24, soft_temperature=2.0)
    block, trace = drafter.block, traced(PACKED, drafter.taps)
    params = random_params(block)
    assert block.decay is None and block.block_mask == "causal"
    (loss, _), _ = with_gradient(drafter)(params, trace)
    place, drawn = block.draw_anchors(trace, jax.random.key(0))
    weight = np.asarray(tokens_behind(trace, place, drawn, block.length)[1])
    logits = np.asarray(slot_logits(block, params, trace, place), np.float64)
    teacher = np.asarray(TARGET.unembed(WEIGHTS, block.teachers(trace, place)), np.float64)

    def by_hand(t):
        softmax = lambda x: np.exp(x / t) / np.exp(x / t).sum(-1, keepdims=True)
        return t * t * (weight * -(softmax(teacher) * np.log(softmax(logits))).sum(-1)).sum() / weight.sum()

    np.testing.assert_allclose(loss, by_hand(2.0), rtol=1e-5)
    assert abs(by_hand(1.0) - by_hand(2.0)) > 0.1


def test_presets_are_as_published():
    dd_tree, jetspec = BlockTree.dd_tree((1, 9), 5), BlockTree.jetspec((1, 9), 5)
    assert dd_tree.block == Block.dflash((1, 9), 5) and dd_tree.width is None
    assert (jetspec.width, jetspec.nodes, jetspec.depth, jetspec.block.soft, jetspec.block.text) == (7, 128, 15, 1.0, 0.0)


def test_what_cannot_be_is_named():
    with pytest.raises(ValueError, match="markov is 'vanilla'"):
        BlockTree(replace(FULL, markov="vanilla"))
    with pytest.raises(ValueError, match="3 nodes cannot use 3 slots; give 4"):
        BlockTree(FULL, 3)
    with pytest.raises(ValueError, match="fewer than 16 nodes"):
        BlockTree(FULL, 16, width=2)
    with pytest.raises(ValueError, match="width is 21, but the drafter's vocabulary has 20"):
        BlockTree(FULL, 28, width=21).specs(TARGET)
    with pytest.raises(ValueError, match="soft_temperature is 0"):
        replace(FULL, soft_temperature=0.0)
