"""The work of a function, counted from its jaxpr: the floating-point operations of its matrix products, loops unrolled.

XLA's own estimate counts the body of a loop once, which chunked losses are made of.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr


def matmul_flops(function: Callable[..., Any], *arguments: Any) -> int:
    """2 · multiply-adds of all products in function(*arguments), whose shapes alone matter; of branches, the costliest."""
    return of_jaxpr(jax.make_jaxpr(function)(*arguments).jaxpr)


def of_jaxpr(jaxpr: Jaxpr) -> int:
    """The products of one jaxpr and of those inside it; a `while` counts once, since its length is not known."""
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            total += of_product(equation)
            continue
        inner = [of_jaxpr(sub) for sub in inside(equation.params)]
        if not inner:
            continue
        if equation.primitive.name in ("cond", "platform_index"):
            total += max(inner)
        elif equation.primitive.name == "scan":
            total += equation.params["length"] * sum(inner)
        else:
            total += sum(inner)
    return total


def of_product(equation: Any) -> int:
    """2 · elements of the result · the length that is summed over."""
    (contracted, _), _ = equation.params["dimension_numbers"]
    left = equation.invars[0].aval.shape
    return 2 * math.prod(equation.outvars[0].aval.shape) * math.prod(left[axis] for axis in contracted)


def inside(params: dict[str, Any]) -> list[Jaxpr]:
    """The jaxprs among an equation's parameters."""
    flat = [part for value in params.values() for part in (value if isinstance(value, (tuple, list)) else (value,))]
    found = [part.jaxpr if isinstance(part, ClosedJaxpr) else part for part in flat]
    return [part for part in found if isinstance(part, Jaxpr)]
