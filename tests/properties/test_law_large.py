"""Losslessness on larger models: vocabularies to 5, three deep, up to 10⁵ drafts (make test-law)."""

import numpy as np
import pytest

from sdjax.core.types import Law
from sdjax.trees.tree import Tree
from sdjax.verify.drafts import count_outcomes
from sdjax.verify.law import exact_law
from sdjax.verify.registry import LOSSLESS
from sdjax.verify.tables import random_tables
from tests.properties.models import PAIRS, batch_for

pytestmark = pytest.mark.law
MODELS = 24
CHAIN = [(5, Tree.chain(3)), (3, Tree.chain(5))]
PATHS_OF_TWO = [
    (3, Tree.from_paths([[0], [1], [0, 0], [1, 0]])),
    (2, Tree.from_paths([[0], [1], [0, 0], [1, 0], [0, 0, 0], [1, 0, 0]])),
]


def trees_for(rule, law: Law) -> list[tuple[int, Tree]]:
    if rule.chains_only:
        return CHAIN
    if getattr(rule, "by_numbers", False):  # one model at a time
        return [*PATHS_OF_TWO, (5, Tree.branching(2))]
    if law is Law.IID:
        return [(5, Tree.branching(2, 1, 1)), (4, Tree.branching(3, 1)), (3, Tree.branching(2, 2))]
    return [(5, Tree.branching(2, 1, 1)), (4, Tree.branching(2, 2)), (5, Tree.branching(3, 1))]


@pytest.mark.parametrize(("name", "law"), PAIRS, ids=lambda x: str(x))
def test_lossless(name, law):
    rule = LOSSLESS[name]
    for seed, (vocab, tree) in enumerate(trees_for(rule, law)):
        assert count_outcomes(vocab, tree, law) <= 100_000
        models = batch_for(100 + seed, vocab, tree.depth, MODELS)
        assert exact_law(rule, models, tree, law).tv.max() <= 1e-12, (vocab, tree)


@pytest.mark.parametrize(
    ("name", "law"),
    [(name, Law.WITHOUT_REPLACEMENT) for name in ("recursive", "traversal", "walk")] + [("recursive", Law.IID)],
    ids=lambda x: str(x),
)
def test_lossless_on_many_drafts(name, law):
    """The largest: ten drafts, three deep; 17,496 outcomes without replacement and 59,049 i.i.d."""
    vocab = 3
    tree = Tree.from_paths([[0], [1], [0, 0], [0, 1], [1, 0], [1, 1], [0, 0, 0], [0, 1, 0], [1, 0, 0], [1, 1, 0]])
    models = random_tables(np.random.default_rng(5), vocab, 3, (20,), zeros=0.2)
    assert exact_law(LOSSLESS[name], models, tree, law).tv.max() <= 1e-12
