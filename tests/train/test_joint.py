"""Joint training: the target moves when it should, by what it should, and not before."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sdjax.decode.state import Params
from sdjax.train.joint import Joint
from sdjax.train.optimiser import Optimiser
from sdjax.train.recipe import Recipe
from sdjax.train.step import train_step
from tests.train.micro import TARGET, same, target_params
from tests.train.test_partition import OneHead, batch, params_of

PLAIN = Optimiser(learning_rate=1e-3, steps=10, warmup=0, clip=1e9)
JOINT = Recipe(TARGET, OneHead(), PLAIN, Joint(weights=((0, 0.5),)))


def begin(recipe):
    return recipe.begin(target_params(), params_of(recipe.drafter), seed=0)


def gradient(recipe, step=0):
    def loss(params):
        return recipe.loss(params, target_params(), batch(4), jax.random.key(0), jnp.int32(step))[0]

    start = Params(target_params(), params_of(recipe.drafter))
    return jax.grad(loss, allow_int=True)(start)


def norm(tree):
    leaves = [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.floating)]
    return float(sum(jnp.sum(x * x) for x in leaves) ** 0.5)


def test_the_drafters_gradient_reaches_the_target():
    """With a target that is its untuned self, KL has no gradient: all that is left is the drafter's."""
    recipe = replace(JOINT, joint=Joint(((0, 0.5),), objective="self-distillation"))
    found = gradient(recipe)
    assert norm(found.target["layers"]) > 1e-4 and norm(found.target["embed"]) > 1e-4
    muted = gradient(replace(recipe, joint=Joint(((0, 0.0),), objective="self-distillation")))
    assert norm(muted) < 1e-6
    text = gradient(replace(recipe, joint=Joint(((0, 0.0),))))
    assert norm(text.target) > 1e-2 and norm(text.drafter) == 0


def test_the_first_stage_leaves_the_target_bit_for_bit():
    optimiser = replace(PLAIN, target_from=2, target_rate=0.25, weight_decay=0.1)
    recipe = replace(JOINT, optimiser=optimiser)
    state, moved = begin(recipe), []
    for step in range(3):
        state, metrics = train_step(recipe.loss, recipe.optimiser, state, target_params(), batch(4, step))
        moved.append(not same(state.params.target, target_params()))
        alone = float(metrics["loss"]) == float(metrics["drafter_loss"])
        assert alone == (step < 2)
    assert moved == [False, False, True]
    assert not np.array_equal(state.params.drafter["mix"], params_of(recipe.drafter)["mix"])


def test_rates_differ():
    """Adam's first update is the rate wherever there is a gradient: a quarter of it in the target."""
    recipe = replace(JOINT, optimiser=replace(PLAIN, target_rate=0.25))
    state, _ = train_step(recipe.loss, recipe.optimiser, begin(recipe), target_params(), batch(4))
    step = lambda new, old: float(jnp.median(jnp.abs(new - old)))
    assert step(state.params.drafter["mix"], params_of(recipe.drafter)["mix"]) == pytest.approx(1e-3, rel=0.02)
    assert step(state.params.target["layers"][0]["q"], target_params()["layers"][0]["q"]) == pytest.approx(2.5e-4, rel=0.02)


def test_the_tuned_target_is_what_decodes():
    state = begin(JOINT)
    assert JOINT.decodable(state, None).target is not None
    frozen = replace(JOINT, joint=None)
    assert frozen.decodable(begin(frozen), target_params()).target is target_params()


def test_weights_follow_their_schedule():
    joint = Joint(((0, 0.3), (100, 0.1)), ramp=50)
    at = lambda step: float(joint.weight(jnp.int32(step), 10))
    assert [at(10), at(60), at(99), at(100)] == pytest.approx([0, 0.3, 0.3, 0.1])
    assert at(35) == pytest.approx(0.3 * np.sin(np.pi / 4))


@pytest.mark.parametrize("weights", [(), ((1, 0.1),), ((0, 0.1), (0, 0.2)), ((0, -1.0),)])
def test_bad_weights_are_named(weights):
    with pytest.raises(ValueError, match="weights"):
        Joint(weights)


def test_rates_of_a_frozen_target_are_refused():
    with pytest.raises(ValueError, match="target_rate"):
        Recipe(TARGET, OneHead(), replace(PLAIN, target_rate=0.5))
