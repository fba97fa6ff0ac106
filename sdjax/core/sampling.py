"""From logits to the law that is sampled, and the noise it is sampled with.

`Warp` is applied once, by these functions, to target, drafter and plain decoding alike. Noise is keyed, never
carried: the target's by (sequence seed, position of the token emitted), every other coin by (sequence seed,
anchor position, purpose, depth, rank), so no coin is used twice and none depends on batch, padding or drafter.
"""

import math
from dataclasses import dataclass
from enum import IntEnum

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, Key, UInt

from sdjax.core.checks import as_integer, check_number
from sdjax.core.whole import whole

LEAST_TEMPERATURE = 1e-6  # below it, logits of a few hundred leave float32 behind


@dataclass(frozen=True)
class Warp:
    """Temperature, then top-k, top-p, min-p, renormalised in between."""

    temperature: float = 0.0
    """Divides the logits; 0 is argmax."""
    top_k: int = 0
    """Only the k likeliest tokens, and what ties with the last of them; 0: all."""
    top_p: float = 1.0
    """A token stays while the mass strictly above it is less than this; 1: all do."""
    min_p: float = 0.0
    """A token stays with at least this share of the likeliest one's mass; 0: all do."""

    def __post_init__(self):
        for name in ("temperature", "top_p", "min_p"):
            check_number(getattr(self, name), name)
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ValueError(f"temperature is {self.temperature}; it must be a finite number ≥ 0 (0 is argmax)")
        if 0 < self.temperature < LEAST_TEMPERATURE:
            raise ValueError(f"temperature is {self.temperature}; below {LEAST_TEMPERATURE} logits overflow: take 0, argmax")
        if as_integer(self.top_k, "top_k") < 0:
            raise ValueError(f"top_k is {self.top_k}; it must be a whole number ≥ 0 (0 switches it off)")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p is {self.top_p}; it must lie in (0, 1] (1 switches it off)")
        if not 0 <= self.min_p <= 1:
            raise ValueError(f"min_p is {self.min_p}; it must lie in [0, 1] (0 switches it off)")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0


def warp_logits(logits: Float[Array, "... V"], warp: Warp) -> Float[Array, "... V"]:
    """Logits of the law that is sampled at temperature > 0: -inf where a token is dropped."""
    logits = logits.astype(jnp.float32) / warp.temperature
    if 0 < warp.top_k < logits.shape[-1]:
        threshold = top_k(logits, warp.top_k)[0][..., -1:]
        logits = jnp.where(logits >= threshold, logits, -jnp.inf)
    if warp.top_p < 1:
        p = jax.nn.softmax(logits)
        logits = jnp.where(p >= nucleus_threshold(p, warp.top_p)[..., None], logits, -jnp.inf)
    if warp.min_p > 0:
        floor = logits.max(-1, keepdims=True) + math.log(warp.min_p)
        logits = jnp.where(logits >= floor, logits, -jnp.inf)
    return logits


def top_k(x: Float[Array, "... V"], k: int) -> tuple[Float[Array, "... k"], Int[Array, "... k"]]:
    """lax.top_k, the best of up to 64 blocks first: on a vocabulary that is split over devices only these are exchanged."""
    blocks = math.gcd(x.shape[-1], 64)
    size = x.shape[-1] // blocks
    if blocks == 1 or k >= size:
        best, ids = lax.top_k(x, k)
        return best, ids
    best, ids = lax.top_k(x.reshape(*x.shape[:-1], blocks, size), k)
    ids = whole((ids + size * jnp.arange(blocks)[:, None]).reshape(*x.shape[:-1], -1))
    best, place = lax.top_k(whole(best.reshape(ids.shape)), k)
    return best, jnp.take_along_axis(ids, place, -1)


def nucleus_threshold(p: Float[Array, "... V"], top_p: float) -> Float[Array, "..."]:
    """The least value x such that the mass strictly above x is < top_p: exact, and without sorting V.

    Non-negative floats order as their bit patterns do, so 31 halvings of an integer interval find it.
    """

    def halve(_, bounds):
        low, high = bounds
        middle = low + (high - low) // 2
        above = jnp.sum(jnp.where(p > lax.bitcast_convert_type(middle, jnp.float32)[..., None], p, 0), -1)
        enough = above < top_p
        return jnp.where(enough, low, middle + 1), jnp.where(enough, middle, high)

    low = jnp.zeros(p.shape[:-1], jnp.int32)
    high = lax.bitcast_convert_type(p.max(-1), jnp.int32)
    return lax.bitcast_convert_type(lax.fori_loop(0, 31, halve, (low, high))[1], jnp.float32)


def warped_probs(logits: Float[Array, "... V"], warp: Warp) -> Float[Array, "... V"]:
    """The law that is sampled, float32: one-hot at the argmax where temperature is 0."""
    if warp.greedy:
        return jax.nn.one_hot(jnp.argmax(logits, -1), logits.shape[-1], dtype=jnp.float32)
    return jax.nn.softmax(warp_logits(logits, warp))


class Purpose(IntEnum):
    """Which stream a coin comes from; two streams never meet."""

    TARGET = 0  # the target's own draw: keyed by position alone
    DRAFT = 1  # the drafter's draws
    ACCEPT = 2  # a rule's accept/reject coins
    RESIDUAL = 3  # a rule's last draw, from the residual


def coin_key(
    seed: UInt[Array, ""],
    position: Int[Array, ""],
    purpose: Purpose,
    depth: Int[Array, ""] | int = 0,
    rank: Int[Array, ""] | int = 0,
) -> Key[Array, ""]:
    """The key of one coin of one sequence. `position` is the anchor's; for TARGET, the emitted token's."""
    key = jax.random.fold_in(jax.random.key(seed), position)
    key = jax.random.fold_in(key, int(purpose))
    return jax.random.fold_in(jax.random.fold_in(key, depth), rank)


def draw(logits: Float[Array, " V"], key: Key[Array, ""]) -> Int[Array, ""]:
    """A token from softmax(logits), by the Gumbel maximum."""
    return jnp.argmax(logits + jax.random.gumbel(key, logits.shape, jnp.float32)).astype(jnp.int32)


def target_choice(logits: Float[Array, " V"], warp: Warp, seed: UInt[Array, ""], position: Int[Array, ""]) -> Int[Array, ""]:
    """The target's own choice of the token at `position`: plain decoding emits it, the walk follows it."""
    if warp.greedy:
        return jnp.argmax(logits).astype(jnp.int32)
    return draw(warp_logits(logits, warp), coin_key(seed, position, Purpose.TARGET))
