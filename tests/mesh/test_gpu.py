"""The same loops on a GPU, where there is one.

make test-gpu
"""

from dataclasses import replace

import jax
import pytest

from sdjax.core.sampling import Warp
from sdjax.core.spec import initialise
from sdjax.decode.generate import generate
from sdjax.decode.state import Loop, Params
from sdjax.drafters.draft_model import DraftModel
from sdjax.drafters.no_draft import NoDraft
from sdjax.drafters.tree_model import TreeDraftModel
from sdjax.verify.walk import Walk
from tests.tiny import CHUNK, NEW, PROMPTS, SEEDS, TARGET

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(jax.default_backend() != "gpu", reason="no GPU is here (or jax[cuda12] is not installed)"),
]


def decode(drafter, temperature, target):
    make = lambda specs: jax.tree.map(lambda x: 4 * x if x.ndim > 1 else x, initialise(specs, jax.random.key(1)))
    loop = Loop(target, drafter, Walk(), Warp(temperature), chunk=CHUNK)
    params = Params(make(target.specs()), make(drafter.specs(target)))
    return generate(loop, params, PROMPTS, NEW, seeds=SEEDS).tokens


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("cls", [DraftModel, TreeDraftModel], ids=lambda cls: cls.__name__)
def test_float32_is_lossless(cls, temperature):
    assert decode(cls.tiny(TARGET), temperature, TARGET) == decode(NoDraft(), temperature, TARGET)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_bfloat16_runs_to_the_end(temperature):
    """No equality: near-ties fall differently in passes of different width."""
    narrow = replace(TARGET, dtype="bfloat16")
    tokens = decode(TreeDraftModel.tiny(narrow), temperature, narrow)
    assert all(len(row) == NEW and all(0 <= token < TARGET.vocab for token in row) for row in tokens)
