"""EAGLE-1 and 2: training's prediction is drafting's; nodes of a tree are their paths; the loss against its definition."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sdjax.drafters.eagle import Eagle
from sdjax.drafters.head import DraftHead
from sdjax.drafters.recursion import join
from sdjax.train.context import training_context
from sdjax.trees.dynamic import DynamicTree
from sdjax.trees.tree import Tree
from tests.drafters.eagle_texts import (
    LENGTHS,
    PACKED,
    WEIGHTS,
    check_gradients,
    check_history,
    check_packing,
    context_of,
    drafted,
    prompted,
    random_params,
    texts,
    traced,
    with_gradient,
)
from tests.tiny import TARGET, decode, plain

pytestmark = pytest.mark.families

EAGLE = Eagle(Tree((-1, 0, 1, 0, 1, 2)), head=DraftHead(20), noise=0.0)
LOSS = with_gradient(EAGLE)
IDS = np.asarray(random_params(EAGLE)["head"]["ids"])


@jax.jit
def predict(params, trace):
    ctx = training_context(TARGET, WEIGHTS, trace.batch)
    predicted, cell = EAGLE.predict(ctx, params, trace, trace.features[:, :, 0])
    return predicted, cell.logits(predicted)


def test_training_predicts_what_drafting_does():
    """The row before an anchor is the law from which the anchor's children are drawn."""
    draft, batch = drafted(EAGLE)
    _, logits = predict(random_params(EAGLE), traced(batch, EAGLE.taps))
    for b, length in enumerate(LENGTHS):
        np.testing.assert_allclose(np.log(draft.q[b, 0, IDS]), jax.nn.log_softmax(logits[b, length - 1]), atol=1e-4)


def test_a_node_is_its_path_run_token_by_token():
    """Each row is fed its parent's output, at the position before its token's."""
    draft, _ = drafted(EAGLE)
    state, params = prompted(EAGLE), random_params(EAGLE)

    @jax.jit
    def along(tokens):
        cell, hidden, scratch, seen = EAGLE.cell(context_of(texts()), params, state.cache), state.root[:, None], None, []
        for depth in range(1, 3):
            mask = jnp.ones((1, 1, depth), bool)
            position = LENGTHS[:, None] + depth - 1
            hidden, staged = cell.run(tokens[:, depth, None], hidden, position, mask, scratch)
            scratch = join(scratch, staged)
            seen.append(cell.logits(hidden)[:, 0])
        return jnp.stack(seen, 1)

    logits = along(draft.tokens[:, :3])
    np.testing.assert_allclose(np.log(draft.q[:, 1:3][..., IDS]), jax.nn.log_softmax(logits), atol=1e-4)


def test_state_depends_on_no_history():
    check_history(EAGLE, 0)


def test_packed_is_unpacked():
    check_packing(EAGLE, LOSS)


def test_gradients_reach_all_and_leak_nowhere():
    check_gradients(EAGLE, LOSS)


def test_loss_is_its_definition():
    """Row by row, in float64: SmoothL1 of the next state, and the cut law where its likeliest token is in the vocabulary."""
    params, trace = random_params(EAGLE), traced(PACKED, EAGLE.taps)
    (loss, metrics), _ = LOSS(params, trace)
    predicted, logits = (np.asarray(x, np.float64)[0] for x in predict(params, trace))
    states = np.asarray(trace.hidden, np.float64)[0]
    teacher = np.asarray(TARGET.unembed(WEIGHTS, trace.hidden), np.float64)[0]
    segments, mask = np.asarray(PACKED.segments)[0], np.asarray(PACKED.loss_mask)[0]
    distance, entropy, hits = [], [], []
    for r in range(23):
        if not mask[r + 1] or segments[r + 1] != segments[r]:
            continue
        gap = np.abs(predicted[r] - states[r + 1])
        distance.append(np.where(gap < 1, gap**2 / 2, gap - 0.5).mean())
        best = teacher[r + 1].argmax()
        hits.append(IDS[logits[r].argmax()] == best)
        if best in IDS:
            p = np.exp(teacher[r + 1, IDS] - teacher[r + 1].max())
            q = np.exp(logits[r] - logits[r].max())
            entropy.append(-(p / p.sum() * np.log(q / q.sum())).sum())
    assert 0 < len(entropy) < len(distance)
    np.testing.assert_allclose(loss, np.mean(distance) + 0.1 * np.mean(entropy), rtol=1e-5)
    np.testing.assert_allclose(metrics["accuracy_0"], np.mean(hits), rtol=1e-6)


def test_noise_is_bounded_and_on_the_inputs_alone():
    """A head that ignores the states does not feel it; one that reads them does, and differently under another key."""
    noisy, trace, params = replace(EAGLE, noise=0.1), traced(PACKED, EAGLE.taps), random_params(EAGLE)

    @jax.jit
    def loss(params, key):
        return noisy.loss(training_context(TARGET, WEIGHTS, PACKED), params, trace, key)[0]

    deaf = params | {"fc": params["fc"].at[:, TARGET.width :].set(0)}
    one, other = jax.random.split(jax.random.key(0))
    assert loss(params, one) != loss(params, other)
    np.testing.assert_allclose(loss(deaf, one), LOSS(deaf, trace)[0][0], rtol=1e-6)


def test_a_dynamic_tree_takes_the_same_weights_and_stays_lossless():
    eagle2 = replace(EAGLE, tree=DynamicTree(depth=3, nodes=8, width=3))
    specs = lambda drafter: jax.tree.map(lambda spec: spec.shape, drafter.specs(TARGET))
    assert specs(eagle2) == specs(EAGLE)
    assert decode(eagle2, 1.0).tokens == plain(1.0)
