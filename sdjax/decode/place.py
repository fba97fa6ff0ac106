"""Decoding on a mesh: where the weights and the state of a loop live.

`run` and `prefill` follow the shardings of what they are given, and the loop's carry keeps them; what prefill does not keep
is put back behind it.
"""

import jax

from sdjax.core.cache import with_rows
from sdjax.decode.state import Loop, Params, State
from sdjax.mesh.layout import Layout
from sdjax.mesh.place import lay_out


def params_shardings(layout: Layout, loop: Loop) -> Params:
    """The target's by its specs; a drafter follows the same rules, unless it is tiny: then it is whole everywhere."""
    target, drafter = loop.target.specs(), loop.drafter.specs(loop.target)
    return Params(layout.params(target), layout.for_drafter(drafter, target).params(drafter))


def state_shardings(layout: Layout, loop: Loop, state: State) -> State:
    """Those of the loop's carry; `state` may be abstract."""
    own = layout.for_drafter(loop.drafter.specs(loop.target), loop.target.specs())
    return layout.state(state).replace(drafter=own.state(state.drafter))


def put_back(layout: Layout | None, loop: Loop, state: State) -> State:
    """The state where `state_shardings` has it: prefill's chunks of many tokens may leave a drafter's cache elsewhere."""
    return state if layout is None else lay_out(state, state_shardings(layout, loop, state))


def empty_state(layout: Layout | None, loop: Loop, batch: int, capacity: int, rows: int, max_steps: int) -> State:
    """`loop.empty` with caches of `rows` rows, made on the mesh: no device ever holds more than its own part."""
    make = lambda: with_rows(loop.empty(batch, capacity, max_steps), rows)
    if layout is None:
        return make()
    return jax.jit(make, out_shardings=state_shardings(layout, loop, jax.eval_shape(make)))()
