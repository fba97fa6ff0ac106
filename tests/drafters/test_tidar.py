"""TiDAR: the loop's masks are training's masks, whatever is accepted; one pass a step; the loss by its definition."""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sdjax.core.metrics import acceptance
from sdjax.core.spec import initialise
from sdjax.core.types import Batch
from sdjax.decode.generate import generate, new_tokens, prefill, run, start
from sdjax.decode.state import Loop, Params
from sdjax.decode.step import step
from sdjax.drafters.losses import cross_entropy
from sdjax.drafters.tidar import TiDAR
from sdjax.targets.decoder import Decoder
from sdjax.train.context import training_context
from sdjax.train.joint import Joint
from sdjax.train.optimiser import Optimiser
from sdjax.train.recipe import Recipe
from sdjax.train.step import train_step
from sdjax.train.tiny_world import Windows
from sdjax.verify.walk import Walk
from tests.drafters.packed_texts import OTHER, TEXT, gradients, pack, random_params, run_target, traced, unreached
from tests.tiny import NEW, PROMPTS, SEEDS, TARGET, decode, loop_of, plain, target_params

pytestmark = pytest.mark.families

DRAFTER = TiDAR(TARGET.layers, length=3)
BLOCK = DRAFTER.block
PACKED = pack([[TEXT, OTHER]], 20)


@partial(jax.jit, static_argnames="drafter")
def masks(drafter, params, trace):
    """The final state of the mask at every place of the text."""
    return drafter.run_masks(training_context(TARGET, target_params(), trace.batch), params, trace)


@dataclass(frozen=True)
class Told(TiDAR):
    """Knows what the target will write, and spoils some of it: each number of drafts is accepted at some step."""

    answer: tuple[tuple[int, ...], ...] = ()

    def propose(self, ctx, params, state):
        draft, scratch = super().propose(ctx, params, state)
        after = ctx.p[:, None] + jnp.arange(self.block)
        right = jnp.take_along_axis(jnp.asarray(self.answer), after, 1)
        spoilt = (after % 7 == 2).at[:, 0].set(False)
        return draft.replace(tokens=jnp.where(spoilt, (right + 1) % TARGET.vocab, right)), scratch


def told():
    text = [prompt + new + [0] * (64 - len(prompt + new)) for prompt, new in zip(PROMPTS, plain(0.0), strict=True)]
    return Told(TARGET.layers, 3, answer=tuple(map(tuple, text)))


def test_training_sees_what_the_loop_sees_whatever_was_accepted():
    """At prefill and behind every step, the end inside a block included; blocks lie in the text as they fall."""
    drafter, outcomes = told(), set()
    loop, params = loop_of(drafter, 0.0), Params(target_params(), random_params(drafter))
    state, lengths = start(loop, PROMPTS, NEW, SEEDS, 64)
    state = prefill(loop, params, state, lengths)
    while True:
        p = np.asarray(state.p)
        # Attention knows distances alone: any places serve that put the start of a block at p.
        positions = jnp.arange(64) + (-p[:, None]) % BLOCK
        ones = jnp.ones(positions.shape, jnp.int32)
        trace = run_target(TARGET, target_params(), Batch(state.tokens, positions, ones, ones > 0), drafter.taps)
        trained = masks(DRAFTER, params.drafter, trace)
        for b in range(len(p)):
            np.testing.assert_allclose(state.drafter[b], trained[b, p[b] + 1 : p[b] + BLOCK], atol=1e-4)
        if state.done.all():
            break
        state = run(loop, params, state, jnp.int32(1))
        outcomes |= set((np.asarray(state.p) - p).tolist())
    assert outcomes == {0, 1, 2, 3, 4}
    assert new_tokens(state, PROMPTS) == plain(0.0)
    assert set(state.records.verified[state.records.committed > 0].tolist()) == {BLOCK * (1 + BLOCK)}


@dataclass(frozen=True)
class Counting(Decoder):
    """Notes how many rows each pass, and each product with the vocabulary, has."""

    def forward(self, params, x, *rest, **options):
        passes.append(x.shape[1])
        return super().forward(params, x, *rest, **options)

    def unembed(self, params, hidden):
        products.append(hidden.shape[1])
        return super().unembed(params, hidden)


passes, products = [], []


def test_a_step_is_one_pass_and_the_vocabulary_is_met_by_what_is_used():
    passes.clear(), products.clear()
    target = Counting(**vars(TARGET))
    loop, params = Loop(target, DRAFTER, Walk()), Params(target_params(), random_params(DRAFTER))
    jax.eval_shape(lambda params: step(loop, params, loop.empty(2, 32, 4)), params)
    assert passes == [BLOCK * (1 + BLOCK)] and sorted(products) == [BLOCK - 1, BLOCK]


def test_argmaxes_change_no_token_at_temperature_1():
    assert decode(DRAFTER, 1.0).tokens == plain(1.0)


def test_packed_documents_are_as_if_alone():
    together = masks(DRAFTER, random_params(DRAFTER), traced(DRAFTER, PACKED)[1])
    for document, begin in ((TEXT, 0), (OTHER, len(TEXT))):
        alone = masks(DRAFTER, random_params(DRAFTER), traced(DRAFTER, pack([[document]], 20))[1])
        here = slice(begin, begin + len(document))
        np.testing.assert_allclose(together[:, here], alone[:, : len(document)], atol=1e-5)


def test_loss_and_figures_are_their_definitions():
    """The mask at t is asked for token t, whatever stands there; a block's first slot is learnt, and is no draft."""
    params, (ctx, trace) = random_params(DRAFTER), traced(DRAFTER, PACKED)
    logits = TARGET.unembed(target_params(), masks(DRAFTER, params, trace))[0]
    labels = np.where(np.arange(20) % 5 > 0, logits.argmax(-1), PACKED.tokens[0])
    learnt = set(range(len(TEXT + OTHER))) - {0, 6}
    mask = jnp.isin(jnp.arange(20), jnp.array(sorted(learnt)))[None]
    trace = trace.replace(batch=PACKED.replace(tokens=jnp.asarray(labels)[None], loss_mask=mask))
    loss, figures = jax.jit(DRAFTER.loss)(ctx, params, trace, jax.random.key(0))
    np.testing.assert_allclose(loss, cross_entropy(logits, labels)[mask[0]].mean(), rtol=1e-5)
    hits, runs = [[], [], []], [[], [], []]
    for first, end in ((0, 12), (4, 12), (8, 12), (12, 17), (16, 17)):
        seen = [at < end and at in learnt for at in range(first + 1, first + BLOCK)]
        hit = [at < end and logits[at].argmax() == labels[at] for at in range(first + 1, first + BLOCK)]
        for j in range(3):
            hits[j] += [hit[j]] * seen[j]
            runs[j] += [all(hit[: j + 1])] * all(seen[: j + 1])
    assert all(0 < np.mean(x) < 1 for x in (*hits, *runs))
    np.testing.assert_allclose([figures[f"accuracy_{j}"] for j in (1, 2, 3)], [np.mean(x) for x in hits], rtol=1e-6)
    np.testing.assert_allclose(figures["tau"], 1 + sum(np.mean(x) for x in runs), rtol=1e-6)


def test_gradients_reach_the_mask_and_the_text_before_each_block():
    ctx, trace = traced(DRAFTER, PACKED)
    mask, text = gradients(DRAFTER, ctx, random_params(DRAFTER), trace)
    assert unreached(mask) == []
    reached = np.flatnonzero(np.abs(text[0]).max((1, 2)) > 0)
    # Of 12 and 5 tokens: what stands before the last block's start.
    np.testing.assert_array_equal(reached, [*range(8), *range(12, 16)])


MICRO = Decoder(vocab=13, width=32, layers=2, heads=2, kv_heads=1, head_width=16, ffw=48, tied=True, max_position=256)
COUNTS = np.arange(1000) % MICRO.vocab


def test_a_target_that_learns_to_fill_in_masks_is_accepted():
    """A text that counts: once trained beside its masks, the target counts on, block by block."""
    drafter = TiDAR(MICRO.layers, 3)
    recipe = Recipe(MICRO, drafter, Optimiser(learning_rate=1e-2, steps=100, warmup=10), Joint(((0, 1.0),)))
    untrained = Params(*(initialise(specs, jax.random.key(0)) for specs in (MICRO.specs(), drafter.specs(MICRO))))
    state, texts = recipe.begin(untrained.target, untrained.drafter, seed=0), Windows(COUNTS.astype(np.uint8), 8, 24, seed=0)
    for _ in range(recipe.optimiser.steps):
        state, _ = train_step(recipe.loss, recipe.optimiser, state, untrained.target, next(texts))
    loop, prompts = Loop(MICRO, drafter, Walk(), chunk=8), [COUNTS[1:5].tolist(), COUNTS[9:16].tolist()]
    before, after = (generate(loop, params, prompts, 16) for params in (untrained, recipe.decodable(state, untrained.target)))
    assert after.tokens == [COUNTS[5:21].tolist(), COUNTS[16:32].tolist()]
    assert acceptance(before.steps, 3).tau < 2 and acceptance(after.steps, 3).tau > 3


def test_bad_configs_are_named():
    with pytest.raises(ValueError, match="length is 0"):
        TiDAR(3, 0)
    with pytest.raises(ValueError, match="layers is 0"):
        TiDAR(0)
    with pytest.raises(ValueError, match="this one has 3"):
        TiDAR(4).specs(TARGET)
