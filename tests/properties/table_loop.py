"""A target and a drafter that are tables, for the real compiled loop: laws are known exactly, and steps cost nothing.

The next token depends on the newest one alone. The drafter can be told to make a published mistake.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from sdjax.core.cache import KV, Staged, empty_cache
from sdjax.core.sampling import Warp
from sdjax.core.spec import Spec, zeros
from sdjax.core.types import Law
from sdjax.decode.generate import generate
from sdjax.decode.state import Loop, Params
from sdjax.targets.decoder import Forward
from sdjax.trees.draw import draw_children
from sdjax.trees.tree import Tree

VOCAB = 3


def table(vocab: int) -> Spec:
    """A row of logits for each token."""
    return Spec((vocab, vocab), jnp.float32, (None, None), zeros)


@dataclass(frozen=True)
class TableTarget:
    """Logits are params[newest token]; the cache is one number a token, there only to be committed."""

    vocab: int = VOCAB
    max_position: int = 4096

    def specs(self) -> Spec:
        return table(self.vocab)

    def empty_cache(self, batch, capacity):
        return empty_cache(1, batch, 1, capacity, 1, jnp.float32)

    def embed(self, params, tokens):
        return tokens[..., None].astype(jnp.float32)

    def forward(self, params, x, positions, cache, mask, *, scratch=None, taps=(), pack=None):
        row = KV(x[:, None], x[:, None])
        return Forward(x, jnp.zeros((*x.shape[:2], 0, 1)), Staged([row], positions))

    def unembed(self, params, hidden):
        return params[hidden[..., 0].astype(jnp.int32)]


@dataclass(frozen=True)
class TableDrafter:
    """Draws a tree of equal widths from q = softmax(params[parent's token]), level by level.

    `reuse_noise` keys the draft by a fixed position: the same noise in every round (X19).
    """

    widths: tuple[int, ...]
    law: Law
    reuse_noise: bool = False
    taps: ClassVar[tuple] = ()

    @property
    def tree(self) -> Tree:
        return Tree.branching(*self.widths)

    @property
    def depth(self) -> int:
        return len(self.widths)

    @property
    def nodes(self) -> int:
        return self.tree.nodes

    @property
    def is_chain(self) -> bool:
        return self.tree.is_chain

    def specs(self, target) -> Spec:
        return table(target.vocab)

    def empty(self, target, batch, capacity):
        return ()

    def observe(self, ctx, params, state, seen, scratch=None):
        return ()

    def propose(self, ctx, params, state):
        noise = ctx.replace(p=jnp.zeros_like(ctx.p)) if self.reuse_noise else ctx
        level, levels, rows = ctx.tokens[jnp.arange(ctx.p.shape[0]), ctx.p][:, None], [], []
        levels.append(level)
        for depth, width in enumerate(self.widths, 1):
            drawn = draw_children(params[level], (width,) * level.shape[1], self.law, noise, depth)
            level = drawn.tokens
            levels.append(level)
            rows.append(drawn.q)
        q = None if rows[0] is None else jnp.concatenate(rows, 1)
        law = Law.ONE_HOT if q is None else self.law
        return self.tree.draft(jnp.concatenate(levels, 1), law, q), None


def streams(rule: Any, drafter: TableDrafter, tables: tuple, count: int, new: int, seed: int = 0) -> np.ndarray:
    """`count` sequences of `new` tokens behind the prompt [0], through `generate`."""
    loop = Loop(TableTarget(), drafter, rule, Warp(1.0), chunk=1)
    params = Params(jnp.asarray(tables[0]), jnp.asarray(tables[1]))
    made = generate(loop, params, [[0]] * count, new, seeds=range(seed, seed + count))
    return np.array(made.tokens)


def law_of_streams(logits: np.ndarray, new: int) -> np.ndarray:
    """The exact joint law of `new` tokens behind token 0: [V] * new."""
    p = np.asarray(jax.nn.softmax(jnp.asarray(logits)), np.float64)
    p /= p.sum(-1, keepdims=True)
    law = p[0]
    for _ in range(new - 1):
        law = law[..., None] * p
    return law
