"""A mesh decodes what one device decodes, token for token: every drafter, three meshes, T = 0 and 1, with padding rows.

    make test-mesh      (8 simulated devices: a process of their own)

Without them everything here is skipped, but for two cases that `make test` runs in a subprocess.
"""

import itertools
import os
import subprocess
import sys
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sdjax.core import flash
from sdjax.core.sampling import Warp
from sdjax.core.spec import initialise
from sdjax.decode.generate import generate, new_tokens, prefill, run, start
from sdjax.decode.place import params_shardings, put_back, state_shardings
from sdjax.decode.schedule import Prefix
from sdjax.decode.state import Loop, Params
from sdjax.drafters.draft_model import DraftModel
from sdjax.drafters.no_draft import NoDraft
from sdjax.drafters.tree_model import TreeDraftModel, TreeSelfDraft
from sdjax.mesh.layout import Layout, make_mesh, within
from sdjax.study.methods import Arm
from sdjax.study.timing import no_compilation, shapes_of, warm_up
from sdjax.targets.decoder import Decoder
from sdjax.verify.registry import LOSSLESS
from sdjax.verify.token import TokenRejection
from sdjax.verify.walk import Walk
from tests.conformance.test_drafters import drafter_classes
from tests.decode.confident import Sure, linear_costs

ROOT = Path(__file__).resolve().parents[2]
SIMULATED = "--xla_force_host_platform_device_count=8"
# On 8 devices along `model` the kv heads do not divide, on 4 they do.
TARGET = Decoder(vocab=48, width=16, layers=3, heads=8, kv_heads=4, head_width=8, ffw=24, qk_norm=True, windows=(None, 6, None))
ODD = replace(TARGET, vocab=29, heads=6, kv_heads=3, ffw=22)  # nothing divides
SEED = {TARGET: 24, ODD: 71}  # of weights whose greedy text varies
# Eight rows, so that eight devices along `data` have one each; rows 5.. are padding.
PROMPTS = [[1, 2, 3, 4, 5, 1, 2, 3], [7] * 20, [5], [9, 8, 9, 8, 9], [11] * 3, [1], [1], [1]]
REAL, NEW, CAPACITY, CHUNK = 5, 14, 64, 32
SHAPES = {"1x8": (1, 8), "2x4": (2, 4), "8x1": (8, 1)}

on_mesh = pytest.mark.skipif(jax.device_count() < 8, reason=f"needs 8 devices (XLA_FLAGS={SIMULATED}): make test-mesh")


def cases():
    """Every drafter on every mesh and at both temperatures."""
    every = itertools.product(drafter_classes(), SHAPES, (0.0, 1.0))
    return [pytest.param(cls, t, shape, id=f"{shape}-{t:g}-{cls.__name__}") for cls, shape, t in every]


def layout_of(shape: str) -> Layout:
    data, model = SHAPES[shape]
    return Layout(make_mesh(data=data, model=model, devices=jax.devices()[:8]))


def loop_and_params(drafter, temperature, target):
    """Random weights, scaled up so that the laws are neither flat nor one-hot."""
    loop = Loop(target, drafter, Walk(), Warp(temperature), chunk=CHUNK)
    seed = SEED.get(target, 24)
    make = lambda specs: jax.tree.map(lambda x: 4 * x if x.ndim > 1 else x, initialise(specs, jax.random.key(seed)))
    return loop, Params(make(target.specs()), make(drafter.specs(target)))


def started(loop, layout=None):
    """The prompts' state; padding rows may emit one token and no more."""
    state, lengths = start(loop, PROMPTS, NEW, range(len(PROMPTS)), CAPACITY, layout)
    last = jnp.where(jnp.arange(len(PROMPTS)) < REAL, state.last, lengths)
    return state.replace(last=jax.device_put(last, state.last.sharding) if layout else last), lengths


@cache
def alone(temperature, target):
    """Plain decoding on one device."""
    loop, params = loop_and_params(NoDraft(), temperature, target)
    state, lengths = started(loop)
    tokens = new_tokens(run(loop, params, prefill(loop, params, state, lengths), jnp.int32(1000)), PROMPTS)
    assert all(len(set(row)) >= 4 for row in tokens[:REAL]), "equality with a text that repeats itself proves little"
    return tokens


@partial(jax.jit, static_argnums=0)
def next_draft(loop, params, state):
    """What is drafted behind a state, of sequences that are not done."""
    draft, _ = loop.drafter.propose(loop.context(params, state), params.drafter, state.drafter)
    there = draft.valid & ~state.done[:, None]
    return [jnp.where(there, x, -1) for x in (draft.tokens, draft.parent, draft.depth)]


@cache
def drafted_alone(drafter, temperature, target):
    """After two steps on one device."""
    loop, params = loop_and_params(drafter, temperature, target)
    state, lengths = started(loop)
    return jax.device_get(next_draft(loop, params, run(loop, params, prefill(loop, params, state, lengths), jnp.int32(2))))


def check(drafter, temperature, shape, target=TARGET):
    """Drafts and tokens as on one device; every array stays where it was put; a second call compiles nothing.

    Tokens alone would say little of a drafter: the walk makes the same of any drafts.
    """
    layout = layout_of(shape)
    loop, params = loop_and_params(drafter, temperature, target)
    params = jax.device_put(params, params_shardings(layout, loop))
    with within(layout):
        state, lengths = started(loop, layout)
        state = run(loop, params, prefill(loop, params, state, lengths), jnp.int32(2))
        drafts = next_draft(loop, params, state)
        jax.tree.map(np.testing.assert_array_equal, jax.device_get(drafts), drafted_alone(drafter, temperature, target))
        compiled = run._cache_size()
        state = run(loop, params, state, jnp.int32(1000))
        assert run._cache_size() == compiled
    wanted = state_shardings(layout, loop, state)
    stays = jax.tree.map(lambda x, sharding: x.sharding.is_equivalent_to(sharding, x.ndim), state, wanted)
    assert all(jax.tree.leaves(stays)), stays
    tokens = new_tokens(state, PROMPTS)
    assert tokens == alone(temperature, target)
    assert all(len(row) == 1 for row in tokens[REAL:])
    assert (np.asarray(state.records.committed)[REAL:] == 0).all()


@pytest.mark.mesh
@on_mesh
def test_a_sampled_tree_of_a_model_on_both_axes():
    check(TreeDraftModel.tiny(TARGET), 1.0, "2x4")


@pytest.mark.mesh
@on_mesh
@pytest.mark.parametrize("cls, temperature, shape", cases())
def test_tokens_are_those_of_one_device(cls, temperature, shape):
    check(cls.tiny(TARGET), temperature, shape)


def ruled():
    """Every lossless rule that flips coins, behind a drafter that draws as it asks; meshes take turns."""
    drafters = {
        DraftModel: ["token", "block"],
        TreeDraftModel: ["recursive", "traversal"],
        TreeSelfDraft: ["kseq", "kseq-k", "best-path", "self-selection"],
    }
    pairs = [(cls, name) for cls, names in drafters.items() for name in names]
    assert {name for _, name in pairs} == LOSSLESS.keys() - {"walk"}
    return [(*pair, list(SHAPES)[i % len(SHAPES)]) for i, pair in enumerate(pairs)]


@pytest.mark.mesh
@on_mesh
@pytest.mark.parametrize("cls, rule, shape", ruled())
def test_a_rule_flips_its_coins_as_on_one_device(cls, rule, shape):
    """Ratios and residuals of laws that are split over the vocabulary, cut by top-k and top-p."""
    _, params = loop_and_params(cls.tiny(TARGET), 1.0, TARGET)
    loop = Loop(TARGET, cls.tiny(TARGET), LOSSLESS[rule], Warp(0.9, top_k=20, top_p=0.95), chunk=CHUNK)
    ours = generate(loop, params, PROMPTS, NEW, capacity=CAPACITY)
    layout = layout_of(shape)
    params = jax.device_put(params, params_shardings(layout, loop))
    assert generate(loop, params, PROMPTS, NEW, capacity=CAPACITY, layout=layout).tokens == ours.tokens
    accepted = sum(steps.accepted.sum() for steps in ours.steps)
    assert 0 < accepted < sum(steps.proposed.sum() for steps in ours.steps), "coins fall on both sides"


@pytest.mark.mesh
@on_mesh
@pytest.mark.parametrize("shape", SHAPES)
def test_a_scheduled_and_packed_pass_is_that_of_one_device(shape):
    drafter = Sure()
    _, params = loop_and_params(drafter, 1.0, TARGET)
    cuts = {"schedule": Prefix(linear_costs(len(PROMPTS) * drafter.nodes)), "pack": (12, 20)}
    loop = Loop(TARGET, drafter, TokenRejection(), Warp(1.0), chunk=CHUNK, **cuts)
    ours = generate(loop, params, PROMPTS, NEW, capacity=CAPACITY)
    layout = layout_of(shape)
    params = jax.device_put(params, params_shardings(layout, loop))
    theirs = generate(loop, params, PROMPTS, NEW, capacity=CAPACITY, layout=layout)
    assert theirs.tokens == ours.tokens
    np.testing.assert_array_equal(theirs.records.verified, ours.records.verified)
    assert 0 < np.asarray(ours.records.proposed).sum() < (drafter.nodes - 1) * (np.asarray(ours.records.committed) > 0).sum()


@pytest.mark.mesh
@on_mesh
def test_a_model_that_does_not_divide_is_decoded_all_the_same():
    check(TreeDraftModel.tiny(ODD), 1.0, "2x4", ODD)


@pytest.mark.mesh
@on_mesh
def test_no_device_holds_more_than_its_part():
    layout = layout_of("2x4")
    loop, params = loop_and_params(NoDraft(), 0.0, TARGET)
    state, _ = started(loop, layout)
    params = jax.device_put(params, params_shardings(layout, loop))
    share = lambda x: x.addressable_shards[0].data.size / x.size
    assert share(state.cache.layers[0].k) == share(state.tokens) / 4 == 1 / 8
    assert share(params.target["head"]) == share(params.target["layers"][0]["k"]) == 1 / 4


@pytest.mark.mesh
@on_mesh
@pytest.mark.parametrize("shape", ["1x8", "2x4"])
def test_generate_sets_the_mesh_that_the_kernel_asks_for(shape, monkeypatch):
    """`generate` with a layout gives one device's tokens, and `flash` finds how heads are split; off a TPU nothing else."""
    ways, layout = [], layout_of(shape)
    monkeypatch.setattr(flash, "pays", lambda *_: ways.append(flash.ways(flash.SPLIT[1])))
    loop, params = loop_and_params(NoDraft(), 1.0, replace(TARGET, flash=True, windows=()))
    tokens = generate(loop, params, PROMPTS, NEW, capacity=CAPACITY).tokens
    ways.clear()
    params = jax.device_put(params, params_shardings(layout, loop))
    assert generate(loop, params, PROMPTS, NEW, capacity=CAPACITY, layout=layout).tokens == tokens
    assert ways and all(parts == [SHAPES[shape][1]] for parts in ways)


@pytest.mark.mesh
@on_mesh
def test_what_is_left_elsewhere_is_put_back():
    """As prefill may leave a drafter's cache; what is in its place is not touched."""
    layout = layout_of("2x4")
    loop, _ = loop_and_params(TreeDraftModel.tiny(TARGET), 0.0, TARGET)
    state, _ = started(loop, layout)
    wanted = state_shardings(layout, loop, state)
    moved = state.replace(cache=jax.device_put(state.cache, jax.tree.map(lambda _: wanted.step, state.cache)))
    back = put_back(layout, loop, moved)
    assert all(jax.tree.leaves(jax.tree.map(lambda x, s: x.sharding.is_equivalent_to(s, x.ndim), back, wanted)))
    assert back.tokens is moved.tokens and put_back(None, loop, moved) is moved


@pytest.mark.mesh
@on_mesh
def test_what_was_warmed_up_is_what_runs():
    """Clocks of a comparison on a mesh have no compilation in them."""
    layout = layout_of("2x4")
    loop, params = loop_and_params(NoDraft(), 0.0, TARGET)
    arm = Arm("plain", loop, jax.device_put(params, params_shardings(layout, loop)), layout)
    for shapes in shapes_of(loop, [PROMPTS], CAPACITY, NEW):
        warm_up(arm, shapes)
    with no_compilation("plain"):
        generate(loop, arm.params, PROMPTS, NEW, capacity=CAPACITY, layout=layout)


def test_two_cases_in_a_process_of_eight_devices():
    """The whole of this file is `make test-mesh`; this is what every run of the tests affords."""
    flags = {"XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {SIMULATED}", "JAX_PLATFORMS": "cpu"}
    afforded = test_a_sampled_tree_of_a_model_on_both_axes, test_what_was_warmed_up_is_what_runs
    cases = [f"{Path(__file__).relative_to(ROOT)}::{case.__name__}" for case in afforded]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *cases]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | flags, capture_output=True, text=True)
    assert done.returncode == 0 and "2 passed" in done.stdout, done.stdout[-4000:] + done.stderr[-2000:]
