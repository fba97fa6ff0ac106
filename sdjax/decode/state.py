"""The state that a decode loop carries, and the static description of the loop."""

from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Int, UInt

from sdjax.core.cache import Cache
from sdjax.core.checks import as_integer, as_integers
from sdjax.core.sampling import Warp
from sdjax.core.types import Context, Records
from sdjax.decode.schedule import Fixed, Schedule
from sdjax.drafters.base import Drafter
from sdjax.targets.decoder import Decoder
from sdjax.verify.base import Rule
from sdjax.verify.kseq import KSequential
from sdjax.verify.multipath import BestPath
from sdjax.verify.walk import Walk


@struct.dataclass
class Params:
    """The weights of both models; `drafter` is {} where it borrows everything."""

    target: Any
    drafter: Any


@struct.dataclass
class State:
    """Per sequence: tokens[b, :p[b] + 1] are committed, the newest being the anchor at p[b].

    Cache and drafter state cover positions 0..p-1. `last` is the position of the last token allowed. A sequence
    that is done commits nothing more. `schedule` is what the loop's schedule remembers (None without one).
    """

    tokens: Int[Array, "B S"]
    p: Int[Array, " B"]
    last: Int[Array, " B"]
    done: Bool[Array, " B"]
    seed: UInt[Array, " B"]
    cache: Cache
    drafter: Any
    schedule: Any
    records: Records
    step: Int[Array, ""]


@dataclass(frozen=True)
class Loop:
    """Everything static about decoding: hashable, so that one compiled program belongs to one Loop.

    A `schedule` cuts drafts before they are verified. `pack` has the drafts of a batch verified as one flat array, and holds
    the numbers of rows that this pass is compiled for, besides that of all drafts whole; empty: all are run whole.
    """

    target: Decoder
    drafter: Drafter
    rule: Rule
    warp: Warp = field(default_factory=Warp)
    stop: tuple[int, ...] = ()
    chunk: int = 128
    schedule: Schedule | None = None
    pack: tuple[int, ...] = ()

    def __post_init__(self):
        self.drafter.specs(self.target)
        object.__setattr__(self, "stop", as_integers(self.stop, "stop", "a stop id"))
        for token in self.stop:
            if not 0 <= token < self.target.vocab:
                raise ValueError(f"stop id {token} is outside the vocabulary (0..{self.target.vocab - 1})")
        if as_integer(self.chunk, "chunk") < 1:
            raise ValueError(f"chunk is {self.chunk}; prefill needs at least one token a chunk")
        object.__setattr__(self, "pack", as_integers(self.pack, "pack", "a width of pack"))
        if self.pack and self.pack[0] < 1:
            raise ValueError(f"pack is {self.pack}; a pass needs at least one row")
        if self.schedule and self.schedule.foresees and not (self.warp.greedy or isinstance(self.rule, Walk)):
            raise ValueError(
                f"{type(self.schedule).__name__} knows what will be accepted, which is settled only at temperature 0 or by the "
                f"walk; the temperature is {self.warp.temperature} and the rule {type(self.rule).__name__}"
            )
        reckons = isinstance(self.rule, KSequential | BestPath)
        cuts = self.schedule and not isinstance(self.schedule, Fixed)
        if reckons and cuts and not self.drafter.is_chain:
            raise ValueError(
                f"{type(self.rule).__name__} reckons with how many paths there are, and {type(self.schedule).__name__} makes "
                "that depend on their tokens: the output would not be the target's; take Recursive or Traversal, or Fixed"
            )
        if self.rule.chains_only and not self.drafter.is_chain:
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
            schedule=self.schedule.empty(batch, self.drafter.nodes) if self.schedule else None,
            records=Records(count(), count(), count(), count(), count(), count(self.drafter.depth) - 1),
            step=jnp.int32(0),
        )
