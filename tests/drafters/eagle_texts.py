"""Texts and states on them for EAGLE's heads and block drafters, and what all of these must keep."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import jaxprs_in_params

from sdjax.core.cache import Cache
from sdjax.core.sampling import Warp
from sdjax.core.types import Batch, Committed
from sdjax.targets.packed import trace_of
from sdjax.train.context import training_context
from tests.tiny import TARGET, drafter_params, target_params


def batch_of(rows, length):
    """Rows of documents one behind the other; of each document all but the first two tokens are learnt from."""
    tokens, positions, segments, learnt = (np.zeros((len(rows), length), np.int32) for _ in range(4))
    for b, documents in enumerate(rows):
        end = 0
        for number, document in enumerate(documents, 1):
            here = slice(end, end := end + len(document))
            tokens[b, here], segments[b, here] = document, number
            positions[b, here] = np.arange(len(document))
            learnt[b, here] = positions[b, here] >= 2
    return Batch(*map(jnp.asarray, (tokens, positions, segments, learnt.astype(bool))))


WEIGHTS = target_params()
LENGTHS = np.array([11, 7, 1])  # of the prompts, anchors apart
TEXTS = np.random.default_rng(3).integers(0, TARGET.vocab, (3, 24))
DOCUMENTS = [TEXTS[0, :13].tolist(), TEXTS[1, :9].tolist()]
PACKED, ALONE = batch_of([DOCUMENTS], 24), batch_of([[document] for document in DOCUMENTS], 24)


@cache
def random_params(drafter):
    """Random weights; norms and biases random too, lest one be taken for another."""
    wobble = lambda x: x + 0.3 * jax.random.normal(jax.random.key(7), x.shape) if x.ndim == 1 and x.dtype != int else x
    return jax.tree.map(lambda x: wobble(x) if x.dtype == jnp.float32 else x, drafter_params(drafter))


@partial(jax.jit, static_argnames="taps")
def traced(batch, taps):
    return trace_of(TARGET, WEIGHTS, batch, taps)


def context_of(batch):
    """A context whose anchors stand behind the prompts, at temperature 1."""
    seed = jnp.arange(len(batch.tokens), dtype=jnp.uint32)
    ctx = training_context(TARGET, WEIGHTS, batch)
    return ctx.replace(p=jnp.asarray(LENGTHS[: len(seed)]), seed=seed, warp=Warp(1.0))


def committed(trace, start, count, width):
    """`width` rows from `start[b]` on, of which `count[b]` count."""
    at = jnp.asarray(start)[:, None] + jnp.arange(width)
    take = lambda x, at: jnp.stack([row[i] for row, i in zip(x, jnp.minimum(at, x.shape[1] - 1), strict=True)])
    tokens = trace.batch.tokens
    node = jnp.broadcast_to(jnp.arange(width), at.shape)
    return Committed(take(tokens, at), at, take(tokens, at + 1), take(trace.features, at), node, jnp.asarray(count))


@partial(jax.jit, static_argnames="drafter")
def observe(drafter, params, batch, state, seen):
    return drafter.observe(context_of(batch), params, state, seen)


@partial(jax.jit, static_argnames="drafter")
def propose(drafter, params, batch, state):
    return drafter.propose(context_of(batch), params, state)[0]


def texts(tokens=TEXTS):
    return batch_of([[row.tolist()] for row in np.asarray(tokens)], 24)


def prompted(drafter):
    """The state behind the prompts, all rows at once."""
    batch = texts()
    seen = committed(traced(batch, drafter.taps), np.zeros(3, int), LENGTHS, 24)
    return observe(drafter, random_params(drafter), batch, drafter.empty(TARGET, 3, 48), seen)


def drafted(drafter):
    """A draft behind the prompts, and the prompts with the draft's first path behind them."""
    draft = propose(drafter, random_params(drafter), texts(), prompted(drafter))
    tokens, path = TEXTS.copy(), [0]
    while len(below := np.flatnonzero(np.asarray(draft.parent)[0] == path[-1])):
        path.append(int(below[0]))
    for b, length in enumerate(LENGTHS):
        tokens[b, length + 1 : length + len(path)] = np.asarray(draft.tokens)[b, path[1:]]
    return draft, texts(tokens)


def check_history(drafter, seed):
    """Any split into steps, with rejected rows behind the accepted ones, leaves the state of one long `observe`."""
    batch, random, width = texts(), np.random.default_rng(seed), 4
    params, trace = random_params(drafter), traced(texts(), drafter.taps)
    state, p = drafter.empty(TARGET, 3, 48), np.zeros(3, int)
    while (p < LENGTHS).any():
        count = np.minimum(random.integers(0, width + 1, 3), LENGTHS - p)
        seen = committed(trace, p, count, width)
        rejected = (np.arange(width) >= count[:, None])[..., None, None]
        seen = seen.replace(features=jnp.where(rejected, 9.0, seen.features))
        state, p = observe(drafter, params, batch, state, seen), p + count
    once = prompted(drafter)
    is_cache = lambda x: isinstance(x, Cache)
    cache = next(x for x in jax.tree.leaves(state, is_leaf=is_cache) if is_cache(x))
    np.testing.assert_array_equal(cache.length, LENGTHS)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), state, once)


def with_gradient(drafter):
    """loss(params, trace) -> ((value, metrics), gradients of both)."""

    def loss(params, trace):
        return drafter.loss(training_context(TARGET, WEIGHTS, trace.batch), params, trace, jax.random.key(0))

    return jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True, allow_int=True))


def floats(tree):
    """The leaves that can have a gradient, by name."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {jax.tree_util.keystr(path): np.asarray(x) for path, x in leaves if x.dtype in (jnp.float32, np.float32)}


def check_packing(drafter, loss):
    """Documents packed in a row give the loss and the gradients that they give in rows of their own."""
    params = random_params(drafter)
    (value, metrics), (gradient, _) = loss(params, traced(PACKED, drafter.taps))
    (alone, metrics_alone), (gradient_alone, _) = loss(params, traced(ALONE, drafter.taps))
    np.testing.assert_allclose(value, alone, rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), metrics, metrics_alone)
    assert_close_gradients(gradient, gradient_alone)


def assert_close_gradients(one, other):
    other = floats(other)
    for name, x in floats(one).items():
        np.testing.assert_allclose(x, other[name], atol=2e-4 * np.abs(x).max() + 1e-7, err_msg=name)


def check_gradients(drafter, loss, frozen=()):
    """They reach every parameter that is learnt, and the states of a document from its own tokens alone."""
    batch = PACKED.replace(loss_mask=PACKED.loss_mask & (PACKED.segments == 1))
    trace = traced(PACKED, drafter.taps).replace(batch=batch)
    _, (params, states) = loss(random_params(drafter), trace)
    dead = [name for name, x in floats(params).items() if not np.abs(x).max() > 0 and name not in frozen]
    assert not dead
    by_row = np.abs(states.features).max((0, 2, 3))
    assert by_row[:13].max() > 0 and not by_row[13:].any()


def shapes(jaxpr):
    """Of every array that a program makes, inner programs included."""
    for equation in jaxpr.eqns:
        yield from (var.aval.shape for var in equation.outvars)
        for inner in jaxprs_in_params(equation.params):
            yield from shapes(inner)
