"""What a rule promises, and the driver that tosses a coin rule's coins inside the compiled loop.

A rule that rejects by coins is written once, as pure functions on one sequence, generic over the array namespace
(`xp`: jax.numpy in the loop, numpy in `verify/law.py`):

    start(xp, case) -> trial          the state before the first coin
    odds(xp, case, trial) -> (a, b)   the coin now tossed is heads with probability min(1, a / b)
    toss(xp, case, trial, heads)      the state after it
    residual(xp, case, trial) -> [V]  once trial.done: the unnormalised law of the token emitted last

The loop compares a uniform u with the odds (heads iff u·b < a, strictly: u = 0 never accepts a token of
probability zero); the exact law branches on them. Neither knows how the other decides.

Where a trial stands (node, done, coin) is scalar and follows from the draft and the coins alone. Probabilities may
carry trailing axes behind V: the loop leaves them empty, the exact law puts a batch of models there, so rows are summed
along axis 0. A rule whose steps depend on the probabilities themselves says `by_numbers`, and is given one model at a
time. One that is made for temperature 0 says `greedy`, and reads logits as p.
"""

from collections.abc import Callable
from typing import Any, ClassVar, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from sdjax.core.sampling import Purpose, Warp, coin_key, draw, warped_probs
from sdjax.core.types import Context, Draft, Law, Verdict, rows
from sdjax.trees.tree import ancestor_mask

AnyArray = Array | np.ndarray


class Rule(Protocol):
    """Who judges: frozen and hashable.

    `laws` are the ways of drawing that it takes: the output's law is then exactly the target's, unless the rule
    says that it is not `lossless`.
    """

    laws: ClassVar[frozenset[Law]]
    chains_only: ClassVar[bool]
    lossless: ClassVar[bool]

    def judge(self, ctx: Context, draft: Draft, logits: Float[Array, "B N V"]) -> Verdict:
        """What of each sequence's draft is accepted, and the token behind it, from the target's raw logits at its nodes."""
        ...


@struct.dataclass
class WarpedRows:
    """The target's warped law, row by row: made where a rule reads it, so that no array of all rows ever exists."""

    logits: Float[Array, "N V"]
    warp: Warp = struct.field(pytree_node=False)

    def __getitem__(self, index: Any) -> Array:
        node, *token = index if isinstance(index, tuple) else (index,)
        row = warped_probs(self.logits[node], self.warp)
        return row[token[0]] if token else row


@struct.dataclass
class Case:
    """One sequence's draft with the target's warped law p at every node: what a coin rule reads.

    Rules read p only as p[node] and p[node, token].
    """

    tokens: Int[AnyArray, " N"]
    parent: Int[AnyArray, " N"]
    depth: Int[AnyArray, " N"]
    valid: Bool[AnyArray, " N"]
    p: Any  # float[N, V, *models], or rows made on demand
    q: Any  # float[I, V, *models], the same; None where the draft is one-hot
    q_row: Any  # int[N], or None
    law: Law = struct.field(pytree_node=False, default=Law.ONE_HOT)
    max_depth: int = struct.field(pytree_node=False, default=0)


class CoinRule(Rule, Protocol):
    """A rule whose decisions are coins; its trials have the fields `done`, `node` (the last accepted), `coin`.

    `coin` is (depth, rank): the address of the next coin's noise. No two coins of a step share one.
    """

    by_numbers: ClassVar[bool]
    greedy: ClassVar[bool]

    def start(self, xp: Any, case: Case) -> Any: ...
    def odds(self, xp: Any, case: Case, trial: Any) -> tuple[Any, Any]: ...
    def toss(self, xp: Any, case: Case, trial: Any, heads: Any) -> Any: ...
    def residual(self, xp: Any, case: Case, trial: Any) -> Any: ...


def refuse(rule: Rule, draft: Draft) -> None:
    """Raises ValueError where the rule is not made for the way the draft was drawn, or for its shape."""
    refuse_law(rule, draft.law)
    if draft.law is not Law.ONE_HOT and draft.q is None:
        raise ValueError(f"a draft drawn {draft.law} must carry q, the law it was drawn from; this one has none")
    if rule.chains_only and not draft.is_chain:
        refuse_tree(rule, draft.tokens.shape[1], draft.max_depth)


def refuse_law(rule: Rule, law: Law) -> None:
    if law not in rule.laws:
        good, is_ = ", ".join(sorted(rule.laws)), "lossless" if rule.lossless else "defined"
        raise ValueError(f"{type(rule).__name__} is not {is_} for a draft drawn {law}; it is for: {good}")


def refuse_tree(rule: Rule, nodes: int, depth: int) -> None:
    raise ValueError(
        f"{type(rule).__name__} judges chains only, but this tree has {nodes} nodes and is {depth} deep; "
        "take a rule for trees, such as Recursive or Traversal"
    )


def judge_by_coins(rule: CoinRule, ctx: Context, draft: Draft, p: Any) -> Verdict:
    """Runs a coin rule on every sequence with its own keyed coins, then draws the last token from the residual.

    `p` is what the rule reads as the target's rows: float[B, N, V], or `WarpedRows` of the logits.
    """
    refuse(rule, draft)

    def one(case: Case, seed: Array, position: Array):
        uniform = lambda coin: jax.random.uniform(coin_key(seed, position, Purpose.ACCEPT, *coin))
        trial = settle(rule, case, uniform)
        residual = rule.residual(jnp, case, trial)
        return trial.node, draw(jnp.log(residual), coin_key(seed, position, Purpose.RESIDUAL))

    return verdict_at(draft, *jax.vmap(one)(case_of(draft, p), ctx.seed, ctx.p))


def settle(rule: CoinRule, case: Case, uniform: Callable[[tuple[Any, Any]], Any]) -> Any:
    """Tosses one sequence's coins until the trial is done; `uniform(trial.coin)` is the coin at that address."""

    def toss(trial: Any) -> Any:
        a, b = rule.odds(jnp, case, trial)
        return rule.toss(jnp, case, trial, uniform(trial.coin) * b < a)

    return jax.lax.while_loop(lambda trial: ~trial.done, toss, rule.start(jnp, case))


def case_of(draft: Draft, p: Any) -> Case:
    """What a rule reads of a batch of drafts; each field has a leading B."""
    return Case(draft.tokens, draft.parent, draft.depth, draft.valid, p, draft.q, draft.q_row, draft.law, draft.max_depth)


def verdict_at(draft: Draft, node: Int[Array, " B"], bonus: Int[Array, " B"]) -> Verdict:
    """The verdict that accepts the path from the anchor down to `node`, then emits `bonus`."""
    on_path = rows(ancestor_mask(draft.parent, draft.max_depth), node)
    at_depth = draft.depth[:, None] == jnp.arange(draft.max_depth + 1)[:, None]
    path = jnp.argmax(on_path[:, None] & at_depth, -1)
    accepted = jnp.sum(on_path, -1) - 1
    return Verdict(path.astype(jnp.int32), accepted.astype(jnp.int32), bonus)


def next_child(xp: Any, case: Case, node: Any, after: Any) -> tuple[Any, Any]:
    """The first present child of `node` behind index `after`, and whether there is one."""
    match = (case.parent == node) & case.valid & (xp.arange(case.parent.shape[0]) > after)
    return match.argmax().astype(xp.int32), match.any()


def marked(xp: Any, row: Any, token: Any) -> Any:
    """bool[V, ...]: True at `token`."""
    return xp.arange(row.shape[0]).reshape((-1,) + (1,) * (row.ndim - 1)) == token


def branch(xp: Any, heads: Any, yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
    """yes() where heads, else no(): numpy runs the one it needs, the compiled loop runs both and selects."""
    if xp is np:
        return yes() if heads else no()
    return jax.tree.map(lambda a, b: jnp.where(heads, a, b), yes(), no())


def repeat(xp: Any, goes_on: Callable[[Any], Any], body: Callable[[Any], Any], state: Any) -> Any:
    """`while goes_on(state): state = body(state)`, in either namespace."""
    if xp is not np:
        return jax.lax.while_loop(goes_on, body, state)
    while goes_on(state):
        state = body(state)
    return state


def put(xp: Any, rows: Any, index: Any, row: Any) -> Any:
    """`rows` with rows[index] = row, leaving the argument as it was."""
    if xp is not np:
        return rows.at[index].set(row)
    rows = rows.copy()
    rows[index] = row
    return rows
