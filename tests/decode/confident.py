"""A drafter that says how sure it is, for tests of schedules: what it says varies with every step, and is sometimes absurd."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from sdjax.core.sampling import Purpose, coin_key
from sdjax.core.types import rows
from sdjax.decode.schedule import Throughput
from sdjax.drafters.self_draft import SelfDraft
from sdjax.trees.hardware import CostCurve
from sdjax.trees.tree import Tree

SAMPLED = SelfDraft(layers=1, length=3, sampled=True)


@dataclass(frozen=True)
class Sure:
    """Drafts as `drafter` does, or, with a `tree`, its chain beside the last token's successors; adds survivals."""

    drafter: Any = SAMPLED
    tree: Tree | None = None

    @property
    def taps(self):
        return self.drafter.taps

    @property
    def depth(self):
        return self.tree.depth if self.tree else self.drafter.depth

    @property
    def nodes(self):
        return self.tree.nodes if self.tree else self.drafter.nodes

    @property
    def is_chain(self):
        return (self.tree or self.drafter).is_chain

    def specs(self, target):
        return self.drafter.specs(target)

    def empty(self, target, batch, capacity):
        return self.drafter.empty(target, batch, capacity)

    def observe(self, ctx, params, state, seen, scratch=None):
        return self.drafter.observe(ctx, params, state, seen, None)

    def propose(self, ctx, params, state):
        draft, _ = self.drafter.propose(ctx, params, state)
        if self.tree:
            rank, depth = jnp.array(self.tree.ranks), jnp.array(self.tree.depths)
            tokens = (rows(draft.tokens, jnp.broadcast_to(depth, (ctx.p.shape[0], len(depth)))) + rank) % ctx.target.vocab
            draft = self.tree.draft(tokens, draft.law)

        def said(seed, p):
            return jax.random.uniform(coin_key(seed, p, Purpose.DRAFT, 99), (self.nodes,), minval=0.3, maxval=1.2)

        conditional = jax.vmap(said)(ctx.seed, ctx.p).at[:, 0].set(1)
        survival = conditional
        for node in range(1, self.nodes):
            above = jnp.take_along_axis(survival, draft.parent[:, node : node + 1], 1)[:, 0]
            survival = survival.at[:, node].set(jnp.minimum(above * conditional[:, node], above))
        return draft.replace(survival=survival), None


def linear_costs(most, step=0.15):
    """A pass's time grows by `step` of a plain pass with every row."""
    return Throughput(CostCurve((1, most), (1.0, 1 + step * (most - 1)), 0.0))
