"""EAGLE-1, whose weights EAGLE-2 uses too (Li et al. 2024, arXiv:2401.15077; SafeAILab/EAGLE cnets1.py, train/main.py).

Tensors: fc.weight [E, 2E] and, unless the config says `bias: false`, fc.bias; layers.0.self_attn.{q,k,v,o}_proj,
layers.0.mlp.*, layers.0.post_attention_layernorm. The file's embed_tokens.weight is the target's: `embed`. No input norm, no
final norm.
"""

from collections.abc import Sequence

import numpy as np

from tests.parity.formulas.layers import (
    Geometry,
    Weights,
    average,
    causal_attention,
    linear,
    rms_norm,
    shifted,
    smooth_l1,
    soft_cross_entropy,
    softmax,
    swiglu,
)


def layer(W: Weights, geometry: Geometry, hidden: np.ndarray, embedded: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Rows (hidden [n, E], embedding of the next token [n, E]) → predictions of the next hidden state [n, E]."""
    x = linear(W, "fc", np.concatenate([embedded, hidden], axis=-1))
    x = x + causal_attention(W, "layers.0.self_attn", x, positions, geometry)
    return x + swiglu(W, "layers.0.mlp", rms_norm(x, W["layers.0.post_attention_layernorm.weight"], geometry.eps))


def outputs(
    W: Weights,
    geometry: Geometry,
    embed: np.ndarray,
    unembed: np.ndarray,
    hidden: np.ndarray,
    tokens: np.ndarray,
    noise: np.ndarray | float = 0.0,
) -> tuple[np.ndarray, np.ndarray]:
    """Teacher-forced: predicted states [T, E] (row t: hidden_{t+1}) and logits [T, V] (row t: x_{t+2}); the last row is NaN.

    noise [T, E] is added to the inputs only. It is U(−0.1, 0.1) in the paper, U(−0.1, 0.1) · 512 / T in the code.
    """
    rows = len(tokens)
    states = np.full((rows, hidden.shape[-1]), np.nan)
    states[:-1] = layer(W, geometry, (hidden + noise)[:-1], embed[tokens[1:]], np.arange(rows - 1))
    return states, states @ np.asarray(unembed, np.float64).T


def logits(
    W: Weights, geometry: Geometry, embed: np.ndarray, unembed: np.ndarray, hidden: np.ndarray, tokens: np.ndarray
) -> np.ndarray:
    """outputs' logits [T, V], without noise."""
    return outputs(W, geometry, embed, unembed, hidden, tokens)[1]


def loss(
    states: np.ndarray,
    unembed: np.ndarray,
    hidden: np.ndarray,
    mask: np.ndarray,
    *,
    denominator: str | float,
    mask_shift: int = 1,
    value_weight: float = 1.0,
    probability_weight: float = 0.1,
) -> tuple[float, np.ndarray]:
    """SmoothL1(hidden_{t+1}, state_t), averaged over E, + 0.1 · CE(softmax(head hidden_{t+1}), softmax(head state_t)); parts
    [2].

    Row t has the weight mask[t + mask_shift], and none at the last row: shift 0 is the published trainer (weight of the row's
    own token), 1 is recommended (what decoding uses: row t is the last of the prompt when x_{t+1} is the first token of the
    answer), 2 is the predicted token. The trainer's denominator is "mask+1e-5".
    """
    head = np.asarray(unembed, np.float64)
    rows = len(hidden)
    weights = shifted(mask, mask_shift)
    weights[-1] = 0
    values = np.full((2, rows), np.nan)
    for t in range(rows - 1):
        values[0, t] = smooth_l1(states[t], hidden[t + 1]).mean()
        values[1, t] = soft_cross_entropy(softmax(head @ hidden[t + 1]), head @ states[t])
    parts = np.array([average(v, weights, denominator) for v in values])
    return float(parts @ [value_weight, probability_weight]), parts


def draft(
    W: Weights,
    geometry: Geometry,
    embed: np.ndarray,
    unembed: np.ndarray,
    hidden: np.ndarray,
    tokens: np.ndarray,
    k: int,
    forced: Sequence[int] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """hidden [n, E], tokens [n + 1] (the last is the anchor) → (tokens [k], logits [k, V]); own output and token are the next
    row."""
    states, fed = list(hidden), [int(t) for t in tokens[1:]]
    drafted, predictions = [], []
    for i in range(k):
        state = layer(W, geometry, np.array(states), embed[fed], np.arange(len(fed)))[-1]
        predictions.append(np.asarray(unembed, np.float64) @ state)
        drafted.append(int(predictions[-1].argmax()))
        if i + 1 < k:
            states.append(state)
            fed.append(drafted[-1] if forced is None else int(forced[i]))
    return np.array(drafted), np.array(predictions)
