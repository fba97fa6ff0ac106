"""Prompt lookup: drafts what followed the last occurrence of the current suffix (Saxena 2023; "n-gram" in engines)."""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from sdjax.core.checks import as_integer
from sdjax.core.types import Committed, Context, Draft, Law
from sdjax.drafters.base import check_length
from sdjax.targets.decoder import Decoder, Tap
from sdjax.trees.tree import Tree


@dataclass(frozen=True)
class NGram:
    """Drafts the chain that followed the longest match of the newest tokens; of several the latest.

    A continuation that runs into the present goes on by repeating itself. Without a match every node but the anchor is
    absent.
    """

    length: int = 4
    """Tokens of a draft."""
    longest: int = 3
    """At most so many of the newest tokens are matched."""
    shortest: int = 1
    """At least so many must match, else nothing is drafted."""
    window: int = 0
    """Only so many of the last tokens are searched; 0: all."""
    taps: ClassVar[tuple[Tap, ...]] = ()
    is_chain: ClassVar[bool] = True

    def __post_init__(self):
        for size in ("longest", "shortest", "window"):
            as_integer(getattr(self, size), size)
        if not 1 <= self.shortest <= self.longest:
            raise ValueError(f"n-gram sizes must satisfy 1 ≤ shortest ≤ longest; got {self.shortest} and {self.longest}")
        check_length(self.length)
        if self.window < 0:
            raise ValueError(f"window is {self.window}; it must be ≥ 0 (0 searches all tokens)")

    @property
    def depth(self) -> int:
        return self.length

    @property
    def nodes(self) -> int:
        return self.length + 1

    def specs(self, target: Decoder) -> dict[str, Any]:
        return {}

    def empty(self, target: Decoder, batch: int, capacity: int) -> None:
        return None

    def observe(self, ctx: Context, params: Any, state: None, seen: Committed, scratch: Any = None) -> None:
        return None

    def propose(self, ctx: Context, params: Any, state: None) -> tuple[Draft, None]:
        tokens, found = jax.vmap(self.look_up)(ctx.tokens, ctx.p)
        drafted = jnp.concatenate([ctx.anchor[:, None], tokens], 1)
        valid = jnp.broadcast_to(found[:, None] | (jnp.arange(self.nodes) == 0), drafted.shape)
        return Tree.chain(self.length).draft(drafted, Law.ONE_HOT, valid=valid), None

    def look_up(self, tokens: Int[Array, " S"], p: Int[Array, ""]) -> tuple[Int[Array, " D"], Bool[Array, ""]]:
        """The continuation of the best match in one sequence, and whether there is one."""
        ends = jnp.arange(tokens.shape[0])
        matching, size = jnp.ones_like(ends, bool), jnp.zeros_like(ends)
        for back in range(self.longest):
            matching &= (ends >= back) & (jnp.roll(tokens, back) == tokens[jnp.maximum(p - back, 0)])
            size += matching
        inside = (ends < p) & ((ends > p - self.window) if self.window else True)
        size = jnp.where(inside & (size >= self.shortest), size, 0)
        end = jnp.argmax(size * tokens.shape[0] + ends * (size > 0))
        period = jnp.maximum(p - end, 1)
        return tokens[end + 1 + jnp.arange(self.length) % period], size[end] > 0

    @classmethod
    def tiny(cls, target: Decoder) -> "NGram":
        return cls(length=3, longest=2)
