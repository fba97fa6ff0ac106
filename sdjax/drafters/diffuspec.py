"""DiffuSpec: a diffusion model's draft, made causal by a path search, as long as drafts lately went well.

Li et al. 2025, arXiv:2510.02358. The paper takes a diffusion model as it is, and a trigram model of the task's texts; here
a small model is trained beside a bigram model. Numbers are the paper's as others report them.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float, Int, Key

from sdjax.core.cache import Cache
from sdjax.core.linear import product, table_rows
from sdjax.core.spec import initialise
from sdjax.core.types import Committed, Context, Draft, Law, Trace
from sdjax.drafters.head import DraftHead, own_tokens
from sdjax.drafters.lattice import best_path, lattice_of
from sdjax.drafters.losses import cross_entropy, flatten, in_chunks, weighted_mean
from sdjax.drafters.markov import markov_specs
from sdjax.drafters.masked_diffusion import MaskedDiffusion, diffusion_loss, whole_figures
from sdjax.drafters.pace import Controller, Pace
from sdjax.targets.decoder import Decoder, Tap
from sdjax.trees.tree import Tree


@struct.dataclass
class State:
    """The clean text's keys and values, and how drafts went."""

    cache: Cache
    pace: Pace


@dataclass(frozen=True)
class DiffuSpec:
    """Drafts one chain: the best path through at most `candidates` tokens a slot, which together have a mass of `mass`.

    A beam of `beams` weighs the diffusion model's log q by `mix` and a bigram model's log p, of `rank`, by 1 - mix. The pass
    always has the model's `length` masks; of its path the first k tokens are drafted, k being the controller's, with
    `shortest` and `growth`, and none behind one of `stops`. Nothing is drawn, at any temperature.
    """

    model: MaskedDiffusion = MaskedDiffusion(30)
    candidates: int = 15
    mass: float = 0.8
    beams: int = 3
    mix: float = 0.5
    rank: int = 64
    shortest: int = 20
    growth: int = 10
    stops: tuple[int, ...] = ()
    taps: ClassVar[tuple[Tap, ...]] = ()
    is_chain: ClassVar[bool] = True

    def __post_init__(self):
        for name in ("candidates", "beams", "rank"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if not (0 < self.mass <= 1 and 0 <= self.mix <= 1):
            raise ValueError(f"mass is {self.mass} and mix {self.mix}; they must lie in (0, 1] and [0, 1]")
        Controller(self.shortest, self.model.length, self.growth)

    @property
    def controller(self) -> Controller:
        return Controller(self.shortest, self.model.length, self.growth)

    @property
    def depth(self) -> int:
        return self.model.length

    @property
    def nodes(self) -> int:
        return self.model.length + 1

    def specs(self, target: Decoder) -> dict[str, Any]:
        """The model's, and {bigram}."""
        size = self.model.head.size or target.vocab
        if self.candidates > size:
            raise ValueError(f"candidates is {self.candidates}, but the draft vocabulary has {size} tokens; take fewer")
        return self.model.specs(target) | {"bigram": markov_specs(target, "vanilla", self.rank, size)}

    def initial(
        self, target: Decoder, target_params: Any, counts: Int[np.ndarray, " V"], key: Key[Array, ""]
    ) -> dict[str, Any]:
        """The model's, and a bigram model drawn anew."""
        bigram = initialise(self.specs(target)["bigram"], key)
        return self.model.initial(target, target_params, counts, key) | {"bigram": bigram}

    def empty(self, target: Decoder, batch: int, capacity: int) -> State:
        return State(self.model.empty(target, batch, capacity), self.controller.begin(batch))

    def observe(
        self, ctx: Context, params: Any, state: State, seen: Committed, scratch: Int[Array, " B"] | None = None
    ) -> State:
        """The scratch is how many tokens the draft held before a stop token; a prefill says nothing of drafts."""
        pace = state.pace if scratch is None else self.controller.follow(state.pace, scratch, seen.count)
        return State(self.model.observe(ctx, params, state.cache, seen), pace)

    def propose(self, ctx: Context, params: Any, state: State) -> tuple[Draft, Int[Array, " B"]]:
        """One denoising pass, then the path; how much of it is drafted was known before."""
        ids, logits = params["head"].get("ids"), self.model.denoise(ctx, params, state.cache)
        behind = lambda tokens: jax.nn.log_softmax(self.bigram(params, tokens))

        def path(logits: Float[Array, "N D"], anchor: Int[Array, ""]) -> Int[Array, " N"]:
            lattice = lattice_of(logits, self.candidates, self.mass)
            return best_path(lattice, anchor, behind, self.beams, self.mix, ids)

        limit = self.controller.length(state.pace)
        tokens = jax.vmap(path)(logits, ctx.anchor)
        best = jnp.argmax(logits, -1)
        generated = jnp.minimum(self.before_stop(best if ids is None else ids[best]), limit)
        drafted = jnp.minimum(self.before_stop(tokens) + 1, limit)
        valid = jnp.arange(self.nodes) <= drafted[:, None]
        whole = jnp.concatenate([ctx.anchor[:, None], tokens], 1)
        return Tree.chain(self.depth).draft(whole, Law.ONE_HOT, valid=valid), generated

    def before_stop(self, tokens: Int[Array, "B N"]) -> Int[Array, " B"]:
        """How many tokens stand before the first that ends a text; N where none does."""
        ends = jnp.isin(tokens, jnp.array(self.stops, jnp.int32))
        return jnp.where(ends.any(1), ends.argmax(1), tokens.shape[1])

    def bigram(self, params: Any, tokens: Int[Array, "..."]) -> Float[Array, "... D"]:
        """The logits of what follows each token."""
        before, after = params["bigram"]["before"], params["bigram"]["after"]
        return product(table_rows(before, tokens).astype(jnp.float32), after)

    def loss(
        self, ctx: Context, params: Any, trace: Trace, key: Key[Array, ""]
    ) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
        """The diffusion model's loss and the bigram model's; they share no parameters."""
        noised = self.model.noised(trace, key)
        guesses = self.model.guess(ctx, params, trace.batch, noised)
        bigram = self.bigram_loss(params, trace)
        return diffusion_loss(noised, guesses) + bigram, whole_figures(noised, guesses) | {"bigram": bigram}

    def bigram_loss(self, params: Any, trace: Trace) -> Float[Array, ""]:
        """Its cross-entropy with the next token, of those in the draft vocabulary."""
        labels, weight = trace.ahead(1)
        place, inside = own_tokens(params["head"].get("ids"), labels)
        weight = flatten(weight * inside)
        of_rows = lambda rows: cross_entropy(self.bigram(params, rows[0]), rows[1])
        return weighted_mean(in_chunks(of_rows, (flatten(trace.batch.tokens), flatten(place)), weight), weight)

    @classmethod
    def tiny(cls, target: Decoder) -> "DiffuSpec":
        """With a draft vocabulary, and stop tokens enough for lengths to change."""
        model = MaskedDiffusion(3, layers=1, head=DraftHead(20), anchors=8)
        return cls(model, candidates=4, mass=0.9, rank=4, shortest=1, growth=1, stops=tuple(range(0, target.vocab, 4)))
