"""What a drafter promises: a frozen, hashable dataclass of hyper-parameters with pure methods over pytrees."""

from collections.abc import Callable, Collection
from dataclasses import fields, is_dataclass, replace
from typing import Any, Protocol, Self

import numpy as np
from jaxtyping import Array, Float, Int, Key

from sdjax.core.checks import as_integer
from sdjax.core.types import Committed, Context, Draft, Trace
from sdjax.targets.decoder import Decoder, Tap


class Drafter(Protocol):
    """Who guesses. The loop never knows which one runs; a new family is one file and one config.

    Between two steps the state covers exactly positions 0..p-1, made from committed tokens and the target's
    features alone (but for a `Pace`, which remembers how drafts went). `propose` reads it, and returns a draft and its
    scratch; `observe` extends it.
    """

    @property
    def taps(self) -> tuple[Tap, ...]:
        """Which of the target's states `observe` is fed with."""
        ...

    @property
    def depth(self) -> int:
        """The longest path a draft can hold."""
        ...

    @property
    def nodes(self) -> int:
        """Nodes of a draft, the anchor included."""
        ...

    @property
    def is_chain(self) -> bool:
        """Whether no draft can branch, which depth and nodes do not tell: a dynamic tree of depth + 1 nodes can.

        What is a chain is said by the shape of a tree (`Tree`, `DynamicTree`), and by a draft of itself.
        """
        ...

    def specs(self, target: Decoder) -> Any:
        """The abstract parameter tree; ValueError where the drafter cannot serve this target."""
        ...

    def empty(self, target: Decoder, batch: int, capacity: int) -> Any:
        """The state before the first token."""
        ...

    def observe(self, ctx: Context, params: Any, state: Any, seen: Committed, scratch: Any = None) -> Any:
        """Takes in what was committed; rows from seen.count on must leave no trace. `ctx` is after the commit.

        `scratch` is what the `propose` of this very step returned (None at prefill).
        """
        ...

    def propose(self, ctx: Context, params: Any, state: Any) -> tuple[Draft, Any]:
        """Guesses a tree below the anchor; changes nothing."""
        ...

    def __hash__(self) -> int: ...

    @classmethod
    def tiny(cls, target: Decoder) -> Self:
        """A small instance for the conformance suite."""
        ...


class Trainable(Drafter, Protocol):
    """A drafter with parameters of its own to learn."""

    def initial(self, target: Decoder, target_params: Any, counts: Int[np.ndarray, " V"], key: Key[Array, ""]) -> Any:
        """The parameters that training starts from; `counts` of the tokens to be learnt choose a draft vocabulary."""
        ...

    def loss(
        self, ctx: Context, params: Any, trace: Trace, key: Key[Array, ""]
    ) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
        """The family's recipe on a batch of packed texts: what is minimised, and figures to watch.

        `trace` holds the frozen target's states, of the same arithmetic that `observe` is fed with.
        """
        ...


def check_taps(taps: tuple[Tap, ...]) -> None:
    """Raises ValueError for no taps, or one that is named twice."""
    twice = sorted({str(tap) for tap in taps if taps.count(tap) > 1})
    if twice or not taps:
        raise ValueError(f"taps are {taps}; name at least one, and none twice (colliding: {', '.join(twice) or '-'})")


def check_tapped(target: Decoder, taps: tuple[Tap, ...]) -> None:
    """Raises ValueError for taps that the target lacks."""
    there = ("embed", *range(target.layers), "final")
    lacking = [tap for tap in taps if tap not in there]
    if lacking:
        raise ValueError(f"the target has no taps {lacking}; it has 'embed', 0..{target.layers - 1} and 'final'")


def check_mask_token(token: int | None, model: Decoder) -> None:
    """Raises ValueError for a token, whose row of the embedding masks read, that the model lacks; None is no token."""
    if token is not None and not 0 <= token < model.vocab:
        raise ValueError(f"mask_token is {token}; the vocabulary of the embedding has the ids 0..{model.vocab - 1}")


def check_masks(drafter: Any, stops: Collection[int]) -> None:
    """Raises ValueError where a drafter, or a part of it, masks with one of the tokens that end a text."""
    for field in fields(drafter):
        part = getattr(drafter, field.name)
        if field.name == "mask_token" and part in stops:
            raise ValueError(f"mask_token is {part}, which ends texts; masks would read as ends: take a token that no text has")
        if is_dataclass(part):
            check_masks(part, stops)


def check_length(length: int) -> None:
    """Raises ValueError for a chain without drafts."""
    if as_integer(length, "length") < 1:
        raise ValueError(f"length is {length}; at least one token must be drafted (NoDraft drafts none)")


def with_parts(whole: Any, kind: type, change: Callable[[Any], Any]) -> Any:
    """A drafter with its parts of one kind, such as its heads or its own models, changed wherever they are."""
    if isinstance(whole, kind):
        return change(whole)
    if not is_dataclass(whole) or isinstance(whole, type):
        return whole
    parts = {part.name: with_parts(getattr(whole, part.name), kind, change) for part in fields(whole) if part.init}
    return replace(whole, **parts)
