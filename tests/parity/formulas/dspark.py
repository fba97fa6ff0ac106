"""DSpark's heads behind an anchor-first DFlash block, and its loss (arXiv:2607.05147, §3; deepseek-ai/DeepSpec).

Tensors: the backbone's (see dflash.py); markov_head.markov_w1.weight, markov_head.markov_w2.weight [V, r];
confidence_head.proj.weight [1, E + r] and, in dense checkpoints, .bias [1]; gated: markov_head.gate_proj [r, E + r]; rnn:
markov_head.joint_proj [3r, 2r + E].

Row k is slot k: `hidden` after the final norm, `previous[k]` the token before the one it predicts; previous[0] is the anchor.

Left out: DeepSeek-V4's confidence before the final norm, and a confidence head that does not read W1.
"""

import numpy as np

from tests.parity.formulas.dflash import decay, supervised
from tests.parity.formulas.layers import Weights, cross_entropy, linear, softmax


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def biases(W: Weights, hidden: np.ndarray, previous: np.ndarray) -> np.ndarray:
    """hidden [γ, E], previous [γ] → logit biases [γ, V]; the head's kind follows from its tensors."""
    first = np.asarray(W["markov_head.markov_w1.weight"], np.float64)
    state, out = np.zeros(first.shape[1]), []
    for h, token in zip(hidden, previous, strict=True):
        e = first[token]
        if "markov_head.joint_proj.weight" in W:
            gate, candidate, output = np.split(linear(W, "markov_head.joint_proj", np.concatenate([state, e, h])), 3)
            state = sigmoid(gate) * state + (1 - sigmoid(gate)) * np.tanh(candidate)
            e = np.tanh(output)
        elif "markov_head.gate_proj.weight" in W:
            e = sigmoid(linear(W, "markov_head.gate_proj", np.concatenate([h, e]))) * e
        out.append(linear(W, "markov_head.markov_w2", e))
    return np.array(out)


def logits(W: Weights, unembed: np.ndarray, hidden: np.ndarray, previous: np.ndarray) -> np.ndarray:
    """U_k + bias(x_{k−1}) along a given text, slot 0 too: [γ, V]."""
    return np.asarray(hidden, np.float64) @ np.asarray(unembed, np.float64).T + biases(W, hidden, previous)


def draft(W: Weights, unembed: np.ndarray, hidden: np.ndarray, anchor: int) -> tuple[np.ndarray, np.ndarray]:
    """Greedy tokens [γ] and their logits [γ, V]: each slot reads the token drafted before it."""
    tokens = [anchor]
    for k in range(len(hidden)):
        tokens.append(int(logits(W, unembed, hidden[: k + 1], np.array(tokens))[k].argmax()))
    return np.array(tokens[1:]), logits(W, unembed, hidden, np.array(tokens[:-1]))


def confidence_logits(W: Weights, hidden: np.ndarray, previous: np.ndarray) -> np.ndarray:
    """w·[h_k; W1[x_{k−1}]] + b, [γ]."""
    first = np.asarray(W["markov_head.markov_w1.weight"], np.float64)
    read = np.concatenate([np.asarray(hidden, np.float64), first[np.asarray(previous)]], axis=-1)
    return linear(W, "confidence_head.proj", read)[:, 0]


def confidence(W: Weights, hidden: np.ndarray, previous: np.ndarray) -> np.ndarray:
    """c_k: the chance that slot k is accepted, given that those before it were."""
    return sigmoid(confidence_logits(W, hidden, previous))


def survival(c: np.ndarray) -> np.ndarray:
    """a_j = Π_{i≤j} c_i."""
    return np.array([np.prod(c[: j + 1]) for j in range(len(c))])


def distance(draft_logits: np.ndarray, target_logits: np.ndarray) -> float:
    """The full ‖p_d − p_t‖₁, without ½."""
    return float(np.abs(softmax(draft_logits) - softmax(target_logits)).sum())


def accept_target(draft_logits: np.ndarray, target_logits: np.ndarray) -> float:
    """c* = 1 − ½‖p_d − p_t‖₁ at T = 1."""
    return 1 - distance(draft_logits, target_logits) / 2


def binary_cross_entropy(logit: float, wanted: float) -> float:
    """−wanted · log c − (1 − wanted) · log(1 − c), c = σ(logit)."""
    return float(wanted * np.logaddexp(0, -logit) + (1 - wanted) * np.logaddexp(0, logit))


def loss(
    corrected: np.ndarray,
    confidences: np.ndarray,
    labels: np.ndarray,
    target_logits: np.ndarray,
    mask: np.ndarray,
    gamma: float,
    *,
    ce: float = 0.1,
    l1: float = 0.9,
    bce: float = 1.0,
) -> tuple[float, np.ndarray]:
    """0.1 CE + 0.9 L1 + 1.0 BCE, each Σ w· / Σ w with w_j = exp(−j/γ), j from 0; (total, the three before their weights).

    corrected, target_logits [N, γ, V]: row j of a block is about its label j, the target's row the one before that token;
    confidences [N, γ] are logits; nothing counts behind a block's first unsupervised token.
    """
    parts, weights = np.zeros(3), 0.0
    for n in range(len(corrected)):
        for j, weight in enumerate(decay(len(labels[n]), gamma) * supervised(mask[n], cut=True)):
            if not weight:
                continue
            z, target = corrected[n][j], target_logits[n][j]
            bits = binary_cross_entropy(confidences[n][j], accept_target(z, target))
            parts += weight * np.array([cross_entropy(z, labels[n][j]), distance(z, target), bits])
            weights += weight
    parts /= weights
    return float(parts @ [ce, l1, bce]), parts
