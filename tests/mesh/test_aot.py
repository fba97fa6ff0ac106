"""The TPU compiler's answers, without a TPU: a small model on v5e:2x4, and wrong rules that each break one promise.

make test-tpu-short      (a minute or two; `make test-tpu` compiles every named case, too)
"""

import importlib.util
import json
from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from experiments import aot
from experiments.aot_config import AotConfig
from sdjax.core.cache import commit
from sdjax.core.linear import linear
from sdjax.decode.generate import run
from sdjax.decode.schedule import Prefix, Throughput
from sdjax.drafters.block import Block
from sdjax.drafters.deepseek_mtp import DeepSeekMTP
from sdjax.drafters.draft_model import DraftModel
from sdjax.drafters.eagle3 import Eagle3
from sdjax.drafters.head import DraftHead
from sdjax.drafters.medusa import Medusa
from sdjax.drafters.no_draft import NoDraft
from sdjax.drafters.tree_model import TreeDraftModel
from sdjax.mesh.ahead import compile_ahead, tpu_devices
from sdjax.mesh.hlo import Instruction, Program, Shape
from sdjax.mesh.layout import DECODE, TRAIN, Layout, make_mesh
from sdjax.study import promises
from sdjax.study.plan import Case, compile_loop, place
from sdjax.study.plan_train import TrainCase, examine_step
from sdjax.study.verify_cost import verify_cost
from sdjax.targets.decoder import Decoder
from sdjax.train.place import batch_sharding, sharded_step
from sdjax.train.readers import parts_of, readers_here
from sdjax.trees.dynamic import DynamicTree
from sdjax.trees.hardware import CostCurve
from sdjax.trees.tree import Tree
from sdjax.verify.recursive import Recursive
from sdjax.verify.token import TokenRejection

pytestmark = [
    pytest.mark.tpu,
    pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed (the tpu extra)"),
]
TARGET = Decoder(
    vocab=32_768, width=1024, layers=2, heads=16, kv_heads=8, head_width=128, ffw=4096, max_position=65_536, dtype="bfloat16"
)
V5E = "v5e:2x4"
SHALLOWER = replace(TARGET, layers=1)
TREE = Tree.branching(2, 2)
CASES = {
    "plain": Case(V5E, NoDraft(), batch=8, context=1024),
    "tree": Case(V5E, TreeDraftModel(SHALLOWER, TREE), batch=2, context=1024),
    "sampled": Case(V5E, DraftModel(SHALLOWER, length=2), batch=2, context=1024, temperature=1.0, rule=TokenRejection()),
    "filtered": Case(V5E, TreeDraftModel(SHALLOWER, TREE), 2, 1024, 1, 1.0, top_k=20, top_p=0.9, rule=Recursive()),
    "eagle3 sampled": Case(
        V5E,
        Eagle3((0, 1), Tree.chain(3), head=DraftHead(4096, trained=True)),
        batch=2,
        context=1024,
        temperature=1.0,
        rule=TokenRejection(),
    ),
    "scheduled": Case(
        V5E,
        Block.dspark((0, 1), 7, length=4, layers=1),
        batch=8,
        context=1024,
        temperature=1.0,
        rule=TokenRejection(),
        schedule=Prefix(Throughput(CostCurve((1, 64), (1.0, 2.0), 0.1))),
        pack=(16, 24),
    ),
    "eagle3": Case(V5E, Eagle3((0, 1), DynamicTree(depth=2, nodes=8, width=4)), batch=2, context=1024),
    "medusa": Case(V5E, Medusa(Tree.branching(4, 2)), batch=2, context=1024),
    "mtp": Case(V5E, DeepSeekMTP(tree=Tree.chain(1), steps=1), batch=2, context=1024),
    "dspark": Case(V5E, Block.dspark((0, 1), 7, length=4, layers=1), batch=2, context=1024, temperature=1.0),
    "two heads a chip": Case(
        "v6e:2x4", Eagle3((0, 1), DynamicTree(depth=2, nodes=8, width=4)), batch=8, context=32_768, data=2
    ),
    "long": Case(V5E, NoDraft(), batch=64, context=32_768),
}
CONFIG = AotConfig("small", TARGET, replace(TARGET, layers=4, width=512), CASES)


def compiled_under(rules, **changes):
    """A case of plain decoding, placed by wrong rules."""
    placed = place(TARGET, replace(CASES["plain"], **changes), rules)
    return placed, compile_loop(placed)


@pytest.mark.parametrize("topology", [V5E, "v6e:2x4"])
def test_a_wide_pass_over_a_long_cache_runs_the_kernel_on_every_chips_own_part(topology):
    case = Case(topology, Block.dflash((0, 1), 7, layers=1), batch=8, context=32_768)
    placed = place(replace(TARGET, flash=True), case)
    compiled = compile_loop(placed)
    assert promises.broken(case, placed, compiled) == []
    kernels = [i for i in compiled.program.instructions if i.op == "custom-call" and "attend_committed" in i.scope]
    assert len(kernels) == TARGET.layers + case.drafter.layers
    assert not [i for i in compiled.program.instructions if i.op == "copy" and i.shapes[0].dims == (8, 1, 32_768, 128)]


@pytest.mark.parametrize("topology, shape", [("v5p:4x4x4", (1, 8, 8)), ("v6e:16x16", (4, 8, 8)), ("v5p:2x4x4", (4, 1, 8))])
def test_a_mesh_need_not_have_the_axes_of_the_torus(topology, shape):
    mesh = make_mesh(*shape, devices=tpu_devices(topology))
    assert mesh.devices.shape == shape and len({device.id for device in mesh.devices.flat}) == mesh.size


@pytest.mark.parametrize("name", [name for name in CASES if name != "long"])
def test_every_promise_is_kept(name):
    report = aot.examine(CONFIG, name)
    assert report["faults"] == []
    assert report["chips"] == 8 and report["memory"]["total"] < report["hbm"]
    target = [c for c in report["collectives"] if c["scope"] == "target"]
    assert sum(c["count"] for c in target if c["kind"] == "all-reduce") >= 2 * TARGET.layers


def test_a_cache_that_is_whole_on_every_chip_is_too_full():
    """16 GiB of cache in all: split by kv head it takes 2 on each chip."""
    assert aot.examine(CONFIG, "long")["faults"] == []
    report = aot.examine(CONFIG, "long", DECODE.having(kv_heads=(), heads=()))
    assert "GiB of 15.75" in report["faults"][0] and "collectives" not in report


def test_a_case_that_fits_without_room_to_spare_is_too_full():
    """15 of 15.75 GiB: it compiles, and breaks the promise all the same."""
    case = replace(CASES["plain"], batch=512, context=31_232)
    report = promises.examine(TARGET, case)
    assert "flops" in report and report["faults"][0].endswith("10% are promised")


def test_a_drafters_split_is_not_carried_into_the_targets_pass(monkeypatch):
    """XLA shares a dynamic tree's nodes among the chips of a group, and would go on so: states then move more often."""
    for module in ("sdjax.core.sampling", "sdjax.decode.step"):
        monkeypatch.setattr(f"{module}.whole", lambda tree: tree)
    case = replace(CASES["two heads a chip"], batch=6, context=1024)
    placed = place(TARGET, case)
    assert "exchanges are promised" in promises.too_many_exchanges(placed, compile_loop(placed))[0]


def test_rows_of_several_groups_in_one_array_move_in_every_layer():
    """A schedule's own exchanges are small and its own, but a packed pass is one array of both groups' rows."""
    for pack, faults in ((), 0), ((16, 24), 1):
        case = replace(CASES["scheduled"], data=2, pack=pack)
        placed = place(TARGET, case)
        found = promises.too_many_exchanges(placed, compile_loop(placed))
        assert len(found) == faults, found


def test_weights_that_a_layer_wants_whole_are_gathered(monkeypatch):
    """No rule makes XLA move weights where it can move activations; a constraint does."""
    everywhere = lambda x: jax.lax.with_sharding_constraint(x, PartitionSpec())
    monkeypatch.setattr("sdjax.targets.decoder.linear", lambda x, w, bias=None: everywhere(linear(x, everywhere(w), bias)))
    faults = promises.gathered(*compiled_under(DECODE, batch=9))
    assert any("all-gather" in fault and "bf16" in fault for fault in faults)


def test_caches_that_are_split_otherwise_than_queries_are_moved():
    """By sequence, while queries, keys and values are made by head."""
    placed, compiled = compiled_under(DECODE.having(batch=("model",)))
    faults = promises.gathered(placed, compiled)
    assert any("1024, 128]" in fault for fault in faults), faults


def test_a_weight_that_goes_round_in_a_ring_is_moved():
    """Written as permutes of each chip's own part."""
    placed = place(TARGET, CASES["plain"])
    ring = Instruction("collective-permute-start", (Shape("bf16", (512, 1024), False),), "", "body", True, 0)
    compiled = SimpleNamespace(program=Program((ring,), "body", 0), outside=())
    assert promises.gathered(placed, compiled) == ["collective-permute-start of bf16[512, 1024] in drafter or rule"]
    compiled.program = Program((replace(ring, shapes=(Shape("bf16", (8, 1024), False),)),), "body", 0)
    assert promises.gathered(placed, compiled) == []


def test_a_cache_that_is_made_whole_of_parts_of_its_heads_is_gathered():
    """Three kv heads do not divide over eight chips: each has all of them."""
    placed = place(replace(TARGET, kv_heads=3, heads=24), CASES["plain"])
    gather = Instruction("all-gather", (Shape("bf16", (8 * 3, 1024, 128), False),), "jit(prefill)/observe", "body", False, 0)
    compiled = SimpleNamespace(program=Program((gather,), "body", 0), outside=())
    assert promises.gathered(placed, compiled) == ["all-gather of bf16[24, 1024, 128] in observe"]
    once_a_call = SimpleNamespace(program=Program((), "body", 0), outside=(gather,))
    assert promises.gathered(placed, once_a_call) == []
    split = place(replace(TARGET, kv_heads=8, heads=24), CASES["plain"])
    gather = replace(gather, shapes=(Shape("bf16", (8 * 8, 1024, 128), False),))
    compiled = SimpleNamespace(program=Program((), "body", 0), outside=(gather,))
    assert promises.gathered(split, compiled) == ["all-gather of bf16[64, 1024, 128] in front of the loop"]


@pytest.mark.parametrize(
    "op, dtype, shapes, is_fault",
    [
        ("all-gather", "f32", [(8, 1, 64, 512)], True),  # logits, in the blocks in which the largest are sought
        ("all-gather", "bf16", [(32, 1024)], False),  # as large as the vocabulary, but of the model's width
        ("all-gather", "f32", [(1024, 2048)], True),  # a weight in another type
        ("all-gather", "s32", [(1024, 2048)], False),
        ("all-reduce", "bf16", [(8, 1, 1024, 128)], True),  # a cache, made of parts in zeros
        ("all-reduce", "bf16", [(8, 128, 1024)], False),  # an activation of its size
        ("all-to-all", "bf16", [(64, 1024)] * 8, True),  # a chip's part of a weight in pieces
        ("all-to-all", "bf16", [(63, 1024)] * 8, False),
    ],
)
def test_what_is_gathered_in_disguise_is_seen(op, dtype, shapes, is_fault):
    placed = place(TARGET, CASES["plain"])
    exchange = Instruction(op, tuple(Shape(dtype, dims, False) for dims in shapes), "", "body", False, 0)
    compiled = SimpleNamespace(program=Program((exchange,), "body", 0), outside=())
    assert bool(promises.gathered(placed, compiled)) == is_fault


def test_a_vocabulary_that_is_ranked_as_a_whole_is_gathered(monkeypatch):
    """XLA's own top-k brings the logits together first."""
    monkeypatch.setattr("sdjax.trees.draw.top_k", jax.lax.top_k)
    placed = place(TARGET, replace(CASES["tree"], batch=3))
    assert "all-gather of f32[3, 2, 32768] in propose" in promises.gathered(placed, compile_loop(placed))


def test_weights_split_along_what_they_sum_over_exchange_too_often():
    """Every product of a layer is then a partial sum, norms included, where one after attention and one after ffw do."""
    along = DECODE.having(embed=("model",), heads=(), kv_heads=(), ffw=())
    assert "8 exchanges are promised" in promises.too_many_exchanges(*compiled_under(along))[0]


def test_a_commit_that_chooses_between_old_and_new_copies_the_cache(monkeypatch):
    """It is how rows that are done could be kept, were their count not 0."""

    def choosing(cache, staged, path, count):
        went_on = (count > 0)[:, None, None, None]
        new = commit(cache, staged, path, count)
        return new.replace(layers=jax.tree.map(lambda old, new: jnp.where(went_on, new, old), cache.layers, new.layers))

    monkeypatch.setattr("sdjax.decode.step.commit", choosing)
    faults = promises.copied(*compiled_under(DECODE, batch=7, context=8192))
    assert any("8192, 128]" in fault for fault in faults)


def test_a_loop_that_may_not_overwrite_its_state_keeps_it_twice():
    placed = place(TARGET, CASES["plain"])
    keeping = jax.jit(run.__wrapped__, static_argnums=0)
    rounds = jax.ShapeDtypeStruct((), jnp.int32)
    compiled = compile_ahead(keeping, placed.loop, placed.params, placed.state, rounds, loop=True)
    assert "updated in place" in promises.kept_twice(placed.state, compiled)[0]


def test_small_caches_that_go_back_whole_are_noticed():
    """Beside two layers' weights they are a third of what a step reads."""
    placed = place(TARGET, replace(CASES["two heads a chip"], context=4096))
    assert "are written back whole" in promises.rewritten(placed, compile_loop(placed))[0]


def test_a_training_step_keeps_its_state_in_place():
    drafter = Medusa(Tree.chain(1), head=DraftHead(4096, trained=True))
    report = examine_step(SHALLOWER, TrainCase(V5E, drafter, rows=8, length=128, fsdp=2, model=2))
    assert report["faults"] == [] and report["mesh"] == {"data": 2, "fsdp": 2, "model": 2}
    assert {"all-gather", "all-reduce"} <= {exchange["kind"] for exchange in report["exchanged"]}


def test_a_training_step_that_may_not_overwrite_its_state_keeps_it_twice(monkeypatch):
    keeping = lambda *of: jax.jit(sharded_step(*of).__wrapped__)
    monkeypatch.setattr("sdjax.study.plan_train.sharded_step", keeping)
    report = examine_step(SHALLOWER, TrainCase(V5E, Medusa(Tree.chain(1)), rows=8, length=128, fsdp=2, model=2))
    assert any("updated in place" in fault for fault in report["faults"])


def test_a_state_that_comes_back_elsewhere_is_named():
    """Positions that are whole on every chip come back split by sequence, as caches are: the next call would compile anew."""
    placed = place(TARGET, replace(CASES["plain"], batch=10, data=2))
    whole = NamedSharding(placed.layout.mesh, PartitionSpec())
    positions = jax.ShapeDtypeStruct((10,), jnp.int32, sharding=whole)
    placed = replace(placed, state=placed.state.replace(p=positions))
    assert promises.moved(placed, compile_loop(placed)) == ["1 arrays of the state change their place"]


def test_a_curve_is_read_by_those_who_choose_trees(tmp_path):
    found = verify_cost(replace(TARGET, layers=4), CONFIG.draft, V5E, widths=(1, 64), context=1024)
    (tmp_path / "curve.json").write_text(json.dumps(found))
    costs = CostCurve.read(tmp_path / "curve.json")
    assert costs.verify_time(1) == 1 and 1 <= costs.verify_time(64) < 64 and 0 < costs.draft < 1


@pytest.mark.parametrize(
    "topology, shape",
    [
        ("v6e:4x8", (1, 32, 1)),
        ("v6e:16x16", (32, 8, 1)),
        ("v5e:4x8", (4, 8, 1)),
        ("v5p:2x4x4", (1, 8, 4)),
        ("v6e:4x8", (1, 8, 4)),
    ],
)
def test_every_host_finds_its_readers(topology, shape):
    """Its chips are neighbours on the torus; their rows may stand far apart in a batch."""
    mesh = make_mesh(*shape, devices=tpu_devices(topology))
    sharding, rows, found = batch_sharding(Layout(mesh, TRAIN)), 64 * shape[0] * shape[1], set()
    parts, everywhere = parts_of(sharding, rows), sharding.devices_indices_map((rows,))
    for host in {device.process_index for device in mesh.devices.flat}:
        here = {device: index for device, index in everywhere.items() if device.process_index == host}
        found |= set(readers_here(SimpleNamespace(addressable_devices_indices_map=lambda _, here=here: here), rows, parts))
    assert parts == shape[0] * shape[1] and found == set(range(parts))
