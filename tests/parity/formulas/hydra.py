"""Hydra and Hydra++ (Ankner et al. 2024, arXiv:2402.05109; zankner/Hydra, mlp_head.py, prefix_mlp_head.py, train.py).

Tensors of head k = 1..K, under index k − 1; Hydra++ has a dropout (no tensor) before each block and matrix, which moves the
numbers:
    plain                                        Hydra++ (`prefix`)
    hydra_mlp.{k−1}.0.linear       [E, (k+1)E]   hydra_mlp.{k−1}.1.linear           with bias, as all here
    hydra_mlp.{k−1}.0.res_connection [E, (k+1)E] hydra_mlp.{k−1}.1.res_connection
    hydra_mlp.{k−1}.{j}.linear     [E, E]        hydra_mlp.{k−1}.{2j+1}.linear      j = 1..n−1
    hydra_lm_head.{k−1}            [V, E]        hydra_lm_head.{k−1}.1
                                                 prefix_embeding_layer.layers.0.* (a Llama layer),
                                                 prefix_embeding_layer.norm.weight

`prefix` is the geometry of that layer; None is plain Hydra. Blocks j ≥ 1 are read each under its own name (the published ones
are tied: equal copies). Dropout and input noise are off.
"""

from collections.abc import Sequence

import numpy as np

from tests.parity.formulas.layers import (
    Geometry,
    Weights,
    average,
    cross_entropy,
    decoder_layer,
    length,
    linear,
    rms_norm,
    shifted,
    silu,
    smooth_l1,
    soft_cross_entropy,
    softmax,
)


def heads(W: Weights, prefix: Geometry | None) -> int:
    return length(W, "hydra_mlp.{}.0.linear.weight" if prefix is None else "hydra_mlp.{}.1.linear.weight")


def base(W: Weights, prefix: Geometry | None, hidden: np.ndarray) -> np.ndarray:
    """What takes the place of h_t: hidden [T, E] itself, or the prefix layer over all rows, RoPE at their own positions."""
    if prefix is None:
        return np.asarray(hidden, np.float64)
    x = decoder_layer(W, "prefix_embeding_layer.layers.0", hidden, np.arange(len(hidden)), prefix)
    return rms_norm(x, W["prefix_embeding_layer.norm.weight"], prefix.eps)


def head(W: Weights, prefix: Geometry | None, k: int, state: np.ndarray, path: Sequence[np.ndarray]) -> tuple:
    """Head k on one row: state [E] and the embeddings of x_{t+1} … x_{t+k} → its hidden state [E] and logits [V]."""
    number = (lambda j: j) if prefix is None else (lambda j: 2 * j + 1)
    first = f"hydra_mlp.{k - 1}.{number(0)}"
    u = np.concatenate([state, *path])
    x = linear(W, f"{first}.res_connection", u) + silu(linear(W, f"{first}.linear", u))
    j = 1
    while f"hydra_mlp.{k - 1}.{number(j)}.linear.weight" in W:
        x = x + silu(linear(W, f"hydra_mlp.{k - 1}.{number(j)}.linear", x))
        j += 1
    return x, linear(W, f"hydra_lm_head.{k - 1}" if prefix is None else f"hydra_lm_head.{k - 1}.1", x)


def outputs(
    W: Weights, prefix: Geometry | None, embed: np.ndarray, hidden: np.ndarray, tokens: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Teacher-forced hidden states [K, T, E] and logits [K, T, V]: row t of head k predicts x_{t+k+1}; NaN where t + k ≥ T."""
    count, rows = heads(W, prefix), len(tokens)
    states = np.full((count, rows, hidden.shape[-1]), np.nan)
    predictions = np.full((count, rows, len(embed)), np.nan)
    bases = base(W, prefix, hidden)
    for k in range(1, count + 1):
        for t in range(rows - k):
            path = [embed[tokens[t + d]] for d in range(1, k + 1)]
            states[k - 1, t], predictions[k - 1, t] = head(W, prefix, k, bases[t], path)
    return states, predictions


def logits(W: Weights, prefix: Geometry | None, embed: np.ndarray, hidden: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """outputs' logits [K, T, V]."""
    return outputs(W, prefix, embed, hidden, tokens)[1]


def loss(
    states: np.ndarray,
    head_logits: np.ndarray,
    hidden: np.ndarray,
    target_logits: np.ndarray,
    tokens: np.ndarray,
    mask: np.ndarray,
    *,
    denominator: str | float,
    lm: float = 0.0,
    teacher: float = 1.0,
    reconstruction: float = 0.0,
) -> tuple[float, np.ndarray]:
    """Σ_k lm · CE(x_{t+k+1}) + teacher · CE(softmax of the target's row t+k) + reconstruction · SmoothL1(head's state,
    hidden_{t+k}).

    Heads weigh the same; parts [K, 3] are the three terms of each head, unweighted. Hydra++ is 0, 1, 0 (the defaults here);
    plain is 1, 0, 0. The trainer's terms are means (denominator "mask") over rows whose label x_{t+k+1} is supervised, except
    the last, which goes by x_{t+k}; SmoothL1 is averaged over E.
    """
    rows = len(tokens)
    parts = np.zeros((len(head_logits), 3))
    for k in range(1, len(head_logits) + 1):
        values = np.full((3, rows), np.nan)
        for t in range(rows - k):
            if t + k + 1 < rows:
                values[0, t] = cross_entropy(head_logits[k - 1, t], tokens[t + k + 1])
            values[1, t] = soft_cross_entropy(softmax(target_logits[t + k]), head_logits[k - 1, t])
            values[2, t] = smooth_l1(states[k - 1, t], hidden[t + k]).mean()
        weights = [shifted(mask, k + 1), shifted(mask, k + 1), shifted(mask, k)]
        parts[k - 1] = [average(v, w, denominator) for v, w in zip(values, weights, strict=True)]
    return float((parts @ [lm, teacher, reconstruction]).sum()), parts


def draft(
    W: Weights,
    prefix: Geometry | None,
    embed: np.ndarray,
    hidden: np.ndarray,
    anchor: int,
    k: int,
    forced: Sequence[int] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """A greedy chain of k ≤ K tokens behind the anchor, from hidden [n, E] of the n tokens before it → (tokens [k], logits [k,
    V])."""
    state = base(W, prefix, hidden)[-1]
    path, drafted, predictions = [embed[anchor]], [], []
    for i in range(k):
        prediction = head(W, prefix, i + 1, state, path)[1]
        predictions.append(prediction)
        drafted.append(int(prediction.argmax()))
        if i + 1 < k:
            path.append(embed[drafted[-1] if forced is None else forced[i]])
    return np.array(drafted), np.array(predictions)
