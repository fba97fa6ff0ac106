"""What Medusa and Hydra share: a head for each place ahead, of residual blocks, trained on what stands there.

Head k (from 1) reads the state at t and guesses the token at t + k + 1: the one behind t is the target's own. Its
vocabulary matrix is one for all heads, or each head's own.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from sdjax.core.linear import product
from sdjax.core.spec import Spec, zeros
from sdjax.core.types import Context, Trace, rows
from sdjax.drafters.head import DraftHead, own_tokens
from sdjax.drafters.losses import cross_entropy, flatten, in_chunks, soft_cross_entropy, weighted_mean
from sdjax.targets.decoder import Decoder
from sdjax.trees.tree import Tree


def check_heads(tree: Tree, heads: int | None, layers: int, head: DraftHead, own_heads: bool) -> None:
    """Raises ValueError for a tree deeper than the heads, heads without a block, or own matrices that never change."""
    if heads is not None and tree.depth > heads:
        raise ValueError(f"the tree is {tree.depth} deep, but there are {heads} heads; train more or cut the tree")
    if layers < 1:
        raise ValueError(f"layers is {layers}; a head has at least one block")
    if own_heads and not head.trained:
        raise ValueError("own_heads without training are copies of one matrix; take DraftHead(trained=True), or share it")


def block_specs(target: Decoder, count: int) -> list[dict[str, Spec]]:
    """Residual blocks that are the identity until trained."""
    e, dtype = target.width, target.matrix_dtype
    block = {"w": Spec((e, e), dtype, (None, "embed"), zeros), "b": Spec((e,), dtype, (None,), zeros)}
    return [dict(block) for _ in range(count)]


def residual_block(block: dict[str, Array], x: Float[Array, "... E"]) -> Float[Array, "... E"]:
    """SiLU(W x + b) + x."""
    return jax.nn.silu(product(x, block["w"], block["b"])).astype(x.dtype) + x


def matrix_specs(head: DraftHead, target: Decoder, heads: int, own_heads: bool) -> list[dict[str, Spec]]:
    """The vocabulary matrices: one for all heads, or one for each."""
    return [head.specs(target) for _ in range(heads if own_heads else 1)]


def initial_matrices(
    head: DraftHead, target: Decoder, target_params: Any, counts: Int[np.ndarray, " V"], like: Sequence[Any]
) -> list[dict[str, Array]]:
    """As many vocabulary matrices as `like` has, each copied from the target."""
    first = head.initial(target, target_params, counts)
    return [jax.tree.map(jnp.copy, first) for _ in like]


def matrix_of(matrices: Sequence[Any], k: int) -> Any:
    """The vocabulary matrix of the k-th head (from 0)."""
    return matrices[k % len(matrices)]


def take_last(x: Float[Array, "B T E"], count: Int[Array, " B"], before: Float[Array, "B E"]) -> Float[Array, "B E"]:
    """Row count[b] - 1 of every sequence; what was there before, where nothing counts."""
    return jnp.where(count[:, None] > 0, rows(x, jnp.maximum(count - 1, 0)[:, None])[:, 0], before)


def rank_of(logits: Float[Array, "... V"], token: Int[Array, "..."]) -> Int[Array, "..."]:
    """The token's place among the logits, likeliest first (0); ties to the lower id, as top-k breaks them."""
    own = jnp.take_along_axis(logits, token[..., None], -1)
    tied_before = (logits == own) & (jnp.arange(logits.shape[-1]) < token[..., None])
    return ((logits > own) | tied_before).sum(-1)


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
    """A head's loss, the rank it gives to the true token `by` places ahead, and the weight of each position.

    The loss is `text` · CE(token) + `teacher` · CE(the target's law there, renormalised over the drafter's vocabulary).
    A token outside the drafter's vocabulary is not learnt from as text, and its rank is beyond every choice.
    """
    labels, weight = trace.ahead(by)
    place, inside = own_tokens(matrix.get("ids"), labels)
    judge = lax.stop_gradient(head.teacher_rows(ctx, matrix)) if teacher else None

    def of_rows(rows: Any) -> dict[str, Array]:
        mine, theirs, place = rows
        logits = head.logits(ctx, matrix, mine)
        out = {"rank": rank_of(lax.stop_gradient(logits), place)}
        if text:
            out["text"] = cross_entropy(logits, place)
        if judge is not None:
            law = lax.stop_gradient(product(theirs, judge))
            out["teacher"] = soft_cross_entropy(logits, law)
        return out

    out = in_chunks(of_rows, jax.tree.map(flatten, (hidden, trace.teacher(by), place)), flatten(weight))
    out = jax.tree.map(lambda x: x.reshape(labels.shape), out)
    loss = jnp.float32(0)
    if text:
        loss += text * weighted_mean(out["text"], weight * inside)
    if teacher:
        loss += teacher * weighted_mean(out["teacher"], weight)
    return loss, jnp.where(inside, out["rank"], ctx.target.vocab), weight


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
