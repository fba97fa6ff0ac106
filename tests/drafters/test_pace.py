"""The length of the next draft follows DiffuSpec's rule, number by number."""

import jax.numpy as jnp
import numpy as np
import pytest

from sdjax.drafters.pace import Controller


@pytest.mark.parametrize("controller", [Controller(20, 30), Controller(1, 9, growth=2, rate=0.25)])
def test_the_controller_is_its_rule(controller):
    random, batch = np.random.default_rng(0), 32
    pace, lengths = controller.begin(batch), set()
    mean = np.full((2, batch), controller.longest, np.float64)
    for _ in range(40):
        k = np.asarray(controller.length(pace))
        grown = np.floor(mean[0]) + controller.growth * (mean[1] >= mean[0])
        np.testing.assert_array_equal(k, np.clip(grown, controller.shortest, controller.longest))
        lengths |= set(k.tolist())
        generated = np.where(random.random(batch) < 0.4, random.integers(0, k + 1), k)
        accepted = np.where(random.random(batch) < 0.6, generated, random.integers(0, k + 1))
        count = np.where(random.random(batch) < 0.2, 0, accepted + 1)
        pace = controller.follow(pace, jnp.asarray(generated), jnp.asarray(count))
        moved = (1 - controller.rate) * mean + controller.rate * np.stack([generated, accepted])
        mean = np.where(count > 0, moved, mean)
        np.testing.assert_allclose([pace.generated, pace.accepted], mean, atol=1e-4)
    assert len(lengths) > 3


def test_what_cannot_be_is_named():
    with pytest.raises(ValueError, match="1 ≤ shortest ≤ longest; got 5 and 4"):
        Controller(5, 4)
    with pytest.raises(ValueError, match="rate 0"):
        Controller(1, 4, rate=0)
