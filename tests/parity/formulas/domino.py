"""Domino's correction of a DFlash block: a GRU over what was drafted, and an MLP (arXiv:2605.29707; SpecForge).

Tensors: the backbone's (see dflash.py); prefix_gru.weight_ih_l0 [3g, E], prefix_gru.weight_hh_l0 [3g, g], without biases;
embed_proj.0.weight [256, E + g], embed_proj.2.weight [V, 256], SiLU between them (SpecForge).

Row m predicts the token at p + 1 + m; `previous[m]` is the token at p + m, so that previous[0] is the anchor, in both layouts.

Left out: a first stretch of slots without correction (pure_draft_prefix_len), and how λ falls over training.
"""

import numpy as np

from tests.parity.formulas.dspark import sigmoid
from tests.parity.formulas.layers import Weights, linear, silu


def gru(W: Weights, inputs: np.ndarray) -> np.ndarray:
    """PyTorch's GRU from zero, inputs [K, E] → [K, g]: row m has read rows 0 … m; the thirds are reset, update, new."""
    into, back = (np.asarray(W[f"prefix_gru.weight_{part}_l0"], np.float64) for part in ("ih", "hh"))
    state, out = np.zeros(back.shape[1]), []
    for x in np.asarray(inputs, np.float64):
        (reset_x, update_x, new_x), (reset_s, update_s, new_s) = np.split(into @ x, 3), np.split(back @ state, 3)
        update = sigmoid(update_x + update_s)
        state = (1 - update) * np.tanh(new_x + sigmoid(reset_x + reset_s) * new_s) + update * state
        out.append(state)
    return np.array(out)


def logits(W: Weights, embed: np.ndarray, unembed: np.ndarray, hidden: np.ndarray, previous: np.ndarray) -> np.ndarray:
    """Along a given text: U_m + embed_proj([h_m; gru_m]), hidden [K, E] after the final norm → [K, V]."""
    hidden = np.asarray(hidden, np.float64)
    read = np.concatenate([hidden, gru(W, embed[np.asarray(previous)])], axis=-1)
    return hidden @ np.asarray(unembed, np.float64).T + linear(W, "embed_proj.2", silu(linear(W, "embed_proj.0", read)))


def draft(W: Weights, embed: np.ndarray, unembed: np.ndarray, hidden: np.ndarray, anchor: int) -> tuple[np.ndarray, np.ndarray]:
    """Greedy tokens [K] and their logits [K, V]."""
    tokens = [anchor]
    for m in range(len(hidden)):
        tokens.append(int(logits(W, embed, unembed, hidden[: m + 1], np.array(tokens))[m].argmax()))
    return np.array(tokens[1:]), logits(W, embed, unembed, hidden, np.array(tokens[:-1]))


def loss(final: float, base: float, mixture: float) -> float:
    """(1 − λ) · loss of the corrected logits + λ · loss of the backbone's own; λ goes from 1 to 0."""
    return (1 - mixture) * final + mixture * base
