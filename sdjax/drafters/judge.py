"""How drafts of known tokens are judged in training: by their ranks, against the text, and against the target's law."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from sdjax.core.linear import product
from sdjax.core.types import Context, Trace
from sdjax.drafters.head import DraftHead, own_tokens
from sdjax.drafters.losses import cross_entropy, flatten, in_chunks, soft_cross_entropy, weighted_mean
from sdjax.drafters.residual_heads import matrix_of


def rank_of(logits: Float[Array, "... V"], token: Int[Array, "..."]) -> Int[Array, "..."]:
    """The token's place among the logits, likeliest first (0); ties to the lower id, as top-k breaks them."""
    own = jnp.take_along_axis(logits, token[..., None], -1)
    tied_before = (logits == own) & (jnp.arange(logits.shape[-1]) < token[..., None])
    return ((logits > own) | tied_before).sum(-1)


def judge_states(
    ctx: Context,
    head: DraftHead,
    matrix: dict[str, Array],
    logits: Callable[[Float[Array, "n E"]], Float[Array, "n D"]],
    hidden: Float[Array, "B S E"],
    theirs: Float[Array, "B S E"] | None,
    labels: Int[Array, "B S"],
    weight: Float[Array, "B S"],
    text: float,
    teacher: float,
) -> tuple[Float[Array, ""], Int[Array, "B S"]]:
    """The loss of states that predict `labels` by their `logits`, and the rank that each gives to its label.

    The loss is `text` · CE(label) + `teacher` · CE(target's law), each Σ weight · loss / Σ weight; `theirs` are the target's
    final states that predict the labels, its law is cut to the drafter's vocabulary and renormalised. A label outside of that
    is not learnt from as text, and its rank is beyond every choice.
    """
    place, inside = own_tokens(matrix.get("ids"), labels)
    judge = lax.stop_gradient(head.teacher_rows(ctx, matrix)) if teacher else None

    def of_rows(rows: Any) -> dict[str, Array]:
        mine, theirs, place = rows
        law = logits(mine)
        out = {"rank": rank_of(lax.stop_gradient(law), place)}
        if text:
            out["text"] = cross_entropy(law, place)
        if judge is not None:
            out["teacher"] = soft_cross_entropy(law, lax.stop_gradient(product(theirs, judge)))
        return out

    out = in_chunks(of_rows, jax.tree.map(flatten, (hidden, theirs, place)), flatten(weight))
    out = jax.tree.map(lambda x: x.reshape(labels.shape), out)
    loss = jnp.float32(0)
    if text:
        loss += text * weighted_mean(out["text"], weight * inside)
    if teacher:
        loss += teacher * weighted_mean(out["teacher"], weight)
    return loss, jnp.where(inside, out["rank"], ctx.target.vocab)


def judge_head(
    ctx: Context,
    head: DraftHead,
    matrix: dict[str, Array],
    hidden: Float[Array, "B T E"],
    trace: Trace,
    by: int,
    text: float = 0.0,
    teacher: float = 0.0,
) -> tuple[Float[Array, ""], Int[Array, "B T"], Float[Array, "B T"]]:
    """`judge_states` of a head that predicts the token `by` places ahead, and the weight of each position."""
    labels, weight = trace.ahead(by)
    theirs = trace.teacher(by) if teacher else None
    logits = lambda hidden: head.logits(ctx, matrix, hidden)
    return *judge_states(ctx, head, matrix, logits, hidden, theirs, labels, weight, text, teacher), weight


def judge_heads(
    ctx: Context,
    head: DraftHead,
    matrices: Sequence[dict[str, Array]],
    states: Sequence[Float[Array, "B T E"]],
    trace: Trace,
    **weights: float,
) -> tuple[Float[Array, " K"], Int[Array, "K B T"], Float[Array, "K B T"]]:
    """`judge_head` of every head: states[k - 1] is what head k hands to its vocabulary matrix."""
    judged = [
        judge_head(ctx, head, matrix_of(matrices, k - 1), hidden, trace, k + 1, **weights) for k, hidden in enumerate(states, 1)
    ]
    losses, ranks, seen = map(jnp.stack, zip(*judged, strict=True))
    return losses, ranks, seen


def chain_figures(ranks: Int[Array, "K B T"], weights: Float[Array, "K B T"]) -> dict[str, Float[Array, ""]]:
    """Top-1 accuracy of every head, and the τ of a chain of first choices, had the target written these texts."""
    hits = (ranks == 0).astype(jnp.float32)
    accuracy = {f"accuracy_{k}": weighted_mean(*pair) for k, pair in enumerate(zip(hits, weights, strict=True), 1)}
    survival = jax.vmap(weighted_mean)(jnp.cumprod(hits, 0), jnp.cumprod(weights, 0))
    return accuracy | {"tau": 1 + survival.sum()}
