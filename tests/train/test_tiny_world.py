"""Training works where it is cheap to see: a tiny target learns, and a drafter of it by every objective."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from sdjax.core.spec import initialise
from sdjax.drafters.draft_model import DraftModel
from sdjax.train import tiny_world
from sdjax.train.optimiser import Optimiser
from sdjax.train.recipe import Recipe
from sdjax.train.step import begin, train_step
from tests.train.tiny_drafters import TARGET, decode, learn, target_params, untrained

SHORT = Optimiser(learning_rate=4e-3, steps=120, warmup=10)
MODEL = replace(TARGET, width=64, layers=1, heads=2, kv_heads=1, ffw=128)


@pytest.mark.parametrize("objective", ["text", "tv"])
def test_a_draft_model_learns_by_every_objective(objective):
    drafter = DraftModel(MODEL, length=3, objective=objective)
    params, losses = learn(Recipe(TARGET, drafter, SHORT), target_params())
    assert np.mean(losses[-10:]) < 0.8 * np.mean(losses[:10])
    before, _ = decode(drafter, params.replace(drafter=untrained(drafter, params.target)))
    assert decode(drafter, params)[0] > before + 0.1


def test_the_same_seed_gives_the_same_loss_curve():
    def curve():
        state = begin(initialise(tiny_world.TARGET.specs(), jax.random.key(0)), SHORT, 0)
        stream = tiny_world.batches(tiny_world.text(), 4, 32, 0)
        losses = []
        for _ in range(3):
            state, metrics = train_step(tiny_world.target_loss, SHORT, state, {}, next(stream))
            losses.append(float(metrics["loss"]))
        return losses

    assert curve() == curve()


@pytest.mark.parametrize("fields", [{"warmup": 1000}, {"learning_rate": 0.0}, {"clip": -1.0}])
def test_bad_optimisers_are_named(fields):
    with pytest.raises(ValueError, match=next(iter(fields))):
        Optimiser(**fields)
