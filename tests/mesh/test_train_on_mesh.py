"""Training on a mesh is training on one device: the same losses, the same checkpoints; and no device holds more than its part.

make test-mesh      (8 simulated devices: a process of their own)
"""

from dataclasses import replace
from functools import cache

import jax
import numpy as np
import pytest

from sdjax.core.spec import initialise
from sdjax.core.types import Batch
from sdjax.decode.generate import generate
from sdjax.drafters.block import Block
from sdjax.drafters.eagle3 import Eagle3
from sdjax.drafters.medusa import Medusa
from sdjax.mesh.layout import TRAIN, Layout, make_mesh
from sdjax.mesh.place import on_host, spread
from sdjax.train import evaluate
from sdjax.train.checkpoint import Checkpoints
from sdjax.train.evaluate import HeldOut
from sdjax.train.hosts import whole_batch
from sdjax.train.joint import Joint
from sdjax.train.optimiser import Optimiser
from sdjax.train.place import batch_sharding, begin_on, sharded_step, state_shardings
from sdjax.train.readers import readers_here
from sdjax.train.recipe import Recipe
from sdjax.train.step import train_step
from tests.mesh.test_decode_on_mesh import TARGET, on_mesh
from tests.train.micro import same

ROWS, LENGTH, STEPS = 8, 16, 20
OPTIMISER = Optimiser(learning_rate=3e-3, steps=STEPS, warmup=2)
FAMILIES = {
    "eagle3": Recipe(TARGET, Eagle3.tiny(TARGET), replace(OPTIMISER, ema=0.9)),
    "medusa": Recipe(TARGET, Medusa.tiny(TARGET), replace(OPTIMISER, method="muon")),
    "medusa2": Recipe(TARGET, Medusa.tiny(TARGET), replace(OPTIMISER, micro_batches=2), Joint()),
    "block": Recipe(TARGET, Block.tiny(TARGET), OPTIMISER),
}
MESHES = {"1x8": (1, 1, 8), "2x4": (2, 1, 4), "8x1": (8, 1, 1), "2x2x2": (2, 2, 2), "1x4x2": (1, 4, 2)}
OTHERS = "block", "medusa", "medusa2"
CASES = [("eagle3", mesh) for mesh in MESHES] + [(family, mesh) for family in OTHERS for mesh in ("1x8", "2x4", "8x1", "2x2x2")]

pytestmark = [pytest.mark.mesh, on_mesh]


def layout_of(mesh: str) -> Layout:
    return Layout(make_mesh(*MESHES[mesh], devices=jax.devices()[:8]), TRAIN)


@cache
def batches() -> list[Batch]:
    """Rows of two documents each, of which a part is learnt from."""
    draw = np.random.default_rng(0)
    place = np.arange(LENGTH) % (LENGTH // 2)
    whole = lambda x: np.broadcast_to(x, (ROWS, LENGTH))
    return [
        Batch(
            draw.integers(0, TARGET.vocab, (ROWS, LENGTH)).astype(np.int32),
            whole(place.astype(np.int32)),
            whole((np.arange(LENGTH) // (LENGTH // 2) + 1).astype(np.int32)),
            draw.random((ROWS, LENGTH)) < 0.8,
        )
        for _ in range(4)
    ]


@cache
def target_params():
    return jax.tree.map(lambda x: 4 * x if x.ndim > 1 else x, initialise(TARGET.specs(), jax.random.key(1)))


@cache
def drafter_params(drafter):
    return drafter.initial(TARGET, target_params(), np.ones(TARGET.vocab, int), jax.random.key(2))


def begun(recipe, layout=None):
    """The first state, and the target's parameters."""
    target, drafter = target_params(), drafter_params(recipe.drafter)
    if layout is None:
        return recipe.begin(target, drafter, seed=3), target
    target = spread(target, layout.params(TARGET.specs()))
    drafter = spread(drafter, layout.params(recipe.drafter.specs(TARGET)))
    return begin_on(layout, recipe, target, drafter, seed=3), target


def losses(recipe, layout=None, steps=STEPS):
    """Of every step, and the last state."""
    state, target = begun(recipe, layout)
    step = sharded_step(layout, recipe, state) if layout else lambda *given: train_step(recipe.loss, recipe.optimiser, *given)
    rows, found = layout and batch_sharding(layout), []
    for i in range(steps):
        state, metrics = step(state, target, whole_batch(batches()[i % 4], rows))
        found.append(metrics["loss"])
    return np.array(jax.device_get(found)), state


@cache
def alone(family):
    return losses(FAMILIES[family])[0]


@pytest.mark.parametrize("family, mesh", CASES)
def test_losses_are_those_of_one_device(family, mesh):
    layout, recipe = layout_of(mesh), FAMILIES[family]
    found, state = losses(recipe, layout)
    np.testing.assert_allclose(found, alone(family), rtol=1e-5, atol=0)
    wanted = state_shardings(layout, recipe, state)
    assert all(jax.tree.leaves(jax.tree.map(lambda x, s: x.sharding.is_equivalent_to(s, x.ndim), state, wanted)))


def test_a_rate_that_is_a_little_off_does_not_pass():
    recipe = FAMILIES["eagle3"]
    wrong = replace(recipe, optimiser=replace(recipe.optimiser, learning_rate=3.03e-3))
    assert np.abs(losses(wrong)[0] / alone("eagle3") - 1).max() > 1e-5


def test_no_device_holds_more_than_its_part():
    state, target = begun(FAMILIES["eagle3"], layout_of("2x2x2"))
    share = lambda x: x.addressable_shards[0].data.size / x.size
    moments = state.optimiser[1][0]
    for tree in (state.params, state.ema, moments.mu, moments.nu):
        assert share(tree.drafter["layer"]["gate"]) == 1 / 4
    assert share(target["layers"][0]["gate"]) == 1 / 4 and share(state.step) == 1


@pytest.mark.parametrize("mesh", ["2x2x2", "1x4x2"])
def test_held_out_prompts_are_decoded_as_on_one_device_by_chips_that_each_have_a_part(mesh, monkeypatch):
    """Parts of fsdp, too: were the target whole there, it would not fit where training does."""
    recipe, layout = FAMILIES["eagle3"], layout_of(mesh)
    held_out = HeldOut(((1, 2, 3, 1, 2), (7,) * 9), max_new=12, batch=2)
    seen = []

    def watched(loop, params, *rest, **named):
        gate = params.target["layers"][0]["gate"].addressable_shards[0].data
        seen.append((gate.size / (TARGET.width * TARGET.ffw), (made := generate(loop, params, *rest, **named)).tokens))
        return made

    monkeypatch.setattr(evaluate, "generate", watched)
    for where in (None, layout):
        state, target = begun(recipe, where)
        held_out.acceptance(TARGET, recipe.drafter, recipe.decodable(state, target), 0.0, where)
    assert seen == [(1.0, seen[0][1]), (MESHES[mesh][0] / 8, seen[0][1])]


@pytest.mark.parametrize("mesh", ["1x8", "8x1", None])
def test_a_checkpoint_is_restored_onto_another_mesh(tmp_path, mesh):
    """Written from four parts of fsdp, read onto other shapes and onto one device: bit for bit, and laid out there."""
    recipe, layout = FAMILIES["eagle3"], mesh and layout_of(mesh)
    before, _ = begun(recipe, layout_of("1x4x2"))
    before = before.replace(params=jax.tree.map(lambda x: x + 1, before.params))
    checkpoints = Checkpoints(tmp_path / "c", {})
    checkpoints.save(before, 1, {})
    checkpoints.wait()
    like, _ = begun(recipe, layout)
    after = checkpoints.restore(like).state
    assert same(on_host(after.replace(key=jax.random.key_data(after.key))), before.replace(key=jax.random.key_data(before.key)))
    assert all(jax.tree.leaves(jax.tree.map(lambda x, y: x.sharding.is_equivalent_to(y.sharding, x.ndim), after, like)))


def test_a_reader_is_where_its_rows_are():
    sharding = batch_sharding(layout_of("2x2x2"))
    assert readers_here(sharding, ROWS, 2) == [0, 1] == readers_here(None, ROWS, 2)
