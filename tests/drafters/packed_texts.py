"""Packed texts and random heads, for tests of multi-token prediction."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from sdjax.core.types import Batch
from sdjax.decode.generate import prefill, start
from sdjax.decode.state import Params
from sdjax.targets.packed import trace_of
from sdjax.train.context import training_context
from tests.tiny import PROMPTS, TARGET, drafter_params, loop_of, target_params

TEXT = [3, 17, 5, 9, 9, 21, 2, 14, 8, 11, 26, 1]
OTHER = [7, 4, 19, 22, 6]


def pack(rows, length):
    """Each row's documents one behind the other, padded to `length`; every token is learnt from."""
    fill = lambda parts: np.pad(np.concatenate(parts), (0, length - sum(map(len, parts))))
    table = lambda of: jnp.array([fill([of(i, text) for i, text in enumerate(row, 1)]) for row in rows], jnp.int32)
    segments = table(lambda i, text: np.full(len(text), i))
    return Batch(table(lambda i, text: text), table(lambda i, text: np.arange(len(text))), segments, segments > 0)


def traced(drafter, batch, target=TARGET):
    """A context for losses, and the target's states on a batch."""
    return training_context(target, target_params(), batch), run_target(target, target_params(), batch, drafter.taps)


run_target = jax.jit(trace_of, static_argnums=(0, 3))


@partial(jax.jit, static_argnames="drafter")
def random_params(drafter):
    """Parameters in which nothing is zero or one."""
    wobble = lambda x: x + 0.2 * jax.random.normal(jax.random.key(5), x.shape)
    return jax.tree.map(lambda x: wobble(x) if x.dtype == jnp.float32 else x, drafter_params(drafter))


@partial(jax.jit, static_argnames="drafter")
def loss_of(drafter, ctx, params, trace):
    return drafter.loss(ctx, params, trace, jax.random.key(0))[0]


@partial(jax.jit, static_argnames="drafter")
def gradients(drafter, ctx, params, trace):
    """Of the loss, by the name of each parameter that is not an id; and by the target's tapped states."""
    named, treedef = jax.tree_util.tree_flatten_with_path(params)
    name = jax.tree_util.keystr
    learnt = {name(path): leaf for path, leaf in named if leaf.dtype == jnp.float32}

    def loss(learnt, features):
        leaves = [learnt.get(name(path), leaf) for path, leaf in named]
        return drafter.loss(ctx, jax.tree.unflatten(treedef, leaves), trace.replace(features=features), jax.random.key(0))[0]

    return jax.grad(loss, (0, 1))(learnt, trace.features)


def unreached(gradient):
    """The parameters without a gradient; a bias that all keys share has none, for it moves every score alike."""
    assert all(np.isfinite(x).all() for x in gradient.values())
    return [name for name, x in gradient.items() if not np.abs(x).max() > 0 and "k_bias" not in name]


def rows_that_predict(*texts):
    """Of texts packed into one row: the places that have a token two further, the nearest that a head guesses."""
    starts = np.cumsum([0, *map(len, texts)])
    return np.concatenate([start + np.arange(len(text) - 2) for start, text in zip(starts, texts, strict=False)])


def prefilled(drafter, params, temperature):
    """The context and the drafter's state right after prefill of PROMPTS."""
    loop, both = loop_of(drafter, temperature), Params(target_params(), params)
    state, lengths = start(loop, PROMPTS, 8, [1, 2, 3], 64)
    state = prefill(loop, both, state, lengths)
    return loop.context(both, state), state.drafter


@partial(jax.jit, static_argnames="drafter")
def observe(drafter, ctx, params, state, seen):
    return drafter.observe(ctx, params, state, seen)


@partial(jax.jit, static_argnames="drafter")
def propose(drafter, ctx, params, state):
    return drafter.propose(ctx, params, state)[0]
