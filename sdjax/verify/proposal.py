"""The law d that a child was drawn from, given the siblings already refused: the one thing a sampled tree must get right.

`rest` is the node's q, unnormalised, without what can no longer be drawn. A child to which it gives no mass (k
exceeds q's support, a fixed sibling of a mixed draft, a NaN row) is judged as a point mass, which is exact however
the token came about; a one-hot draft has no q at all and is judged so throughout (rest = None).
Source: Sequoia (arXiv 2402.12374), appendix F.2.1: any law that depends on refused siblings keeps the rule exact.
"""

from typing import Any

from sdjax.core.types import Law
from sdjax.verify.base import Case, marked


def rest_at(case: Case, node: Any) -> Any:
    """What `node`'s first child is drawn from: q's row [V, ...], or None where the draft is one-hot."""
    return None if case.q is None or case.law is Law.ONE_HOT else case.q[case.q_row[node]]


def rest_without(xp: Any, case: Case, rest: Any, token: Any) -> Any:
    """What the next sibling is drawn from, once `token` was drawn and refused."""
    if rest is None or case.law is Law.IID:
        return rest
    if case.law is Law.MIXED:
        return xp.zeros_like(rest)
    return xp.where(marked(xp, rest, token), 0, rest)


def drawn_odds(xp: Any, rest: Any, token: Any) -> Any:
    """d(token) [...]: the probability with which the child was drawn, 1 where it stands for a point mass."""
    if rest is None:
        return 1
    total = rest.sum(0)
    return xp.where(usable(total, rest[token]), rest[token] / xp.where(total > 0, total, 1), 1)


def drawn_law(xp: Any, like: Any, rest: Any, token: Any) -> Any:
    """d [V, ...], the whole row; `like` is a row of p, for shape and type where there is no q."""
    point = marked(xp, like, token).astype(like.dtype)
    if rest is None:
        return point
    total = rest.sum(0)
    return xp.where(usable(total, rest[token]), rest / xp.where(total > 0, total, 1), point)


def usable(total: Any, mass: Any) -> Any:
    """Whether a row can have drawn the token: a NaN compares false."""
    return (total > 0) & (mass > 0)
