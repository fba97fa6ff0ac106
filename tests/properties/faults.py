"""Rules and drafters that are wrong in ways that have been seen in real systems, small enough to enumerate.

X1-X18 were found in public systems or are one step from it; the rest are slips that a hand could make.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from flax import struct

from sdjax.core.types import Law
from sdjax.trees.tree import Tree
from sdjax.verify.base import put
from sdjax.verify.block import BlockVerification
from sdjax.verify.drafts import Draw, draw_iid, draw_top, draw_without_replacement
from sdjax.verify.kseq import KSequential
from sdjax.verify.lenience import Lenience
from sdjax.verify.multipath import BestPath
from sdjax.verify.proposal import drawn_law, drawn_odds, rest_at, rest_without
from sdjax.verify.recursive import Recursive
from sdjax.verify.token import TokenRejection
from sdjax.verify.traversal import Traversal

CHAIN, PAIRS = Tree.chain(2), Tree.branching(2, 2)
TWO_PATHS = Tree.from_paths([[0], [1], [0, 0], [1, 0]])


@dataclass(frozen=True)
class Fault:
    """A rule that is told `law`, on drafts that `draw` makes (by default as the law says)."""

    name: str
    rule: Any
    law: Law
    tree: Any
    draw: Draw | None = None


# --- drafters that do not draw what they say -----------------------------------------------------------------


def merged(q, k):
    """i.i.d. draws whose later duplicates are dropped."""
    for children, chance in draw_iid(q, k):
        yield tuple(dict.fromkeys(children)), chance


def sorted_by_q(draw):
    """Siblings put in order of q after they were drawn. One model only."""

    def draw_sorted(q, k):
        for children, chance in draw(q, k):
            yield tuple(sorted(children, key=lambda child: -q[child])), chance

    return draw_sorted


def pruned(draw, least):
    """Children whose own q is small are dropped after they were drawn. One model only."""

    def draw_pruned(q, k):
        for children, chance in draw(q, k):
            yield tuple(child for child in children if q[child] >= least), chance

    return draw_pruned


def from_top(count):
    """i.i.d. from the `count` likeliest tokens, renormalised."""

    def draw_from_top(q, k):
        kept = np.where(np.argsort(np.argsort(-q, axis=0, kind="stable"), axis=0) < count, q, 0)
        yield from draw_iid(kept / kept.sum(0), k)

    return draw_from_top


def total(row):
    """Σ, or 1 where that is 0."""
    mass = row.sum(0)
    return np.where(mass > 0, mass, 1)


# --- wrong rejection along a tree ----------------------------------------------------------------------------


class ResidualOfOriginal(Recursive):
    """X8: whatever was refused before, r becomes (p - d)+ of the original p."""

    def refused(self, xp, case, trial):
        return super().refused(xp, case, trial.replace(r=case.p[trial.node]))

    def toss(self, xp, case, trial, heads):
        return self.at(xp, case, trial.child, trial.depth + 1) if heads else self.refused(xp, case, trial)


class NeverUpdated(Recursive):
    """X9: a refusal leaves r as it was, for the siblings and for the last token."""

    def refused(self, xp, case, trial):
        return super().refused(xp, case, trial).replace(r=trial.r)


class BonusFromTarget(Recursive):
    """X10: the last token is drawn from p after refusals too."""

    def residual(self, xp, case, trial):
        return case.p[trial.node]


@struct.dataclass
class Sharing:
    """A trial of `recursive` and the odds that the one coin of this node has already refused."""

    inner: Any
    used: Any

    done = property(lambda self: self.inner.done)
    node = property(lambda self: self.inner.node)


class SharedCoin(Recursive):
    """X11: one coin for all siblings: behind a refusal at odds a, the coin is uniform on [a, 1) only."""

    def start(self, xp, case):
        return Sharing(super().start(xp, case), 0)

    def odds(self, xp, case, trial):
        a, b = super().odds(xp, case, trial.inner)
        now = np.minimum(1, a / np.where(b > 0, b, 1))
        return np.maximum(now - trial.used, 0), 1 - trial.used

    def toss(self, xp, case, trial, heads):
        if heads:
            return Sharing(super().toss(xp, case, trial.inner, heads), 0)
        a, b = super().odds(xp, case, trial.inner)
        now = np.minimum(1, a / np.where(b > 0, b, 1))
        return Sharing(super().toss(xp, case, trial.inner, heads), np.maximum(now, trial.used))

    def residual(self, xp, case, trial):
        return trial.inner.r


class NoPointMass(Recursive):
    """X2: a sibling to which q, less the refused tokens, gives no mass (a duplicate) is treated as drawn from it."""

    def odds(self, xp, case, trial):
        token = case.tokens[trial.child]
        return trial.r[token], trial.r.sum(0) * trial.rest[token] / total(trial.rest)

    def refused(self, xp, case, trial):
        left = np.maximum(trial.r - trial.r.sum(0) * trial.rest / total(trial.rest), 0)
        after = super().refused(xp, case, trial)
        return after.replace(r=np.where(left.sum(0) > 0, left, trial.r))


# --- wrong block and traversal rules -------------------------------------------------------------------------


class EarlyStop(BlockVerification):
    """X12: the first failure ends the block."""

    def toss(self, xp, case, trial, heads):
        after = super().toss(xp, case, trial, heads)
        return after if heads else after.replace(done=np.True_)


class UnscaledResidual(BlockVerification):
    """X13: (p - q)+ where (P p - q)+ is due."""

    def residual(self, xp, case, trial):
        return super().residual(xp, case, trial.replace(scale=np.ones_like(trial.scale)))


class WrongTraversal(Traversal):
    """What a refusal does, written out so that a part of it can be wrong."""

    def left_at(self, xp, case, trial, node, upto):
        left, rest = trial.entry[node] * case.p[node], rest_at(case, node)
        for child in range(node + 1, min(upto + 1, len(case.tokens))):
            if case.parent[child] == node:
                token = case.tokens[child]
                left = np.maximum(left - self.law(rest, token), 0) * trial.scale[child]
                rest = rest_without(xp, case, rest, token)
        return left, rest

    def refused(self, xp, case, trial):
        node, up = trial.node, case.parent[trial.node]
        token = case.tokens[node]
        left, rest = self.left_at(xp, case, trial, up, node - 1)
        excess = np.maximum(left - self.law(rest, token), 0)
        weight = self.new_weight(excess.sum(0), trial.weight[up], rest, token, up == 0)
        scale = weight / total(excess)
        weights, scales = put(xp, trial.weight, up, weight), put(xp, trial.scale, node, scale)
        parent = trial.replace(node=up, depth=trial.depth - 1, weight=weights, scale=scales)
        return self.down(xp, case, parent, node)

    def law(self, rest, token):
        return drawn_law(np, rest, rest, token)

    def new_weight(self, excess, w, rest, token, root):
        return excess / np.where(excess + 1 - w > 0, excess + 1 - w, 1)


class WrongWeight(WrongTraversal):
    """X14: the parent's w becomes ΣA over the draft mass left (the root's stays 1)."""

    def new_weight(self, excess, w, rest, token, root):
        mass = 1 - rest[token] / total(rest)
        return np.where(root, 1.0, np.minimum(1, excess / np.where(mass > 0, mass, 1)))


class TraversalNoPointMass(WrongTraversal):
    """X15: as X2, in traversal verification."""

    def law(self, rest, token):
        return rest / total(rest)


class PlainLaw(BestPath):
    """X16: the best path is judged as if it had been drawn from q."""

    def law_of_best(self, xp, case, q, upto, lower, mass):
        return q


# --- slips -----------------------------------------------------------------------------------------------------


class InvertedRatio(TokenRejection):
    """Accepts with q/p."""

    def odds(self, xp, case, trial):
        return super().odds(xp, case, trial)[::-1]


class AbsoluteResidual(TokenRejection):
    """|p - q| where (p - q)+ is due."""

    def residual(self, xp, case, trial):
        p, token = case.p[trial.node], case.tokens[trial.child]
        return np.abs(p - drawn_law(xp, p, rest_at(case, trial.node), token)) if trial.rejected else p


class SoftmaxResidual(TokenRejection):
    """(p - q)+ put through a softmax before the last draw."""

    def residual(self, xp, case, trial):
        left = super().residual(xp, case, trial)
        return np.exp(left) if trial.rejected else left


class GreedyResidual(TokenRejection):
    """The last token is the residual's argmax."""

    def residual(self, xp, case, trial):
        left = super().residual(xp, case, trial)
        return (left == left.max(0)).astype(float)


class LikeliestPasses(TokenRejection):
    """A draft that equals the target's argmax is accepted without a coin."""

    def odds(self, xp, case, trial):
        a, b = super().odds(xp, case, trial)
        return np.where(a == case.p[trial.node].max(0), 1, a), np.where(a == case.p[trial.node].max(0), 1, b)


class RowBehind(TokenRejection):
    """The draft is judged by the row behind it instead of the one before."""

    def odds(self, xp, case, trial):
        _, b = super().odds(xp, case, trial)
        return case.p[trial.child, case.tokens[trial.child]], b


class StaleLaw(TokenRejection):
    """q of the first position serves them all."""

    def odds(self, xp, case, trial):
        token = case.tokens[trial.child]
        return case.p[trial.node, token], drawn_odds(xp, rest_at(case, 0), token)


class CoinOfTheDraft(TokenRejection):
    """The coin that drew the draft (by its place in the cumulated q) is tossed again to judge it."""

    def odds(self, xp, case, trial):
        token, q = case.tokens[trial.child], rest_at(case, trial.node)
        below, mass = q[:token].sum(0), q[token]
        ratio = case.p[trial.node, token] / np.where(mass > 0, mass, 1)
        return np.clip(ratio - below, 0, mass), mass


class LastTokenUnwarped(TokenRejection):
    """Drafts are judged by the warped p, the bonus is drawn from the unwarped one."""

    def residual(self, xp, case, trial):
        left = super().residual(xp, case, trial)
        return left if trial.rejected else unwarped(left)


class RatioUnwarped(TokenRejection):
    """The ratio takes the unwarped p, the residual the warped one."""

    def odds(self, xp, case, trial):
        _, b = super().odds(xp, case, trial)
        return unwarped(case.p[trial.node])[case.tokens[trial.child]], b


def unwarped(p):
    """A law that top-p or a lower temperature may have made p from."""
    return 0.8 * p + 0.2 / len(p)


class FreshDrawEach(Recursive):
    """One-hot siblings each meet their own draw from p; all missed, one more is drawn (Medusa's sampling branch)."""

    def refused(self, xp, case, trial):
        return super().refused(xp, case, trial).replace(r=trial.r)


class NotRenormalised(Recursive):
    """What is left of p is taken for a law without dividing by its sum."""

    def odds(self, xp, case, trial):
        token = case.tokens[trial.child]
        return trial.r[token], drawn_odds(xp, trial.rest, token)


class ResidualTwice(Recursive):
    """A refused child's law is subtracted twice."""

    def refused(self, xp, case, trial):
        return super().refused(xp, case, super().refused(xp, case, trial).replace(child=trial.child, rest=trial.rest))


class GammaOne(KSequential):
    """γ = 1 with several siblings: the rest of p is no law."""

    def gamma(self, xp, case, node, k):
        return np.ones_like(case.p[0, 0])


class RestUnscaled(KSequential):
    """p - min(q, p/γ) without (1 - (1 - β)^k)/β."""

    def residual(self, xp, case, trial):
        p = case.p[trial.node]
        left = np.maximum(p - np.minimum(self.law_at(xp, case, trial.node), p / np.maximum(trial.gamma, 1)), 0)
        return np.where((trial.k > 0) & (left.sum(0) > 0), left, p)


class UnclippedProduct(BlockVerification):
    """P is the plain product of ratios, without its minimum with 1."""

    def ahead(self, xp, case, node, scale, tested, weight):
        after = super().ahead(xp, case, node, scale, tested, weight)
        token = case.tokens[after.child]
        return after.replace(weight=weight * case.p[tested, token] / drawn_odds(xp, rest_at(case, tested), token))


class TokenTestInBlock(BlockVerification):
    """Each prefix is tested with its own P alone."""

    def odds(self, xp, case, trial):
        return trial.weight, 1


class ForgetfulTraversal(Traversal):
    """The parent of a refused child stays as it was."""

    def left_at(self, xp, case, trial, node, upto):
        left, _ = super().left_at(xp, case, trial, node, 0)
        return left, super().left_at(xp, case, trial, node, upto)[1]

    def updated(self, xp, total, w):
        return w, 1.0


class TraversalBonusFromTarget(Traversal):
    """The last token is drawn from p, whatever was refused below."""

    def residual(self, xp, case, trial):
        return case.p[trial.node]


class UndividedRest(WrongTraversal):
    """Without replacement, what is left of q is not renormalised."""

    def law(self, rest, token):
        return rest


def mixed_from_all(q, k):
    """A mixed draft whose sampled child is drawn from all of q; should it equal a fixed one, that is dropped."""
    for fixed, chance in draw_top(q, k - 1):
        for sampled in range(len(q)):
            yield (sampled, *(token for token in fixed if token != sampled)), chance * q[sampled]


I, W, O, M = Law.IID, Law.WITHOUT_REPLACEMENT, Law.ONE_HOT, Law.MIXED  # noqa: E741
ONE = Tree.chain(1)
DEEP = Tree.chain(3)

# Name, rule, what it is told, tree, drawing, and total variation on the fixture, and that of the first token.
PUBLISHED = {
    "X1": (
        Fault("drawn without replacement, q never renormalised", Recursive(), I, PAIRS, draw_without_replacement),
        0.083,
        0.033,
    ),
    "X2": (Fault("drawn i.i.d., judged as without replacement", NoPointMass(), W, PAIRS, draw_iid), 0.095, 0.070),
    "X3": (Fault("duplicates merged, q unchanged", Recursive(), I, PAIRS, merged), 0.035, 0.010),
    "X4": (Fault("top-2 judged with softmax q", Recursive(), W, PAIRS, draw_top), 0.337, 0.214),
    "X5": (Fault("argmax judged with softmax q", TokenRejection(), I, CHAIN, draw_top), 0.321, 0.214),
    "X6": (Fault("siblings sorted by q", Recursive(), W, PAIRS, sorted_by_q(draw_without_replacement)), 0.234, 0.181),
    "X7": (Fault("children of low q pruned", Recursive(), W, PAIRS, pruned(draw_without_replacement, 0.3)), 0.204, 0.204),
    "X8": (Fault("residual of the original p", ResidualOfOriginal(), I, PAIRS), 0.043, 0.010),
    "X9": (Fault("r not updated between siblings", NeverUpdated(), I, PAIRS), 0.212, 0.120),
    "X10": (Fault("bonus from p, not the residual", BonusFromTarget(), I, PAIRS), 0.140, 0.070),
    "X11": (Fault("one coin shared by siblings", SharedCoin(), W, PAIRS), 0.111, 0.083),
    "X12": (Fault("block with early stop", EarlyStop(), I, CHAIN), 0.224, 0.224),
    "X13": (Fault("block with unscaled residual", UnscaledResidual(), I, CHAIN), 0.033, 0.0),
    "X14": (Fault("traversal with the wrong w", WrongWeight(), W, PAIRS), 0.162, 0.162),
    "X15": (
        Fault("traversal, update of without replacement on i.i.d.", TraversalNoPointMass(), W, PAIRS, draw_iid),
        0.093,
        0.093,
    ),
    "X16": (Fault("best path judged with plain q", PlainLaw(), I, TWO_PATHS), 0.092, 0.092),
    "X17": (Fault("sampled from top-2, raw q in the ratio", TokenRejection(), I, CHAIN, from_top(2)), 0.115, 0.089),
    "X18": (Fault("low-q sampled chain token dropped", TokenRejection(), I, CHAIN, pruned(draw_iid, 0.35)), 0.150, 0.150),
}
SLIPS = [
    Fault("ratio upside down", InvertedRatio(), I, ONE),
    Fault("|p - q| as residual", AbsoluteResidual(), I, ONE),
    Fault("softmax of the residual", SoftmaxResidual(), I, ONE),
    Fault("argmax of the residual", GreedyResidual(), I, ONE),
    Fault("the argmax passes without a coin", LikeliestPasses(), I, ONE),
    Fault("row behind the draft", RowBehind(), I, CHAIN),
    Fault("stale q", StaleLaw(), I, CHAIN),
    Fault("draft and judgement share a coin", CoinOfTheDraft(), I, ONE),
    Fault("bonus from unwarped p", LastTokenUnwarped(), I, ONE),
    Fault("warp on one side of the ratio", RatioUnwarped(), I, ONE),
    Fault("a fresh draw for every path", FreshDrawEach(), O, PAIRS),
    Fault("r not renormalised", NotRenormalised(), W, PAIRS),
    Fault("q subtracted twice", ResidualTwice(), I, PAIRS),
    Fault("k-sequential with γ = 1", GammaOne(), I, PAIRS),
    Fault("k-sequential, rest unscaled", RestUnscaled(), I, PAIRS),
    Fault("block, product not clipped", UnclippedProduct(), I, DEEP),
    Fault("block, prefixes tested with P", TokenTestInBlock(), I, DEEP),
    Fault("traversal, parent not updated", ForgetfulTraversal(), W, PAIRS),
    Fault("traversal, bonus from p", TraversalBonusFromTarget(), W, PAIRS),
    Fault("traversal, rest of q not renormalised", UndividedRest(), W, PAIRS),
    Fault("mixed draft sampled from all of q", Recursive(), M, PAIRS, mixed_from_all),
    Fault("lenience", Lenience(0.9), I, ONE),
]
FAULTS = [fault for fault, *_ in PUBLISHED.values()] + SLIPS
