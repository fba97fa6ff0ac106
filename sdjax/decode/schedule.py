"""Who gets verified: a schedule cuts the drafts of a batch before the target's pass (DSpark, arXiv:2607.05147, §4, Alg. 1).

A drafter that says how likely each node is to be accepted (`Draft.survival`) lets the batch spend its rows where they pay:
SPS(n) is how many steps fit into a unit of time when n rows are verified, and Θ = τ·SPS(n) is what is to be made large, τ
being the expected tokens of a step.

Where drafts are sampled and judged by coins, a cut must not know the token that it cuts, or the output is no longer the
target's: whether a node stays may depend on what stands before it alone. Hence all rules here are thresholds in one order,
in which a node comes behind everything that it hangs on; `verify/schedule_law.py` enumerates that they are exact, and that
a search for the best Θ over the whole order is not. Rules that reckon with how many paths a tree has (KSequential, BestPath)
are exact behind `Fixed` alone, and `Loop` refuses the others.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from sdjax.core.checks import as_integer, check_number
from sdjax.core.pack import holding, widths_of
from sdjax.core.types import Context, Draft, Law, rows
from sdjax.trees.hardware import CostCurve
from sdjax.trees.tree import ancestor_mask


class Schedule(Protocol):
    """Who decides: frozen and hashable. `foresees` says that it knows what will be accepted."""

    foresees: ClassVar[bool]

    def empty(self, batch: int, nodes: int) -> Any:
        """What it remembers before the first step; every array has a leading B."""
        ...

    def cut(self, state: Any, ctx: Context, draft: Draft, pack: tuple[int, ...]) -> tuple[Any, Draft]:
        """Its next state, and the draft without the nodes that are not worth a row.

        Sequences that are done have no node, the anchor included. `pack` holds the numbers of rows that the pass is
        compiled for (empty: it takes all rows whatever is cut); rows that it would run empty are filled.
        """
        ...

    def __hash__(self) -> int: ...


@dataclass(frozen=True)
class Throughput:
    """SPS(n) = 1 / (t(n) + levels · c), from a cost curve: t(n), a pass over n rows; c, a draft step, of which one step takes
    `levels`. n counts the whole batch's rows, which the curve's groups of chips share: it must reach batch · nodes / groups.
    A batch that does not divide over the groups, and so is run whole by each, is priced as if it did.
    """

    costs: CostCurve
    levels: int = 0

    def rates(self, most: int, pack: tuple[int, ...] = ()) -> Float[np.ndarray, " n"]:
        """SPS(0) .. SPS(most); with `pack`, of the passes that hold so many rows.

        ValueError where the curve does not reach from 1 to a group's part of `most`.
        """
        groups = self.costs.groups
        for width in (1, -(-most // groups)):
            self.costs.verify_time(width)
        n = np.arange(most + 1)
        n = widths_of(pack, most)[np.searchsorted(widths_of(pack, most), n)] if pack else n
        times = np.interp(-(-n // groups), self.costs.tokens, self.costs.verify)
        return (1 / (times + self.levels * self.costs.draft)).astype(np.float32)


@struct.dataclass
class Order:
    """The candidates of a batch, M = B·N: likeliest first; of equals the shallower, then the earlier sequence, then node.

    `place` is a node's place in the order, `survival` is sorted; nodes that are no candidates (anchors, absent ones) come
    last, with -1. `running` counts the anchors.
    """

    place: Int[Array, "B N"]
    survival: Float[Array, " M"]
    running: Int[Array, ""]

    def first(self, draft: Draft, size: Int[Array, ""]) -> Draft:
        """The draft with the anchors and the first candidates, `size` rows in all."""
        stays = (jnp.arange(draft.tokens.shape[1]) == 0) | (self.place < size - self.running)
        return draft.replace(valid=draft.valid & stays)


@dataclass(frozen=True)
class Fixed:
    """Drafts no deeper than `length`."""

    length: int
    foresees: ClassVar[bool] = False

    def __post_init__(self):
        if as_integer(self.length, "length") < 0:
            raise ValueError(f"length is {self.length}; a schedule cannot keep fewer than no drafts")

    def empty(self, batch: int, nodes: int) -> None:
        return None

    def cut(self, state: None, ctx: Context, draft: Draft, pack: tuple[int, ...]) -> tuple[None, Draft]:
        return None, draft.replace(valid=draft.valid & (draft.depth <= self.length))


@dataclass(frozen=True)
class Threshold:
    """Each path up to its first node that is less than `least` likely to be accepted where its parent is (§3.3, static)."""

    least: float
    foresees: ClassVar[bool] = False

    def __post_init__(self):
        check_number(self.least, "least")
        if not 0 <= self.least <= 1:
            raise ValueError(f"least is {self.least}; a probability of acceptance lies in [0, 1]")

    def empty(self, batch: int, nodes: int) -> None:
        return None

    def cut(self, state: None, ctx: Context, draft: Draft, pack: tuple[int, ...]) -> tuple[None, Draft]:
        survival = survival_of(draft)
        above = rows(survival, jnp.maximum(draft.parent, 0))
        unlikely = survival < self.least * above
        return None, draft.replace(valid=draft.valid & ~jnp.any(needs(draft) & unlikely[:, None], -1))


@dataclass(frozen=True)
class Prefix:
    """DSpark's synchronous rule: candidates join while each of them makes Θ strictly larger; the first that does not ends it.

    The best Θ of all would be better where Θ has several peaks, but whether a node joins would then depend on survivals
    that have seen its token. Θ is of the smooth curve: a pass compiled for few widths gets dearer in stairs, and no single
    node would pay for one. What the pass has room for is filled: snapping up keeps the rule, snapping down would break it.
    """

    throughput: Throughput
    foresees: ClassVar[bool] = False

    def empty(self, batch: int, nodes: int) -> None:
        return None

    def cut(self, state: None, ctx: Context, draft: Draft, pack: tuple[int, ...]) -> tuple[None, Draft]:
        order = ranked(draft)
        value = worth(order.survival, order.running, self.throughput.rates(draft.tokens.size))
        improves = (value[1:] > value[:-1]) & (order.survival >= 0)
        size = order.running + jnp.sum(jnp.cumprod(improves))
        return None, order.first(draft, snapped_up(size, pack, draft.tokens.size))


@dataclass(frozen=True)
class Delayed:
    """DSpark's asynchronous rule: how many rows there are comes from survivals that are `delay` steps old, and is the best of
    all; who gets them, the likeliest, from today's. Steps that are not known yet count as survival 1.

    Old survivals know nothing of today's tokens, so the search may be free.
    """

    throughput: Throughput
    delay: int = 2
    foresees: ClassVar[bool] = False

    def __post_init__(self):
        if as_integer(self.delay, "delay") < 1:
            raise ValueError(f"delay is {self.delay}; a budget from this very step's survivals would know the tokens it cuts")

    def empty(self, batch: int, nodes: int) -> Float[Array, "B D N"]:
        return jnp.ones((batch, self.delay, nodes))

    def cut(
        self, state: Float[Array, "B D N"], ctx: Context, draft: Draft, pack: tuple[int, ...]
    ) -> tuple[Float[Array, "B D N"], Draft]:
        order, running = ranked(draft), draft.valid[:, :1]
        old = jnp.where(running, state[:, 0], -1).at[:, 0].set(-1)
        size = best_size(old, order.running, self.throughput.rates(draft.tokens.size, pack))
        state = jnp.concatenate([state[:, 1:], survival_of(draft)[:, None]], 1)
        return state, order.first(draft, snapped_up(size, pack, draft.tokens.size))


@dataclass(frozen=True)
class Oracle:
    """What a schedule could do at most: keeps what will be accepted, read from `answer`, the texts (prompts and all) that
    plain decoding makes of the same prompts and seeds. For studies, at temperature 0 or by the walk alone.
    """

    answer: tuple[tuple[int, ...], ...]
    foresees: ClassVar[bool] = True

    def empty(self, batch: int, nodes: int) -> None:
        if batch != len(self.answer):
            raise ValueError(f"the oracle knows {len(self.answer)} texts, but the batch has {batch} sequences")
        return None

    def cut(self, state: None, ctx: Context, draft: Draft, pack: tuple[int, ...]) -> tuple[None, Draft]:
        answer = np.full((len(self.answer), max(map(len, self.answer))), -1, np.int32)
        for row, text in zip(answer, self.answer, strict=True):
            row[: len(text)] = text
        at = ctx.p[:, None] + draft.depth
        wrong = rows(jnp.asarray(answer), jnp.minimum(at, answer.shape[1] - 1)) != draft.tokens
        wrong |= at >= answer.shape[1]
        above = ancestor_mask(draft.parent, draft.max_depth)
        stays = (draft.depth == 0) | ~jnp.any(above & wrong[:, None], -1)
        return None, draft.replace(valid=draft.valid & stays)


def survival_of(draft: Draft) -> Float[Array, "B N"]:
    """P(node accepted), 0 where it is absent; ValueError for a draft that does not say."""
    if draft.survival is None:
        raise ValueError(
            "the schedule goes by how likely drafts are to survive, but this drafter does not say (Draft.survival); take one "
            "that does, such as a block drafter with confidence or a dynamic tree, or cut by Fixed(length)"
        )
    return jnp.where(draft.valid, jnp.nan_to_num(draft.survival.astype(jnp.float32)), 0)


def needs(draft: Draft) -> Bool[Array, "B N N"]:
    """Row i marks what stays if node i does: itself and its ancestors; where siblings were sampled, their elders, too."""
    above = ancestor_mask(draft.parent, draft.max_depth)
    nodes = draft.tokens.shape[1]
    if draft.law is not Law.ONE_HOT and not draft.is_chain:
        elder = draft.valid[:, None] & (draft.parent[:, :, None] == draft.parent[:, None]) & jnp.tri(nodes, dtype=bool)
        above |= above.astype(jnp.float32) @ elder.astype(jnp.float32) > 0
    return above


def ranked(draft: Draft) -> Order:
    """The order in which nodes are admitted: by the least survival of all that a node needs."""
    least = jnp.min(jnp.where(needs(draft), survival_of(draft)[:, None], jnp.inf), -1)
    candidate = draft.valid & (jnp.arange(draft.tokens.shape[1]) > 0)
    survival = jnp.where(candidate, least, -1).reshape(-1)
    order = jnp.lexsort((draft.depth.reshape(-1), -survival))  # stable
    return Order(jnp.argsort(order).reshape(draft.tokens.shape), survival[order], jnp.sum(draft.valid[:, 0]))


def worth(survival: Float[Array, " M"], running: Int[Array, ""], rates: Float[np.ndarray, " n"]) -> Float[Array, " m"]:
    """Θ of the anchors with the first 0, 1, .., M candidates; nothing is gained by those of negative survival."""
    expected = running + jnp.cumsum(jnp.maximum(jnp.pad(survival, (1, 0)), 0))
    return expected * jnp.asarray(rates)[jnp.minimum(running + jnp.arange(len(expected)), len(rates) - 1)]


def best_size(survival: Float[Array, "..."], running: Int[Array, ""], rates: Float[np.ndarray, " n"]) -> Int[Array, ""]:
    """The number of rows with the largest Θ of all, anchors included; candidates that are none have survival -1."""
    survival = -jnp.sort(-survival.reshape(-1))
    value = worth(survival, running, rates)
    value = jnp.where(jnp.pad(survival, (1, 0)) >= 0, value, -jnp.inf)
    return running + jnp.argmax(value)


def snapped_up(size: Int[Array, ""], pack: tuple[int, ...], most: int) -> Int[Array, ""]:
    """The rows of the pass that holds `size` of them."""
    if not pack:
        return size
    widths = widths_of(pack, most)
    return jnp.asarray(widths)[holding(size, widths)]
