"""Losslessness, proved: the exact output law of every rule, for every law it claims, is the target's joint law.

A model is a random pair of p and q for every prefix; among them are zeros, p = q, disjoint supports, sharp rows and
rows cut by top-p (see `models.batch_for`). MODELS of them run for every pair of rule and law, over several trees.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdjax.core.types import Law
from sdjax.trees.tree import Tree
from sdjax.verify.approximate import ApproximateGreedy
from sdjax.verify.block import BlockVerification
from sdjax.verify.drafts import count_outcomes, outcomes, static
from sdjax.verify.kseq import KSequential
from sdjax.verify.law import exact_law
from sdjax.verify.lenience import Lenience
from sdjax.verify.multipath import BestPath
from sdjax.verify.recursive import Recursive
from sdjax.verify.registry import LOSSLESS, RULES
from sdjax.verify.tables import Tables, random_tables
from sdjax.verify.token import TokenRejection
from sdjax.verify.transport import transport_bound
from sdjax.verify.traversal import Traversal
from sdjax.verify.walk import Walk
from tests.properties.models import PAIRS, PATHS, SPARSE, batch_for, trees_for, width_by_ancestor

MODELS = 1000
EXACT = 1e-12
CHAIN_RULES = [TokenRejection(), BlockVerification(), Lenience(1), ApproximateGreedy(budget=0)]  # where they are exact


@pytest.mark.parametrize(("name", "law"), PAIRS, ids=lambda x: str(x))
def test_lossless(name, law):
    rule, tried = LOSSLESS[name], 0
    trees = trees_for(rule, law)
    for seed, (vocab, tree) in enumerate(trees):
        if count_outcomes(vocab, tree, law) == 0:
            continue
        assert count_outcomes(vocab, tree, law) <= 1000 and tree.nodes <= 7
        models = batch_for(seed, vocab, tree.depth, -(-MODELS // len(trees)))
        with np.errstate(divide="raise", invalid="raise"):
            found = exact_law(rule, models, tree, law)
        assert found.tv.max() <= EXACT, (vocab, tree, int(found.tv.argmax()))
        tried += found.tv.size
    assert tried >= MODELS


@pytest.mark.parametrize("law", sorted(Law))
@pytest.mark.parametrize("rule", [Walk(), Recursive(), Traversal()], ids=lambda rule: type(rule).__name__)
def test_lossless_where_the_tree_grows_as_it_is_drawn(rule, law):
    assert exact_law(rule, batch_for(1, 3, 2, 64), width_by_ancestor, law).tv.max() <= EXACT


@pytest.mark.parametrize("law", sorted(Law))
@pytest.mark.parametrize("rule", CHAIN_RULES, ids=lambda rule: type(rule).__name__)
def test_rules_for_chains_follow_first_children_whatever_stands_beside_them(rule, law):
    """All trees of as many nodes as a chain of three: they are refused, yet no rule takes its neighbour for a node's child."""
    for parents in ((0, 0, 0), (0, 0, 1), (0, 0, 2), (0, 1, 1), (0, 1, 2)):
        tree = Tree((-1, *parents))
        if law in rule.laws:
            models = batch_for(3, 3, tree.depth, 64)
            assert exact_law(rule, models, static(tree), law).tv.max() <= EXACT, parents


@pytest.mark.parametrize("law", sorted(Law))
@pytest.mark.parametrize("rule", [Walk(), Recursive(), Traversal(), KSequential()], ids=lambda rule: type(rule).__name__)
def test_more_children_than_tokens_with_mass(rule, law):
    """k > |supp q|: whatever fills the draft up, the output stays the target's."""
    if law in rule.laws:
        models = random_tables(np.random.default_rng(2), 3, 2, (64,), zeros=0.7)
        assert exact_law(rule, models, Tree.branching(3, 1), law).tv.max() <= EXACT


@pytest.mark.parametrize("name", [name for name, rule in LOSSLESS.items() if Law.IID in rule.laws])
def test_a_row_of_q_that_is_nan_is_a_point_mass(name):
    """As a drafter that overflows draws: the same token each time, whatever p says of it."""
    models, rule = batch_for(4, 3, 2, 16), LOSSLESS[name]
    lost = Tables(models.p, tuple(np.full_like(rows, np.nan) for rows in models.q))
    first = lambda q, k: [((0,) * k, np.ones(q.shape[1:]))]
    tree = Tree.chain(2) if rule.chains_only else PATHS
    assert exact_law(rule, lost, tree, Law.IID, draw=first).tv.max() <= EXACT


@given(
    seed=st.integers(0, 2**31),
    parents=st.lists(st.integers(0, 3), min_size=0, max_size=3),
    zeros=st.sampled_from([0.0, 0.3, 0.6]),
    pair=st.sampled_from([(rule, law) for rule in (Recursive(), Traversal(), Walk()) for law in sorted(Law)]),
)
def test_lossless_on_any_shape(seed, parents, zeros, pair):
    """Trees of any shape up to four drafts; every drafted node may hang anywhere above it."""
    tree = Tree((-1, 0, *(parent % (node + 2) for node, parent in enumerate(parents))))
    tree = Tree.from_paths(tree.paths())  # level by level, as drafts are enumerated
    rule, law = pair
    models = random_tables(np.random.default_rng(seed), 3, tree.depth, (4,), zeros=zeros)
    if count_outcomes(3, tree, law):
        assert exact_law(rule, models, tree, law).tv.max() <= EXACT


def accepted(rule, models, tree, law):
    return exact_law(rule, models, tree, law).expected_accepted


def test_orderings():
    """What the papers prove holds on every model tried (tolerance: float64 rounding)."""
    at_least = lambda more, less: (more >= less - 1e-12).all()
    chains = batch_for(7, 3, 3, 200)
    token = accepted(TokenRejection(), chains, Tree.chain(3), Law.IID)
    block = accepted(BlockVerification(), chains, Tree.chain(3), Law.IID)
    traversal = accepted(Traversal(), chains, Tree.chain(3), Law.IID)
    assert at_least(block, token)
    assert np.allclose(traversal, block, atol=1e-12)
    assert at_least(token, accepted(Walk(), chains, Tree.chain(3), Law.IID))
    pairs = batch_for(8, 3, 1, 200)
    one = Tree.branching(2)
    iid = accepted(Recursive(), pairs, one, Law.IID)
    assert at_least(iid, accepted(Walk(), pairs, one, Law.IID))
    assert at_least(
        accepted(Recursive(), pairs, one, Law.WITHOUT_REPLACEMENT), accepted(Walk(), pairs, one, Law.WITHOUT_REPLACEMENT)
    )


def test_observed_orderings():
    """Not proved, yet without an exception in any model tried."""
    at_least = lambda more, less: (more >= less - 1e-9).all()
    models = batch_for(9, 3, 2, 200)
    for law in (Law.IID, Law.WITHOUT_REPLACEMENT):
        assert at_least(accepted(Traversal(), models, SPARSE, law), accepted(Recursive(), models, SPARSE, law))
    even = Tree.branching(2, 1)
    iid = accepted(Recursive(), models, even, Law.IID)
    assert at_least(accepted(Recursive(), models, even, Law.WITHOUT_REPLACEMENT), iid)
    # γ is found to 2⁻²⁴. Where siblings' subtrees differ (SPARSE), the order does not hold: which sibling is kept matters.
    assert (accepted(KSequential(), models, even, Law.IID) >= iid - 1e-6).all()


def test_no_rule_gains_on_a_one_hot_draft():
    """With one-hot q every rule accepts what the walk does: P(reach v) = Π p on the way, the transport optimum.

    But for the rule that keeps to one path of the tree.
    """
    models = batch_for(10, 3, 3, 80)
    for tree in (Tree.chain(3), Tree.branching(2, 1, 1)):
        walk = accepted(Walk(), models, tree, Law.ONE_HOT)
        for name, rule in LOSSLESS.items():
            if name == "self-selection" and not tree.is_chain:
                assert (accepted(rule, models, tree, Law.ONE_HOT) <= walk + 1e-12).all()
            elif Law.ONE_HOT in rule.laws and (tree.is_chain or not rule.chains_only):
                assert np.allclose(accepted(rule, models, tree, Law.ONE_HOT), walk, atol=1e-12), name


def test_nothing_exceeds_the_transport_bound():
    models = batch_for(11, 3, 2, 16)
    trees = [(Tree.chain(2), LOSSLESS), (SPARSE, LOSSLESS), (PATHS, LOSSLESS)]
    for tree, rules in trees:
        for law in sorted(Law):
            bounds = [transport_bound(models.model(i), tree, law) for i in range(16)]
            for name, rule in rules.items():
                if law in rule.laws and (tree.is_chain or not rule.chains_only) and (name != "best-path" or tree is not SPARSE):
                    assert (accepted(rule, models, tree, law) <= np.array(bounds) + 1e-7).all(), (name, law)


def test_block_and_the_mixed_draft_reach_the_bound():
    """Block verification is optimal on chains; one level of a mixed draft, sampled child first, on any model."""
    models = batch_for(12, 3, 3, 24)
    for tree, rule, law in ((Tree.chain(3), BlockVerification(), Law.IID), (Tree.branching(2), Recursive(), Law.MIXED)):
        bounds = [transport_bound(models.model(i), tree, law) for i in range(24)]
        assert np.allclose(accepted(rule, models, tree, law), bounds, atol=1e-7)


def test_best_path_is_block_verification_on_a_chain():
    models = batch_for(13, 3, 2, 24)
    block, best = (exact_law(rule, models, Tree.chain(2), Law.IID) for rule in (BlockVerification(), BestPath()))
    assert np.allclose(block.expected_accepted, best.expected_accepted, atol=1e-12)


@pytest.mark.parametrize("law", sorted(Law))
def test_draft_probabilities_sum_to_one(law):
    models = batch_for(14, 3, 2, 16)
    for tree in (SPARSE, width_by_ancestor):
        found = list(outcomes(models, tree, law))
        assert np.allclose(sum(outcome.weight for outcome in found), 1, atol=1e-12)
        assert len(found) <= count_outcomes(3, tree, law)
        if law in (Law.IID, Law.WITHOUT_REPLACEMENT):  # all outcomes are possible in some model
            assert len(found) == count_outcomes(3, tree, law)


def test_lossy_rules_say_so():
    assert {name for name, rule in RULES.items() if not rule.lossless} == {"typical", "lenience", "approximate"}
