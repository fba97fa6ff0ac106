"""Drafters of one target of the tiny world, trained for little more than a second each, and what they are then worth."""

from functools import cache
from typing import Any

import jax
import numpy as np

from sdjax.core.metrics import acceptance
from sdjax.core.sampling import Warp
from sdjax.core.spec import initialise
from sdjax.decode.generate import generate
from sdjax.decode.state import Loop, Params
from sdjax.train import tiny_world
from sdjax.train.optimiser import Optimiser
from sdjax.train.recipe import Recipe
from sdjax.train.step import begin, train_step
from sdjax.verify.walk import Walk

TARGET = tiny_world.TARGET
TEXT = tiny_world.text()[: -tiny_world.HELD_OUT]


@cache
def target_params() -> Any:
    """A target that has seen little: small batches, many steps."""
    optimiser = Optimiser(learning_rate=4e-3, steps=400, warmup=20)
    state, stream = begin(initialise(TARGET.specs(), jax.random.key(0)), optimiser, seed=0), texts(seed=0)
    for _ in range(optimiser.steps):
        state, _ = train_step(tiny_world.target_loss, optimiser, state, {}, next(stream))
    return state.params


def texts(seed: int) -> tiny_world.Windows:
    """Batches of 8 rows of 64 bytes."""
    return tiny_world.batches(TEXT, 8, 64, seed)


def untrained(drafter: Any, target: Any) -> Any:
    """What training starts from."""
    return drafter.initial(TARGET, target, np.bincount(TEXT, minlength=TARGET.vocab), jax.random.key(1))


def learn(recipe: Recipe, target: Any) -> tuple[Params, list[float]]:
    """What a recipe makes of the drafter, and of a target that starts from `target`; and the losses."""
    state, stream = recipe.begin(target, untrained(recipe.drafter, target), seed=1), texts(seed=1)
    losses = []
    for _ in range(recipe.optimiser.steps):
        state, metrics = train_step(recipe.loss, recipe.optimiser, state, target, next(stream))
        losses.append(metrics["loss"])
    return recipe.decodable(state, target), [float(loss) for loss in losses]


def decode(drafter: Any, params: Params) -> tuple[float, list[list[int]]]:
    """τ at temperature 0, and the tokens: few behind each of many prompts, before the target falls into a loop."""
    loop = Loop(TARGET, drafter, Walk(), Warp(0.0), chunk=32)
    out = generate(loop, params, tiny_world.prompts(32, 32), 9)
    return acceptance(out.steps, drafter.depth).tau, out.tokens
