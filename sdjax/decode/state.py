"""The state that a decode loop carries, and the static description of the loop."""

import operator
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Int, UInt

from sdjax.core.cache import Cache
from sdjax.core.sampling import Warp
from sdjax.core.types import Context, Records
from sdjax.drafters.base import Drafter
from sdjax.targets.decoder import Decoder
from sdjax.verify.base import Rule


@struct.dataclass
class Params:
    """The weights of both models; `drafter` is {} where it borrows everything."""

    target: Any
    drafter: Any


@struct.dataclass
class State:
    """Per sequence: tokens[b, :p[b] + 1] are committed, the newest being the anchor at p[b].

    Cache and drafter state cover positions 0..p-1. `last` is the position of the last token allowed. A sequence
    that is done commits nothing more.
    """

    tokens: Int[Array, "B S"]
    p: Int[Array, " B"]
    last: Int[Array, " B"]
    done: Bool[Array, " B"]
    seed: UInt[Array, " B"]
    cache: Cache
    drafter: Any
    records: Records
    step: Int[Array, ""]


def as_integer(value: Any, what: str) -> int:
    """`value` as an int; ValueError where it is not a whole number by type (1.0 is not)."""
    try:
        return operator.index(value)
    except TypeError as error:
        raise ValueError(f"{what} is {value!r}; it must be an integer") from error


@dataclass(frozen=True)
class Loop:
    """Everything static about decoding: hashable, so that one compiled program belongs to one Loop."""

    target: Decoder
    drafter: Drafter
    rule: Rule
    warp: Warp = field(default_factory=Warp)
    stop: tuple[int, ...] = ()
    chunk: int = 128

    def __post_init__(self):
        self.drafter.specs(self.target)
        object.__setattr__(self, "stop", tuple(sorted({as_integer(token, "a stop id") for token in self.stop})))
        for token in self.stop:
            if not 0 <= token < self.target.vocab:
                raise ValueError(f"stop id {token} is outside the vocabulary (0..{self.target.vocab - 1})")
        if self.chunk < 1:
            raise ValueError(f"chunk is {self.chunk}; prefill needs at least one token a chunk")
        if self.rule.chains_only and self.drafter.nodes != self.drafter.depth + 1:
            raise ValueError(
                f"{type(self.rule).__name__} judges chains only, but {type(self.drafter).__name__} drafts a tree of "
                f"{self.drafter.nodes} nodes, {self.drafter.depth} deep; take a rule for trees, such as Walk"
            )

    def context(self, params: Params, state: State) -> Context:
        """What drafter and rule may read of this state."""
        return Context(params.target, state.cache, state.tokens, state.p, state.seed, target=self.target, warp=self.warp)

    def is_stop(self, tokens: Int[Array, "..."]) -> Bool[Array, "..."]:
        return jnp.isin(tokens, jnp.array(self.stop, jnp.int32)) if self.stop else jnp.zeros(tokens.shape, bool)

    def empty(self, batch: int, capacity: int, max_steps: int) -> State:
        """Nothing committed; the anchor is still to come."""
        count = lambda *shape: jnp.zeros((batch, max_steps, *shape), jnp.int32)
        zeros = jnp.zeros(batch, jnp.int32)
        return State(
            tokens=jnp.zeros((batch, capacity), jnp.int32),
            p=zeros,
            last=zeros,
            done=jnp.zeros(batch, bool),
            seed=jnp.zeros(batch, jnp.uint32),
            cache=self.target.empty_cache(batch, capacity),
            drafter=self.drafter.empty(self.target, batch, capacity),
            records=Records(count(), count(), count(), count(), count(), count(self.drafter.depth) - 1),
            step=jnp.int32(0),
        )
