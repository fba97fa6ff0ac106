"""Block and mask drafters against the specification's formulas in plain numpy: states, laws, drafts, losses."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sdjax.core.sampling import Warp
from sdjax.core.types import Batch, Committed, Trace
from sdjax.decode.generate import prefill, run, start
from sdjax.decode.state import Loop, Params
from sdjax.drafters.block import Block
from sdjax.drafters.dual_block import rejection_points
from sdjax.drafters.losses import dpace_weights
from sdjax.drafters.mask_chains import Drop
from sdjax.drafters.pard import Pard
from sdjax.drafters.published.base import named
from sdjax.drafters.published.registry import LAYOUTS
from sdjax.drafters.tidar import TiDAR
from sdjax.targets.huggingface import NAMES
from sdjax.targets.packed import trace_of
from sdjax.targets.weights import weight_names
from sdjax.train.context import training_context
from sdjax.verify.walk import Walk
from tests.drafters.planted import loss_of, random_params
from tests.parity.formulas import dflash, domino, dspark, layers, pard, tidar
from tests.parity.formulas.layers import Geometry
from tests.tiny import TARGET, target_params

pytestmark = pytest.mark.families

T, N, MASK_TOKEN = 10, 3, 5
GEOMETRY = Geometry(TARGET.heads, TARGET.kv_heads, TARGET.rope.theta, TARGET.norm_eps)
EMBED, UNEMBED = (np.asarray(target_params()[name]) for name in ("embed", "head"))
NOISE = np.random.default_rng(3)
TOKENS = NOISE.integers(0, TARGET.vocab, T)
FEATURES = NOISE.normal(size=(T, 2, TARGET.width)).astype(np.float32)
HIDDEN = NOISE.normal(size=(T, TARGET.width)).astype(np.float32)
MASK = (np.arange(T) > 1) & (np.arange(T) != 6)

SHARED = {"anchors": T, "decay": 2.0}
DFLASH = Block.dflash((0, 1), MASK_TOKEN, N, layers=2, **SHARED)
DSPARK = Block.dspark((0, 1), MASK_TOKEN, N, layers=1, rank=4, **SHARED)
DOMINO = Block.domino((0, 1), MASK_TOKEN, 4, N, layers=1, rank=4, gru=6, uncorrected=0, **SHARED)
BLOCKS = {
    "dflash": DFLASH,
    "dflash, anchor first": replace(DFLASH, layout="anchor_first"),
    "jetspec": replace(DFLASH, block_mask="causal"),
    "dspark": DSPARK,
    "dspark, gated": replace(DSPARK, markov="gated"),
    "dspark, rnn": replace(DSPARK, markov="rnn"),
    "domino": DOMINO,
    "domino, fill in": replace(DOMINO, layout="fill_in"),
}
MODEL = replace(TARGET, layers=2, windows=(), qkv_bias=False, tied=False)
PARD = Pard(MODEL, N, mask_token=MASK_TOKEN, drop=Drop(1, 1))
NARROW = replace(TARGET, windows=())
TIDAR = TiDAR(NARROW.layers, N)


def params_of(drafter):
    """Random ones; of heads large enough that each of their parts moves the logits."""
    params = random_params(drafter)
    if "markov" in params:
        params |= {"markov": jax.tree.map(lambda x: 4 * x, params["markov"])}
    return params | {"mask": target_params()["embed"][MASK_TOKEN]} if isinstance(drafter, Block) else params


def published(drafter, params):
    """The drafter's tensors under their published names."""
    name = "pard" if isinstance(drafter, Pard) else "deepspec" if drafter.confidence else "dflash"
    tensors = LAYOUTS[name].write(drafter, params, TARGET, target_params()).tensors
    return {name: np.asarray(tensor, np.float64) for name, tensor in tensors.items()}


def batch(mask):
    """TOKENS as one document; what `mask` marks is learnt from."""
    ones = jnp.ones((1, T), jnp.int32)
    return Batch(jnp.asarray(TOKENS)[None], jnp.arange(T)[None], ones, jnp.asarray(mask)[None])


def context(n, mask=MASK, temperature=1.0):
    """The anchor is token n."""
    ctx = training_context(TARGET, target_params(), batch(mask), step=1)
    return ctx.replace(p=jnp.array([n]), warp=Warp(temperature))


def trace(mask=MASK):
    return Trace(batch(mask), jnp.asarray(FEATURES)[None], jnp.asarray(HIDDEN)[None])


def observed(drafter, params, n):
    """The drafter's state behind n tokens."""
    tokens, place = jnp.asarray(TOKENS)[None], jnp.arange(n)[None]
    features = jnp.asarray(FEATURES[:n])[None, :, : len(drafter.taps)]
    seen = Committed(tokens[:, :n], place, tokens[:, 1 : n + 1], features, place, jnp.array([n]))
    return drafter.observe(context(n), params, drafter.empty(TARGET, 1, T), seen)


@partial(jax.jit, static_argnames=("drafter", "n"))
def drafted(drafter, params, n):
    """Behind n tokens and the anchor: a draft that is drawn, and the greedy one."""
    state = observed(drafter, params, n)
    drawn = replace(drafter, sampled=True).propose(context(n), params, state)[0]
    return drawn, drafter.propose(context(n, temperature=0.0), params, state)[0]


def config_of(drafter):
    return dflash.DFlash(GEOMETRY, drafter.layout == "anchor_first", drafter.block_mask == "causal")


def states(drafter, W, n, clean=None):
    """The predicting slots' states behind n tokens and the anchor, which is token n."""
    clean = TOKENS[n : n + 1] if clean is None else clean
    config = config_of(drafter)
    return dflash.predicting(config, dflash.states(W, config, EMBED, FEATURES[:n], clean, MASK_TOKEN, drafter.width))


def logits_of(drafter, W, hidden, previous):
    if drafter.markov == "none":
        return hidden @ UNEMBED.T
    if drafter.markov == "domino":
        return domino.logits(W, EMBED, UNEMBED, hidden, previous)
    return dspark.logits(W, UNEMBED, hidden, previous)


def greedy(drafter, W, n):
    if drafter.markov == "none":
        return dflash.draft(W, config_of(drafter), EMBED, UNEMBED, FEATURES[:n], TOKENS[n], MASK_TOKEN, drafter.width)[0]
    hidden = states(drafter, W, n)
    if drafter.markov == "domino":
        return domino.draft(W, EMBED, UNEMBED, hidden, TOKENS[n])[0]
    return dspark.draft(W, UNEMBED, hidden, TOKENS[n])[0]


@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_is_drawn_from_the_formulas_law(name):
    """Each slot from the softmax of its logits behind what was drawn before it; greedily, its argmax; and as trusted."""
    drafter, n = BLOCKS[name], 7
    params = params_of(drafter)
    W, (drawn, best) = published(drafter, params), drafted(drafter, params, n)
    hidden, previous = states(drafter, W, n), np.asarray(drawn.tokens)[0, :-1]
    logits = logits_of(drafter, W, hidden, previous)
    np.testing.assert_allclose(np.log(drawn.q[0]), layers.log_softmax(logits), atol=1e-4)
    np.testing.assert_array_equal(best.tokens[0, 1:], greedy(drafter, W, n))
    if drafter.confidence:
        expected = dspark.survival(dspark.confidence(W, hidden, previous))
        np.testing.assert_allclose(drawn.survival[0, 1:], expected, atol=1e-4)


def blocks(mask):
    """(anchor, labels [N], their mask [N]) of every anchor: learnt from itself, as is the token behind it."""
    out = []
    for n in range(T - 1):
        if mask[n] and mask[n + 1]:
            inside = np.arange(n + 1, n + 1 + N) < T
            at = np.minimum(np.arange(n + 1, n + 1 + N), T - 1)
            out.append((n, TOKENS[at], mask[at] * inside))
    return out


@pytest.mark.parametrize("name", BLOCKS)
def test_the_loss_of_a_block(name):
    """All anchors are drawn, so that none is left to chance."""
    drafter = BLOCKS[name]
    params = params_of(drafter)
    W, logits, base, trust, labels, weights, teacher = published(drafter, params), [], [], [], [], [], []
    for n, label, weight in blocks(MASK):
        hidden, previous = states(drafter, W, n), np.append(TOKENS[n], label[:-1])
        logits.append(logits_of(drafter, W, hidden, previous))
        base.append(hidden @ UNEMBED.T)
        labels.append(label)
        weights.append(weight)
        teacher.append(HIDDEN[np.minimum(np.arange(n, n + N), T - 1)] @ UNEMBED.T)
        if drafter.confidence:
            trust.append(dspark.confidence_logits(W, hidden, previous))
    if drafter.confidence:
        expected, _ = dspark.loss(logits, trust, labels, teacher, weights, drafter.decay)
    else:
        expected, uncorrected = (dflash.loss(z, labels, weights, drafter.decay, cut=True) for z in (logits, base))
        if drafter.markov == "domino":  # after one step of four
            assert abs(expected - uncorrected) > 3e-3
            expected = domino.loss(expected, uncorrected, 1 - 1 / 4)
    loss, _ = loss_of(drafter, context(0), params, trace(), jax.random.key(0))
    np.testing.assert_allclose(loss, expected, rtol=2e-5)


def test_what_the_comparison_tells_apart():
    """Readings that would load as well move the states by far more than the tolerance."""
    W = published(DFLASH, params_of(DFLASH))
    run_with = partial(dflash.states, W, embed=EMBED, mask_id=MASK_TOKEN, slots=N + 1)
    plain = run_with(config_of(DFLASH), features=FEATURES[:7], clean=TOKENS[7:8])
    for other in (
        run_with(replace(config_of(DFLASH), causal=True), features=FEATURES[:7], clean=TOKENS[7:8]),
        run_with(config_of(DFLASH), features=FEATURES[:6], clean=TOKENS[7:8]),
        run_with(config_of(DFLASH), features=FEATURES[:8], clean=TOKENS[7:8]),
        run_with(config_of(DFLASH), features=FEATURES[:7, ::-1], clean=TOKENS[7:8]),
        run_with(config_of(DFLASH), features=FEATURES[:7], clean=TOKENS[7:9]),
    ):
        assert np.abs(plain - other)[1:].max() > 1e-2
    assert np.abs(plain[1:] - plain[:-1]).max() > 1e-2


@pytest.mark.parametrize(
    "name, tensor, axis",
    [
        ("domino", "prefix_gru.weight_ih_l0", 0),
        ("domino", "prefix_gru.weight_hh_l0", 0),
        ("domino", "embed_proj.0.weight", 1),
        ("dspark, gated", "markov_head.gate_proj.weight", 1),
        ("dspark, rnn", "markov_head.joint_proj.weight", 0),
        ("dspark, rnn", "markov_head.joint_proj.weight", 1),
        ("dspark", "confidence_head.proj.weight", 1),
    ],
)
def test_what_the_comparison_of_heads_tells_apart(name, tensor, axis):
    """Gates in another order, or parts of an input; and tokens told one slot too late."""
    drafter = BLOCKS[name]
    W = published(drafter, params_of(drafter))
    hidden, previous = states(drafter, W, 6), TOKENS[6:9]

    def out(W, previous):
        trust = dspark.confidence_logits(W, hidden, previous) if drafter.confidence else np.zeros(N)
        return np.concatenate([logits_of(drafter, W, hidden, previous), trust[:, None]], axis=1)

    by = W[tensor].shape[0] // 3 if axis == 0 else W[tensor].shape[1] - TARGET.width
    for other in (out(W | {tensor: np.roll(W[tensor], by, axis)}, previous), out(W, TOKENS[5:8])):
        assert np.abs(out(W, previous) - other).max() > 1e-2


# D²SD, D-PACE


def test_a_visible_prefix():
    """One block behind the first anchor that is drawn, which is shown as many tokens as are drawn."""
    drafter, mask, seen = replace(DFLASH, visible_prefix=0.9, anchors=1), np.arange(T) > 0, set()
    params, of = params_of(drafter), trace(mask)
    W = published(DFLASH, params)
    for seed in range(5):
        key = jax.random.key(seed)
        n = int(drafter.draw_anchors(of, key)[0][0, 0])
        visible = int(drafter.draw_prefixes((1, 1), jax.random.fold_in(key, 1))[0, 0])
        _, label, valid = next(block for block in blocks(mask) if block[0] == n)
        if visible >= valid.sum():
            continue
        seen.add(visible)
        logits = states(DFLASH, W, n, np.append(TOKENS[n], label[:visible])) @ UNEMBED.T
        weights = dflash.visible_prefix_weights(N + 1, visible, drafter.decay)[1:] * dflash.supervised(valid, cut=True)
        values = [layers.cross_entropy(z, token) for z, token in zip(logits, label, strict=True)]
        loss, _ = loss_of(drafter, context(0, mask), params, of, key)
        np.testing.assert_allclose(loss, weights @ values / weights.sum(), rtol=1e-4)
    assert len(seen) > 1


@partial(jax.jit, static_argnames=("drafter", "n"))
def branched(drafter, params, n):
    """Blocks behind one anchor that are shown 0, 1 and 2 of the tokens behind it."""
    tokens = jnp.tile(jnp.asarray(TOKENS[n : n + N]), (1, N, 1))
    return drafter.branches(context(n), params, observed(drafter, params, n), tokens, jnp.arange(N)[None])


def test_branches():
    """Side by side in one pass, as each alone."""
    drafter, n = replace(DFLASH, visible_prefix=0.9), 6
    params = params_of(drafter)
    W, found = published(DFLASH, params), branched(drafter, params, n)[0]
    for visible in range(N):
        np.testing.assert_allclose(found[visible], states(DFLASH, W, n, TOKENS[n : n + visible + 1]), atol=1e-4)


def test_boundaries():
    confidence = NOISE.uniform(0.2, 1, (5, 7))
    for k in (1, 3, 7):
        expected = [dflash.boundaries(c, k) for c in confidence]
        np.testing.assert_array_equal(rejection_points(jnp.float32(confidence), k), expected)


@pytest.mark.parametrize("alpha", [0.0, 0.5])
def test_dpace(alpha):
    entropies = NOISE.uniform(0, 3, (4, 7))
    found = dpace_weights(jnp.exp(-jnp.float32(entropies)), jnp.ones((4, 7)), alpha)
    np.testing.assert_allclose(found, [dflash.pace_weights(row, alpha) for row in entropies], rtol=1e-5)


# PARD


def test_pard():
    """The law and argmax of every draft; in training, of every segment and row of the text."""
    params, n = params_of(PARD), 7
    W, (drawn, best) = published(PARD, params), drafted(PARD, params, n)
    tokens, logits = pard.draft(W, GEOMETRY, TOKENS[: n + 1], MASK_TOKEN, N)
    np.testing.assert_allclose(np.log(drawn.q[0]), layers.log_softmax(logits), atol=1e-4)
    np.testing.assert_array_equal(best.tokens[0, 1:], tokens)
    segments = pard.segment_logits(W, GEOMETRY, TOKENS, MASK_TOKEN, N)
    rows = [layers.cross_entropy(segments[i, p], TOKENS[p + 1]) for i in range(N) for p in range(i, T - 1)]
    loss, _ = loss_of(PARD, context(0), params, trace(np.ones(T, bool)), jax.random.key(0))
    np.testing.assert_allclose(loss, np.mean(rows), rtol=1e-4)


def test_pards_drops():
    for n in (10, 64):
        expected = [np.ceil(pard.keep_rate(i) * n - 1e-9) for i in range(8)]
        np.testing.assert_array_equal(Drop().counts(n, 8), expected)


# TiDAR


def tidar_weights(params):
    """The target's, and behind its embedding the row that masks read: token V."""
    W = {name: np.asarray(x, np.float64) for name, x in named(weight_names(NARROW, NAMES), target_params()).items()}
    W["model.embed_tokens.weight"] = np.vstack([W["model.embed_tokens.weight"], params["mask"]])
    return W


def test_tidar_drafts():
    """At prefill and after a step: the block behind what is committed, but for its slot in the anchor's place."""
    params, loop = random_params(TIDAR), Loop(NARROW, TIDAR, Walk(), Warp(), chunk=8)
    both, W = Params(target_params(), params), tidar_weights(params)
    state, lengths = start(loop, [TOKENS[:6].tolist()], 8, [1], 32)
    state, ends = prefill(loop, both, state, lengths), []
    for _ in range(3):
        n = int(state.p[0])
        expected = tidar.block_logits(W, GEOMETRY, np.asarray(state.tokens)[0, :n], TARGET.vocab, N + 1)
        found = NARROW.unembed(target_params(), state.drafter)[0]
        np.testing.assert_allclose(layers.log_softmax(found), layers.log_softmax(expected[1:]), atol=1e-4)
        ends.append(n)
        state = run(loop, both, state, jnp.int32(1))
    assert len(set(ends)) == 3


def test_tidars_loss():
    """Of the masks' half: blocks tile the text, and each mask is asked for its own place's token."""
    params, b = random_params(TIDAR), N + 1
    W, ctx = tidar_weights(params), training_context(NARROW, target_params(), batch(MASK))
    text = jax.jit(trace_of, static_argnums=(0, 3))(NARROW, target_params(), batch(MASK), TIDAR.taps)
    values = [tidar.block_logits(W, GEOMETRY, TOKENS[:n], TARGET.vocab, min(b, T - n)) for n in range(0, T, b)]
    rows = [layers.cross_entropy(z, token) for z, token in zip(np.concatenate(values), TOKENS, strict=True)]
    loss, _ = loss_of(TIDAR, ctx, params, text, jax.random.key(0))
    np.testing.assert_allclose(loss, np.mean(np.array(rows)[MASK]), rtol=1e-4)
    causal = np.asarray(NARROW.unembed(target_params(), text.hidden))[0]
    np.testing.assert_allclose(causal, tidar.causal_logits(W, GEOMETRY, TOKENS), atol=1e-4)
