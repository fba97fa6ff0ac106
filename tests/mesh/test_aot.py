"""The TPU compiler's answers, without a TPU: a small model on v5e:2x4, and wrong rules that each break one promise.

make test-tpu
"""

import importlib.util
import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest

from experiments import aot
from experiments.aot import AotConfig, Case
from sdjax.drafters.draft_model import DraftModel
from sdjax.drafters.no_draft import NoDraft
from sdjax.drafters.tree_model import TreeDraftModel
from sdjax.mesh.ahead import compile_ahead
from sdjax.mesh.layout import DECODE
from sdjax.targets.decoder import Decoder
from sdjax.trees.hardware import CostCurve
from sdjax.trees.tree import Tree
from sdjax.verify.token import TokenRejection

pytestmark = [
    pytest.mark.tpu,
    pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed (the tpu extra)"),
]
TARGET = Decoder(
    vocab=32_768, width=1024, layers=2, heads=16, kv_heads=8, head_width=128, ffw=4096, max_position=65_536, dtype="bfloat16"
)
V5E = "v5e:2x4"
CASES = {
    "plain": Case(V5E, NoDraft(), batch=8, context=1024),
    "tree": Case(V5E, TreeDraftModel(replace(TARGET, layers=1), Tree.branching(2, 2)), batch=2, context=1024),
    "sampled": Case(V5E, DraftModel(replace(TARGET, layers=1), length=2), batch=2, context=1024, temperature=1.0),
    "rejection": Case(
        V5E, DraftModel(replace(TARGET, layers=1), length=2), batch=2, context=1024, temperature=1.0, rule=TokenRejection()
    ),
    "long": Case(V5E, NoDraft(), batch=64, context=32_768),
}
CONFIG = AotConfig("small", TARGET, replace(TARGET, layers=4, width=512), CASES)


@pytest.mark.parametrize("name", ["plain", "tree", "sampled", "rejection"])
def test_every_promise_is_kept(name):
    report = aot.examine(CONFIG, name)
    assert report["faults"] == []
    assert report["chips"] == 8 and report["memory"]["total"] < report["hbm"]
    target = [c for c in report["collectives"] if c["scope"] == "target"]
    assert sum(c["count"] for c in target if c["kind"] == "all-reduce") >= 2 * TARGET.layers
    assert {c["scope"] for c in report["collectives"]} >= {"target", "judge"}


def test_a_cache_that_is_whole_on_every_chip_is_too_full():
    """16 GiB of cache in all: split by kv head it takes 2 on each chip."""
    assert aot.examine(CONFIG, "long")["faults"] == []
    report = aot.examine(CONFIG, "long", DECODE.having(kv_heads=(), heads=()))
    assert "GiB of 16" in report["faults"][0] and "collectives" not in report


def test_a_vocabulary_that_is_ranked_as_a_whole_is_gathered(monkeypatch):
    """XLA's own top-k brings the logits together first."""
    monkeypatch.setattr("sdjax.trees.draw.top_k", jax.lax.top_k)
    placed = aot.place(TARGET, replace(CASES["tree"], batch=3))
    assert "all-gather of f32[3, 2, 32768] in propose" in aot.gathered(placed, aot.compile_loop(placed))


def test_weights_split_along_what_they_sum_over_exchange_too_often():
    """Every product of a layer is then a partial sum, norms included, where one after attention and one after ffw do."""
    along = DECODE.having(embed=("model",), heads=(), kv_heads=(), ffw=())
    placed = aot.place(TARGET, CASES["plain"], along)
    assert "8 are promised" in aot.too_many_reductions(placed, aot.compile_loop(placed))[0]


def test_a_loop_that_may_not_overwrite_its_state_copies_it():
    placed = aot.place(TARGET, CASES["plain"])
    keeping = jax.jit(aot.run.__wrapped__, static_argnums=0)
    rounds = jax.ShapeDtypeStruct((), jnp.int32)
    compiled = compile_ahead(keeping, placed.loop, placed.params, placed.state, rounds, loop=True)
    assert any("updated in place" in fault for fault in aot.copied(placed, compiled))


def test_a_curve_is_read_by_those_who_choose_trees(tmp_path):
    found = aot.curve(CONFIG, V5E, (1, 64), 1024)
    (tmp_path / "curve.json").write_text(json.dumps(found))
    costs = CostCurve.read(tmp_path / "curve.json")
    assert costs.verify_time(1) == 1 and 1 <= costs.verify_time(64) < 64 and 0 < costs.draft < 1
