"""TiDAR: one model that reads text causally and fills a block of masks behind it (arXiv:2511.08923).

Tensors: a causal language model's, as in pard.py.

Left out, since the sources at hand do not state it: how β mixes causal and diffusion logits, what divides each
cross-entropy, how the mask's embedding is trained.
"""

import numpy as np

from tests.parity.formulas.layers import Geometry, Weights, attend, length, linear, project, rms_norm, swiglu


def attention(W: Weights, name: str, x: np.ndarray, sees: np.ndarray, geometry: Geometry) -> np.ndarray:
    """x [T, E] at positions 0 … T − 1; row t sees the rows of sees[t]."""
    rows = [project(W, name, row, t, geometry) for t, row in enumerate(x)]
    out = []
    for t, (query, _, _) in enumerate(rows):
        seen = [rows[s] for s in np.flatnonzero(sees[t])]
        out.append(linear(W, f"{name}.o_proj", attend(query, [key for _, key, _ in seen], [value for _, _, value in seen])))
    return np.array(out)


def logits(W: Weights, geometry: Geometry, tokens: np.ndarray, sees: np.ndarray) -> np.ndarray:
    x, eps = np.asarray(W["model.embed_tokens.weight"], np.float64)[np.asarray(tokens)], geometry.eps
    for i in range(length(W, "model.layers.{}.input_layernorm.weight")):
        name = f"model.layers.{i}"
        normed = rms_norm(x, W[f"{name}.input_layernorm.weight"], eps)
        x = x + attention(W, f"{name}.self_attn", normed, sees, geometry)
        x = x + swiglu(W, f"{name}.mlp", rms_norm(x, W[f"{name}.post_attention_layernorm.weight"], eps))
    head = "lm_head" if "lm_head.weight" in W else "model.embed_tokens"
    return linear(W, head, rms_norm(x, W["model.norm.weight"], eps))


def causal_logits(W: Weights, geometry: Geometry, tokens: np.ndarray) -> np.ndarray:
    """The clean half, shifted labels: row t predicts x_{t+1}."""
    return logits(W, geometry, tokens, np.tri(len(tokens), dtype=bool))


def block_logits(W: Weights, geometry: Geometry, prefix: np.ndarray, mask_id: int, b: int) -> np.ndarray:
    """b masks behind a clean prefix [n], [b, V], unshifted labels: row j, at position n + j, predicts x_{n+j} itself.

    The prefix is read causally; each mask sees all of it and all of the block. In training, block j stands behind the clean
    text before it; in decoding, one such block stands behind each length that the verified block may be accepted to.
    """
    n = len(prefix)
    sees = np.tri(n + b, dtype=bool)
    sees[n:] = True
    return logits(W, geometry, np.concatenate([prefix, np.full(b, mask_id)]), sees)[n:]


def loss(causal: float, diffusion: float, alpha: float = 1.0) -> float:
    """(α · AR + Diff) / (1 + α)."""
    return (alpha * causal + diffusion) / (1 + alpha)
