"""What all drafters are built of: Llama's layer, one query at a time, and the pointwise losses."""

from dataclasses import dataclass
from itertools import count

import numpy as np

Weights = dict[str, np.ndarray]


@dataclass(frozen=True)
class Geometry:
    """What the shapes of a Llama layer do not tell: the head width is q_proj's rows / heads."""

    heads: int
    kv_heads: int
    theta: float = 10000.0
    eps: float = 1e-5


def linear(W: Weights, name: str, x: np.ndarray) -> np.ndarray:
    """x [..., in] → [..., out]; with a bias where W has one."""
    y = np.asarray(x, np.float64) @ np.asarray(W[f"{name}.weight"], np.float64).T
    return y + W[f"{name}.bias"] if f"{name}.bias" in W else y


def rms_norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    """weight · x / √(mean x² + eps) over the last axis."""
    x = np.asarray(x, np.float64)
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps) * weight


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def log_softmax(z: np.ndarray) -> np.ndarray:
    z = np.asarray(z, np.float64) - np.max(z, axis=-1, keepdims=True)
    return z - np.log(np.exp(z).sum(axis=-1, keepdims=True))


def softmax(z: np.ndarray) -> np.ndarray:
    return np.exp(log_softmax(z))


def rope(x: np.ndarray, position: int, theta: float) -> np.ndarray:
    """Rotates x [H, K] at one position: the pair (x_j, x_{j+K/2}) by the angle position · theta^(−2j/K)."""
    half = x.shape[-1] // 2
    angle = position * theta ** (-2 * np.arange(half) / x.shape[-1])
    first, second = x[:, :half], x[:, half:]
    return np.concatenate(
        [first * np.cos(angle) - second * np.sin(angle), second * np.cos(angle) + first * np.sin(angle)], axis=-1
    )


def project(
    W: Weights, name: str, x: np.ndarray, position: int, geometry: Geometry
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Query [H, K], key [G, K] and value [G, K] of one row x [in], rotated."""
    query = linear(W, f"{name}.q_proj", x).reshape(geometry.heads, -1)
    key = linear(W, f"{name}.k_proj", x).reshape(geometry.kv_heads, -1)
    value = linear(W, f"{name}.v_proj", x).reshape(geometry.kv_heads, -1)
    if f"{name}.q_norm.weight" in W:
        query = rms_norm(query, W[f"{name}.q_norm.weight"], geometry.eps)
        key = rms_norm(key, W[f"{name}.k_norm.weight"], geometry.eps)
    return rope(query, position, geometry.theta), rope(key, position, geometry.theta), value


def attend(query: np.ndarray, keys: list[np.ndarray], values: list[np.ndarray]) -> np.ndarray:
    """One query [H, K] over a list of keys and values [G, K] → [H·K]; query head h reads kv head h // (H/G)."""
    heads, width = query.shape
    group = heads // keys[0].shape[0]
    out = np.zeros((heads, width))
    for h in range(heads):
        scores = np.array([query[h] @ key[h // group] for key in keys]) / np.sqrt(width)
        for weight, value in zip(softmax(scores), values, strict=True):
            out[h] += weight * value[h // group]
    return out.reshape(-1)


def causal_attention(W: Weights, name: str, x: np.ndarray, positions: np.ndarray, geometry: Geometry) -> np.ndarray:
    """x [T, in] → [T, E]: row t sees rows 0..t, whatever their positions are."""
    keys, values, out = [], [], []
    for row, position in zip(x, positions, strict=True):
        query, key, value = project(W, name, row, position, geometry)
        keys.append(key)
        values.append(value)
        out.append(linear(W, f"{name}.o_proj", attend(query, keys, values)))
    return np.array(out)


def swiglu(W: Weights, name: str, x: np.ndarray) -> np.ndarray:
    """down(silu(gate(x)) · up(x))."""
    return linear(W, f"{name}.down_proj", silu(linear(W, f"{name}.gate_proj", x)) * linear(W, f"{name}.up_proj", x))


def decoder_layer(W: Weights, name: str, x: np.ndarray, positions: np.ndarray, geometry: Geometry) -> np.ndarray:
    """Llama's pre-norm layer on the residual stream, x [T, E] → [T, E]."""
    normed = rms_norm(x, W[f"{name}.input_layernorm.weight"], geometry.eps)
    x = x + causal_attention(W, f"{name}.self_attn", normed, positions, geometry)
    return x + swiglu(W, f"{name}.mlp", rms_norm(x, W[f"{name}.post_attention_layernorm.weight"], geometry.eps))


def cross_entropy(logits: np.ndarray, label: int) -> float:
    """−log softmax(logits)[label], logits [V]."""
    return float(-log_softmax(logits)[label])


def soft_cross_entropy(p: np.ndarray, logits: np.ndarray) -> float:
    """−Σ_v p_v log softmax(logits)_v."""
    return float(-(p * log_softmax(logits)).sum())


def kl_divergence(p: np.ndarray, logits: np.ndarray) -> float:
    """Σ_v p_v (log p_v − log softmax(logits)_v); 0 log 0 = 0."""
    some = p > 0
    return float((p[some] * (np.log(p[some]) - log_softmax(logits)[some])).sum())


def smooth_l1(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Elementwise: d²/2 where |d| < 1, |d| − 1/2 elsewhere."""
    d = np.abs(np.asarray(x, np.float64) - y)
    return np.where(d < 1, d**2 / 2, d - 0.5)


def shifted(mask: np.ndarray, by: int) -> np.ndarray:
    """out[t] = mask[t + by]; 0 behind the end."""
    out = np.zeros(len(mask))
    for t in range(len(mask) - by):
        out[t] = mask[t + by]
    return out


def average(values: np.ndarray, weights: np.ndarray, denominator: str | float) -> float:
    """Σ_t weights[t] · values[t] / denominator, both [T]; values of weight 0 may be NaN."""
    total = sum(weight * value for weight, value in zip(weights, values, strict=True) if weight != 0)
    if denominator == "mask":
        return total / max(np.sum(weights), 1)
    if denominator == "mask+1e-5":
        return total / (np.sum(weights) + 1e-5)
    if denominator == "positions":
        return total / len(weights)
    if isinstance(denominator, str):
        raise ValueError(f'denominator {denominator!r} is unknown: use "mask", "mask+1e-5", "positions" or a number')
    return total / denominator


def token_loss(
    logits: np.ndarray, tokens: np.ndarray, mask: np.ndarray, ahead: int, denominator: str | float, rows: int | None = None
) -> float:
    """CE of logits [T, V], where row t predicts x_{t+ahead} and has that token's weight; of the first `rows` rows, if given."""
    weights = shifted(mask, ahead)
    if rows is not None:
        weights[max(rows, 0) :] = 0
    values = np.full(len(tokens), np.nan)
    for t in range(len(tokens) - ahead):
        if weights[t] != 0:
            values[t] = cross_entropy(logits[t], tokens[t + ahead])
    return average(values, weights, denominator)


def length(W: Weights, name: str) -> int:
    """How many of name.format(0), name.format(1), … are in W."""
    return next(i for i in count() if name.format(i) not in W)
