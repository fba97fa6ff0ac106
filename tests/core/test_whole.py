"""A word to the compiler, where a mesh is set, and nothing elsewhere."""

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

from sdjax.core.whole import whole, whole_heads
from sdjax.mesh.layout import MESH_AXES, Layout, make_mesh, within

TREE = {"tokens": jnp.arange(6).reshape(2, 3), "length": jnp.arange(2), "count": jnp.int32(3)}


def test_without_a_mesh_arrays_are_as_they_are():
    assert whole(TREE) is TREE


def test_on_a_mesh_only_sequences_may_be_split():
    with within(Layout(make_mesh(devices=jax.devices()[:1]))):
        equations = jax.make_jaxpr(whole)(TREE).eqns
        assert jax.tree.all(jax.tree.map(jnp.array_equal, jax.jit(whole)(TREE), TREE))
        slope = jax.vmap(jax.grad(lambda x: whole(x)[1]))(jnp.ones((3, 2)))
    specs = {eqn.invars[0].aval.ndim: eqn.params["sharding"].spec for eqn in equations}
    free = PartitionSpec.UNCONSTRAINED
    assert specs == {0: PartitionSpec(), 1: PartitionSpec(free), 2: PartitionSpec(free, None)}
    assert slope.tolist() == [[0, 1]] * 3


def test_rows_are_whole_where_their_caches_heads_do_not_divide():
    said = {}
    for ways in (4, 16):
        mesh = AbstractMesh((1, 1, ways), MESH_AXES, axis_types=(AxisType.Auto,) * 3)
        with jax.sharding.use_abstract_mesh(mesh):
            said[ways] = [eqn.primitive.name for eqn in jax.make_jaxpr(whole_heads)(jnp.zeros((2, 8, 3, 4))).eqns]
    assert said == {4: [], 16: ["sharding_constraint"]}
