"""Texts, packed or not, and states on them, for tests of losses along a text."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from sdjax.core.sampling import Warp
from sdjax.core.spec import Spec
from sdjax.core.types import Batch, Context
from sdjax.decode.generate import prefill, start
from sdjax.decode.state import Params
from sdjax.targets.packed import trace_of
from sdjax.train.context import training_context
from tests.tiny import PROMPTS, TARGET, drafter_params, loop_of, target_params

SHAPE = 12, 40  # of every batch, so that each loss compiles once
DOCUMENTS = [[3, 1, 4, 1, 5, 9, 2, 6], [5, 3, 5, 8, 9, 7, 9], [2, 7, 1, 8, 2, 8]]


def batch_of(*rows):
    """Rows of documents one behind the other; of each document all but the first two tokens are learnt from."""
    tokens, positions, segments, mask = (np.zeros(SHAPE, np.int32) for _ in range(4))
    for b, documents in enumerate(rows):
        at = 0
        for segment, document in enumerate(documents, 1):
            here = slice(at, at + len(document))
            tokens[b, here], positions[b, here], segments[b, here] = document, range(len(document)), segment
            mask[b, at + 2 : at + len(document)] = 1
            at += len(document)
    return Batch(jnp.asarray(tokens), jnp.asarray(positions), jnp.asarray(segments), jnp.asarray(mask.astype(bool)))


def packed():
    """Three documents in two rows."""
    return traced(batch_of(DOCUMENTS[:2], DOCUMENTS[2:]))


def unpacked():
    """The same three, each in its own row."""
    return traced(batch_of(*([document] for document in DOCUMENTS)))


run_target = jax.jit(lambda batch: trace_of(TARGET, target_params(), batch, ("final",)))


def traced(batch):
    """A context for losses, and the trace of the tiny target."""
    return training_context(TARGET, target_params(), batch), run_target(batch)


def bare_context(target, params, batch):
    """A context in which the target is its shape and `params`."""
    zeros = jnp.zeros(batch.tokens.shape[0], jnp.int32)
    cache = target.empty_cache(batch.tokens.shape[0], 1)
    return Context(params, cache, batch.tokens, zeros, zeros.astype(jnp.uint32), target=target, warp=Warp())


@partial(jax.jit, static_argnames="drafter")
def random_params(drafter):
    """Parameters of a drafter of TARGET in which nothing is zero."""
    wobble = lambda x: x + 0.2 * jax.random.normal(jax.random.key(5), x.shape)
    return jax.tree.map(lambda x: wobble(x) if x.dtype == jnp.float32 else x, drafter_params(drafter))


@partial(jax.jit, static_argnames="drafter")
def loss_of(drafter, ctx, params, trace, key=None):
    return drafter.loss(ctx, params, trace, key)


@partial(jax.jit, static_argnames="drafter")
def propose(drafter, ctx, params, state):
    return drafter.propose(ctx, params, state)[0]


def prefilled(drafter, params, temperature):
    """The context and the drafter's state right after prefill of PROMPTS."""
    loop, both = loop_of(drafter, temperature), Params(target_params(), params)
    state, lengths = start(loop, PROMPTS, 8, [1, 2, 3], 64)
    state = prefill(loop, both, state, lengths)
    return loop.context(both, state), state.drafter


def gradients(drafter, ctx, params, trace):
    """The gradient of every leaf that is trained, by its name."""
    is_spec = lambda x: isinstance(x, Spec)
    specs = jax.tree.leaves(drafter.specs(TARGET), is_leaf=is_spec)
    named, treedef = jax.tree_util.tree_flatten_with_path(params)
    learnt = {jax.tree_util.keystr(path): leaf for (path, leaf), spec in zip(named, specs, strict=True) if spec.trainable}

    def loss(learnt, ctx, trace):
        leaves = [learnt.get(jax.tree_util.keystr(path), leaf) for path, leaf in named]
        return drafter.loss(ctx, jax.tree.unflatten(treedef, leaves), trace, jax.random.key(0))[0]

    return jax.jit(jax.grad(loss))(learnt, ctx, trace)
