"""A word to the compiler, where a mesh is set, and nothing elsewhere."""

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from sdjax.core.whole import whole
from sdjax.mesh.layout import Layout, make_mesh, within

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
