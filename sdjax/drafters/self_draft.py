"""The target's own first layers as the drafter: no parameters, and the target's cache is its cache.

Layer skipping without any training: an honest, weak draft model. With all layers it is the target itself.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from sdjax.core.types import Committed, Context, Draft
from sdjax.drafters.base import check_length
from sdjax.drafters.chain import draft_chain
from sdjax.targets.decoder import Decoder, Tap, truncate_params


@dataclass(frozen=True)
class SelfDraft:
    """Drafts a chain of `length` tokens with the target's first `layers` layers, its final norm and its head."""

    layers: int
    length: int = 4
    sampled: bool = True
    taps: ClassVar[tuple[Tap, ...]] = ()
    is_chain: ClassVar[bool] = True

    def __post_init__(self):
        check_length(self.length)

    @property
    def depth(self) -> int:
        return self.length

    @property
    def nodes(self) -> int:
        return self.length + 1

    def specs(self, target: Decoder) -> dict[str, Any]:
        target.truncate(self.layers)
        return {}

    def empty(self, target: Decoder, batch: int, capacity: int) -> None:
        return None

    def observe(self, ctx: Context, params: Any, state: None, seen: Committed, scratch: Any = None) -> None:
        return None

    def propose(self, ctx: Context, params: Any, state: None) -> tuple[Draft, Any]:
        model = ctx.target.truncate(self.layers)
        cache = ctx.cache.replace(layers=ctx.cache.layers[: self.layers])
        return draft_chain(model, truncate_params(ctx.target_params, self.layers), cache, ctx, self.length, self.sampled)

    @classmethod
    def tiny(cls, target: Decoder) -> "SelfDraft":
        return cls(layers=1, length=3)
