"""The exact law of what a rule emits behind drafts that a schedule has cut, of one sequence or of several that share a budget.

Every draft of every sequence is gone through together with every coin, as in `law.py`: sequences draw apart, so without a
cut their joint law is the product of the target's. A cut that knows the token that it cuts shows up as total variation.
"""

from collections.abc import Callable, Sequence
from functools import cache
from itertools import product
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from sdjax.core.types import Draft, Law
from sdjax.trees.tree import Tree
from sdjax.verify.base import Rule
from sdjax.verify.drafts import LIMIT, Outcome, outcomes
from sdjax.verify.law import Output, check, completed, endings, joint
from sdjax.verify.tables import Tables

# P(accepted, given that its parent is) that a drafter says of a node, from what stands before it: the tokens on the way to
# it, and those of its elder siblings.
Confidence = Callable[[tuple[int, ...], tuple[int, ...]], float]
# Which nodes of a batch of drafts stay.
Cut = Callable[[Draft], Bool[Array, "B N"]]

ROUND = 128


def scheduled_law(
    rule: Rule, sequences: Sequence[Tables], tree: Tree, law: Law, confidence: Confidence, cut: Cut, limit: int = LIMIT
) -> Output:
    """Of a batch of sequences, one model each: the joint law of all their blocks, one sequence's axes behind another's.

    Raises ValueError for a law or a tree that the rule is not made for, and above `limit` drafts of the whole batch.
    """
    for tables in sequences:
        check(rule, tables, tree, law, limit)
    drafts = [list(outcomes(tables, tree, law)) for tables in sequences]
    if prod(map(len, drafts)) > limit:
        raise ValueError(f"{prod(map(len, drafts))} drafts of {len(drafts)} sequences are too many to enumerate ({limit:,})")
    together = list(product(*(range(len(own)) for own in drafts)))
    # Filled up, so that enumerations of all sizes run one program.
    filled = together + together[:1] * (-len(together) % ROUND)
    kept = np.asarray(jax.vmap(cut)(stacked(tree, law, drafts, filled, confidence)))[: len(together)]

    @cache
    def behind(sequence: int, draft: int, valid: tuple[bool, ...]) -> tuple[np.ndarray, float]:
        return block(rule, sequences[sequence], drafts[sequence][draft], valid, tree.depth)

    found: Any = 0.0
    accepted = np.zeros(())
    for chosen, valid in zip(together, kept, strict=True):
        weight = prod(float(drafts[i][draft].weight) for i, draft in enumerate(chosen))
        blocks = [behind(i, draft, tuple(valid[i].tolist())) for i, draft in enumerate(chosen)]
        found = found + weight * outer([law for law, _ in blocks])
        accepted += weight * sum(mean for _, mean in blocks)
    target = outer([joint(tables.p, tree.depth + 1) for tables in sequences])
    return Output(found, target, accepted, target.ndim - 1)


def stacked(
    tree: Tree, law: Law, drafts: list[list[Outcome]], together: list[tuple[int, ...]], confidence: Confidence
) -> Draft:
    """All batches of drafts, along one more leading axis, with the survivals that the drafter says."""
    said = [[(outcome.case.tokens, survivals(tree, outcome, confidence)) for outcome in own] for own in drafts]
    pile = lambda part: jnp.asarray(np.array([[said[i][draft][part] for i, draft in enumerate(chosen)] for chosen in together]))
    tokens = pile(0)
    flat = tree.draft(tokens.reshape(-1, tree.nodes), law)
    shaped = jax.tree.map(lambda x: x.reshape(tokens.shape), flat)
    return shaped.replace(survival=pile(1))


def survivals(tree: Tree, outcome: Outcome, confidence: Confidence) -> Float[np.ndarray, " N"]:
    """Of each node, from the confidences on the way to it."""
    found = np.ones(tree.nodes, np.float32)
    for node, parent in enumerate(tree.parents[1:], 1):
        elders = tuple(outcome.paths[elder][-1] for elder in tree.children[parent] if elder < node)
        found[node] = found[parent] * confidence(outcome.paths[node][:-1], elders)
    return found


def block(rule: Rule, tables: Tables, outcome: Outcome, valid: tuple[bool, ...], depth: int) -> tuple[np.ndarray, float]:
    """The law of depth + 1 tokens behind one draft of which the valid nodes are judged; its mean accepted tokens."""
    stopped = [np.zeros((tables.vocab,) * (accepted + 1)) for accepted in range(depth + 1)]
    mean = 0.0
    for node, last, weight in endings(rule, outcome.case.replace(valid=np.array(valid)), np.ones(())):
        path = outcome.paths[node]
        stopped[len(path)][path] += last * weight
        mean += len(path) * float(weight)
    return completed(stopped, tables), mean


def outer(laws: Sequence[np.ndarray]) -> np.ndarray:
    """The joint law of independent blocks."""
    found = laws[0]
    for law in laws[1:]:
        found = np.multiply.outer(found, law)
    return found
