"""A draft model with a draft vocabulary: what it learns from, what it starts as, and that no token changes."""

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sdjax.core.types import Law
from sdjax.drafters.draft_model import DISTANCES, DraftModel
from sdjax.drafters.head import DraftHead
from sdjax.drafters.losses import cross_entropy
from sdjax.drafters.tree_model import TreeDraftModel
from sdjax.trees.tree import Tree
from tests.drafters.packed_texts import OTHER, TEXT, pack, traced
from tests.tiny import TARGET, decode, plain, target_params

pytestmark = pytest.mark.families

IDS = np.flatnonzero(np.isin(np.arange(TARGET.vocab), TEXT[:7] + OTHER[:3]))
COUNTS = np.isin(np.arange(TARGET.vocab), IDS).astype(int)
FEW = DraftHead(len(IDS), trained=True)
SMALL = replace(TARGET, layers=1, windows=TARGET.windows[:1])
PAIRS = [(t, token) for t, token in enumerate(TEXT[1:])] + [(len(TEXT) + t, token) for t, token in enumerate(OTHER[1:])]
INSIDE = [(row, token) for row, token in PAIRS if token in IDS]


def initial(drafter):
    return drafter.initial(TARGET, target_params(), COUNTS, jax.random.key(0))


@cache
def judged(objective):
    """Loss and agreement of the whole target behind a head of few rows that say other things; its logits, the target's."""
    drafter = DraftModel(TARGET, head=FEW, objective=objective)
    params, (ctx, trace) = initial(drafter), traced(drafter, pack([[TEXT, OTHER]], 20))
    params["head"]["weight"] *= 0.5
    loss, figures = jax.jit(lambda: drafter.loss(ctx, params, trace, jax.random.key(0)))()
    theirs = TARGET.unembed(target_params(), trace.hidden)[0]
    return float(loss), float(figures["agreement"]), 0.5 * theirs[:, IDS], theirs


@pytest.mark.parametrize("objective, distance", DISTANCES.items())
def test_the_targets_law_is_cut_to_the_draft_vocabulary(objective, distance):
    loss, agreement, logits, theirs = judged(objective)
    rows = np.array([row for row, _ in PAIRS])
    np.testing.assert_allclose(loss, distance(logits, theirs[:, IDS])[rows].mean(), rtol=1e-4)
    best = np.argmax(theirs[rows], -1)
    assert 0 < np.isin(best, IDS).mean() < 1
    np.testing.assert_allclose(agreement, np.isin(best, IDS).mean(), rtol=1e-6)


def test_tokens_outside_are_not_learnt_as_text():
    loss, _, logits, _ = judged("text")
    assert 0 < len(INSIDE) < len(PAIRS)
    rows, tokens = map(np.array, zip(*INSIDE, strict=True))
    np.testing.assert_allclose(loss, cross_entropy(logits[rows], jnp.array(np.searchsorted(IDS, tokens))).mean(), rtol=1e-4)


def test_it_starts_as_the_targets_layers_and_rows():
    params = initial(DraftModel(SMALL, head=FEW))
    np.testing.assert_array_equal(params["head"]["ids"], IDS)
    np.testing.assert_array_equal(params["head"]["weight"], target_params()["head"][IDS])
    assert initial(DraftModel(replace(SMALL, width=8), head=FEW))["head"]["weight"].shape == (len(IDS), 8)
    with pytest.raises(ValueError, match="trained=True"):
        initial(DraftModel(replace(SMALL, width=8), head=DraftHead(len(IDS))))


@pytest.mark.parametrize("model", [SMALL, replace(SMALL, tied=True)], ids=["untied", "tied"])
def test_without_one_the_parameters_are_a_models(model):
    shapes = lambda specs: jax.tree.map(lambda spec: (spec.shape, spec.axes), specs)
    assert shapes(DraftModel(model).specs(TARGET)) == shapes(model.specs())
    assert DraftModel(model, head=FEW).specs(TARGET).keys() == model.specs().keys() | {"head"}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_tree_drafted_from_few_tokens_changes_none(temperature):
    drafter = TreeDraftModel(SMALL, Tree((-1, 0, 1, 0, 1)), Law.WITHOUT_REPLACEMENT, FEW)
    assert decode(drafter, temperature).tokens == plain(temperature)
