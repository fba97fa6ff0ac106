"""A run small enough to be repeated: a one-layer drafter of the tiny random target, on random text.

    python -m tests.train.micro FOLDER

trains in FOLDER, saving at every step, or goes on there; tests kill it.
"""

import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import jax
import numpy as np
from rich.console import Console

from sdjax.core.plain import plain_data
from sdjax.core.spec import initialise
from sdjax.drafters.draft_model import DraftModel
from sdjax.targets.decoder import Decoder
from sdjax.train.evaluate import HeldOut
from sdjax.train.loop import Fitted, Job, fit
from sdjax.train.optimiser import Optimiser
from sdjax.train.readers import Readers
from sdjax.train.recipe import Cadence, Recipe
from sdjax.train.tiny_world import Windows

TARGET = Decoder(vocab=29, width=16, layers=1, heads=2, kv_heads=1, head_width=8, ffw=24, max_position=256)
DRAFTER = DraftModel(replace(TARGET, width=8), length=2)
OPTIMISER = Optimiser(learning_rate=1e-2, steps=6, warmup=1)
RECIPE = Recipe(TARGET, DRAFTER, OPTIMISER, cadence=Cadence(log_every=2, save_every=2, eval_every=3))
LONG = replace(RECIPE, optimiser=replace(OPTIMISER, steps=30), cadence=Cadence(log_every=1, save_every=1, eval_every=8, keep=1))
TEXT = np.random.default_rng(0).integers(0, TARGET.vocab, 1000).astype(np.uint8)
HELD_OUT = HeldOut(((1, 2, 3), (4, 5)), max_new=8, chunk=16)
QUIET = Console(file=open("/dev/null", "w"))  # noqa: SIM115


@cache
def target_params():
    return jax.tree.map(lambda x: 4 * x if x.ndim > 1 else x, initialise(TARGET.specs(), jax.random.key(1)))


def data():
    return Readers({0: Windows(TEXT, 4, 16, seed=3)})


def begin(recipe=RECIPE):
    drafter = recipe.drafter.initial(TARGET, target_params(), np.ones(TARGET.vocab, int), jax.random.key(5))
    return recipe.begin(target_params(), drafter, seed=7)


def run(folder, recipe=RECIPE, console=QUIET, **changes) -> Fitted:
    folder.mkdir(exist_ok=True)
    job = Job(recipe, target_params(), data(), HELD_OUT, folder, plain_data(recipe))
    return fit(replace(job, **changes), begin(recipe), console)


def same(a, b) -> bool:
    """Whether two states are equal bit for bit."""
    plain = lambda x: np.asarray(jax.random.key_data(x) if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else x)
    return all(np.array_equal(plain(x), plain(y)) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


if __name__ == "__main__":
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    run(Path(sys.argv[1]), LONG, Console(file=sys.stdout, width=200))
