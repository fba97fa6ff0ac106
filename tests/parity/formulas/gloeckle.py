"""Gloeckle et al. 2024, multi-token prediction by heads of one transformer layer (arXiv:2404.19737, §2, App. B).

Head 1 is the target's own last layer. Tensors of head i = 2..n: extra_heads.{i−2}.{self_attn.*, mlp.*, input_layernorm,
post_attention_layernorm} (a Llama layer, Hugging Face's names and RoPE), or extra_heads.{i−2}.weight [E, E] in the linear
variant.

    trunk [T, E]   the residual stream that enters the target's last layer: z
    first [T, E]   the residual stream that leaves it, before the final norm: head 1's output
    parallel: head i reads z; linear: head i is one matrix on z; causal: head i reads head i − 1's output, head 2 reads `first`

All heads share the final norm and the output matrix. The paper does not say whether z is normed: here it is the raw stream, and
a layer brings its own input norm; nor whether a linear head has a residual: here it has none.
"""

import numpy as np

from tests.parity.formulas.layers import Geometry, Weights, decoder_layer, length, linear, rms_norm, token_loss

VARIANTS = ("parallel", "linear", "causal")


def heads(W: Weights, variant: str) -> int:
    """n, with head 1."""
    tensor = "extra_heads.{}.weight" if variant == "linear" else "extra_heads.{}.input_layernorm.weight"
    return 1 + length(W, tensor)


def logits(
    W: Weights,
    geometry: Geometry,
    norm: np.ndarray,
    unembed: np.ndarray,
    trunk: np.ndarray,
    first: np.ndarray,
    variant: str = "parallel",
) -> np.ndarray:
    """[n, T, V]: row t of head i predicts x_{t+i}; index 0 is head 1, the target itself."""
    if variant not in VARIANTS:
        raise ValueError(f"variant {variant!r} is unknown: use one of {VARIANTS}")
    outputs, positions = [np.asarray(first, np.float64)], np.arange(len(trunk))
    for i in range(2, heads(W, variant) + 1):
        name = f"extra_heads.{i - 2}"
        if variant == "linear":
            outputs.append(linear(W, name, trunk))
        else:
            outputs.append(decoder_layer(W, name, trunk if variant == "parallel" else outputs[-1], positions, geometry))
    return np.array([rms_norm(x, norm, geometry.eps) @ np.asarray(unembed, np.float64).T for x in outputs])


def loss(
    head_logits: np.ndarray, tokens: np.ndarray, mask: np.ndarray, *, denominator: str | float, with_first: bool = True
) -> tuple[float, np.ndarray]:
    """−Σ_i Σ_t log P_i(x_{t+i} | x_≤t), unweighted, over rows whose label is supervised; parts [n].

    The paper writes a plain sum (denominator 1); a mean for each head is "mask". with_first=False leaves head 1, the target's
    own loss, out of the total.
    """
    parts = np.array([token_loss(z, tokens, mask, i, denominator) for i, z in enumerate(head_logits, start=1)])
    return float(parts[0 if with_first else 1 :].sum()), parts


def draft(
    W: Weights,
    geometry: Geometry,
    norm: np.ndarray,
    unembed: np.ndarray,
    trunk: np.ndarray,
    first: np.ndarray,
    variant: str = "parallel",
) -> tuple[np.ndarray, np.ndarray]:
    """trunk and first [rows, E] of all rows before the anchor: greedy tokens [n − 1] behind the anchor, logits [n − 1, V]."""
    each = logits(W, geometry, norm, unembed, trunk, first, variant)[1:, -1]
    return each.argmax(axis=-1), each
