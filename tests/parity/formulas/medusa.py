"""Medusa's heads and losses (Cai et al. 2024, arXiv:2401.10774, §2.1.1, §2.2; FasterDecoding/Medusa, axolotl's trainer).

Tensors of head k = 1..K, under index k − 1:
    medusa_head.{k−1}.{j}.linear.weight [E, E], .bias [E]    residual block j = 0..n−1
    medusa_head.{k−1}.{n}.weight [V, E]                      no bias; absent where the target's output matrix is shared

Recommended readings: `hidden` is taken after the final norm; each of n blocks is read under its own name (the published code
repeats one object, so its files hold n equal copies).
"""

import numpy as np

from tests.parity.formulas.layers import Weights, average, kl_divergence, length, linear, silu, softmax, token_loss


def heads(W: Weights) -> int:
    return length(W, "medusa_head.{}.0.linear.weight")


def logits(W: Weights, unembed: np.ndarray, hidden: np.ndarray) -> np.ndarray:
    """hidden [T, E] → [K, T, V]: row t of head k predicts x_{t+k+1}. W2 (SiLU(W1 h + b) + h), §2.1.1."""
    out = []
    for k in range(heads(W)):
        x = np.asarray(hidden, np.float64)
        blocks = length(W, f"medusa_head.{k}.{{}}.linear.weight")
        for j in range(blocks):
            x = x + silu(linear(W, f"medusa_head.{k}.{j}.linear", x))
        own = W.get(f"medusa_head.{k}.{blocks}.weight", unembed)
        out.append(x @ np.asarray(own, np.float64).T)
    return np.array(out)


def loss(
    head_logits: np.ndarray,
    tokens: np.ndarray,
    mask: np.ndarray,
    *,
    denominator: str | float,
    decay: float = 0.8,
    coefficient: float = 1.0,
) -> tuple[float, np.ndarray]:
    """Medusa-1: coefficient · Σ_k decay^k · CE(head k at t, x_{t+k+1}), k from 1; parts [K] are the plain CEs.

    The trainer's CE is a mean over supervised labels, for each head apart: denominator "mask". It multiplies by 0.2 even here.
    """
    parts = np.array([token_loss(z, tokens, mask, k + 1, denominator) for k, z in enumerate(head_logits, start=1)])
    return coefficient * sum(decay**k * part for k, part in enumerate(parts, start=1)), parts


def sine_ramp(step: int, max_steps: int) -> float:
    """Medusa-2's weight of the heads' loss over time: sin(π/2 · step / max_steps)."""
    return float(np.sin(np.pi / 2 * step / max_steps))


def joint_loss(
    heads_loss: float,
    target_logits: np.ndarray,
    tokens: np.ndarray,
    mask: np.ndarray,
    *,
    denominator: str | float,
    weight: float = 0.2,
    original_logits: np.ndarray | None = None,
) -> float:
    """Medusa-2: L_LM + weight · L_Medusa-1, weight = λ_0 · ramp. With original_logits L_LM is KL(p_orig || p):
    self-distillation.

    Row t of either term has the weight of the token that it predicts, x_{t+1}.
    """
    if original_logits is None:
        return token_loss(target_logits, tokens, mask, 1, denominator) + weight * heads_loss
    values = np.array([kl_divergence(softmax(p), q) for p, q in zip(original_logits, target_logits, strict=True)])
    return average(values, np.append(mask[1:], 0), denominator) + weight * heads_loss


def draft(W: Weights, unembed: np.ndarray, hidden: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """hidden [E] of the last row before the anchor → greedy tokens [K] behind the anchor, logits [K, V]."""
    each = logits(W, unembed, hidden[None])[:, 0]
    return each.argmax(axis=-1), each
