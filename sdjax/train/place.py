"""Training on a mesh: where the state, the frozen target and the batches live, and the step that keeps them there.

What is learnt is split by the same table as what is decoded, a small drafter too: gradient and moments stand beside it.
Over `fsdp` parameters are split at rest. A step gathers them, in the types that they are computed in, where the compiler
finds them needed, and scatters their gradients (ZeRO, Rajbhandari et al. 2020, arXiv:1910.02054).
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from sdjax.core.types import Batch
from sdjax.mesh.layout import Layout
from sdjax.train.partition import working
from sdjax.train.recipe import Recipe
from sdjax.train.step import Loss, Metrics, TrainState, Value, update

Step = Callable[[TrainState, Any, Any], tuple[TrainState, Metrics]]


def state_shardings(layout: Layout, recipe: Recipe, state: TrainState) -> TrainState:
    """Those of a training state, which may be abstract.

    Moments and averages live where their parameter does: they stand under its path in the optimiser's tree. All else is
    whole everywhere.
    """
    flat = jax.tree_util.tree_leaves_with_path
    homes = dict(flat(layout.params(recipe.specs)))
    shapes = {path: spec.shape for path, spec in flat(recipe.specs)}
    everywhere = whole(layout)

    def of(path: tuple[Any, ...], leaf: Any) -> NamedSharding:
        ends = (path[start:] for start in range(len(path)))
        return next((homes[end] for end in ends if end in homes and shapes[end] == leaf.shape), everywhere)

    return jax.tree_util.tree_map_with_path(of, state)


def batch_sharding(layout: Layout) -> NamedSharding:
    """Rows over data and fsdp."""
    axes = tuple(axis for axis in layout.rules.axes("batch") if layout.mesh.shape[axis] > 1)
    return NamedSharding(layout.mesh, PartitionSpec(axes or None))


def whole(layout: Layout) -> NamedSharding:
    """One copy on every device."""
    return NamedSharding(layout.mesh, PartitionSpec())


def begin_on(layout: Layout, recipe: Recipe, target_params: Any, drafter_params: Any, seed: int) -> TrainState:
    """`recipe.begin` of parameters that are on the mesh: no device ever holds more than its own part."""
    make = partial(recipe.begin, seed=seed)
    shardings = state_shardings(layout, recipe, jax.eval_shape(make, target_params, drafter_params))
    return jax.jit(make, out_shardings=shardings)(target_params, drafter_params)


def sharded_step(layout: Layout, recipe: Recipe, state: TrainState) -> Step:
    """step(state, target_params, batch) on a mesh, a jitted function of its own; `state` may be abstract."""
    states, target = state_shardings(layout, recipe, state), layout.params(recipe.target.specs())
    return jax.jit(
        partial(update, gathering(layout, recipe), recipe.optimiser),
        in_shardings=(states, target, batch_sharding(layout)),
        out_shardings=(states, whole(layout)),
        donate_argnums=0,
    )


def gathering(layout: Layout, recipe: Recipe) -> Loss:
    """The recipe's loss, of parameters that are split over fsdp."""
    if layout.mesh.shape["fsdp"] == 1:
        return recipe.loss
    gathered = replace(layout, rules=layout.rules.without("fsdp", but="batch"))

    def joined(specs: Any, params: Any) -> Any:
        return jax.tree.map(gather, working(specs, params), gathered.params(specs), layout.params(specs))

    def loss(params: Any, target_params: Any, batch: Batch, key: Any, step: Any) -> Value:
        return recipe.loss(joined(recipe.specs, params), joined(recipe.target.specs(), target_params), batch, key, step)

    return loss


@partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def gather(x: jax.Array, gathered: NamedSharding, split: NamedSharding) -> jax.Array:
    """`x` laid out as `gathered`; its gradient as `split`."""
    return lax.with_sharding_constraint(x, gathered)


def gather_forward(x: jax.Array, gathered: NamedSharding, split: NamedSharding) -> tuple[jax.Array, None]:
    return gather(x, gathered, split), None


def gather_backward(gathered: NamedSharding, split: NamedSharding, _: None, gradient: jax.Array) -> tuple[jax.Array]:
    return (lax.with_sharding_constraint(gradient, split),)


gather.defvjp(gather_forward, gather_backward)
