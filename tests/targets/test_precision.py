"""Mixed precision: bfloat16 matrices among float32 activations, for the target and its drafters."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sdjax.core.cache import Cache
from sdjax.core.spec import initialise
from sdjax.drafters.eagle3 import Eagle3
from sdjax.drafters.medusa import Medusa
from sdjax.targets.decoder import PRECISIONS, Decoder, causal_mask, types
from tests.tiny import TARGET

MIXED = replace(TARGET, **types("mixed"))


def test_matrices_are_narrow_and_all_else_is_not():
    params = initialise(MIXED.specs(), jax.random.key(0))
    assert {(x.ndim > 1, str(x.dtype)) for x in jax.tree.leaves(params)} == {(True, "bfloat16"), (False, "float32")}
    assert MIXED.empty_cache(1, 8).layers[0].k.dtype == jnp.float32
    assert [replace(TARGET, **types(name)).precision for name in PRECISIONS] == list(PRECISIONS)


@pytest.mark.parametrize("wrong", [{"dtype": "bfloat16", "weights": "float32"}, {"weights": "float16"}, {"dtype": "int8"}])
def test_other_pairs_are_refused(wrong):
    with pytest.raises(ValueError, match="float32, bfloat16, mixed"):
        replace(TARGET, **wrong)


def logits(target: Decoder, params, tokens):
    cache: Cache = target.empty_cache(len(tokens), 16)
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    out = target.forward(params, target.embed(params, tokens), positions, cache, causal_mask(tokens.shape[1]))
    return out.hidden, target.unembed(params, out.hidden)


def test_logits_are_those_of_the_rounded_weights_up_to_rounded_activations():
    params = initialise(MIXED.specs(), jax.random.key(1))
    tokens = jax.random.randint(jax.random.key(2), (2, 9), 0, TARGET.vocab)
    hidden, made = logits(MIXED, params, tokens)
    _, exact = logits(TARGET, jax.tree.map(lambda x: x.astype(jnp.float32), params), tokens)
    assert hidden.dtype == made.dtype == jnp.float32
    difference = np.abs(made - exact).max()
    assert 0 < difference < 0.02 * np.abs(exact).max()


@pytest.mark.parametrize("drafter", [Medusa.tiny(MIXED), Eagle3.tiny(MIXED)], ids=["medusa", "eagle3"])
def test_a_drafters_matrices_follow_its_target(drafter):
    kinds = lambda target: {str(spec.dtype) for spec in jax.tree.leaves(drafter.specs(target)) if len(spec.shape) > 1}
    assert kinds(MIXED) == {"bfloat16"} and kinds(TARGET) == {"float32"}
