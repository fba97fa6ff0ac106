"""What a wider pass costs on a TPU, by its compiler's estimate: t(n) / t(1), and c, the price of a draft step.

All layers of a model are alike, so two depths are compiled, and the line through them is followed to the model's own.
`trees.hardware.CostCurve` reads what `verify_cost` returns: Sequoia's choice of a tree, and whoever schedules.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Int

from sdjax.core.cache import Cache, Staged
from sdjax.mesh.ahead import abstract, compile_ahead, tpu_devices
from sdjax.mesh.chips import chip_of
from sdjax.mesh.layout import Layout, make_mesh
from sdjax.study.plan import compiler
from sdjax.targets.decoder import Decoder, causal_mask

SHALLOW = (2, 4)  # layers that are compiled
WIDTHS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


@partial(jax.jit, static_argnums=0)
def verify(target: Decoder, params: Any, cache: Cache, tokens: Int[Array, "B T"]) -> tuple[Int[Array, "B T"], Staged]:
    """A pass over a chain behind the cache: the target's choices, and the rows that it would commit."""
    positions = cache.length[:, None] + jnp.arange(tokens.shape[1])
    out = target.forward(params, target.embed(params, tokens), positions, cache, causal_mask(tokens.shape[1]))
    return jnp.argmax(target.unembed(params, out.hidden), -1), out.staged


def pass_seconds(target: Decoder, topology: str, data: int, tokens: int, context: int) -> float:
    """A pass over `tokens` new ones of one sequence, with `context` cache rows, in each of `data` groups of chips."""
    chip, devices = chip_of(topology), tpu_devices(topology)
    layout = Layout(make_mesh(data=data, model=len(devices) // data, devices=devices))
    one_a_group = NamedSharding(layout.mesh, PartitionSpec("data"))
    found = []
    for layers in SHALLOW:
        model = target.truncate(layers)
        cache = jax.eval_shape(partial(model.empty_cache, data, context))
        compiled = compile_ahead(
            verify,
            model,
            abstract(model.specs(), layout.params(model.specs())),
            abstract(cache, layout.state(cache)),
            jax.ShapeDtypeStruct((data, tokens), jnp.int32, sharding=one_a_group),
        )
        if not compiled.fits:
            raise ValueError(f"a pass over {tokens} tokens behind {context} rows does not fit {topology}; ask for fewer widths")
        found.append(np.array([compiled.program.cycles / chip.clock, compiled.memory.arguments / chip.bandwidth]))
    one_layer = (found[1] - found[0]) / (SHALLOW[1] - SHALLOW[0])
    return float(max(found[0] + one_layer * (target.layers - SHALLOW[0])))


def verify_cost(
    target: Decoder, draft: Decoder, topology: str, data: int = 1, widths: Sequence[int] = WIDTHS, context: int = 4096
) -> dict[str, Any]:
    """The curve of a target as JSON data; c is a step of the model `draft`. ValueError where the widths do not start at 1."""
    if not widths or widths[0] != 1:
        raise ValueError(f"the curve is relative to a pass over one token; its widths must start with 1, but are {widths}")
    times = np.array([pass_seconds(target, topology, data, n, context) for n in widths])
    bounds = np.minimum.accumulate(times[::-1])[::-1]  # a pass can be padded to any wider one
    return {
        "tokens": list(widths),
        "verify": (bounds / bounds[0]).tolist(),
        "draft": pass_seconds(draft, topology, data, 1, context) / float(bounds[0]),
        "seconds": times.tolist(),
        "topology": topology,
        "data": data,
        "context": context,
        "compiler": compiler(),
        "estimate": "the TPU compiler's cycles, or reading weights and cache once if that takes longer; not measured",
    }
