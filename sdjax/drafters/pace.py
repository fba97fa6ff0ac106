"""How long the next draft should be, from how the last ones went (DiffuSpec's controller, arXiv:2510.02358, §4.3)."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int


@struct.dataclass
class Pace:
    """Moving averages, per sequence: of the tokens that drafts held before a stop token, and of those accepted.

    The one part of a drafter's state that is no function of the committed tokens.
    """

    generated: Float[Array, " B"]
    accepted: Float[Array, " B"]


@dataclass(frozen=True)
class Controller:
    """k = clip(⌊generated⌋ + growth · [accepted ≥ generated], shortest, longest); averages move by `rate`.

    The averages begin at `longest`, and so does k. Without a stop token in its drafts a sequence's k never shrinks.
    """

    shortest: int
    longest: int
    growth: int = 10
    rate: float = 0.5

    def __post_init__(self):
        if not 1 <= self.shortest <= self.longest:
            raise ValueError(f"lengths must satisfy 1 ≤ shortest ≤ longest; got {self.shortest} and {self.longest}")
        if self.growth < 0 or not 0 < self.rate <= 1:
            raise ValueError(f"growth is {self.growth} and rate {self.rate}; take growth ≥ 0 and a rate in (0, 1]")

    def begin(self, batch: int) -> Pace:
        return Pace(*(jnp.full(batch, self.longest, jnp.float32) for _ in range(2)))

    def length(self, pace: Pace) -> Int[Array, " B"]:
        """k, the tokens to draft next."""
        grown = jnp.floor(pace.generated) + self.growth * (pace.accepted >= pace.generated)
        return jnp.clip(grown.astype(jnp.int32), self.shortest, self.longest)

    def follow(self, pace: Pace, generated: Int[Array, " B"], count: Int[Array, " B"]) -> Pace:
        """Behind a step that committed `count` tokens, the anchor among them; 0: it took no part."""
        old, new = (pace.generated, pace.accepted), (generated, count - 1)
        moved = jax.tree.map(lambda x, y: jnp.where(count > 0, (1 - self.rate) * x + self.rate * y, x), old, new)
        return Pace(*moved)
