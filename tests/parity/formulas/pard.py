"""PARD: one causal pass over the text and K − 1 masks drafts K tokens (arXiv:2504.18583; AMD-AGI/PARD).

Tensors: an ordinary causal language model's, model.embed_tokens.weight, model.layers.{i}.*, model.norm.weight, lm_head.weight
(absent where it is the embedding). The mask is one shared token, its embedding a row of the model's own.

Left out: PARD-2's target features; what divides the loss.
"""

import numpy as np

from tests.parity.formulas.layers import Geometry, Weights, decoder_layer, length, linear, rms_norm


def causal_logits(W: Weights, geometry: Geometry, tokens: np.ndarray) -> np.ndarray:
    """tokens [T] at positions 0 … T − 1 → [T, V]."""
    x = np.asarray(W["model.embed_tokens.weight"], np.float64)[np.asarray(tokens)]
    for i in range(length(W, "model.layers.{}.input_layernorm.weight")):
        x = decoder_layer(W, f"model.layers.{i}", x, np.arange(len(x)), geometry)
    head = "lm_head" if "lm_head.weight" in W else "model.embed_tokens"
    return linear(W, head, rms_norm(x, W["model.norm.weight"], geometry.eps))


def draft(W: Weights, geometry: Geometry, tokens: np.ndarray, mask_id: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The text [n], the anchor last → greedy tokens [K] and logits [K, V]: the last K of the text and K − 1 masks."""
    logits = causal_logits(W, geometry, np.concatenate([tokens, np.full(k - 1, mask_id)]))[-k:]
    return logits.argmax(axis=-1), logits


def segment_logits(W: Weights, geometry: Geometry, tokens: np.ndarray, mask_id: int, k: int) -> np.ndarray:
    """Training [K, T, V]: row p of segment i predicts x_{p+1}; NaN where p < i.

    Query (i, p) sees the real tokens ≤ p − i and the masks at p − i + 1 … p: draft i + 1 behind a text that ends at p − i.
    """
    out = np.full((k, len(tokens), len(W["model.embed_tokens.weight"])), np.nan)
    for i in range(k):
        for p in range(i, len(tokens)):
            out[i, p] = draft(W, geometry, tokens[: p - i + 1], mask_id, i + 1)[1][-1]
    return out


def keep_rate(segment: int, rate: float = 0.7, floor: float = 0.2) -> float:
    """COD's share of a segment's rows that are trained on, max(r^i, r_min); (i, p) only where (i − 1, p − 1) is."""
    return max(rate**segment, floor)
