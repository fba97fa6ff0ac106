"""The exact law of what a rule emits: every draft, every coin, in float64, through the rule's own functions.

A block is completed to depth + 1 tokens with the target, so that blocks of any length are compared as one joint law;
nothing is ever conditioned on the accepted length. (Necessary and sufficient: Lemma A.1 of arXiv:2505.12398.)
A batch of models is one trailing axis: drafts and coins are gone through once for all of them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from jaxtyping import Float

from sdjax.core.types import Law
from sdjax.trees.tree import Tree
from sdjax.verify.base import Case, CoinRule, Rule, refuse_law, refuse_tree
from sdjax.verify.drafts import LIMIT, Builder, Draw, outcomes, refuse_size
from sdjax.verify.tables import Tables, stack
from sdjax.verify.walk import Walk


@dataclass(frozen=True)
class Output:
    """What a rule does to a model: the joint law of its depth + 1 tokens, the target's, and Σ accepted · probability."""

    law: Float[np.ndarray, "..."]
    target: Float[np.ndarray, "..."]
    expected_accepted: Float[np.ndarray, "..."]
    depth: int

    @property
    def tv(self) -> Float[np.ndarray, "..."]:
        """Total variation between the joint laws, one number a model."""
        return np.abs(self.law - self.target).sum(tuple(range(self.depth + 1))) / 2

    def tv_of_first(self, tokens: int) -> Float[np.ndarray, "..."]:
        """Total variation between the laws of the first tokens alone."""
        rest = tuple(range(tokens, self.depth + 1))
        return np.abs((self.law - self.target).sum(rest)).sum(tuple(range(tokens))) / 2


def exact_law(
    rule: Rule, tables: Tables, tree: Tree | Builder, law: Law, draw: Draw | None = None, limit: int = LIMIT
) -> Output:
    """Enumerates drafts and coins of one rule on a model, or on a batch of models.

    A `Builder` grows the tree as it is drawn, at most `tables.depth` deep. `draw` replaces how siblings are drawn,
    while the rule is still told `law`. Raises ValueError for a law or a tree that the rule is not made for, tables
    that are too shallow, and an enumeration above `limit` drafts.
    """
    check(rule, tables, tree, law, limit)
    if tables.models and getattr(rule, "by_numbers", False):
        parts = [exact_law(rule, tables.model(i), tree, law, draw, limit) for i in range(tables.models[0])]
        pile = lambda name: np.stack([getattr(part, name) for part in parts], -1)
        return Output(pile("law"), pile("target"), pile("expected_accepted"), parts[0].depth)
    target, tables = (greedy(tables), logits_of(tables)) if getattr(rule, "greedy", False) else (tables, tables)
    depth = tree.depth if isinstance(tree, Tree) else tables.depth
    stopped = [np.zeros((tables.vocab,) * (accepted + 1) + tables.models) for accepted in range(depth + 1)]
    accepted_mass = np.zeros(tables.models)
    for outcome in outcomes(tables, tree, law, draw):
        for node, last, weight in endings(rule, outcome.case, outcome.weight):
            path = outcome.paths[node]
            stopped[len(path)][path] += last * weight
            accepted_mass += len(path) * weight
    return Output(completed(stopped, target), joint(target.p, depth + 1), accepted_mass, depth)


def greedy(tables: Tables) -> Tables:
    """The model at temperature 0: a point mass on each row's argmax, the first where there are several."""
    point = lambda rows: np.moveaxis(np.eye(tables.vocab)[rows.argmax(-1)], -1, rows.ndim - 1)
    return Tables(tuple(map(point, tables.p)), tables.q)


def logits_of(tables: Tables) -> Tables:
    """What a rule for temperature 0 reads as p: log p."""
    return Tables(tuple(np.log(rows, out=np.full(rows.shape, -np.inf), where=rows > 0) for rows in tables.p), tables.q)


def check(rule: Rule, tables: Tables, tree: Tree | Builder, law: Law, limit: int) -> None:
    refuse_law(rule, law)
    if isinstance(tree, Tree):
        if rule.chains_only and not tree.is_chain:
            refuse_tree(rule, tree.nodes, tree.depth)
        if tree.depth > tables.depth:
            raise ValueError(f"the tree is {tree.depth} deep, but the tables of p and q only allow {tables.depth}")
    refuse_size(tables.vocab, tree, law, limit)


def endings(rule: Rule, case: Case, weight: np.ndarray) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """How a judgement can end: (node, law of the last token [V, ...], probability [...])."""
    yield from walk_endings(rule, case, weight) if isinstance(rule, Walk) else coin_endings(cast(CoinRule, rule), case, weight)


def coin_endings(rule: CoinRule, case: Case, weight: np.ndarray) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    open_trials = [(rule.start(np, case), weight)]
    while open_trials:
        trial, weight = open_trials.pop()
        if trial.done:
            yield int(trial.node), normalised(rule.residual(np, case, trial)), weight
            continue
        heads = chance(*rule.odds(np, case, trial))
        for outcome, share in ((np.True_, heads), (np.False_, 1 - heads)):
            if np.any(weight * share > 0):
                open_trials.append((rule.toss(np, case, trial, outcome), weight * share))


def walk_endings(rule: Walk, case: Case, weight: np.ndarray) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """The walk has no coins: it branches on the target's choice at each node it visits."""
    open_strolls = [(rule.start(np), weight)]
    while open_strolls:
        stroll, weight = open_strolls.pop()
        if stroll.done:
            yield int(stroll.node), np.eye(len(case.p[0]))[:, stroll.bonus].reshape((-1,) + (1,) * np.ndim(weight)), weight
            continue
        for choice, share in enumerate(case.p[stroll.node]):
            if np.any(weight * share > 0):
                open_strolls.append((rule.follow(np, case, stroll, choice), weight * share))


def chance(a: Any, b: Any) -> np.ndarray:
    """P(u·b < a) of a uniform u in [0, 1)."""
    a, b = np.broadcast_arrays(np.asarray(a, np.float64), b)
    inside = (b > 0) & (a < b)
    return np.where(inside, np.maximum(a, 0) / np.where(inside, b, 1), a > 0)


def normalised(row: np.ndarray) -> np.ndarray:
    """row / Σ; zeros stay zeros, and the mass that they lose shows up as total variation."""
    total = row.sum(0)
    return row / np.where(total > 0, total, 1)


def completed(stopped: list[np.ndarray], tables: Tables) -> np.ndarray:
    """The joint law of depth + 1 tokens: what stopped earlier goes on with the target."""
    law = stopped[0]
    for depth, more in enumerate(stopped[1:], 1):
        law = np.expand_dims(law, depth) * tables.p[depth] + more
    return law


def joint(laws: tuple[np.ndarray, ...], length: int) -> np.ndarray:
    """The law of the first `length` tokens, from their conditionals."""
    law = laws[0]
    for depth in range(1, length):
        law = np.expand_dims(law, depth) * laws[depth]
    return law


__all__ = ["Output", "coin_endings", "exact_law", "joint", "stack", "walk_endings"]
