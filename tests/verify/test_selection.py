"""The selection of a draft by its expected streak: exact, worth its drafts, and biased where it looks at coins."""

from dataclasses import dataclass

import numpy as np
import pytest

from sdjax.core.types import Law
from sdjax.drafters.specdiff2 import chains
from sdjax.trees.tree import Tree
from sdjax.verify.drafts import outcomes
from sdjax.verify.law import exact_law
from sdjax.verify.recursive import Recursive
from sdjax.verify.selection import SelfSelection
from sdjax.verify.tables import Tables, random_tables
from tests.properties.models import batch_for

SHAPES = [(2, 2, 2), (3, 2, 2), (2, 2, 3), (3, 3, 1)]  # vocabulary, drafts, their length


@pytest.mark.parametrize(("vocab", "count", "length"), SHAPES)
def test_lossless(vocab, count, length):
    models = batch_for(0, vocab, length, 24)
    assert exact_law(SelfSelection(), models, chains(count, length), Law.IID).tv.max() <= 1e-12


@pytest.mark.parametrize(("vocab", "count", "length"), SHAPES)
def test_what_is_accepted_is_the_best_draft_s_expected_streak(vocab, count, length):
    """E[accepted] = E over drafts of max_k Σ_m Π p: so no draft less is ever better."""
    model = random_tables(np.random.default_rng(1), vocab, length)
    tree, expected = chains(count, length), 0.0
    for outcome in outcomes(model, tree, Law.IID):
        reach = {(): 1.0} | {path: np.prod([model.p[d][path[: d + 1]] for d in range(len(path))]) for path in outcome.paths}
        leaves = [path for path in outcome.paths if len(path) == length]
        expected += outcome.weight * max(sum(reach[leaf[:m]] for m in range(1, length + 1)) for leaf in leaves)
    found = exact_law(SelfSelection(), model, tree, Law.IID).expected_accepted
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert found > exact_law(SelfSelection(), model, chains(1, length), Law.IID).expected_accepted + 1e-3


def test_of_one_chain_it_is_the_rule_for_fixed_tokens():
    models = batch_for(2, 3, 2, 16)
    both = [exact_law(rule, models, Tree.chain(2), Law.ONE_HOT).expected_accepted for rule in (SelfSelection(), Recursive())]
    np.testing.assert_allclose(*both, atol=1e-12)


def test_any_tree_has_a_best_path():
    models = batch_for(3, 3, 2, 8)
    for law in (Law.IID, Law.ONE_HOT):
        assert exact_law(SelfSelection(), models, Tree.branching(2, 2), law).tv.max() <= 1e-12


@dataclass(frozen=True)
class Luckiest(Recursive):
    """Selects by coins: every draft of one token is put to p with a coin of its own, and one that passes is taken."""

    def refused(self, xp, case, trial):
        after = super().refused(xp, case, trial)
        return after if after.done else after.replace(r=case.p[trial.node])


def test_a_selection_that_looks_at_coins_is_biased():
    """p = (.5, .3, .2) and the drafts 0 and 1: 0 has two chances, so that .75 of all outputs are 0, and .15 are 1."""
    model = Tables((np.array([0.5, 0.3, 0.2]), np.full((3, 3), 1 / 3)), (np.array([0.6, 0.3, 0.1]),))
    right, wrong = (exact_law(rule, model, chains(2, 1), Law.ONE_HOT) for rule in (SelfSelection(), Luckiest()))
    assert right.tv <= 1e-12
    np.testing.assert_allclose(wrong.law.sum(1), [0.75, 0.15, 0.1], atol=1e-12)
