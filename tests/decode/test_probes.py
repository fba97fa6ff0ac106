"""Probes: they see what they are allowed to, reach the drafter, and change nothing else; without them nothing is added."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from sdjax.core.types import Law, Probes
from sdjax.decode.generate import new_tokens, prefill, run, start
from sdjax.decode.probes import append_probes, split_probes
from sdjax.decode.state import Params
from sdjax.drafters.no_draft import NoDraft
from sdjax.trees.tree import Tree
from tests.tiny import NEW, PROMPTS, SEEDS, TARGET, loop_of, plain, target_params

DEPTH = np.array([1, 4, 2])
# Of the nodes (the anchor and three drafts), then of the probes: behind the anchor, behind all, and among themselves.
SEES = np.array([[1, 0, 0, 0, 1, 0, 0], [1, 1, 1, 1, 0, 1, 1], [1, 0, 0, 0, 1, 0, 1]], bool)
NOISE = np.random.default_rng(0).normal(size=(3, 3, TARGET.width)).astype(np.float32)

ROOM = 64  # tokens of a text


@dataclass(frozen=True)
class Probing(NoDraft):
    """Counts on from the anchor, with three probes of noise; its state is what became of them."""

    depth: int = 3
    nodes: int = 4

    def empty(self, target, batch, capacity):
        return jnp.zeros((batch, 3, target.width))

    def observe(self, ctx, params, state, seen, scratch=None):
        return state if seen.probes is None else jnp.where(seen.count[:, None, None] > 0, seen.probes, state)

    def propose(self, ctx, params, state):
        spread = lambda x: jnp.broadcast_to(jnp.asarray(x), (len(ctx.p), *x.shape))
        probes = Probes(jnp.asarray(NOISE), spread(DEPTH), spread(SEES))
        return Tree.chain(3).draft(counted(ctx.anchor), Law.ONE_HOT).replace(probes=probes), None


def counted(anchor):
    return (anchor[:, None] + jnp.arange(4)) % TARGET.vocab


def states():
    """Before the fourth step, behind it, and at the end."""
    loop, params = loop_of(Probing(), 0.0), Params(target_params(), {})
    state, lengths = start(loop, PROMPTS, NEW, SEEDS, 256)
    state = run(loop, params, prefill(loop, params, state, lengths), jnp.int32(3))
    before = jax.device_get(state)
    state = run(loop, params, state, jnp.int32(1))
    after = jax.device_get(state)
    return before, after, jax.device_get(run(loop, params, state, jnp.int32(100)))


def alone(text, p, noise, sees):
    """What becomes of the probes in one pass over the committed tokens, the nodes and the probes, all anew."""
    x = jnp.concatenate([TARGET.embed(target_params(), np.pad(text, (0, ROOM - p - 4))), noise])[None]
    positions = np.concatenate([np.arange(ROOM), p + DEPTH])[None]
    mask = np.tril(np.ones((1, ROOM + 3, ROOM + 3), bool))
    mask[0, ROOM:] = np.arange(ROOM + 3) < p
    mask[0, ROOM:, p : p + 4], mask[0, ROOM:, ROOM:] = sees[:, :4], sees[:, 4:]
    return without_cache(x, positions, mask)[0, ROOM:]


@jax.jit
def without_cache(x, positions, mask):
    return TARGET.forward(target_params(), x, positions, TARGET.empty_cache(1, 1), mask).hidden


def test_they_see_what_they_may_reach_the_drafter_and_change_no_token():
    """With any one place of their mask turned over they would have come to something else."""
    before, after, end = states()
    assert new_tokens(end, PROMPTS) == plain(0.0)
    assert set(end.records.verified[end.records.committed > 0].tolist()) == {4 + 3}
    for b, p in enumerate(before.p):
        text = np.concatenate([before.tokens[b, :p], counted(before.tokens[b, p : p + 1])[0]])
        np.testing.assert_allclose(after.drafter[b], alone(text, p, NOISE[b], SEES), atol=1e-4)
    for row, place in np.ndindex(*SEES.shape):
        other = SEES.copy()
        other[row, place] ^= True
        assert np.abs(after.drafter[b, row] - alone(text, p, NOISE[b], other)[row]).max() > 1e-3


def test_without_probes_the_pass_is_the_nodes():
    x, depth, mask = jnp.zeros((1, 2, 4)), jnp.zeros((1, 2)), jnp.ones((1, 2, 2), bool)
    assert [a is b for a, b in zip(append_probes(None, x, depth, mask), (x, depth, mask), strict=True)] == [True] * 3
    hidden, probed = split_probes(None, x)
    assert hidden is x and probed is None
