"""EAGLE-3: what training unrolls is what drafting runs; its loss against the definition; states, taps, memory."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sdjax.core.spec import check_params
from sdjax.core.types import Law
from sdjax.drafters import eagle3
from sdjax.drafters.eagle3 import Eagle3, published_taps
from sdjax.drafters.head import DraftHead
from sdjax.targets.rope import Rope
from sdjax.train.context import training_context
from sdjax.trees.dynamic import DynamicTree
from sdjax.trees.tree import Tree
from tests.drafters.eagle_texts import (
    LENGTHS,
    PACKED,
    WEIGHTS,
    assert_close_gradients,
    check_gradients,
    check_history,
    check_packing,
    drafted,
    random_params,
    shapes,
    traced,
    with_gradient,
)
from tests.tiny import TARGET, decode, plain

pytestmark = pytest.mark.families

PAPER = Eagle3((0, 1, 2), Tree.chain(4), Law.IID, DraftHead(20, trained=True), steps=4)
LAYER = replace(TARGET, heads=2, kv_heads=1, ffw=20, rope=Rope(100.0), norm_eps=0.1)
FLAGS = {"norm_before_residual": True, "norm_output": True, "fc_norm": True, "norm_before_fc": True}
LATER = Eagle3(("embed", 1), Tree.chain(4), Law.IID, DraftHead(trained=True), steps=4, layer=LAYER, **FLAGS)
LOSS = with_gradient(PAPER)


def unrolled(drafter, batch):
    """Logits [N, B, T, D] of every step and row."""

    @jax.jit
    def run(params, trace):
        ctx = training_context(TARGET, WEIGHTS, trace.batch)
        return drafter.logits(ctx, params, drafter.unroll(ctx, params, trace))

    return run(random_params(drafter), traced(batch, drafter.taps))


@pytest.mark.parametrize("drafter", [PAPER, LATER], ids=["paper", "later"])
def test_unrolled_steps_are_those_of_drafting(drafter):
    """Step i of the row before an anchor is the law from which draft i + 1 behind that anchor is drawn."""
    draft, batch = drafted(drafter)
    logits = unrolled(drafter, batch)
    ids = random_params(drafter)["head"].get("ids", np.arange(TARGET.vocab))
    for b, length in enumerate(LENGTHS):
        seen = jax.nn.log_softmax(logits[:, b, length - 1])
        np.testing.assert_allclose(np.log(draft.q[b][:, ids]), seen, atol=1e-4)


@pytest.mark.parametrize("seed", [0, 1])
def test_state_depends_on_no_history(seed):
    check_history(PAPER, seed)


def test_packed_is_unpacked():
    check_packing(PAPER, LOSS)


def test_gradients_reach_all_and_leak_nowhere():
    check_gradients(PAPER, LOSS)


def test_loss_is_its_definition():
    """Row by row and step by step, in float64: which rows count, the cut law, the decay, accuracies and τ."""
    params, trace, n = random_params(PAPER), traced(PACKED, PAPER.taps), PAPER.steps
    (loss, metrics), _ = LOSS(params, trace)
    logits = np.asarray(unrolled(PAPER, PACKED), np.float64)[:, 0]
    teacher = np.asarray(TARGET.unembed(WEIGHTS, trace.hidden), np.float64)[0]
    ids, segments, mask = np.asarray(params["head"]["ids"]), np.asarray(PACKED.segments)[0], np.asarray(PACKED.loss_mask)[0]
    entropy, hits, outside, runs = [[] for _ in range(n)], [[] for _ in range(n)], [], []
    for r in range(24):
        row = []
        for i, at in enumerate(range(r + 1, min(r + 1 + n, 24))):
            if not mask[at] or segments[at] != segments[r]:
                continue
            best = teacher[at].argmax()
            row.append(ids[logits[i, r].argmax()] == best)
            hits[i].append(row[-1])
            outside.append(best not in ids)
            if best in ids:
                p = np.exp(teacher[at, ids] - teacher[at, ids].max())
                q = np.exp(logits[i, r])
                entropy[i].append(-(p / p.sum() * np.log(q / q.sum())).sum())
        if len(row) == n:
            runs.append(np.cumprod(row).sum())
    assert 0 < np.mean(outside) < 1
    np.testing.assert_allclose(loss, sum(0.8**i * np.mean(x) for i, x in enumerate(entropy)), rtol=1e-5)
    np.testing.assert_allclose([metrics[f"accuracy_{i}"] for i in range(n)], [np.mean(x) for x in hits], rtol=1e-6)
    np.testing.assert_allclose([metrics["tau"], metrics["outside"]], [1 + np.mean(runs), np.mean(outside)], rtol=1e-6)


def test_chunks_change_nothing(monkeypatch):
    params, trace = random_params(PAPER), traced(PACKED, PAPER.taps)
    whole = LOSS(params, trace)
    monkeypatch.setattr(eagle3, "ROWS", 5 * (PAPER.steps + 1))  # 24 rows in chunks of 5
    chunked = with_gradient(PAPER)(params, trace)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), whole[0], chunked[0])
    assert_close_gradients(whole[1][0], chunked[1][0])


def test_no_array_spans_rows_times_all_steps():
    """Scores stay [T, T + N] a head, and logits of a step never stand for all positions."""
    wide = replace(PAPER, head=DraftHead(trained=True), steps=7)
    target, length = replace(TARGET, vocab=997), 512
    spec = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype)
    of = lambda specs: jax.tree.map(spec, specs)
    ints, hidden = jax.ShapeDtypeStruct((1, length), jnp.int32), jax.ShapeDtypeStruct((1, length, 16), jnp.float32)
    batch = PACKED.replace(tokens=ints, positions=ints, segments=ints, loss_mask=jax.ShapeDtypeStruct((1, length), bool))
    trace = eagle3.Trace(batch, jax.ShapeDtypeStruct((1, length, 3, 16), jnp.float32), hidden)

    def loss(params, target_params, trace):
        return wide.loss(training_context(target, target_params, trace.batch), params, trace, None)[0]

    made = list(shapes(jax.make_jaxpr(jax.grad(loss))(of(wide.specs(target)), of(target.specs()), trace).jaxpr))
    assert max(np.prod(shape) for shape in made) <= 4 * length * (length + 7)
    assert max(np.prod(shape) for shape in made if 997 in shape) <= 997 * (512 + 64)


def test_a_chain_at_temperature_1_stays_lossless():
    assert decode(PAPER, 1.0).tokens == plain(1.0)


def test_a_start_from_the_target_is_its_last_layer_behind_the_deepest_tap():
    drafter = replace(PAPER, start="target")
    params = drafter.initial(TARGET, WEIGHTS, np.ones(TARGET.vocab), jax.random.key(0))
    check_params(drafter.specs(TARGET), params, "EAGLE-3")
    trace = traced(PACKED, drafter.taps)
    ctx = training_context(TARGET, WEIGHTS, trace.batch)
    np.testing.assert_allclose(drafter.fuse(ctx, params, trace.features), trace.features[:, :, -1], atol=1e-5)
    last = WEIGHTS["layers"][-1]
    for name in ("q", "k", "v"):
        np.testing.assert_array_equal(params["layer"][name][:, TARGET.width :], last[name])
    for name in ("o", "gate", "up", "down", "mlp_norm"):
        np.testing.assert_array_equal(params["layer"][name], last[name])
    with pytest.raises(ValueError, match="not shaped as the target's"):
        replace(LATER, start="target").initial(TARGET, WEIGHTS, np.ones(TARGET.vocab), jax.random.key(0))
    with pytest.raises(ValueError, match="must be 'drawn' or 'target'"):
        replace(PAPER, start="last")


def test_taps_and_trees_that_cannot_be_are_named():
    assert published_taps(32) == (1, 15, 28) and published_taps(30) == (1, 14, 26)
    with pytest.raises(ValueError, match=r"5 layers.*\(1, 1, 1\).*collide"):
        published_taps(5)
    with pytest.raises(ValueError, match="colliding: 1"):
        Eagle3((1, 1, 2))
    with pytest.raises(ValueError, match=r"no taps \[3\]"):
        Eagle3((0, 1, 3)).specs(TARGET)
    with pytest.raises(ValueError, match="10 children, but the vocabulary 8"):
        Eagle3((0, 1, 2), DynamicTree(), head=DraftHead(8, trained=True))
    with pytest.raises(ValueError, match="width 32, the target 16"):
        replace(PAPER, layer=replace(TARGET, width=32)).specs(TARGET)
