"""DFlash's block behind an anchor, in both layouts (arXiv:2602.06036, §4 and A; z-lab/dflash, DeepSpec, SpecForge).

With it the same network under JetSpec's causal mask (arXiv:2606.18394), D²SD's visible prefix and choice of boundaries
(arXiv:2606.04446; catnanami/D2-SD), and D-PACE's weights (arXiv:2605.18810).

Tensors: fc.weight [E, M·E]; hidden_norm.weight, norm.weight [E]; layers.{i}.{input_layernorm, post_attention_layernorm}.weight;
layers.{i}.self_attn.{q,k,v,o}_proj.weight, q_norm, k_norm; layers.{i}.mlp.*. Embedding and output matrix are the target's.

The anchor is the token at position p = len(features); slot j stands at p + j. A fill-in slot predicts the token at p + j
(slot 0 predicts nothing), an anchor-first slot the token at p + j + 1.

Left out, where sources disagree or are silent: sliding windows (their origin, and the mask inside the block), a scaled
embedding or capped logits, the law of anchors.
"""

from dataclasses import dataclass

import numpy as np

from tests.parity.formulas.layers import Geometry, Weights, attend, cross_entropy, length, linear, project, rms_norm, swiglu


@dataclass(frozen=True)
class DFlash:
    geometry: Geometry
    anchor_first: bool = False
    causal: bool = False  # JetSpec: slot j sees slots 0 … j


def context(W: Weights, config: DFlash, features: np.ndarray) -> np.ndarray:
    """Taps [p, M, E], in the order of their ids → H [p, E] = RMSNorm(fc(concatenation)), one for all layers."""
    rows = [np.concatenate(list(np.asarray(taps, np.float64))) for taps in features]
    return rms_norm(linear(W, "fc", np.array(rows)), W["hidden_norm.weight"], config.geometry.eps)


def attention(W: Weights, name: str, config: DFlash, H: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Slots x [n, E] over [context; block]: k_proj and v_proj read H itself and the normed x, q_proj only x."""
    past = [project(W, name, row, t, config.geometry) for t, row in enumerate(H)]
    block = [project(W, name, row, len(H) + j, config.geometry) for j, row in enumerate(x)]
    out = []
    for j, (query, _, _) in enumerate(block):
        seen = past + (block[: j + 1] if config.causal else block)
        out.append(linear(W, f"{name}.o_proj", attend(query, [key for _, key, _ in seen], [value for _, _, value in seen])))
    return np.array(out)


def layer(W: Weights, name: str, config: DFlash, H: np.ndarray, x: np.ndarray) -> np.ndarray:
    eps = config.geometry.eps
    x = x + attention(W, f"{name}.self_attn", config, H, rms_norm(x, W[f"{name}.input_layernorm.weight"], eps))
    return x + swiglu(W, f"{name}.mlp", rms_norm(x, W[f"{name}.post_attention_layernorm.weight"], eps))


def states(
    W: Weights, config: DFlash, embed: np.ndarray, features: np.ndarray, clean: np.ndarray, mask_id: int, slots: int
) -> np.ndarray:
    """Slots after the final norm [slots, E].

    clean [l + 1]: the anchor alone (l = 0), or, in D²SD's second drafter, the anchor and l visible tokens; masks follow.
    """
    fed = [int(token) for token in clean] + [mask_id] * (slots - len(clean))
    x, H = np.asarray(embed[fed], np.float64), context(W, config, features)
    for i in range(length(W, "layers.{}.input_layernorm.weight")):
        x = layer(W, f"layers.{i}", config, H, x)
    return rms_norm(x, W["norm.weight"], config.geometry.eps)


def predicting(config: DFlash, block: np.ndarray) -> np.ndarray:
    """Of slots [n, …], those that predict: row m is about the token at p + 1 + m."""
    return block if config.anchor_first else block[1:]


def draft(
    W: Weights,
    config: DFlash,
    embed: np.ndarray,
    unembed: np.ndarray,
    features: np.ndarray,
    anchor: int,
    mask_id: int,
    slots: int,
) -> tuple[np.ndarray, np.ndarray]:
    """One pass, never iterated: (greedy tokens [K], logits [K, V]); K is slots, or slots − 1 in the fill-in layout."""
    block = predicting(config, states(W, config, embed, features, np.array([anchor]), mask_id, slots))
    logits = block @ np.asarray(unembed, np.float64).T
    return logits.argmax(axis=-1), logits


def decay(count: int, gamma: float) -> np.ndarray:
    """exp(−m/γ), m = 0 … count − 1: in DFlash's own count, w_k = exp(−(k − 1)/γ) with k from 1."""
    return np.array([np.exp(-m / gamma) for m in range(count)])


def supervised(mask: np.ndarray, cut: bool) -> np.ndarray:
    """A block's loss mask [K]; with `cut` (DeepSpec) nothing counts behind the first unsupervised token."""
    mask = np.asarray(mask, np.float64)
    return np.array([mask[: m + 1].min() if cut else mask[m] for m in range(len(mask))])


def loss(logits: np.ndarray, labels: np.ndarray, mask: np.ndarray, gamma: float, *, cut: bool) -> float:
    """Σ w CE / Σ w over the blocks of logits [N, K, V], labels and mask [N, K] (SpecForge and DeepSpec divide so)."""
    total = weights = 0.0
    for block, wanted, valid in zip(logits, labels, mask, strict=True):
        for row, label, weight in zip(block, wanted, decay(len(wanted), gamma) * supervised(valid, cut), strict=True):
            total += weight * cross_entropy(row, label) if weight else 0.0
            weights += weight
    return total / weights


def pace_weights(entropies: np.ndarray, alpha: float) -> np.ndarray:
    """D-PACE's weights [K] of CEs [K]: w_j = Σ_{m≥j} Π_{i≤m} q̃_i, q̃ = (1 − α) exp(−CE) + α; no gradient.

    What divides the sum, and what a mask does to the products, is not stated.
    """
    q = (1 - alpha) * np.exp(-np.asarray(entropies, np.float64)) + alpha
    return np.array([sum(np.prod(q[: m + 1]) for m in range(j, len(q))) for j in range(len(q))])


def visible_prefix_weights(slots: int, visible: int, gamma: float) -> np.ndarray:
    """D²SD's training weights of fill-in slots [slots] behind `visible` tokens: the decay restarts at slot l + 1; Σ = 1."""
    weights = np.zeros(slots)
    weights[visible + 1 :] = decay(slots - visible - 1, gamma)
    return weights / weights.sum()


def boundary_rates(confidence: np.ndarray) -> np.ndarray:
    """r(i) = Π_{k≤i} c_k · (1 − c_{i+1}), i = 0 … γ − 2, of a fill-in block's γ − 1 confidences c_1 … c_{γ−1}.

    r(i) is the chance that i drafts hold and the next one does not.
    """
    c = np.asarray(confidence, np.float64)
    return np.array([np.prod(c[:i]) * (1 - c[i]) for i in range(len(c))])


def boundaries(confidence: np.ndarray, k: int) -> list[int]:
    """The k likeliest boundaries, in order along the block; how ties are broken is not stated."""
    rates = boundary_rates(confidence)
    return sorted(sorted(range(len(rates)), key=lambda i: -rates[i])[:k])
