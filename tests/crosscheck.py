"""Drafters that exist to check the loop: one that knows the answer, one that knows nothing."""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array

from sdjax.core.sampling import Purpose, coin_key
from sdjax.core.types import Law, rows
from sdjax.drafters.self_draft import SelfDraft
from sdjax.trees.tree import Tree


@dataclass(frozen=True)
class Oracle:
    """Drafts what answer[b] holds behind the anchor: everything must be accepted, up to `right` a step."""

    answer: tuple[tuple[int, ...], ...]
    length: int
    right: int = 1 << 30
    taps: ClassVar = ()
    is_chain: ClassVar = True

    @property
    def depth(self):
        return self.length

    @property
    def nodes(self):
        return self.length + 1

    def specs(self, target):
        return {}

    def empty(self, target, batch, capacity):
        return None

    def observe(self, ctx, params, state, seen, scratch=None):
        return None

    def propose(self, ctx, params, state):
        answer = jnp.array(self.answer)
        at = jnp.minimum(ctx.p[:, None] + jnp.arange(self.nodes), answer.shape[1] - 1)
        wrong = jnp.arange(self.nodes) > self.right
        tokens = (rows(answer, at) + wrong) % ctx.target.vocab
        return Tree.chain(self.length).draft(tokens, Law.ONE_HOT), None


@dataclass(frozen=True)
class Uniform:
    """Drafts a chain drawn uniformly from the vocabulary."""

    length: int
    taps: ClassVar = ()
    is_chain: ClassVar = True

    @property
    def depth(self):
        return self.length

    @property
    def nodes(self):
        return self.length + 1

    def specs(self, target):
        return {}

    def empty(self, target, batch, capacity):
        return None

    def observe(self, ctx, params, state, seen, scratch=None):
        return None

    def propose(self, ctx, params, state):
        vocab = ctx.target.vocab

        def one(seed, p, depth):
            return jax.random.randint(coin_key(seed, p, Purpose.DRAFT, depth), (), 0, vocab)

        depths = jnp.arange(1, self.nodes)
        drafts = jax.vmap(jax.vmap(one, (None, None, 0)), (0, 0, None))(ctx.seed, ctx.p, depths)
        q = jnp.full((ctx.p.shape[0], self.length, vocab), 1 / vocab)
        return Tree.chain(self.length).draft(jnp.concatenate([ctx.anchor[:, None], drafts], 1), Law.IID, q), None


@struct.dataclass
class Seen:
    """All that a drafter was told, by position."""

    features: Array
    next_tokens: Array
    times: Array


@dataclass(frozen=True)
class Recorder:
    """Drafts as `drafter` does (which must keep no state), and writes down what it observes."""

    drafter: SelfDraft
    taps: ClassVar = ("embed", 1, "final")
    is_chain: ClassVar = True

    @property
    def depth(self):
        return self.drafter.depth

    @property
    def nodes(self):
        return self.drafter.nodes

    def specs(self, target):
        return {}

    def empty(self, target, batch, capacity):
        features = jnp.zeros((batch, capacity, len(self.taps), target.width))
        return Seen(features, jnp.zeros((batch, capacity), jnp.int32), jnp.zeros((batch, capacity), jnp.int32))

    def observe(self, ctx, params, state, seen, scratch=None):
        place = jnp.arange(seen.tokens.shape[1])
        at = jnp.where(place < seen.count[:, None], seen.positions, state.times.shape[1])
        batch = jnp.arange(at.shape[0])[:, None]
        return Seen(
            state.features.at[batch, at].set(seen.features, mode="drop"),
            state.next_tokens.at[batch, at].set(seen.next_tokens, mode="drop"),
            state.times.at[batch, at].add(1, mode="drop"),
        )

    def propose(self, ctx, params, state):
        return self.drafter.propose(ctx, params, None)
