"""Every family learns to draft in the tiny world: τ rises clearly above its untrained self, and no token changes."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
from flax import struct

from experiments.config import config_files, load_file
from sdjax.core.types import Trace
from sdjax.decode.state import Params
from sdjax.drafters.no_draft import NoDraft
from sdjax.train.recipe import Recipe
from tests.train.tiny_drafters import TARGET, decode, learn, target_params, untrained

pytestmark = pytest.mark.families

CONFIGS = {path.stem: path for path in config_files("train") if path.stem.endswith("_tiny")}
STEPS, FROM_NOTHING = 100, 400  # an independent model cannot lean on the target's states
RISE = 0.4


def recipe_of(name: str) -> Recipe:
    """A config's recipe, cut to few steps with all that is counted in steps."""
    config = load_file(CONFIGS[name]).get_config()
    steps = STEPS if config.drafter.taps else FROM_NOTHING
    cut = lambda step: step * steps // config.optimiser.steps
    optimiser = replace(
        config.optimiser, steps=steps, warmup=cut(config.optimiser.warmup), target_from=cut(config.optimiser.target_from)
    )
    joint = config.joint and replace(
        config.joint, weights=tuple((cut(step), weight) for step, weight in config.joint.weights), ramp=cut(config.joint.ramp)
    )
    drafter = config.drafter
    if hasattr(drafter, "base_steps"):
        drafter = replace(drafter, base_steps=cut(drafter.base_steps))
    return Recipe(TARGET, drafter, optimiser, joint, config.frozen)


def rise(recipe: Recipe, drafter: Any = None) -> float:
    """By how much training lifts τ above what it starts from; `drafter` decodes in the place of the one that is trained."""
    params, _ = learn(recipe, target_params())
    drafter = drafter or recipe.drafter
    before, _ = decode(drafter, Params(target_params(), untrained(drafter, target_params())))
    after, tokens = decode(drafter, params)
    assert tokens == decode(NoDraft(), Params(params.target, {}))[1]
    return after - before


@pytest.mark.parametrize("name", [name for name in CONFIGS if not load_file(CONFIGS[name]).get_config().joint])
def test_a_trained_drafter_beats_itself_untrained_and_stays_lossless(name):
    assert rise(recipe_of(name)) > RISE


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CONFIGS if load_file(CONFIGS[name]).get_config().joint])
def test_one_that_is_trained_beside_its_target_does_so_too(name):
    """Plain decoding with the tuned target is the baseline; the target starts trained here, whatever the config says."""
    assert rise(recipe_of(name)) > RISE


@struct.dataclass
class Late(Trace):
    """A trace whose labels stand one place too far."""

    def ahead(self, by):
        return super().ahead(by + 1)


@dataclass(frozen=True)
class LearntLate:
    """A drafter that is trained on such labels."""

    inner: Any

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def loss(self, ctx, params, trace, key):
        return self.inner.loss(ctx, params, Late(trace.batch, trace.features, trace.hidden), key)


def test_labels_one_place_too_far_do_not_pass():
    right = recipe_of("medusa_tiny")
    wrong = replace(right, drafter=LearntLate(right.drafter))
    assert rise(wrong, right.drafter) < RISE
