"""DeepSeek-V3's multi-token prediction (arXiv:2412.19437, §2.2), and one module unrolled K steps (FastMTP, arXiv:2509.18362).

Tensors of module `layer` (its number in the checkpoint: num_hidden_layers + depth − 1), all under model.layers.{layer}:
    enorm.weight, hnorm.weight [E]; eh_proj.weight [E, 2E]; self_attn.*, mlp.*, input_layernorm, post_attention_layernorm
    (Llama's layer); shared_head.norm.weight [E]. embed_tokens and shared_head.head are the target's: `embed`, `unembed`.

Where sources differ: eh_proj reads [embedding ; hidden] (released weights), not the paper's order; `hidden` is h^0, recommended
after the target's final norm; what goes on to the next depth is shared_head.norm's output (`feed_normed`), which False replaces
by the raw state. The block is a Llama layer, with the halves' RoPE, in place of V3's latent attention and experts.
"""

from collections.abc import Sequence

import numpy as np

from tests.parity.formulas.layers import Geometry, Weights, decoder_layer, linear, rms_norm, token_loss


def module(
    W: Weights, layer: int, geometry: Geometry, hidden: np.ndarray, embedded: np.ndarray, positions: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Rows (hidden [n, E], token's embedding [n, E]) → the block's raw output and the same after shared_head.norm, [n, E]
    each."""
    name = f"model.layers.{layer}"
    e = rms_norm(embedded, W[f"{name}.enorm.weight"], geometry.eps)
    h = rms_norm(hidden, W[f"{name}.hnorm.weight"], geometry.eps)
    raw = decoder_layer(W, name, linear(W, f"{name}.eh_proj", np.concatenate([e, h], axis=-1)), positions, geometry)
    return raw, rms_norm(raw, W[f"{name}.shared_head.norm.weight"], geometry.eps)


def embedding(embed: np.ndarray, tokens: Sequence[int], zero_first: bool) -> np.ndarray:
    """Rows of embed; zero_first: row 0's is zero, as vLLM does at position 0."""
    out = np.array(embed[np.asarray(tokens)], np.float64)
    if zero_first:
        out[0] = 0
    return out


def logits(
    W: Weights,
    layers: Sequence[int],
    geometry: Geometry,
    embed: np.ndarray,
    unembed: np.ndarray,
    hidden: np.ndarray,
    tokens: np.ndarray,
    *,
    feed_normed: bool = True,
    zero_first: bool = False,
) -> np.ndarray:
    """The causal chain [D, T, V]: row t of depth k predicts x_{t+k+1} from h^{k−1}_t and x_{t+k}; NaN where t + k ≥ T.

    Depth k attends among its own rows, at positions t. layers names the module of each depth; one module K times is FastMTP's
    and speculators' training: own output fed back, the text's tokens, causal attention in each step.
    """
    rows = len(tokens)
    out = np.full((len(layers), rows, len(unembed)), np.nan)
    for k, layer in enumerate(layers, start=1):
        hidden = hidden[: rows - k]
        raw, normed = module(W, layer, geometry, hidden, embedding(embed, tokens[k:], zero_first), np.arange(rows - k))
        out[k - 1, : rows - k] = normed @ np.asarray(unembed, np.float64).T
        hidden = normed if feed_normed else raw
    return out


def recursive_logits(
    W: Weights,
    layer: int,
    geometry: Geometry,
    embed: np.ndarray,
    unembed: np.ndarray,
    hidden: np.ndarray,
    tokens: np.ndarray,
    steps: int,
    *,
    feed_normed: bool = True,
    zero_first: bool = False,
) -> np.ndarray:
    """One module drafting recursively as it is served [steps, T, V]: each row is a draft of its own from the prefix of t + 1
    states.

    Step i (0-based) of row t predicts x_{t+2+i}; it sees the first step's keys up to t and its own later ones, at t+1 … t+i, as
    EAGLE's training-time test does. The chain above differs from step 1 on; at step 0 they are equal.
    """
    rows = len(tokens)
    out = np.full((steps, rows, len(unembed)), np.nan)
    for r in range(rows - 1):
        k = min(steps, rows - 1 - r)
        prefix = (hidden[: r + 1], tokens[: r + 2])
        options = {"feed_normed": feed_normed, "zero_first": zero_first}
        out[:k, r] = draft_recursive(W, layer, geometry, embed, unembed, *prefix, k, forced=tokens[r + 2 :], **options)[1]
    return out


def depth_weights(depths: int, strength: float = 0.3) -> np.ndarray:
    """λ / D for each depth (λ = 0.3, later 0.1)."""
    return np.full(depths, strength / depths)


def step_weights(steps: int, beta: float = 0.6) -> np.ndarray:
    """β^(k−1), normalised to sum 1: [.51, .31, .18] for K = 3."""
    weights = beta ** np.arange(steps)
    return weights / weights.sum()


def loss(
    depth_logits: np.ndarray,
    tokens: np.ndarray,
    mask: np.ndarray,
    weights: np.ndarray,
    *,
    denominator: str | float,
    same_rows: bool = False,
) -> tuple[float, np.ndarray]:
    """Σ_k weights[k−1] · CE(depth k at t, x_{t+k+1}), weighed by the predicted token's mask; parts [D].

    The paper divides each depth by T ("positions") although it has T − k terms. speculators: denominator "mask", and same_rows:
    all steps count only rows t < T − K − 1, whose K labels all exist.
    """
    rows = len(tokens) - len(depth_logits) - 1 if same_rows else None
    parts = [token_loss(z, tokens, mask, k + 1, denominator, rows) for k, z in enumerate(depth_logits, start=1)]
    return float(np.dot(weights, parts)), np.array(parts)


def draft(
    W: Weights,
    layers: Sequence[int],
    geometry: Geometry,
    embed: np.ndarray,
    unembed: np.ndarray,
    hidden: np.ndarray,
    tokens: np.ndarray,
    *,
    forced: Sequence[int] | None = None,
    feed_normed: bool = True,
    zero_first: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """The chain: hidden [n, E], tokens [n + 1] (the last is the anchor) → one token a depth, (tokens [D], logits [D, V]).

    Depth k runs over all n rows, on the tokens x_k … of the text and, in the last rows, those just drafted.
    """
    known = [int(t) for t in tokens]
    drafted, predictions = [], []
    for k, layer in enumerate(layers, start=1):
        embedded = embedding(embed, known[k : k + len(hidden)], zero_first)
        raw, normed = module(W, layer, geometry, hidden, embedded, np.arange(len(hidden)))
        hidden = normed if feed_normed else raw
        predictions.append(np.asarray(unembed, np.float64) @ normed[-1])
        drafted.append(int(predictions[-1].argmax()))
        if k < len(layers):
            known.append(drafted[-1] if forced is None else int(forced[k - 1]))
    return np.array(drafted), np.array(predictions)


def draft_recursive(
    W: Weights,
    layer: int,
    geometry: Geometry,
    embed: np.ndarray,
    unembed: np.ndarray,
    hidden: np.ndarray,
    tokens: np.ndarray,
    k: int,
    *,
    forced: Sequence[int] | None = None,
    feed_normed: bool = True,
    zero_first: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """One module, k tokens: own output and token are the next row, at the next position → (tokens [k], logits [k, V])."""
    states, fed = list(hidden), [int(t) for t in tokens[1:]]
    drafted, predictions = [], []
    for i in range(k):
        raw, normed = module(W, layer, geometry, np.array(states), embedding(embed, fed, zero_first), np.arange(len(fed)))
        predictions.append(np.asarray(unembed, np.float64) @ normed[-1])
        drafted.append(int(predictions[-1].argmax()))
        if i + 1 < k:
            states.append(normed[-1] if feed_normed else raw[-1])
            fed.append(drafted[-1] if forced is None else int(forced[i]))
    return np.array(drafted), np.array(predictions)
