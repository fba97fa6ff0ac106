"""EAGLE-1 (Li et al. 2024, arXiv:2401.15077) and, with a dynamic tree on the same weights, EAGLE-2 (arXiv:2406.16858).

One layer continues the target's sequence of final states: it predicts the next state from the states so far and the
tokens one step ahead of them, and the target's own head reads tokens from what it predicts.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, Key

from sdjax.core.cache import Cache, Staged
from sdjax.core.linear import linear
from sdjax.core.spec import Spec, initialise, normal, zeros
from sdjax.core.types import Committed, Context, Draft, Law, Trace
from sdjax.drafters.eagle_layer import State, against_target, empty_state, extend, layer_for, layer_specs, run_layer
from sdjax.drafters.head import DraftHead
from sdjax.drafters.losses import flatten, in_chunks, weighted_mean
from sdjax.drafters.recursion import Cell, check_tree, draft_below
from sdjax.targets.decoder import Decoder, Tap
from sdjax.targets.packed import packed_mask
from sdjax.trees.dynamic import DynamicTree
from sdjax.trees.published import named_tree
from sdjax.trees.tree import Tree


@dataclass(frozen=True)
class Eagle:
    """Drafts `tree`: a static one's children are drawn by `law`, a dynamic one (EAGLE-2) takes the likeliest.

    `fc_bias` is off in the heads published for Llama-3. `noise` is the half-width of the uniform noise on the target's
    states in training: 0.1 in the paper, 0.1 · 512/T in its code (T tokens a row: 0.025 at T = 2048).
    """

    tree: Tree | DynamicTree = field(default_factory=lambda: named_tree("eagle_1"))
    law: Law = Law.WITHOUT_REPLACEMENT
    head: DraftHead = DraftHead()
    fc_bias: bool = True
    noise: float = 0.1
    layer: Decoder | None = None  # the shape of its layer; None: a Llama layer as wide as the target's
    taps: ClassVar[tuple[Tap, ...]] = ("final",)

    def __post_init__(self):
        check_tree(self.tree, self.law, self.head.size)

    @property
    def depth(self) -> int:
        return self.tree.depth

    @property
    def nodes(self) -> int:
        return self.tree.nodes

    @property
    def is_chain(self) -> bool:
        return self.tree.is_chain

    def specs(self, target: Decoder) -> dict[str, Any]:
        check_tree(self.tree, self.law, target.vocab)
        e, dtype = target.width, target.matrix_dtype
        fc = {"fc": Spec((e, 2 * e), dtype, ("embed", None), normal())}
        if self.fc_bias:
            fc["fc_bias"] = Spec((e,), dtype, ("embed",), zeros)
        layer = layer_specs(layer_for(target, self.layer), e)
        return fc | {"layer": layer, "head": self.head.specs(target)}

    def initial(
        self, target: Decoder, target_params: Any, counts: Int[np.ndarray, " V"], key: Key[Array, ""]
    ) -> dict[str, Any]:
        """Drawn anew, but for the head."""
        head = self.head.initial(target, target_params, counts)
        return initialise(self.specs(target), key) | {"head": head}

    def cell(self, ctx: Context, params: Any, cache: Cache) -> Cell:
        """fc([embedding of the token, state before it]) through the layer: a prediction of the state at the token."""
        layer = layer_for(ctx.target, self.layer)

        def run(tokens: Array, hidden: Array, positions: Array, mask: Array, scratch: Staged | None) -> tuple[Array, Staged]:
            pair = jnp.concatenate([ctx.target.embed(ctx.target_params, tokens), hidden], -1)
            x = linear(pair, params["fc"], params.get("fc_bias"))
            return run_layer(layer, params["layer"], x, x, positions, cache, mask, scratch)

        logits = lambda hidden: self.head.logits(ctx, params["head"], hidden)
        return Cell(run, logits, lag=1, ids=params["head"].get("ids"))

    def empty(self, target: Decoder, batch: int, capacity: int) -> State:
        return empty_state(layer_for(target, self.layer), batch, capacity)

    def observe(self, ctx: Context, params: Any, state: State, seen: Committed, scratch: Any = None) -> State:
        """Rows made of the target's states replace all that was drafted from predicted ones."""
        return extend(self.cell(ctx, params, state.cache), state, seen.features[:, :, 0], seen)

    def propose(self, ctx: Context, params: Any, state: State) -> tuple[Draft, None]:
        draft = draft_below(self.cell(ctx, params, state.cache), ctx, self.tree, self.law, state.root[:, None])
        return draft, None

    def predict(
        self, ctx: Context, params: Any, trace: Trace, features: Float[Array, "B T E"]
    ) -> tuple[Float[Array, "B T E"], Cell]:
        """From `features` at every position of packed texts, the state one further; and the cell that reads it."""
        batch = trace.batch
        nothing = layer_for(ctx.target, self.layer).empty_cache(batch.tokens.shape[0], 1)
        cell = self.cell(ctx, params, nothing)
        tokens, _ = trace.ahead(1)
        return cell.run(tokens, features, batch.positions, packed_mask(batch), None)[0], cell

    def loss(
        self, ctx: Context, params: Any, trace: Trace, key: Key[Array, ""]
    ) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
        """SmoothL1 of the next state, averaged over its width, + 0.1 · cross-entropy with the target's law (§3.2).

        Learnt from where the token that is consumed is: the rows that drafting needs. With a draft vocabulary, the
        cross-entropy leaves out rows whose likeliest token is not in it.
        """
        features = trace.features[:, :, 0]
        features += jax.random.uniform(key, features.shape, features.dtype, -self.noise, self.noise)
        predicted, cell = self.predict(ctx, params, trace, features)
        judge = self.head.teacher_rows(ctx, params["head"])
        weight = flatten(trace.ahead(1)[1])

        def of_rows(rows: Any) -> tuple[Array, ...]:
            mine, theirs = rows
            distance = optax.huber_loss(mine.astype(jnp.float32), theirs.astype(jnp.float32)).mean(-1)
            return distance, *against_target(ctx, cell.ids, judge, cell.logits(mine)[:, None], theirs)

        distance, entropy, agrees, inside = in_chunks(of_rows, (flatten(predicted), flatten(trace.teacher(2))), weight)
        metrics = {
            "regression": weighted_mean(distance, weight),
            "cross_entropy": weighted_mean(entropy[:, 0], weight * inside),
            "accuracy_0": weighted_mean(agrees[:, 0], weight),
            "outside": weighted_mean(1 - inside, weight),
        }
        return metrics["regression"] + 0.1 * metrics["cross_entropy"], metrics

    @classmethod
    def tiny(cls, target: Decoder) -> "Eagle":
        """Sparse, with its nodes out of level order."""
        return cls(Tree((-1, 0, 1, 0, 1, 2)))
