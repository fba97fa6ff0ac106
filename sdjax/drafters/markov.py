"""What a slot is told of the tokens drafted before it: a low-rank bias on its logits, made from left to right.

A block's slots are drafted side by side and know nothing of each other's tokens. DSpark's Markov heads (arXiv:2607.05147,
§3) tell each the token before it; "rnn" is a recurrence over all of them. Domino (arXiv:2605.29707) runs a GRU over their
embeddings instead. DFlash 2's selector (inco.ai/blog/dflash2) scores pairs of neighbours by both tokens and the state. Each
turns what it has seen into `rank` numbers, and one matrix turns these into logits.
"""

from typing import Literal

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from sdjax.core.linear import product, table_rows
from sdjax.core.spec import Spec, normal, zeros
from sdjax.core.types import Context
from sdjax.targets.decoder import Decoder

Markov = Literal["none", "vanilla", "gated", "rnn", "domino", "selector"]


def markov_specs(target: Decoder, kind: Markov, rank: int, size: int, gru: int = 0) -> dict[str, Spec]:
    """`after` makes `size` logits of `rank` numbers. DSpark's have these for every token of the target (`before`), and
    the layer of a gate or a recurrence, the selector one of states; Domino has a GRU `gru` wide and a layer that narrows.
    """
    dtype, e = target.matrix_dtype, target.width
    matrix = lambda out, into: Spec((out, into), dtype, (None, None), normal())
    specs = {"after": Spec((size, rank), dtype, ("vocab", None), normal())}
    if kind == "domino":
        return specs | {"gru_in": matrix(3 * gru, e), "gru_state": matrix(3 * gru, gru), "narrow": matrix(rank, e + gru)}
    specs["before"] = Spec((target.vocab, rank), dtype, ("vocab", None), normal())
    if kind == "gated":
        specs |= {"gate": matrix(rank, e + rank), "gate_bias": Spec((rank,), dtype, (None,), zeros)}
    if kind == "selector":
        specs["project"] = matrix(rank, e)
    if kind == "rnn":
        specs |= {"joint": matrix(3 * rank, 2 * rank + e), "joint_bias": Spec((3 * rank,), dtype, (None,), zeros)}
    return specs


def markov_start(p: dict[str, Array], shape: tuple[int, ...]) -> Float[Array, "... M"]:
    """What is remembered before the anchor: zeros, and without a recurrence no numbers at all (M = 0)."""
    width = p["gru_state"].shape[1] if "gru_state" in p else p["after"].shape[1] if "joint" in p else 0
    return jnp.zeros((*shape, width))


def markov_step(
    ctx: Context, p: dict[str, Array], memory: Float[Array, "... M"], previous: Int[Array, "..."], hidden: Float[Array, "... E"]
) -> tuple[Float[Array, "... M"], Float[Array, "... r"]]:
    """A slot whose last token is `previous`: what is remembered from now on, and the numbers that `after` makes its bias of.

    vanilla: W₁[previous]; gated: g ⊙ W₁[previous], g = σ(W [state, W₁[previous]] + b); rnn: tanh(o), with (g, c, o) =
    W [memory, W₁[previous], state] + b and memory ← σ(g) memory + (1 - σ(g)) tanh(c); domino: silu(W [state, GRU]); selector:
    W₁[previous] ⊙ W state. float32.
    """
    hidden = hidden.astype(jnp.float32)
    if "gru_in" in p:
        memory = gru_step(p, memory, ctx.target.embed(ctx.target_params, previous))
        return memory, jax.nn.silu(product(jnp.concatenate([hidden, memory], -1), p["narrow"]))
    e = token_vector(p, previous)
    if "joint" in p:
        made = product(jnp.concatenate([memory, e, hidden], -1), p["joint"], p["joint_bias"])
        gate, candidate, out = jnp.split(made, 3, -1)
        gate = jax.nn.sigmoid(gate)
        return gate * memory + (1 - gate) * jnp.tanh(candidate), jnp.tanh(out)
    if "project" in p:
        e *= product(hidden, p["project"])
    if "gate" in p:
        e *= jax.nn.sigmoid(product(jnp.concatenate([hidden, e], -1), p["gate"], p["gate_bias"]))
    return memory, e


def markov_block(
    ctx: Context, p: dict[str, Array], previous: Int[Array, "B A N"], hidden: Float[Array, "B A N E"]
) -> Float[Array, "B A N r"]:
    """`markov_step` along the slots of each block, whose tokens are known."""
    start = markov_start(p, previous.shape[:2])
    if not start.size:
        return markov_step(ctx, p, jnp.zeros((*previous.shape, 0)), previous, hidden)[1]
    step = jax.checkpoint(lambda memory, slot: markov_step(ctx, p, memory, *slot))
    return jnp.moveaxis(lax.scan(step, start, jax.tree.map(lambda x: jnp.moveaxis(x, 2, 0), (previous, hidden)))[1], 0, 2)


def token_vector(p: dict[str, Array], token: Int[Array, "..."]) -> Float[Array, "... r"]:
    """W₁[token], float32."""
    return table_rows(p["before"], token).astype(jnp.float32)


def gru_step(p: dict[str, Array], state: Float[Array, "... M"], x: Float[Array, "... E"]) -> Float[Array, "... M"]:
    """A gated recurrent unit without biases, its gates in PyTorch's order: reset, update, new."""
    reset, update, new = jnp.split(product(x, p["gru_in"]), 3, -1)
    reset_by, update_by, new_by = jnp.split(product(state, p["gru_state"]), 3, -1)
    update = jax.nn.sigmoid(update + update_by)
    new = jnp.tanh(new + jax.nn.sigmoid(reset + reset_by) * new_by)
    return (1 - update) * new + update * state
