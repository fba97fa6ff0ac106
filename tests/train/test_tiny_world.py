"""Training works where it is cheap to see: a tiny target learns, and a drafter of it earns its τ."""

from dataclasses import replace
from functools import cache

import jax
import numpy as np
import pytest

from sdjax.core.metrics import acceptance
from sdjax.core.sampling import Warp
from sdjax.core.spec import initialise
from sdjax.decode.generate import generate
from sdjax.decode.state import Loop, Params
from sdjax.drafters.draft_model import DraftModel
from sdjax.drafters.no_draft import NoDraft
from sdjax.train import tiny_world
from sdjax.train.optimiser import Optimiser
from sdjax.train.step import begin, drafter_loss, train_step
from sdjax.verify.walk import Walk

SHORT = Optimiser(learning_rate=4e-3, steps=120, warmup=10)
MODEL = replace(tiny_world.TARGET, width=64, layers=1, heads=2, kv_heads=1, ffw=128)


@cache
def target_params():
    return tiny_world.train_target(optimiser=SHORT)


def tau(drafter, params):
    """τ at temperature 0 behind held-out prompts, and the tokens."""
    loop = Loop(tiny_world.TARGET, drafter, Walk(), Warp(0.0), chunk=32)
    out = generate(loop, Params(target_params(), params), tiny_world.prompts(8, 32), 48)
    return acceptance(out.steps, drafter.depth).tau, out.tokens


@pytest.mark.parametrize("objective", ["text", "forward-kl", "tv"])
def test_a_trained_draft_model_beats_itself_untrained_and_stays_lossless(objective):
    drafter = DraftModel(MODEL, length=3, objective=objective)
    params = initialise(drafter.specs(tiny_world.TARGET), jax.random.key(1))
    untrained, _ = tau(drafter, params)
    state, loss = begin(params, SHORT, seed=1), drafter_loss(drafter, tiny_world.TARGET)
    stream = tiny_world.batches(tiny_world.text()[: -tiny_world.HELD_OUT], 16, 64, seed=1)
    seen = []
    for _ in range(SHORT.steps):
        state, metrics = train_step(loss, SHORT, state, target_params(), next(stream))
        seen.append(float(metrics["loss"]))
    assert np.mean(seen[-10:]) < 0.8 * np.mean(seen[:10])
    trained, tokens = tau(drafter, state.params)
    assert trained > untrained + 0.2
    assert tokens == tau(NoDraft(), {})[1]


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
