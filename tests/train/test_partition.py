"""What is learnt moves, what is not stays bit for bit; masters are float32; parts of a batch make the whole's gradient."""

from dataclasses import dataclass, replace
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from optax.contrib import MuonState

from sdjax.core.spec import Spec, initialise, normal
from sdjax.core.types import Batch
from sdjax.decode.state import Params
from sdjax.drafters.block import Block
from sdjax.drafters.head import DraftHead
from sdjax.drafters.losses import cross_entropy, weighted_mean
from sdjax.drafters.peagle import PEagle
from sdjax.train.optimiser import Optimiser
from sdjax.train.partition import learnt_of, masters, merge, split, working
from sdjax.train.recipe import Recipe
from sdjax.train.step import begin, train_step
from tests.train.micro import TARGET, same, target_params

PLAIN = Optimiser(learning_rate=1e-2, steps=10, warmup=0, weight_decay=0.1)


@dataclass(frozen=True)
class OneHead:
    """One matrix before a head with a draft vocabulary: float rows and integer ids that are not learnt."""

    head: DraftHead = DraftHead(size=8)
    taps: ClassVar[tuple] = ()
    depth: ClassVar[int] = 1

    def specs(self, target):
        dtype = jnp.dtype(target.dtype)
        return {"mix": Spec((target.width, target.width), dtype, ("embed", "embed"), normal()), "head": self.head.specs(target)}

    def loss(self, ctx, params, trace, key):
        labels, weight = trace.ahead(1)
        logits = self.head.logits(ctx, params["head"], trace.hidden @ params["mix"].T)
        return weighted_mean(cross_entropy(logits, labels % 8), weight), {"bytes": jnp.float32(params["mix"].dtype.itemsize)}


def batch(rows, seed=0, length=12):
    """Texts of unequal supervision."""
    random = np.random.default_rng(seed)
    tokens = random.integers(0, TARGET.vocab, (rows, length)).astype(np.int32)
    mask = random.random((rows, length)) < np.linspace(0.1, 0.9, rows)[:, None]
    place = np.broadcast_to(np.arange(length, dtype=np.int32), tokens.shape)
    return Batch(tokens, place, np.ones_like(tokens), mask)


def params_of(drafter, target=TARGET):
    return initialise(drafter.specs(target), jax.random.key(2))


def trained(recipe, steps=2, rows=8):
    before = params_of(recipe.drafter, recipe.target)
    params = jax.tree.map(lambda s, x: x.astype(s.dtype), recipe.target.specs(), target_params())
    state = recipe.begin(params, before, seed=0)
    for step in range(steps):
        state, metrics = train_step(recipe.loss, recipe.optimiser, state, params, batch(rows, step))
    return before, state, metrics


def test_split_and_merge_are_inverse():
    drafter = OneHead()
    params, learnt = params_of(drafter), learnt_of(drafter.specs(TARGET))
    own, rest = split(params, learnt)
    assert len(jax.tree.leaves(own)) == 1 and len(jax.tree.leaves(rest)) == 2
    assert same(merge(own, rest), params)


def test_what_the_specs_freeze_stays_bit_for_bit():
    before, state, _ = trained(Recipe(TARGET, OneHead(), PLAIN))
    after = state.params.drafter
    assert state.params.target is None
    assert same(after["head"], before["head"])
    assert not np.array_equal(after["mix"], before["mix"])
    assert len([x for x in jax.tree.leaves(state.optimiser) if x.ndim]) == 2  # the moments of `mix` alone


def test_a_glob_freezes_and_a_wrong_one_is_named():
    specs = Params(None, OneHead(DraftHead(size=8, trained=True)).specs(TARGET))
    assert learnt_of(specs) == (False, True, True)
    assert learnt_of(specs, ["drafter.head.*"]) == (False, False, True)
    with pytest.raises(ValueError, match=r"no parameter matches 'drafter.mx'; there is 'drafter.mix'"):
        learnt_of(specs, ["drafter.mx"])


def test_masters_are_float32_and_losses_run_in_the_targets_dtype():
    target = replace(TARGET, dtype="bfloat16")
    recipe = Recipe(target, OneHead(), PLAIN)
    _, state, metrics = trained(recipe, steps=1)
    assert state.params.drafter["mix"].dtype == jnp.float32
    assert working(recipe.specs, state.params).drafter["mix"].dtype == jnp.bfloat16
    assert not np.array_equal(state.params.drafter["mix"], state.params.drafter["mix"].astype(jnp.bfloat16))
    assert metrics["bytes"] == 2 and np.isfinite(metrics["loss"])


def test_masters_are_copies():
    params = {"a": jnp.ones(3)}
    jax.tree.map(lambda x: x.delete(), masters(params, (True,)))
    assert params["a"].sum() == 3


@pytest.mark.parametrize("parts", [2, 4])
def test_micro_batches_make_the_whole_batchs_update(parts):
    _, whole, seen = trained(Recipe(TARGET, OneHead(), PLAIN), steps=1)
    _, state, metrics = trained(Recipe(TARGET, OneHead(), replace(PLAIN, micro_batches=parts)), steps=1)
    np.testing.assert_allclose(metrics["loss"], seen["loss"], rtol=1e-6)
    np.testing.assert_allclose(metrics["gradient_norm"], seen["gradient_norm"], rtol=1e-5)
    np.testing.assert_allclose(state.params.drafter["mix"], whole.params.drafter["mix"], atol=1e-6)


def test_rows_that_do_not_divide_are_named():
    with pytest.raises(ValueError, match="6 rows cannot be run in 4 micro-batches"):
        trained(Recipe(TARGET, OneHead(), replace(PLAIN, micro_batches=4)), rows=6)


def test_the_average_follows_what_is_learnt():
    recipe = Recipe(TARGET, OneHead(), replace(PLAIN, ema=0.75))
    before, state, _ = trained(recipe, steps=1)
    expected = 0.75 * before["mix"] + 0.25 * state.params.drafter["mix"]
    found = recipe.decodable(state, target_params())
    np.testing.assert_allclose(found.drafter["mix"], expected, atol=1e-7)
    assert same(found.drafter["head"], before["head"])


def test_muon_moves_matrices_alike_and_leaves_the_frozen():
    before, state, _ = trained(Recipe(TARGET, OneHead(), replace(PLAIN, method="muon", weight_decay=0.0)), steps=1)
    step = np.asarray(state.params.drafter["mix"] - before["mix"])
    singular = np.linalg.svd(step, compute_uv=False)
    assert singular[0] < 3 * singular[5]  # orthogonalised: of the 7 directions that 8 tokens give, none dominates
    assert same(state.params.drafter["head"], before["head"])


@pytest.mark.parametrize(
    ("drafter", "matrices"),
    [
        (OneHead(DraftHead(size=8, trained=True)), {"mix"}),
        (PEagle(("embed", 0, "final"), fc_norm=True, head=DraftHead(8, trained=True)), {"fc"}),
        (Block(("embed", 0), length=3, markov="gated", rank=4, confidence=1.0, layout="anchor_first"), {"fc", "markov.gate"}),
    ],
    ids=["head", "peagle", "block"],
)
def test_muon_leaves_tables_stacks_and_vectors_to_adam(drafter, matrices):
    state = Recipe(TARGET, drafter, replace(PLAIN, method="muon")).begin(target_params(), params_of(drafter), seed=0)
    [muon] = [s for s in jax.tree.leaves(state.optimiser, is_leaf=is_muon) if is_muon(s)]
    paths = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in jax.tree_util.tree_leaves_with_path(muon.mu)]
    assert {path.removeprefix("drafter.") for path in paths if "layer" not in path} == matrices
    assert {path.split(".")[-1] for path in paths if "layer" in path} in ({*"qkvo", "gate", "up", "down"}, set())


def is_muon(state):
    return isinstance(state, MuonState)


def test_without_specs_all_but_integers_are_learnt():
    state = begin({"ids": jnp.arange(3), "w": jnp.ones(2, jnp.bfloat16)}, PLAIN, 0)
    assert state.learnt == (False, True)
    assert state.params["w"].dtype == jnp.float32 and state.params["ids"].dtype == jnp.int32
