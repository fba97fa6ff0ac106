"""A tiny random target and its plain decoding, shared by the suites so that each program compiles once a process."""

from dataclasses import replace
from functools import cache
from typing import Any

import jax

from sdjax.core.sampling import Warp
from sdjax.core.spec import initialise
from sdjax.decode.generate import Generation, generate
from sdjax.decode.state import Loop, Params
from sdjax.drafters.no_draft import NoDraft
from sdjax.targets.decoder import Decoder
from sdjax.verify.walk import Walk

TARGET = Decoder(
    vocab=29,
    width=16,
    layers=3,
    heads=4,
    kv_heads=2,
    head_width=8,
    ffw=24,
    tied=False,
    qk_norm=True,
    qkv_bias=True,
    windows=(None, 6, None),
    max_position=512,
)
PROMPTS = [[1, 2, 3, 4, 5, 1, 2, 3], [7] * 30, [5]]
SEEDS = [11, 12, 13]
CHUNK = 16
NEW = 24


@cache
def target_params() -> Any:
    """Random weights, scaled up so that the laws are neither flat nor one-hot; the seed is one whose greedy text varies."""
    return jax.tree.map(lambda x: 4 * x if x.ndim > 1 else x, initialise(TARGET.specs(), jax.random.key(1)))


def drafter_params(drafter: Any) -> Any:
    """Random weights for a drafter of TARGET."""
    return jax.tree.map(lambda x: 4 * x if x.ndim > 1 else x, initialise(drafter.specs(TARGET), jax.random.key(1)))


def loop_of(drafter: Any, temperature: float, rule: Any = None, **changes: Any) -> Loop:
    loop = Loop(TARGET, drafter, rule or Walk(), Warp(temperature), chunk=CHUNK)
    return replace(loop, **changes)


def decode(
    drafter: Any, temperature: float, rule: Any = None, prompts=PROMPTS, seeds=SEEDS, params=None, **options
) -> Generation:
    """Generates with random weights; what is not named is as in every other test."""
    params = Params(target_params(), drafter_params(drafter) if params is None else params)
    return generate(loop_of(drafter, temperature, rule), params, prompts, NEW, seeds=seeds, **options)


@cache
def plain(temperature: float) -> list[list[int]]:
    """Plain decoding of PROMPTS: what every lossless run must equal."""
    tokens = decode(NoDraft(), temperature).tokens
    assert all(len(set(row)) >= 7 for row in tokens), "equality with a text that repeats itself proves little"
    return tokens
