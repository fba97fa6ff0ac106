"""Several chains below one anchor as one tree: what they have in common stands once."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from sdjax.core.types import Draft, Law


def merge_chains(
    anchor: Int[Array, " B"], tokens: Int[Array, "B C D"], survival: Float[Array, "B C D"], starts: tuple[int, ...]
) -> Draft:
    """The tree of C chains of D tokens: 1 + Σ (D + 1 - starts[c]) nodes, chain by chain, each from depth starts[c] on.

    Above that depth a chain must agree with an earlier one. A path that an earlier chain has too is absent from the later
    one, so that siblings are distinct; what follows it hangs below the earlier chain's node. `survival` of a chain's
    tokens must not rise along it; a node has the largest of the chains that hold it, which does not rise either.
    """
    chains, length = tokens.shape[1:]
    same = jnp.cumprod((tokens[:, :, None] == tokens[:, None]).astype(jnp.int32), -1) > 0  # [B, C, C, D]
    owner = jnp.argmax(same, 2)
    best = jnp.where(same, survival[:, None], 0).max(2)
    chain = np.repeat(np.arange(chains), [length + 1 - start for start in starts])
    depth = np.concatenate([np.arange(start, length + 1) for start in starts])
    place = np.zeros((chains, length + 1), int)
    place[chain, depth] = 1 + np.arange(len(chain))
    above = jnp.asarray(place)[owner[:, chain, np.maximum(depth - 2, 0)], depth - 1]
    whole = lambda x: jnp.broadcast_to(jnp.asarray(x, jnp.int32), above.shape)
    front = lambda x, value: jnp.pad(x, ((0, 0), (1, 0)), constant_values=value)
    return Draft(
        tokens=front(tokens[:, chain, depth - 1], 0).at[:, 0].set(anchor),
        parent=front(jnp.where(depth > 1, above, 0), -1),
        depth=front(whole(depth), 0),
        valid=front(owner[:, chain, depth - 1] == chain, True),
        survival=front(best[:, chain, depth - 1], 1),
        law=Law.ONE_HOT,
        max_depth=length,
    )
