"""Every pytree that crosses a boundary, and the axis letters they are described with.

B batch, b batch or one row for all of it, T new tokens, S cache rows, R scratch rows (of `Records`: verify steps),
N tree nodes incl. root, I nodes with children, Q probes, U rows of a pass (N + Q), D max depth, A = D + 1, E width, M taps,
V vocabulary, H query heads, G kv heads, K head width. Drafters have more of their own, D for the tokens of a draft vocabulary
among them.
"""

from enum import StrEnum
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int, UInt

from sdjax.core.cache import Cache
from sdjax.core.sampling import Warp


class Law(StrEnum):
    """How a node's children were drawn; a rule states the laws for which it is lossless."""

    ONE_HOT = "one-hot"  # argmax, top-k, lookup: siblings distinct, no randomness
    IID = "iid"  # independent draws from q
    WITHOUT_REPLACEMENT = "without-replacement"  # successive draws from q, earlier siblings excluded
    MIXED = "mixed"  # first child drawn from q, its siblings fixed and excluded from q


@struct.dataclass
class Probes:
    """Q rows behind a draft's nodes in the target's pass, never judged nor committed: `observe` gets their final states.

    Row i is the input x[i] at position p + depth[i]; it sees all committed tokens, and of the pass's U = N + Q rows, nodes
    first, those of sees[i]. No node sees a probe.
    """

    x: Float[Array, "B Q E"]
    depth: Int[Array, "B Q"]
    sees: Bool[Array, "B Q U"]


@struct.dataclass
class Draft:
    """A tree of guesses. Node 0 is the anchor; parent[i] < i; siblings stand in draw order.

    An invalid node is simply absent (as are its descendants). `q` holds, for each node with children, the
    warped law its children were drawn from; `q_row[i]` is node i's row in it (nodes may share one), -1 at leaves.
    `survival` is how likely the drafter thinks each node to be accepted, all nodes above it included: 1 at the anchor, never
    more than at the parent (None: it does not say). `max_depth` and `is_chain` are static: no node is deeper, whatever the
    batch holds; and where it is a chain, node i hangs on node i - 1.
    """

    tokens: Int[Array, "B N"]
    parent: Int[Array, "B N"]
    depth: Int[Array, "B N"]
    valid: Bool[Array, "B N"]
    q: Float[Array, "B I V"] | None = None
    q_row: Int[Array, "B N"] | None = None
    survival: Float[Array, "B N"] | None = None
    probes: Probes | None = None
    law: Law = struct.field(pytree_node=False, default=Law.ONE_HOT)
    max_depth: int = struct.field(pytree_node=False, default=0)
    is_chain: bool = struct.field(pytree_node=False, default=False)

    @property
    def rows(self) -> int:
        """Rows that the target runs for each sequence: nodes, absent ones included, and probes."""
        return self.tokens.shape[1] + (0 if self.probes is None else self.probes.x.shape[1])


@struct.dataclass
class Verdict:
    """What a rule decided: path[b, :accepted[b] + 1] are the nodes kept, root first; then `bonus` is emitted."""

    path: Int[Array, "B A"]
    accepted: Int[Array, " B"]
    bonus: Int[Array, " B"]


@struct.dataclass
class Committed:
    """The tokens that the target has just run on for good, with its true features; the first count[b] rows count.

    They are one behind what was emitted: in a step the old anchor and the accepted drafts, at prefill a chunk of the prompt.
    `next_tokens` are those behind each: of a step the tokens that it commits, the last one the new anchor. `node` is the row
    that each was in the target's pass (at prefill: its place in the chunk), `probes` the final states of the draft's probes
    there; at prefill there are none.
    """

    tokens: Int[Array, "B T"]
    positions: Int[Array, "B T"]
    next_tokens: Int[Array, "B T"]
    features: Float[Array, "B T M E"]
    node: Int[Array, "B T"]
    count: Int[Array, " B"]
    probes: Float[Array, "B Q E"] | None = None


@struct.dataclass
class Context:
    """Everything a drafter or a rule may read. p is the anchor's position: tokens[b, :p[b] + 1] are committed.

    `step` is the optimiser's, by which a loss may follow a schedule.
    """

    target_params: Any
    cache: Cache
    tokens: Int[Array, "B S"]
    p: Int[Array, " B"]
    seed: UInt[Array, " B"]
    target: Any = struct.field(pytree_node=False)
    warp: Warp = struct.field(pytree_node=False)
    step: Int[Array, ""] | int = 0

    @property
    def anchor(self) -> Int[Array, " B"]:
        return jnp.take_along_axis(self.tokens, self.p[:, None], axis=1)[:, 0]


@struct.dataclass
class Records:
    """What each verify step did, per sequence; row s is step s, and committed = 0 means it did not take part.

    `proposed` counts the drafted nodes that were present, `reach` is the deepest of them; `verified` counts the rows
    that the target ran, absent nodes, probes and the anchor included (of a packed pass a sequence's own, and its share of
    the padding); `node` holds the accepted path: the node at each depth from 1, -1 where the path had ended.
    """

    proposed: Int[Array, "B R"]
    reach: Int[Array, "B R"]
    accepted: Int[Array, "B R"]
    committed: Int[Array, "B R"]
    verified: Int[Array, "B R"]
    node: Int[Array, "B R D"]


def rows(x: Array, index: Int[Array, "B T"]) -> Array:
    """x[b, index[b, t]]: gathers along axis 1 of every sequence."""
    return jax.vmap(lambda x, index: x[index])(x, index)


@struct.dataclass
class Batch:
    """Packed texts for training: each row holds whole documents one behind the other.

    `segments` numbers a row's documents from 1 (0 is padding), `positions` restart in each; `loss_mask` marks the
    tokens that are learnt from.
    """

    tokens: Int[Array, "B T"]
    positions: Int[Array, "B T"]
    segments: Int[Array, "B T"]
    loss_mask: Bool[Array, "B T"]

    def ahead(self, by: int) -> tuple[Int[Array, "B T"], Float[Array, "B T"]]:
        """The token `by` places further and its weight: 0 where it is not learnt from, or of another document.

        Loss mask and labels are shifted here, together, and nowhere else.
        """
        tokens, segments, mask = (jnp.roll(x, -by, 1) for x in (self.tokens, self.segments, self.loss_mask))
        inside = jnp.arange(tokens.shape[1]) < tokens.shape[1] - by
        return tokens, (mask & inside & (segments == self.segments)).astype(jnp.float32)


@struct.dataclass
class Trace:
    """A batch with the target's states on it: stop-gradient, unless the target's own part is trained."""

    batch: Batch
    features: Float[Array, "B T M E"]
    hidden: Float[Array, "B T E"]

    def ahead(self, by: int) -> tuple[Int[Array, "B T"], Float[Array, "B T"]]:
        """`Batch.ahead`."""
        return self.batch.ahead(by)

    def teacher(self, by: int) -> Float[Array, "B T E"]:
        """The target's final state that predicts the token `by` places further."""
        return jnp.roll(self.hidden, 1 - by, 1)
