"""Losses over the vocabulary, shared by the families; a row is one position.

Every loss is a sum over rows of weight · loss, divided by the sum of the weights. No array of all positions times the
whole vocabulary is ever held: rows go through in rematerialised chunks.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

ROWS = 512  # rows of logits that are held at a time


def in_chunks(loss: Callable[[Any], Any], rows: Any, needed: Array, size: int = ROWS) -> Any:
    """loss(rows), a pytree of [n, ...] arrays, for a pytree of [n, ...] arrays: `size` rows at a time.

    The backward pass computes each chunk anew. Rows that are not `needed` ([n], zero or false) stand behind the others,
    and a chunk of nothing else is skipped: its results are zero.
    """
    n = len(needed)
    if n <= size:
        return loss(rows)
    order = jnp.argsort(needed == 0, stable=True)
    whole = -(-n // size) * size

    def chunks(x: Array) -> Array:
        return jnp.pad(x[order], [(0, whole - n)] + [(0, 0)] * (x.ndim - 1)).reshape(whole // size, size, *x.shape[1:])

    @jax.checkpoint
    def of_chunk(chunk: tuple[Array, Any]) -> Any:
        wanted, rows = chunk
        nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(loss, rows))
        return lax.cond(wanted.any(), loss, lambda rows: nothing, rows)

    found = lax.map(of_chunk, jax.tree.map(chunks, (needed != 0, rows)))
    return jax.tree.map(lambda x: flatten(x)[jnp.argsort(order)], found)


def flatten(x: Array) -> Array:
    """[B, T, ...] → [B·T, ...]."""
    return x.reshape(-1, *x.shape[2:])


def weighted_mean(loss: Float[Array, "..."], weight: Float[Array, "..."]) -> Float[Array, ""]:
    """Σ weight · loss / Σ weight; 0 where nothing has weight."""
    total = weight.sum()
    return (loss * weight).sum() / jnp.where(total > 0, total, 1)


def cross_entropy(logits: Float[Array, "... V"], labels: Int[Array, "..."]) -> Float[Array, "..."]:
    """-log softmax(logits)[label]."""
    at = jnp.take_along_axis(logits, labels[..., None], -1)[..., 0]
    return jax.nn.logsumexp(logits, -1) - at


def soft_cross_entropy(logits: Float[Array, "... V"], teacher: Float[Array, "... V"]) -> Float[Array, "..."]:
    """-Σ p log q with p = softmax(teacher): the gradient of forward KL(p ‖ q)."""
    return -(jax.nn.softmax(teacher) * jax.nn.log_softmax(logits)).sum(-1)


def forward_kl(logits: Float[Array, "... V"], teacher: Float[Array, "... V"]) -> Float[Array, "..."]:
    """KL(p ‖ q), p = softmax(teacher), q = softmax(logits)."""
    log_p, log_q = jax.nn.log_softmax(teacher), jax.nn.log_softmax(logits)
    return (jnp.exp(log_p) * (log_p - log_q)).sum(-1)


def reverse_kl(logits: Float[Array, "... V"], teacher: Float[Array, "... V"]) -> Float[Array, "..."]:
    """KL(q ‖ p)."""
    return forward_kl(teacher, logits)


def total_variation(logits: Float[Array, "... V"], teacher: Float[Array, "... V"]) -> Float[Array, "..."]:
    """½ Σ |p - q|: one minus the probability that token verification accepts (Leviathan et al. 2022, Thm 3.5)."""
    return 0.5 * jnp.abs(jax.nn.softmax(teacher) - jax.nn.softmax(logits)).sum(-1)


def log_acceptance(logits: Float[Array, "... V"], teacher: Float[Array, "... V"]) -> Float[Array, "..."]:
    """-log Σ min(p, q), the acceptance's own likelihood (LK loss, arXiv:2602.23881): TV's gradient over the acceptance.

    The sum is one of logarithms: laws without overlap still have a gradient.
    """
    least = jnp.minimum(jax.nn.log_softmax(teacher), jax.nn.log_softmax(logits))
    return -jax.nn.logsumexp(least, -1)


def hybrid_lk(logits: Float[Array, "... V"], teacher: Float[Array, "... V"], eta: float = 3.0) -> Float[Array, "..."]:
    """λ KL(p ‖ q) + (1 - λ) TV, λ = exp(-η Σ min(p, q)) without a gradient (arXiv:2602.23881; η = 3 there).

    λ is a row's own, as in `speculators`; SpecForge takes that of a batch's mean acceptance.
    """
    apart = total_variation(logits, teacher)
    blend = lax.stop_gradient(jnp.exp(-eta * (1 - apart)))
    return blend * forward_kl(logits, teacher) + (1 - blend) * apart


def binary_cross_entropy(logits: Float[Array, "..."], target: Float[Array, "..."]) -> Float[Array, "..."]:
    """-t log σ(logit) - (1 - t) log(1 - σ(logit)), for targets in [0, 1]."""
    return jax.nn.softplus(logits) - target * logits


def dpace_weights(probability: Float[Array, "... N"], seen: Float[Array, "... N"], alpha: float) -> Float[Array, "... N"]:
    """D-PACE (arXiv:2605.18810): w_j = Σ_{m≥j} Π_{i≤m} ((1 - α) q_i + α), q_i the drafter's probability of the label.

    What slot j adds to the expected accepted length. Slots that are not `seen` count in no sum or product. No gradient.
    Losses are divided by the weights' sum here; SpecForge divides by the number of texts.
    """
    smooth = jnp.where(seen > 0, (1 - alpha) * lax.stop_gradient(probability) + alpha, 1)
    reach = jnp.cumprod(smooth, -1) * seen
    return jnp.flip(jnp.cumsum(jnp.flip(reach, -1), -1), -1) * seen
