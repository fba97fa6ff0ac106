"""DSpark's confidence head: how likely a slot is accepted, given that those before it were (arXiv:2607.05147, §3).

It reads the slot's state and the token before it, never the slot's own: verification may be cut by it without a bias.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from sdjax.core.linear import product
from sdjax.core.spec import Spec, normal, zeros
from sdjax.drafters.markov import token_vector
from sdjax.targets.decoder import Decoder


def confidence_specs(target: Decoder, rank: int) -> dict[str, Spec]:
    """A row over the slot's state and the `rank` numbers of the token before it (0: the state alone), and its bias."""
    dtype = target.matrix_dtype
    return {
        "weight": Spec((1, target.width + rank), dtype, (None, None), normal()),
        "bias": Spec((1,), dtype, (None,), zeros),
    }


def confidence_logit(params: Any, previous: Int[Array, "..."], hidden: Float[Array, "... E"]) -> Float[Array, "..."]:
    """w · [state; W₁[previous token]] + b; without DSpark's table of tokens, w · state + b."""
    seen, markov = hidden.astype(jnp.float32), params.get("markov", {})
    if "before" in markov:
        seen = jnp.concatenate([seen, token_vector(markov, previous)], -1)
    return product(seen, params["confidence"]["weight"], params["confidence"]["bias"])[..., 0]


def chain_survival(logits: Float[Array, "B D"], temperatures: tuple[float, ...] = ()) -> Float[Array, "B N"]:
    """P(node accepted) along a chain: 1 at the anchor, then the products of σ(logit / temperature of the slot)."""
    scale = jnp.asarray(temperatures[: logits.shape[1]] or 1.0, jnp.float32)
    accepted = jnp.cumprod(jax.nn.sigmoid(logits / scale), 1)
    return jnp.concatenate([jnp.ones_like(accepted[:, :1]), accepted], 1)


def acceptance_rate(
    logits: Float[Array, "... D"], law: Float[Array, "... D"], whole: Float[Array, "... V"], sampled: bool
) -> Float[Array, "..."]:
    """Σ min(p, q) = 1 - ½ Σ |p - q|: how likely the drafter's token is accepted at temperature 1. No gradient.

    q is the law of the draft: `sampled`, the drafter's own, else all at its argmax. `whole` are the target's logits, `law`
    those of the drafter's tokens among them: tokens that it lacks are never drafted.
    """
    p = jnp.exp(law - jax.nn.logsumexp(whole, -1, keepdims=True))
    q = jax.nn.softmax(logits) if sampled else jax.nn.one_hot(jnp.argmax(logits, -1), logits.shape[-1])
    return lax.stop_gradient(jnp.minimum(p, q).sum(-1))
