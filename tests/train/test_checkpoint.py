"""Checkpoints come back bit for bit, are those of one config, and a disk that fails leaves the one before whole."""

import resource
import signal
from contextlib import contextmanager
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sdjax.train.checkpoint import Checkpoints
from sdjax.train.optimiser import Optimiser
from sdjax.train.step import TrainState, begin
from tests.train.micro import same

CONFIG = {"name": "a", "optimiser": {"steps": 5, "rate": 0.1}}


def state_of(fill, size=4) -> TrainState:
    """Parameters with a draft vocabulary, both moments, an average."""
    params = {"ids": jnp.arange(3) + fill, "w": [jnp.full((size, size), fill + 0.1), None]}
    return begin(params, replace(Optimiser(), ema=0.9), seed=fill).replace(step=jnp.int32(fill))


def test_everything_comes_back(tmp_path):
    checkpoints = Checkpoints(tmp_path / "c", CONFIG)
    checkpoints.save(state_of(3), 3, {"positions": [{"at": 2**70}]})
    checkpoints.close()
    state, run = Checkpoints(tmp_path / "c", CONFIG).restore(state_of(0))
    assert same(state, state_of(3)) and state.learnt == (False, True)
    assert jax.random.normal(state.key) == jax.random.normal(jax.random.key(3))
    assert run["positions"] == [{"at": 2**70}] and run["config"] == CONFIG


def test_what_is_saved_is_the_state_at_that_moment(tmp_path):
    """The next step is given the very buffers to overwrite, while the writer works."""
    checkpoints = Checkpoints(tmp_path / "c", CONFIG)
    step = jax.jit(lambda state: jax.tree.map(lambda x: x + 1, state.params), donate_argnums=0)
    state = state_of(3, size=512)
    checkpoints.save(state, 3, {})
    for _ in range(5):
        state = state.replace(params=step(state))
    checkpoints.close()
    assert same(Checkpoints(tmp_path / "c", CONFIG).restore(state_of(0, 512)).state, state_of(3, size=512))


def test_another_config_is_refused_by_its_fields(tmp_path):
    checkpoints = Checkpoints(tmp_path / "c", CONFIG)
    checkpoints.save(state_of(1), 1, {})
    checkpoints.close()
    with pytest.raises(ValueError, match=r"another config \(optimiser.rate was 0.1, is 0.2\)"):
        Checkpoints(tmp_path / "c", CONFIG | {"optimiser": {"steps": 5, "rate": 0.2}})


@pytest.mark.parametrize("before", [True, False])
def test_a_state_of_another_shape_is_refused(tmp_path, before):
    """As where another version left other parameters to AdamW."""

    def state_of(by_muon):
        return begin({"w": jnp.ones((4, 4))}, Optimiser(method="muon"), seed=0, matrices=(by_muon,))

    checkpoints = Checkpoints(tmp_path / "c", CONFIG)
    checkpoints.save(state_of(before), 1, {})
    checkpoints.close()
    with pytest.raises(ValueError, match=r"step 1 .* of another version's optimiser; take another --name"):
        Checkpoints(tmp_path / "c", CONFIG).restore(state_of(not before))


def test_the_newest_and_the_first_of_the_best_are_kept(tmp_path):
    checkpoints = Checkpoints(tmp_path / "c", CONFIG, keep=2)
    for step, tau in enumerate([1.0, 2.0, None, 2.0, 1.5, None, None], 1):
        checkpoints.save(state_of(step), step, {}, tau)
    checkpoints.wait()
    assert sorted(int(path.name) for path in checkpoints.folder.iterdir()) == [2, 6, 7]
    checkpoints.close()
    again = Checkpoints(tmp_path / "c", CONFIG, keep=2)
    again.save(state_of(8), 8, {}, 1.9)
    again.wait()
    assert sorted(int(path.name) for path in again.folder.iterdir()) == [2, 7, 8]
    assert same(again.restore(state_of(0), 2).state, state_of(2))


def test_a_sharding_is_kept(tmp_path):
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    checkpoints = Checkpoints(tmp_path / "c", CONFIG)
    checkpoints.save(state_of(1), 1, {})
    checkpoints.wait()
    found = checkpoints.restore(jax.device_put(state_of(0), sharding)).state
    assert all(x.sharding.is_equivalent_to(sharding, x.ndim) for x in jax.tree.leaves(found))


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "c").write_text("a file")
    with pytest.raises(ValueError, match=r"cannot be kept in .*c "):
        Checkpoints(tmp_path / "c", CONFIG)


@contextmanager
def files_no_larger_than(size):
    """As if the disk were full: writing beyond `size` bytes fails."""
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_leaves_the_checkpoint_before(tmp_path):
    noise = lambda fill: state_of(fill).replace(params={"w": jax.random.normal(jax.random.key(fill), (300, 300))}, ema=None)
    checkpoints = Checkpoints(tmp_path / "c", CONFIG)
    checkpoints.save(noise(1), 1, {})
    checkpoints.wait()
    with files_no_larger_than(20_000), pytest.raises(ValueError, match=r"could not be written to .*step 1 is whole"):
        checkpoints.save(noise(2), 2, {})
        checkpoints.wait()
    again = Checkpoints(tmp_path / "c", CONFIG)
    assert again.latest == 1
    assert same(again.restore(noise(0)).state, noise(1))
    assert [path.name for path in again.folder.iterdir()] == ["1"], "what was half-written is gone"
    again.save(noise(2), 2, {})
    again.wait()
    assert np.array_equal(again.restore(noise(0)).state.params["w"], noise(2).params["w"])
