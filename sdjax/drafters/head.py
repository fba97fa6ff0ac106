"""A drafter's vocabulary head: the target's own, rows of it, or a matrix that is trained.

A draft vocabulary holds the tokens that are most common in the target's own text (EAGLE-3; FR-Spec, arXiv:2502.14856).
Its ids travel with the weights, so that no drafter is ever read with another's.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from sdjax.core.linear import product, table_rows
from sdjax.core.spec import Spec, normal, zeros
from sdjax.core.types import Context
from sdjax.core.whole import whole
from sdjax.targets.decoder import Decoder
from sdjax.trees.draw import Children


@dataclass(frozen=True)
class DraftHead:
    """The tokens that are drafted, and the matrix that gives their logits.

    Its parameters are {ids, weight, bias}, each where there is one: the whole vocabulary has no ids, and without training
    it borrows the target's matrix.
    """

    size: int | None = None
    """How many tokens, the commonest of the corpora; None: the target's whole vocabulary."""
    trained: bool = False
    """Whether the matrix is learnt; it starts as the target's rows."""
    bias: bool = False
    """Whether logits have a bias, as in Hydra's released heads; it starts at zero."""

    def __post_init__(self):
        if self.size is not None and self.size < 1:
            raise ValueError(
                f"the draft vocabulary's size is {self.size}; it must be at least 1 (None: the target's vocabulary)"
            )
        if self.bias and not self.trained:
            raise ValueError("a head's bias without training stays zero; take DraftHead(trained=True, bias=True), or none")

    def specs(self, target: Decoder) -> dict[str, Spec]:
        size = target.vocab if self.size is None else self.size
        if size > target.vocab:
            raise ValueError(f"the draft vocabulary has {size} tokens, the target's only {target.vocab}; make it smaller")
        specs = {}
        if self.size is not None:
            specs["ids"] = Spec((size,), jnp.int32, (None,), spread_over(target.vocab), trainable=False)
        if self.trained or self.size is not None:
            shape = (size, target.width)
            specs["weight"] = Spec(shape, target.matrix_dtype, ("vocab", "embed"), normal(), trainable=self.trained)
        if self.bias:
            specs["bias"] = Spec((size,), target.matrix_dtype, ("vocab",), zeros)
        return specs

    def initial(self, target: Decoder, target_params: Any, counts: Int[np.ndarray, " V"]) -> dict[str, Array]:
        """The tokens with the highest `counts`, and the target's rows for them."""
        params, specs = {}, self.specs(target)
        ids = jnp.asarray(most_common(counts, self.size or target.vocab))
        if "ids" in specs:
            params["ids"] = ids
        if "weight" in specs:
            params["weight"] = target_head(target, target_params)[ids]
        if "bias" in specs:
            params["bias"] = jnp.zeros(specs["bias"].shape, specs["bias"].dtype)
        return params

    def logits(self, ctx: Context, params: dict[str, Array], hidden: Float[Array, "... E"]) -> Float[Array, "... D"]:
        """float32, over the drafter's own vocabulary (D tokens)."""
        if "weight" not in params:
            return ctx.target.unembed(ctx.target_params, hidden)
        return product(hidden, params["weight"], params.get("bias"))

    def teacher_rows(self, ctx: Context, params: dict[str, Array]) -> Float[Array, "D E"]:
        """The target's matrix for the drafter's tokens: its logits are `product` of a final state with it.

        Gather them once, outside of chunks.
        """
        rows = target_head(ctx.target, ctx.target_params)
        return table_rows(rows, params["ids"]) if "ids" in params else rows


def target_head(target: Decoder, target_params: Any) -> Float[Array, "V E"]:
    """The matrix that `target.unembed` multiplies with."""
    return target_params["embed"] if target.tied else target_params["head"]


def borrowed(specs: Mapping[str, Spec]) -> dict[str, str]:
    """Of leaves by path ("head.weight"), those that are rows of the target's matrix, each with the leaf of their ids."""
    untrained = [name for name, spec in specs.items() if name.endswith("weight") and not spec.trainable]
    return {name: ids for name in untrained if (ids := name.removesuffix("weight") + "ids") in specs}


def most_common(counts: Int[np.ndarray, " V"], size: int) -> Int[np.ndarray, " D"]:
    """The ids of the `size` highest counts, ascending; ties to the lower id."""
    return np.sort(np.argsort(-np.asarray(counts), kind="stable")[:size]).astype(np.int32)


def own_tokens(ids: Int[Array, " D"] | None, tokens: Int[Array, "..."]) -> tuple[Int[Array, "..."], Array]:
    """Target ids as places in the draft vocabulary, and whether they are in it (else the place means nothing)."""
    if ids is None:
        return tokens, jnp.ones(tokens.shape, bool)
    place = jnp.minimum(jnp.searchsorted(ids, tokens), len(ids) - 1).astype(jnp.int32)
    return place, ids[place] == tokens


def in_target(children: Children, ids: Int[Array, " D"] | None, vocab: int) -> Children:
    """Children drawn in a draft vocabulary, as the target's tokens; what q lacks has no mass."""
    if ids is None:
        return children
    q = children.q
    if q is not None:
        q = jnp.zeros((*q.shape[:-1], vocab), q.dtype).at[..., ids].set(whole(q))
    return children.replace(tokens=ids[children.tokens], q=q)


def spread_over(vocab: int) -> Any:
    """An initialiser: distinct ids, evenly spread over the vocabulary."""
    return lambda key, shape, dtype: (jnp.arange(shape[0]) * vocab // shape[0]).astype(dtype)
