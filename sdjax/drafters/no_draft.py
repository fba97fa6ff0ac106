"""No draft: the anchor alone is verified. The same loop is then plain decoding, the baseline of every speed-up."""

from dataclasses import dataclass
from typing import Any, ClassVar

from sdjax.core.types import Committed, Context, Draft, Law
from sdjax.targets.decoder import Decoder, Tap
from sdjax.trees.tree import Tree


@dataclass(frozen=True)
class NoDraft:
    """Drafts nothing, keeps nothing."""

    taps: ClassVar[tuple[Tap, ...]] = ()
    depth: ClassVar[int] = 0
    nodes: ClassVar[int] = 1
    is_chain: ClassVar[bool] = True

    def specs(self, target: Decoder) -> dict[str, Any]:
        return {}

    def empty(self, target: Decoder, batch: int, capacity: int) -> None:
        return None

    def observe(self, ctx: Context, params: Any, state: None, seen: Committed, scratch: Any = None) -> None:
        return None

    def propose(self, ctx: Context, params: Any, state: None) -> tuple[Draft, None]:
        return Tree.chain(0).draft(ctx.anchor[:, None], Law.ONE_HOT), None

    @classmethod
    def tiny(cls, target: Decoder) -> "NoDraft":
        return cls()
