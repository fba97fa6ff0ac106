"""EAGLE-3 and its training-time test (Li et al. 2025, arXiv:2503.01840; SafeAILab/EAGLE cnets.py, SpecForge, speculators).

Tensors: fc.weight [E, M·E]; midlayer.{input_layernorm, hidden_norm, post_attention_layernorm}.weight;
midlayer.self_attn.{q,k,v}_proj [·, 2E], o_proj; midlayer.mlp.*; norm.weight; lm_head.weight [Vd, E]; d2t int [Vd], offsets:
target id = i + d2t[i]; t2d bool [V]. Without d2t and t2d the draft vocabulary is the target's. Optional: fc_norm.{m}.weight
[E], input_norm.weight [M·E].

Where sources differ: the concatenation goes straight into q, k, v (code), not through another matrix (paper); `norm_output` has
speculators' meaning: the state fed back is the normed one. `norm_before_fc` acts first, `fc_norm` second (speculators' order).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tests.parity.formulas.layers import (
    Geometry,
    Weights,
    attend,
    average,
    causal_attention,
    kl_divergence,
    linear,
    project,
    rms_norm,
    shifted,
    soft_cross_entropy,
    softmax,
    swiglu,
)


@dataclass(frozen=True)
class Eagle3:
    geometry: Geometry
    norm_before_residual: bool = False  # the residual is the normed feature
    norm_output: bool = False  # the state fed back is the normed one
    fc_norm: bool = False  # one RMSNorm a tap, before fc
    norm_before_fc: bool = False  # one RMSNorm over the concatenation, before fc


def fuse(W: Weights, config: Eagle3, features: np.ndarray) -> np.ndarray:
    """Taps [T, M, E], low to high, → g [T, E]."""
    rows, taps, width = features.shape
    x = np.asarray(features, np.float64).reshape(rows, taps * width)
    if config.norm_before_fc:
        x = rms_norm(x, W["input_norm.weight"], config.geometry.eps)
    if config.fc_norm:
        parts = x.reshape(rows, taps, width)
        parts = [rms_norm(parts[:, m], W[f"fc_norm.{m}.weight"], config.geometry.eps) for m in range(taps)]
        x = np.concatenate(parts, axis=-1)
    return linear(W, "fc", x)


def inputs(W: Weights, config: Eagle3, hidden: np.ndarray, embedded: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What attention reads [n, 2E], embedding first, and the residual [n, E]."""
    normed = rms_norm(hidden, W["midlayer.hidden_norm.weight"], config.geometry.eps)
    embedded = rms_norm(embedded, W["midlayer.input_layernorm.weight"], config.geometry.eps)
    return np.concatenate([embedded, normed], axis=-1), normed if config.norm_before_residual else hidden


def finish(W: Weights, config: Eagle3, residual: np.ndarray, attended: np.ndarray) -> np.ndarray:
    x = residual + attended
    return x + swiglu(W, "midlayer.mlp", rms_norm(x, W["midlayer.post_attention_layernorm.weight"], config.geometry.eps))


def layer(W: Weights, config: Eagle3, hidden: np.ndarray, embedded: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Rows (feature [n, E], embedding of the next token [n, E]) → outputs before the final norm [n, E]."""
    u, residual = inputs(W, config, hidden, embedded)
    attended = causal_attention(W, "midlayer.self_attn", u, positions, config.geometry)
    return finish(W, config, residual, attended)


def readout(W: Weights, config: Eagle3, state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Output before the norm [..., E] → logits [..., Vd] and the state to feed back [..., E]."""
    normed = rms_norm(state, W["norm.weight"], config.geometry.eps)
    return linear(W, "lm_head", normed), normed if config.norm_output else state


def to_target(W: Weights, token: int) -> int:
    return int(token + W["d2t"][token]) if "d2t" in W else int(token)


def draft(
    W: Weights,
    config: Eagle3,
    embed: np.ndarray,
    features: np.ndarray,
    tokens: np.ndarray,
    k: int,
    forced: Sequence[int] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """features [n, M, E], tokens [n + 1] (the last is the anchor) → (target ids [k], logits [k, Vd]).

    Rows (g_0, x_1) … (g_{n−1}, x_n) at positions 0 … n−1; then each step's output and token are the next row, at the next
    position.
    """
    states, fed = list(fuse(W, config, features)), [int(t) for t in tokens[1:]]
    drafted, predictions = [], []
    for i in range(k):
        state = layer(W, config, np.array(states), embed[fed], np.arange(len(fed)))[-1]
        prediction, back = readout(W, config, state)
        predictions.append(prediction)
        drafted.append(to_target(W, int(prediction.argmax())))
        if i + 1 < k:
            states.append(back)
            fed.append(drafted[-1] if forced is None else int(forced[i]))
    return np.array(drafted), np.array(predictions)


def logits(W: Weights, config: Eagle3, embed: np.ndarray, features: np.ndarray, tokens: np.ndarray, steps: int) -> np.ndarray:
    """Training-time test [steps, T, Vd]: row r of step i predicts x_{r+2+i}; NaN where r + 1 + i ≥ T.

    Each row is a draft of its own from the prefix of r + 1 features, with the text's tokens in place of the drafted ones.
    """
    rows = len(tokens)
    out = np.full((steps, rows, len(W["lm_head.weight"])), np.nan)
    for r in range(rows - 1):
        k = min(steps, rows - 1 - r)
        out[:k, r] = draft(W, config, embed, features[: r + 1], tokens[: r + 2], k, forced=tokens[r + 2 :])[1]
    return out


def diagonal_logits(
    W: Weights, config: Eagle3, embed: np.ndarray, features: np.ndarray, tokens: np.ndarray, steps: int
) -> np.ndarray:
    """The same by the mask [tril | I | I | …]: query (i, r) sees the keys (0, j ≤ r) and (1, r) … (i, r), each at its own
    position."""
    rows = len(tokens)
    out = np.full((steps, rows, len(W["lm_head.weight"])), np.nan)
    hidden = fuse(W, config, features)
    keys: list[list[np.ndarray]] = []
    values: list[list[np.ndarray]] = []
    for i in range(min(steps, rows - 1)):
        hidden = hidden[: rows - 1 - i]
        u, residual = inputs(W, config, hidden, embed[tokens[1 + i :]])
        each = [project(W, "midlayer.self_attn", u[r], r + i, config.geometry) for r in range(len(u))]
        keys.append([key for _, key, _ in each])
        values.append([value for _, _, value in each])
        attended = []
        for r, (query, _, _) in enumerate(each):
            seen = keys[0][: r + 1] + [keys[j][r] for j in range(1, i + 1)]
            read = values[0][: r + 1] + [values[j][r] for j in range(1, i + 1)]
            attended.append(linear(W, "midlayer.self_attn.o_proj", attend(query, seen, read)))
        out[i, : len(u)], hidden = readout(W, config, finish(W, config, residual, np.array(attended)))
    return out


def loss(
    W: Weights,
    step_logits: np.ndarray,
    target_logits: np.ndarray,
    mask: np.ndarray,
    *,
    denominator: str | float,
    decay: float = 0.8,
    mask_shift: int = 1,
    vocabulary_mask: bool = True,
    divergence: str = "ce",
) -> tuple[float, np.ndarray]:
    """Σ_i decay^i · mean over r of m · CE(p, q): q of row r at step i against the target's row r + 1 + i; parts [steps].

    p is the softmax of the target's logits on t2d's ids. m = mask[r + i + mask_shift] · 1[the target's argmax over V is in the
    draft vocabulary]. Recommended (the defaults): shift 1, the mask of the row's own embedded token, with the vocabulary mask,
    and denominator "mask" (Σ m of that step). SafeAILab and SpecForge: shift 0, "positions". speculators: shift 1, "mask", no
    vocabulary mask, decay 1, divergence "kl" (the same gradient). Shift 2 is the mask of the predicted token.
    """
    if divergence not in ("ce", "kl"):
        raise ValueError(f'divergence {divergence!r} is unknown: use "ce" or "kl"')
    measure = {"ce": soft_cross_entropy, "kl": kl_divergence}[divergence]
    rows = len(target_logits)
    kept = np.asarray(W["t2d"], bool) if "t2d" in W else np.ones(target_logits.shape[-1], bool)
    parts = np.zeros(len(step_logits))
    for i in range(len(step_logits)):
        values, weights = np.full(rows, np.nan), shifted(mask, i + mask_shift)
        for r in range(rows):
            label = r + 1 + i
            if label >= rows or (vocabulary_mask and not kept[target_logits[label].argmax()]):
                weights[r] = 0
            else:
                values[r] = measure(softmax(target_logits[label][kept]), step_logits[i, r])
        parts[i] = average(values, weights, denominator)
    return float(sum(decay**i * part for i, part in enumerate(parts))), parts
