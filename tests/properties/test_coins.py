"""How coins are used: the compiled rules follow the enumerated ones path by path, and no coin is used twice."""

from functools import cache
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sdjax.core.sampling import Purpose, Warp, coin_key, target_choice
from sdjax.core.types import Draft, Law
from sdjax.trees.tree import Tree
from sdjax.verify.base import Case, settle
from sdjax.verify.recursive import Recursive
from sdjax.verify.registry import LOSSLESS, RULES
from sdjax.verify.token import TokenRejection
from sdjax.verify.traversal import Traversal
from sdjax.verify.walk import Walk
from tests.properties.models import LOPSIDED, PATHS, SPARSE, coin_paths, reused_coins, zero_accepts

VOCAB, NODES, DEPTH, BATCH = 4, 7, 3, 96
COINS = {name: rule for name, rule in RULES.items() if not isinstance(rule, Walk)}
TESTED = [(name, law) for name, rule in COINS.items() for law in sorted(rule.laws) if rule.lossless or law is max(rule.laws)]


def shapes(rule) -> list[Tree]:
    """Topologies that stand side by side in one batch."""
    if rule.chains_only:
        return [Tree.chain(3), Tree.chain(2), Tree.chain(1), Tree.chain(0), Tree((-1, 0, 0, 1)), Tree((-1, 0, 1, 1))]
    if getattr(rule, "by_numbers", False):
        return [PATHS, Tree.branching(2), Tree.chain(3)]
    return [SPARSE, LOPSIDED, Tree.branching(3, 1), Tree.chain(3), Tree.chain(0)]


def random_rows(rng: np.random.Generator, count: int) -> np.ndarray:
    """float32[count, V]: laws with a zero here and there."""
    rows = rng.dirichlet(np.ones(VOCAB), size=count) * (rng.random((count, VOCAB)) > 0.2) + 1e-9
    rows = np.where(rows > 1e-8, rows, 0)
    rows[rows.sum(-1) == 0] = 1
    return (rows / rows.sum(-1, keepdims=True)).astype(np.float32)


def random_cases(rule, law: Law, count: int, seed: int = 0) -> list[Case]:
    """Padded to one size: trees of several shapes, float32 rows, some nodes absent, some rows with zeros."""
    rng = np.random.default_rng(seed)
    nodes = DEPTH + 1 if rule.chains_only else NODES
    found = []
    for i in range(count):
        tree = shapes(rule)[i % len(shapes(rule))]
        pad = nodes - tree.nodes
        row = {node: place for place, node in enumerate(tree.inner)}
        valid = np.append(np.ones(tree.nodes, bool), np.zeros(pad, bool))
        valid[tree.nodes - 1] &= i % 4 != 3 or tree.nodes == 1  # a last node cut off
        parent = np.array([*tree.parents, *[0 if not rule.chains_only else n - 1 for n in range(tree.nodes, nodes)]])
        depth = np.array([*tree.depths, *[1 if not rule.chains_only else n for n in range(tree.nodes, nodes)]])
        p, q = (random_rows(rng, nodes) for _ in range(2))
        tokens = np.append(0, rng.integers(VOCAB, size=nodes - 1))
        for parent_node in range(tree.nodes if law is not Law.IID else 0):  # distinct siblings
            children = list(tree.children[parent_node])
            tokens[children] = rng.permutation(VOCAB)[: len(children)]
        found.append(
            Case(
                tokens=tokens.astype(np.int32),
                parent=parent.astype(np.int32),
                depth=depth.astype(np.int32),
                valid=valid,
                p=p,
                q=None if law is Law.ONE_HOT else q,
                q_row=None if law is Law.ONE_HOT else np.array([row.get(n, -1) for n in range(nodes)], np.int32),
                law=law,
                max_depth=DEPTH,
            )
        )
    return found


def wide(case: Case) -> Case:
    """The same float32 numbers in float64, for numpy."""
    return case.replace(p=case.p.astype(np.float64), q=None if case.q is None else case.q.astype(np.float64))


def stacked(cases: list[Case]) -> Case:
    return jax.tree.map(lambda *xs: jnp.asarray(np.stack(xs)), *cases)


@pytest.mark.parametrize(("name", "law"), TESTED, ids=lambda x: str(x))
def test_compiled_rules_follow_the_enumeration_path_by_path(name, law):
    """Every way the coins can fall, put to the compiled rule as coins: the same node, the same residual."""
    rule, cases, ends, tables = RULES[name], [], [], []
    for case in random_cases(rule, law, 24):
        for trial, coins in coin_paths(rule, wide(case)):
            table = np.full((NODES + 1, NODES + 1), np.nan, np.float32)  # a coin nobody knows of would be refused
            for address, (u, *_) in coins.items():
                table[address] = u
            cases.append(case), tables.append(table)
            ends.append((int(trial.node), rule.residual(np, wide(case), trial)))

    @jax.jit
    def run(cases, tables):
        def one(case, table):
            trial = settle(rule, case, lambda coin: table[coin])
            residual = rule.residual(jnp, case, trial)
            return trial.node, residual / residual.sum()

        return jax.lax.map(lambda x: one(*x), (cases, tables))

    nodes, residuals = run(stacked(cases), jnp.array(np.stack(tables)))
    assert np.array_equal(nodes, [node for node, _ in ends])
    for got, (_, wanted) in zip(residuals, ends, strict=True):
        assert np.allclose(got, wanted / wanted.sum(), atol=2e-5)


def streams():
    """The seed and the anchor's position of each sequence."""
    return jnp.arange(BATCH, dtype=jnp.uint32) % 7, jnp.arange(BATCH, dtype=jnp.int32) % 11


@cache
def all_noise() -> tuple[np.ndarray, np.ndarray]:
    """Every coin of these streams, [B, depth, rank], and the noise of their last draws, [B, V]."""
    place = jnp.arange(NODES + 1)
    draw = lambda seed, p, depth, rank: jax.random.uniform(coin_key(seed, p, Purpose.ACCEPT, depth, rank))
    table = jax.vmap(jax.vmap(jax.vmap(draw, (None, None, None, 0)), (None, None, 0, None)), (0, 0, None, None))
    last = jax.vmap(lambda seed, p: jax.random.gumbel(coin_key(seed, p, Purpose.RESIDUAL), (VOCAB,), jnp.float32))
    return np.asarray(jax.jit(table)(*streams(), place, place)), np.asarray(jax.jit(last)(*streams()))


@pytest.mark.parametrize("name", COINS)
def test_judge_tosses_its_own_keyed_coins(name):
    """`judge` over a batch, from the coins keyed by (seed, anchor, depth, rank): each sequence as if it were alone."""
    rule = RULES[name]
    law = Law.IID if Law.IID in rule.laws else Law.ONE_HOT
    cases = random_cases(rule, law, BATCH, seed=1)
    both = stacked(cases)
    draft = Draft(both.tokens, both.parent, both.depth, both.valid, both.q, both.q_row, law=law, max_depth=DEPTH)
    draft = draft.replace(is_chain=rule.chains_only)  # some are not: what a rule would refuse, it still judges as itself
    seeds, p = streams()
    warp = Warp(0.0 if rule.greedy else 1.0)

    @jax.jit
    def judge(draft, logits, seeds, p):
        return rule.judge(SimpleNamespace(seed=seeds, p=p, warp=warp), draft, logits)

    verdict = judge(draft, jnp.log(both.p), seeds, p)
    coins, noise = all_noise()
    for b, case in enumerate(map(wide, cases)):
        case = case.replace(p=np.log(case.p, where=case.p > 0, out=np.full(case.p.shape, -np.inf))) if rule.greedy else case
        trial = rule.start(np, case)
        while not trial.done:
            odds = rule.odds(np, case, trial)
            trial = rule.toss(np, case, trial, np.bool_(coins[b][tuple(trial.coin)] * odds[1] < odds[0]))
        path = []
        node = int(trial.node)
        while node > 0:
            path, node = [node, *path], int(case.parent[node])
        assert int(verdict.accepted[b]) == len(path)
        assert verdict.path[b, : len(path) + 1].tolist() == [0, *path]
        with np.errstate(divide="ignore"):
            assert int(verdict.bonus[b]) == np.argmax(np.log(rule.residual(np, case, trial)) + noise[b])


def test_the_compiled_walk_follows_the_enumerated_one():
    """Given the target's choices at every node, `follow` leads to the same node and the same last token."""
    rule, cases = Walk(), random_cases(Recursive(), Law.IID, BATCH, seed=2)
    both, warp, (seeds, p) = stacked(cases), Warp(1.0), streams()
    draft = Draft(both.tokens, both.parent, both.depth, both.valid, law=Law.IID, max_depth=DEPTH)
    logits = jnp.log(both.p)
    ctx = SimpleNamespace(seed=seeds, p=p, warp=warp)
    verdict = jax.jit(lambda draft, logits: rule.judge(ctx, draft, logits))(draft, logits)
    choose = jax.vmap(lambda logits, seed, position: target_choice(logits, warp, seed, position), (0, None, 0))
    choices = np.asarray(jax.jit(jax.vmap(choose))(logits, seeds, p[:, None] + both.depth + 1))
    for b, case in enumerate(cases):
        stroll = rule.start(np)
        while not stroll.done:
            stroll = rule.follow(np, case, stroll, choices[b, stroll.node])
        assert verdict.path[b, verdict.accepted[b]] == stroll.node and verdict.bonus[b] == stroll.bonus


@pytest.mark.parametrize("name", [name for name in COINS if COINS[name].lossless])
def test_no_coin_is_used_twice(name):
    assert not reused_coins(COINS[name], seed=0)


@pytest.mark.parametrize("name", [name for name in LOSSLESS if name != "walk"])
def test_a_coin_of_zero_never_accepts_what_the_target_never_says(name):
    assert not zero_accepts(COINS[name], lambda u, a, b: u * b < a)


def test_streams_and_addresses_never_meet():
    """Keys differ in every one of seed, position, purpose, depth and rank: round, purpose and place have their own noise."""
    grid = [
        (s, p, purpose, d, r) for s in range(3) for p in range(4) for purpose in Purpose for d in range(3) for r in range(3)
    ]
    key = jax.jit(lambda s, p, purpose, d, r: jax.random.key_data(fold(s, p, purpose, d, r)))
    keys = {tuple(np.asarray(key(s, p, int(purpose), d, r)).tolist()) for s, p, purpose, d, r in grid}
    assert len(keys) == len(grid)


def fold(seed, position, purpose, depth, rank):
    """`coin_key`, with the purpose traced."""
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), position), purpose)
    return jax.random.fold_in(jax.random.fold_in(key, depth), rank)


def test_fold_is_the_library_s():
    for purpose in Purpose:
        same = jax.random.key_data(coin_key(jnp.uint32(3), jnp.int32(5), purpose, 2, 1)) == jax.random.key_data(
            fold(3, 5, int(purpose), 2, 1)
        )
        assert same.all()


@pytest.mark.parametrize("rule", [TokenRejection(), Recursive(), Traversal()], ids=lambda rule: type(rule).__name__)
def test_a_nan_row_of_q_is_a_point_mass(rule):
    """Neither an id outside the vocabulary nor a token that was just refused is emitted; p alone decides."""
    tree = Tree.chain(2)
    q = jnp.full((1, 2, 3), jnp.nan)
    logits = jnp.log(jnp.array([[[0.2, 0.5, 0.3]] * 3]))
    ctx = lambda seed: SimpleNamespace(seed=jnp.array([seed], jnp.uint32), p=jnp.array([4], jnp.int32), warp=Warp(1.0))
    judge = jax.jit(lambda seed: rule.judge(ctx(seed), tree.draft(jnp.array([[0, 1, 1]]), Law.IID, q), logits))
    counts = np.zeros(3)
    for seed in range(200):
        verdict = judge(seed)
        first = 1 if verdict.accepted[0] else int(verdict.bonus[0])
        counts[first] += 1
        if verdict.accepted[0] < 2:
            assert verdict.bonus[0] != 1
    assert abs(counts[1] / 200 - 0.5) < 0.15 and counts[0] and counts[2]
