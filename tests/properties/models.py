"""Models, trees and coins that the property tests share."""

from pathlib import Path

import numpy as np

from sdjax.core.types import Law
from sdjax.trees.tree import Tree
from sdjax.verify.drafts import outcomes
from sdjax.verify.registry import LOSSLESS
from sdjax.verify.tables import Tables, random_tables

FIXTURE = Path(__file__).parents[2] / "experiments" / "tables" / "fixture.json"
CHAINS = [Tree.chain(1), Tree.chain(2), Tree.chain(3), Tree.chain(5)]
SPARSE = Tree.from_paths([[0], [1], [0, 0], [0, 1], [1, 0]])
LOPSIDED = Tree.from_paths([[0], [1], [0, 0], [0, 1], [0, 0, 0]])
PATHS = Tree.from_paths([[0], [1], [0, 0], [1, 0]])
PAIRS = [(name, law) for name, rule in LOSSLESS.items() for law in sorted(rule.laws)]


def width_by_ancestor(ranks, tokens):
    """A tree that grows as it is drawn: two children at the root and below token 0, else one; two deep."""
    return 0 if len(tokens) == 2 else 2 if not tokens or tokens[-1] == 0 else 1


def trees_for(rule, law: Law) -> list[tuple[int, Tree]]:
    """(vocabulary, tree) with at most 6 drafts and 10³ outcomes."""
    if rule.chains_only:
        return [(2, Tree.chain(5)), (3, Tree.chain(3)), (3, Tree.chain(2)), (2, Tree.chain(1))]
    if getattr(rule, "by_numbers", False):  # one model at a time: paths from the root
        three = 2 if law is Law.IID else 3  # siblings that are distinct need as many tokens
        return [(2, PATHS), (3, Tree.branching(2)), (three, Tree.branching(3)), (2, Tree.chain(3))]
    return [(3, SPARSE), (2, LOPSIDED), (3, Tree.branching(2, 1)), (3, Tree.chain(3)), (2, Tree.branching(2, 1, 1))]


def batch_for(seed: int, vocab: int, depth: int, models: int) -> Tables:
    """Random models, among them p = q, disjoint supports, zeros, sharp rows and rows cut by top-p."""
    rng = np.random.default_rng(seed)
    share = models // 8
    plain = random_tables(rng, vocab, depth, (models - 7 * share,))
    zeros = random_tables(rng, vocab, depth, (2 * share,), zeros=0.4)
    sharp = random_tables(rng, vocab, depth, (2 * share,), sharpness=6.0)
    equal = random_tables(rng, vocab, depth, (share,), zeros=0.2)
    equal = Tables(equal.p, equal.p[:-1])
    apart = disjoint(random_tables(rng, vocab, depth, (share,)))
    cut = top_p(random_tables(rng, vocab, depth, (share,)), 0.7)
    return concatenate(plain, zeros, sharp, equal, apart, cut)


def concatenate(*batches: Tables) -> Tables:
    join = lambda levels: tuple(np.concatenate(rows, -1) for rows in zip(*levels, strict=True))
    return Tables(join([b.p for b in batches]), join([b.q for b in batches]))


def disjoint(tables: Tables) -> Tables:
    """p keeps the even tokens, q the odd ones."""
    even = (np.arange(tables.vocab) % 2 == 0)[:, None]
    keep = lambda levels, mask: tuple(
        np.where(mask, rows, 0) / np.where(mask, rows, 0).sum(-2, keepdims=True) for rows in levels
    )
    return Tables(keep(tables.p, even), keep(tables.q, ~even))


def top_p(tables: Tables, mass: float) -> Tables:
    """Both laws cut to their nucleus: a token stays while the mass strictly above it is < `mass`."""

    def cut(rows: np.ndarray) -> np.ndarray:
        above = (np.where(rows[..., None, :, :] > rows[..., :, None, :], rows[..., None, :, :], 0)).sum(-2)
        kept = np.where(above < mass, rows, 0)
        return kept / kept.sum(-2, keepdims=True)

    return Tables(tuple(map(cut, tables.p)), tuple(map(cut, tables.q)))


def coin_paths(rule, case):
    """Every way a judgement's coins can fall: (trial at the end, {address: (u, heads)}); u settles that coin."""
    pending = [(rule.start(np, case), {})]
    while pending:
        trial, coins = pending.pop()
        if trial.done:
            yield trial, coins
            continue
        a, b = rule.odds(np, case, trial)
        heads = float(np.clip(a / b if b > 0 else a > 0, 0, 1))
        address = tuple(int(x) for x in trial.coin)
        for fell, chance, u in ((np.True_, heads, heads / 2), (np.False_, 1 - heads, (1 + heads) / 2)):
            if chance > 1e-3:
                pending.append((rule.toss(np, case, trial, fell), coins | {address: (u, bool(fell), len(coins))}))


def cases(rule, law: Law, seed: int, vocab: int = 3, zeros: float = 0.0):
    """Cases of one random model, over all its drafts."""
    for size, tree in trees_for(rule, law)[:2]:
        tables = random_tables(np.random.default_rng(seed), size, tree.depth, zeros=zeros)
        for outcome in outcomes(tables, tree, law):
            yield outcome.case


def reused_coins(rule, seed: int) -> bool:
    """Whether some judgement tosses two coins from one address."""
    for law in sorted(rule.laws):
        for case in cases(rule, law, seed):
            for _, coins in coin_paths(rule, case):
                places = sorted(place for *_, place in coins.values())
                if places != list(range(len(places))):
                    return True
    return False


def zero_accepts(rule, heads) -> bool:
    """Whether a judgement whose coins are all 0 can keep a path that the target never takes."""
    for law in sorted(rule.laws):
        for case in cases(rule, law, seed=3, zeros=0.5):
            trial = rule.start(np, case)
            while not trial.done:
                a, b = rule.odds(np, case, trial)
                trial = rule.toss(np, case, trial, np.bool_(heads(0.0, a, b)))
            node = int(trial.node)
            while node > 0:
                if case.p[int(case.parent[node]), int(case.tokens[node])] == 0:
                    return True
                node = int(case.parent[node])
    return False
