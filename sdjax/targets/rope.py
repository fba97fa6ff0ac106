"""Rotary position embedding (Su et al. 2021, arXiv:2104.09864) and its published extensions to long contexts."""

import math
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int


@dataclass(frozen=True)
class Llama3Scaling:
    """Llama-3.1's piecewise scaling: low frequencies are slowed by `factor`, high ones kept, the middle blended."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position: int


@dataclass(frozen=True)
class YarnScaling:
    """YaRN (Peng et al. 2023, arXiv:2309.00071): interpolation by wavelength, and a correction of the attention's scale.

    `attention_factor` None means 0.1 ln(factor) + 1; `truncate` rounds the correction range to whole dimensions.
    """

    factor: float
    original_max_position: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    truncate: bool = True


@dataclass(frozen=True)
class LinearScaling:
    """Position interpolation: every frequency divided by `factor`."""

    factor: float


@dataclass(frozen=True)
class Rope:
    """Rotation by halves ("neox" order): dimension i turns with dimension i + K/2."""

    theta: float = 10_000.0
    scaling: Llama3Scaling | YarnScaling | LinearScaling | None = None

    def frequencies(self, head_width: int) -> np.ndarray:
        """Radians per position, float64 [K/2]."""
        plain = self.theta ** (-np.arange(0, head_width, 2, dtype=np.float64) / head_width)
        match self.scaling:
            case None:
                return plain
            case LinearScaling(factor):
                return plain / factor
            case Llama3Scaling():
                return _llama3(plain, self.scaling)
            case YarnScaling():
                return _yarn(plain, self.scaling, self.theta, head_width)

    @property
    def magnitude(self) -> float:
        """What cosine and sine are multiplied with: YaRN's attention factor, else 1."""
        if not isinstance(self.scaling, YarnScaling):
            return 1.0
        if self.scaling.attention_factor is not None:
            return self.scaling.attention_factor
        return 0.1 * math.log(self.scaling.factor) + 1.0 if self.scaling.factor > 1 else 1.0

    def angles(self, positions: Int[Array, "B T"], head_width: int) -> tuple[Float[Array, "B T k"], Float[Array, "B T k"]]:
        """Cosine and sine for k = K/2 pairs, float32: computed once a forward pass."""
        turn = positions[..., None].astype(jnp.float32) * jnp.asarray(self.frequencies(head_width), jnp.float32)
        return jnp.cos(turn) * self.magnitude, jnp.sin(turn) * self.magnitude


def rotate(x: Float[Array, "B T H K"], angles: tuple[Float[Array, "B T k"], Float[Array, "B T k"]]) -> Float[Array, "B T H K"]:
    """Turns each pair (i, i + K/2) of every head by its angle."""
    cos, sin = (a[:, :, None] for a in angles)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1).astype(x.dtype)


def _llama3(plain: np.ndarray, scaling: Llama3Scaling) -> np.ndarray:
    turns = scaling.original_max_position * plain / (2 * np.pi)  # full turns within the original context
    blend = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    blend = np.clip(blend, 0, 1)
    return (1 - blend) * plain / scaling.factor + blend * plain


def _yarn(plain: np.ndarray, scaling: YarnScaling, theta: float, head_width: int) -> np.ndarray:
    def dimension(turns: float) -> float:
        """The (fractional) pair that makes `turns` full turns within the original context."""
        return head_width * math.log(scaling.original_max_position / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = dimension(scaling.beta_fast), dimension(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_width - 1)
    ramp = np.clip((np.arange(head_width // 2) - low) / max(high - low, 1e-3), 0, 1)
    return plain * (1 - ramp) + plain / scaling.factor * ramp
