"""Rules of layout, on a mesh of abstract devices: nothing runs."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

from sdjax.core.spec import Spec, zeros
from sdjax.core.whole import SPLIT
from sdjax.decode.place import params_shardings, state_shardings
from sdjax.drafters.draft_model import DraftModel
from sdjax.drafters.no_draft import NoDraft
from sdjax.mesh.layout import DECODE, MESH_AXES, TRAIN, Layout, Rules, make_mesh
from sdjax.mesh.place import lay_out
from sdjax.targets.decoder import Decoder
from tests.conformance.test_drafters import drafter_classes
from tests.tiny import loop_of

TARGET = Decoder(vocab=48, width=16, layers=2, heads=8, kv_heads=4, head_width=8, ffw=24, qk_norm=True, qkv_bias=True)


def layout(data, fsdp, model, rules=DECODE):
    return Layout(AbstractMesh((data, fsdp, model), MESH_AXES, axis_types=(AxisType.Auto,) * 3), rules)


def specs_of(tree):
    return jax.tree.map(lambda sharding: sharding.spec, tree)


def loop_for(drafter, target=TARGET):
    return replace(loop_of(NoDraft(), 0.0), target=target, drafter=drafter)


def test_heads_ffw_and_vocabulary_are_split_over_model():
    layer = layout(1, 1, 4).params(TARGET.specs())["layers"][0]
    model = ("model",)
    assert specs_of(layer) == {
        **{name: P(model, None) for name in ("q", "k", "v", "gate", "up")},
        **{name: P(None, model) for name in ("o", "down")},
        **{name: P(None) for name in ("attn_norm", "mlp_norm", "q_norm", "k_norm")},
        **{name: P(model) for name in ("q_bias", "k_bias", "v_bias")},
    }
    assert layout(1, 1, 4).params(TARGET.specs())["head"].spec == P(model, None)


def test_kv_heads_that_do_not_divide_are_whole_although_their_columns_do():
    """4 kv heads of width 8 are 32 columns: 8 devices would each get half a head."""
    eight = layout(1, 1, 8)
    layer = eight.params(TARGET.specs())["layers"][0]
    assert layer["k"].spec == P(None, None) and layer["k_bias"].spec == P(None)
    assert layer["q"].spec == P(("model",), None)
    state = jax.eval_shape(lambda: loop_for(NoDraft()).empty(2, 16, 4))
    assert eight.state(state).cache.layers[0].k.spec == P(None, None, None, None)
    assert layout(1, 1, 4).state(state).cache.layers[0].k.spec == P(None, ("model",), None, None)


@pytest.mark.parametrize("cls", list(drafter_classes()), ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("rules", [DECODE, TRAIN], ids=["decode", "train"])
def test_the_table_has_a_rule_for_every_axis_of_every_drafter(cls, rules):
    target = replace(TARGET, layers=3)
    specs = cls.tiny(target).specs(target)
    placed = layout(1, 2, 4, rules).params(specs)
    assert jax.tree.structure(placed) == jax.tree.structure(specs)


def test_what_does_not_divide_is_whole():
    odd = replace(TARGET, vocab=29, ffw=22)
    params = layout(1, 1, 4).params(odd.specs())
    assert params["embed"].spec == P(None, None) and params["layers"][0]["gate"].spec == P(None, None)


def test_sequences_are_split_over_data_and_scalars_are_everywhere():
    state = jax.eval_shape(lambda: loop_for(NoDraft()).empty(4, 16, 4))
    placed = layout(2, 2, 2).state(state)
    both = ("data", "fsdp")
    assert placed.tokens.spec == P(both, None) and placed.done.spec == P(both) and placed.step.spec == P()
    assert placed.cache.length.spec == P(both) and placed.records.accepted.spec == P(both, None)
    assert state.records.node.size == 0 and placed.records.node.spec == P()
    assert layout(8, 1, 1).state(state).tokens.spec == P(None, None)


def test_training_splits_the_width_over_fsdp():
    layer = layout(1, 2, 2, TRAIN).params(TARGET.specs())["layers"][0]
    assert layer["q"].spec == P(("model",), ("fsdp",)) and layer["down"].spec == P(("fsdp",), ("model",))


def test_a_mesh_axis_serves_one_dimension():
    square = Spec((16, 16), jnp.float32, ("embed", "embed"), zeros)
    assert layout(1, 2, 1, TRAIN).params(square).spec == P(("fsdp",), None)


def test_a_large_drafter_follows_the_target_and_a_tiny_one_is_whole():
    large, tiny = (
        DraftModel(replace(TARGET, layers=1)),
        DraftModel(replace(TARGET, layers=1, width=2, ffw=4, heads=1, kv_heads=1)),
    )
    wide = replace(TARGET, layers=8, width=64, ffw=256)
    four = layout(2, 1, 4)
    assert params_shardings(four, loop_for(large)).drafter["head"].spec == P(("model",), None)
    assert params_shardings(four, loop_for(tiny, wide)).drafter["head"].spec == P(None, None)
    state = jax.eval_shape(lambda: loop_for(large, wide).empty(2, 16, 4))
    whole = Layout(four.mesh, DECODE.having(kv_heads=()))
    assert state_shardings(four, loop_for(large), state).drafter.layers[0].k.spec == P(("data",), ("model",), None, None)
    assert whole.state(state.drafter).layers[0].k.spec == P(("data",), None, None, None)


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="'vocab' names the mesh axis 'tensor'"):
        Rules((("vocab", ("tensor",)),))
    with pytest.raises(ValueError, match="two rules"):
        Rules((("vocab", ()), ("vocab", ())))
    with pytest.raises(ValueError, match="no rule for the logical axis 'hieads'"):
        DECODE.having(hieads=())
    strange = Spec((4, 4), jnp.float32, ("rank", "embed"), zeros)
    with pytest.raises(ValueError, match="no rule for the logical axis 'rank'"):
        layout(1, 1, 2).params(strange)
    with pytest.raises(ValueError, match="takes 6 devices"):
        make_mesh(2, 1, 3)


def test_what_is_in_place_is_not_copied():
    x = jnp.arange(4.0)
    assert lay_out({"a": x, "b": np.ones(2)}, {"a": x.sharding, "b": x.sharding})["a"] is x


def test_the_kernels_axes_are_those_of_the_rules():
    assert (DECODE.axes("batch"), DECODE.axes("kv_heads")) == SPLIT
