"""The path search: pruning as written, the beam of a plain loop, and with beams enough the best of all paths."""

from functools import partial
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sdjax.drafters.lattice import best_path, lattice_of

SLOTS, VOCAB, MOST, MASS, FIRST = 4, 9, 3, 0.8, 2


@partial(jax.jit, static_argnames=("beams", "mix"))
def searched(logits, table, beams, mix, ids):
    """The lattice and the path; `table` holds log p of each draft token behind each token of the target."""
    lattice = lattice_of(logits, MOST, MASS)
    return lattice, best_path(lattice, jnp.int32(FIRST), lambda last: table[last], beams, mix, ids)


def case(seed):
    """Logits sharp here and flat there, a causal model, and a draft vocabulary in no order of likelihood."""
    random = np.random.default_rng(seed)
    logits = random.normal(size=(SLOTS, VOCAB)) * random.choice([0.5, 4.0], size=(SLOTS, 1))
    table = np.asarray(jax.nn.log_softmax(2 * random.normal(size=(2 * VOCAB, VOCAB))))
    return jnp.asarray(logits, jnp.float32), jnp.asarray(table, jnp.float32), jnp.arange(VOCAB) * 2


def candidates(logits):
    """[(place, log q)] of each slot: the fewest of the likeliest that reach the mass, at most MOST."""
    log_q = np.asarray(jax.nn.log_softmax(logits), np.float64)
    for row in log_q:
        best = sorted(range(VOCAB), key=lambda place: -row[place])[:MOST]
        enough = next((n for n in range(1, MOST + 1) if np.exp(row[best[:n]]).sum() >= MASS), MOST)
        yield [(place, row[place]) for place in best[:enough]]


def score(path, table, ids, mix):
    last, total = FIRST, 0.0
    for place, log_q in path:
        total, last = total + mix * log_q + (1 - mix) * float(table[last, place]), int(ids[place])
    return total


@pytest.mark.parametrize("seed", range(4))
def test_candidates_are_pruned_by_mass(seed):
    logits, table, ids = case(seed)
    lattice, _ = searched(logits, table, 3, 0.5, ids)
    for places, log_q, wanted in zip(lattice.places, lattice.log_q, candidates(logits), strict=True):
        assert places[log_q > -jnp.inf].tolist() == [place for place, _ in wanted]
        np.testing.assert_allclose(log_q[log_q > -jnp.inf], [q for _, q in wanted], atol=1e-5)


@pytest.mark.parametrize("beams, mix", [(MOST**SLOTS, 0.5), (MOST**SLOTS, 0.0), (MOST**SLOTS, 1.0), (2, 0.5)])
def test_the_path_is_the_best_or_that_of_a_loop(beams, mix):
    """With beams for every path, that of exhaustive search; with fewer, that of a beam written as a loop."""
    differs = 0
    for seed in range(12):
        logits, table, ids = case(seed)
        kept = [[]]
        for slot in candidates(logits):
            kept = [[*path, step] for path in kept for step in slot]
            kept = sorted(kept, key=lambda path: -score(path, table, ids, mix))[:beams]
        every = max(product(*candidates(logits)), key=lambda path: score(path, table, ids, mix))
        argmaxes = [slot[0] for slot in candidates(logits)]
        assert beams == 2 or kept[0] == list(every)
        assert searched(logits, table, beams, mix, ids)[1].tolist() == [int(ids[place]) for place, _ in kept[0]]
        differs += kept[0] != (argmaxes if beams > 2 else list(every))
    assert (differs == 0) == (mix == 1.0)
