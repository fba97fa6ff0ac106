"""Medusa: where it starts, what its heads are trained on, and that decoding runs the same heads."""

from dataclasses import replace
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sdjax.core.types import Trace
from sdjax.drafters.head import DraftHead
from sdjax.drafters.medusa import Medusa
from sdjax.trees.medusa import medusa_tree, rank_accuracies
from sdjax.trees.tree import Tree
from tests.drafters.planted import (
    bare_context,
    batch_of,
    gradients,
    loss_of,
    packed,
    prefilled,
    propose,
    random_params,
    traced,
    unpacked,
)
from tests.tiny import PROMPTS, TARGET, target_params

pytestmark = pytest.mark.families

COUNTS = np.arange(TARGET.vocab)[::-1]
SHARED = Medusa(Tree.branching(2, 2, 1), heads=4, layers=2, head=DraftHead(12))
OWN = Medusa.tiny(TARGET)
TAUGHT = replace(SHARED, objective="teacher")
BOTH = pytest.mark.parametrize("drafter", [SHARED, OWN], ids=["shared", "own"])


@cache
def behind_the_prompts():
    """A context and a state: the target's own, whichever Medusa observes."""
    return prefilled(OWN, random_params(OWN), 0.0)


@partial(jax.jit, static_argnames="drafter")
def logits_of(drafter, ctx, params, hidden):
    """[K, ..., D]."""
    matrices = params["head"] * (1 if drafter.own_heads else len(params["heads"]))
    states = drafter.states(params, hidden)
    return jnp.stack([drafter.head.logits(ctx, matrix, x) for matrix, x in zip(matrices, states, strict=True)])


@pytest.mark.parametrize("head", [DraftHead(), DraftHead(12, trained=True)])
def test_an_untrained_head_is_the_targets_own(head):
    """Each of its guesses is then what stands behind t, one place too early."""
    drafter = Medusa(Tree.chain(3), layers=2, head=head, own_heads=head.trained)
    params = drafter.initial(TARGET, target_params(), COUNTS, jax.random.key(0))
    ctx, state = behind_the_prompts()
    logits = np.asarray(TARGET.unembed(target_params(), state))[:, : head.size]  # COUNTS fall: the first ids are kept
    np.testing.assert_allclose(logits_of(drafter, ctx, params, state), [logits] * 3, atol=1e-5)
    draft = propose(drafter, ctx, params, state)
    np.testing.assert_array_equal(draft.tokens[:, 1:], np.repeat(logits.argmax(-1)[:, None], 3, 1))


@BOTH
def test_decoding_runs_what_is_trained(drafter):
    """The draft behind a prefilled prompt holds the likeliest tokens of the logits that the loss sees at its end."""
    params = random_params(drafter)
    ctx, state = behind_the_prompts()
    draft = propose(drafter, ctx, params, state)
    _, trace = traced(batch_of(*([prompt] for prompt in PROMPTS)))
    last = np.array([len(prompt) - 1 for prompt in PROMPTS])
    trained = np.asarray(logits_of(drafter, ctx, params, trace.hidden))[:, np.arange(3), last]
    np.testing.assert_allclose(trained, logits_of(drafter, ctx, params, state), atol=1e-4)
    assert len(trained) == drafter.heads == drafter.depth + 1
    best = np.asarray(params["head"][0]["ids"])[np.argsort(-trained, -1)]
    for node in range(1, drafter.nodes):
        head = drafter.tree.depths[node] - 1
        np.testing.assert_array_equal(draft.tokens[:, node], best[head, :, drafter.tree.ranks[node]])


@pytest.mark.parametrize("drafter", [TAUGHT, OWN], ids=["shared", "own"])
def test_packing_changes_nothing(drafter):
    params = random_params(drafter)
    (ctx, one), (alone, other) = packed(), unpacked()
    one, other = loss_of(drafter, ctx, params, one), loss_of(drafter, alone, params, other)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), one, other)
    assert one[0] > 0


@BOTH
def test_every_head_learns(drafter):
    ctx, trace = packed()
    found = gradients(drafter, ctx, random_params(drafter), trace)
    assert sum("['heads']" in name for name in found) == 2 * drafter.heads * drafter.layers
    assert sum("['head']" in name for name in found) == (drafter.heads if drafter.own_heads else 0)
    assert all(np.abs(gradient).max() > 0 for gradient in found.values())


def test_gradients_reach_the_target_through_its_states():
    """Medusa-2 is this loss; the law that is imitated is not pulled."""
    ctx, trace = packed()
    params = random_params(TAUGHT)
    loss = lambda hidden: TAUGHT.loss(ctx, params, trace.replace(hidden=hidden), None)[0]
    weight = sum(np.asarray(trace.ahead(k + 1)[1]) for k in range(1, 5))
    np.testing.assert_array_equal(np.abs(jax.jit(jax.grad(loss))(trace.hidden)).max(-1) > 0, weight > 0)


def test_head_k_is_right_about_the_token_k_plus_one_ahead():
    """In a text that counts, head k adds k + 1 to the token at t: certain, and right only where nothing slipped."""
    v = 13
    target = replace(TARGET, vocab=v, width=v)
    drafter = Medusa(Tree.chain(3), head=DraftHead(trained=True), own_heads=True)
    batch = batch_of([list(np.arange(3, 16) % v), list(np.arange(6, 13) % v)])
    trace = Trace(batch, None, jax.nn.one_hot(batch.tokens, v))
    heads = [[{"w": jnp.zeros((v, v)), "b": jnp.zeros(v)}] for _ in range(3)]
    for slip in (-1, 0, 1):
        matrices = [{"weight": 50 * jnp.roll(jnp.eye(v), k + 1 + slip, 0)} for k in (1, 2, 3)]
        params = {"heads": heads, "head": matrices}
        loss, metrics = loss_of(drafter, bare_context(target, {}, batch), params, trace)
        np.testing.assert_allclose(loss, 50 * (0.8 + 0.64 + 0.512) * (slip != 0), atol=1e-4)
        assert metrics["tau"] == (1 if slip else 4)


def test_tokens_outside_the_draft_vocabulary_are_not_learnt_and_count_as_wrong():
    params = random_params(SHARED)
    absent = np.setdiff1d(np.arange(TARGET.vocab), params["head"][0]["ids"])[:8]
    ctx, trace = traced(batch_of([absent.tolist()]))
    loss, metrics = loss_of(SHARED, ctx, params, trace)
    assert loss == 0 and metrics["tau"] == 1


def test_a_tree_is_calibrated_from_the_ranks_of_the_true_tokens():
    ctx, trace = packed()
    params = random_params(SHARED)
    ranks, weights = jax.jit(SHARED.ranks)(ctx, params, trace)
    _, metrics = loss_of(SHARED, ctx, params, trace)
    accuracies = rank_accuracies(ranks, weights, 12)
    np.testing.assert_allclose(accuracies[:, 0], [metrics[f"accuracy_{k}"] for k in (1, 2, 3, 4)], atol=1e-6)
    ids = np.asarray(params["head"][0]["ids"])
    choices = ids[np.argsort(-logits_of(SHARED, ctx, params, trace.hidden), -1)]
    for k in range(4):
        labels, weight = (np.asarray(x) for x in trace.ahead(k + 2))
        right = (choices[k] == labels[..., None]) * weight[..., None]
        np.testing.assert_allclose(accuracies[k], right.sum((0, 1)) / weight.sum(), atol=1e-6)
    calibrated = replace(SHARED, tree=medusa_tree(6, accuracies))
    ctx, state = behind_the_prompts()
    draft = propose(calibrated, ctx, params, state)
    assert draft.tokens.shape == (3, 6)


def test_heads_that_were_never_tried_are_named():
    with pytest.raises(ValueError, match="heads \\[1\\] were never tried"):
        rank_accuracies(np.zeros((2, 3), int), np.array([[1, 1, 1], [0, 0, 0]]), 2)


def test_misfits_are_refused():
    with pytest.raises(ValueError, match="4 deep, but there are 3 heads"):
        Medusa(Tree.chain(4), heads=3)
    with pytest.raises(ValueError, match="30 children, but the vocabulary 29"):
        Medusa(Tree.branching(30)).specs(TARGET)
    with pytest.raises(ValueError, match="6 children, but the vocabulary 5"):
        Medusa(Tree.branching(6), head=DraftHead(5)).specs(TARGET)
    with pytest.raises(ValueError, match="anchor alone"):
        Medusa(Tree.chain(0))
    with pytest.raises(ValueError, match="layers is 0"):
        Medusa(Tree.chain(1), layers=0)
    with pytest.raises(ValueError, match="own_heads"):
        Medusa(Tree.chain(1), own_heads=True)
