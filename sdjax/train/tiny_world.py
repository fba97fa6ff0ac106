"""A world small enough for tests and notebooks: a two-layer byte-level target, and text that every Python has."""

from collections.abc import Iterator
from functools import partial
from pydoc_data import topics
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Key

from sdjax.core.spec import initialise
from sdjax.core.types import Batch
from sdjax.drafters.losses import cross_entropy, weighted_mean
from sdjax.targets.decoder import Decoder
from sdjax.targets.packed import trace_of
from sdjax.train.optimiser import Optimiser
from sdjax.train.step import TrainState, Value, begin, train_step

TARGET = Decoder(vocab=256, width=128, layers=2, heads=4, kv_heads=2, head_width=32, ffw=384, tied=True, max_position=1024)
OPTIMISER = Optimiser(learning_rate=4e-3, steps=600, warmup=30, clip=1.0)
HELD_OUT = 40_000  # bytes at the end that no one trains on


def text() -> np.ndarray:
    """The help topics of the running Python, as bytes uint8: about half a megabyte of English and code."""
    return np.frombuffer("\n\n".join(topics.topics[name] for name in sorted(topics.topics)).encode(), np.uint8)


class Windows(Iterator[Batch]):
    """Endless random windows of `data`, each a document of its own; every byte is learnt from."""

    def __init__(self, data: np.ndarray, rows: int, length: int, seed: int):
        self._data, self._shape = data, (rows, length)
        self._random = np.random.default_rng(seed)
        self._place = jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32), self._shape)
        self._ones = jnp.ones(self._shape, jnp.int32)

    def __next__(self) -> Batch:
        rows, length = self._shape
        starts = self._random.integers(0, len(self._data) - length, rows)
        tokens = jnp.asarray(np.stack([self._data[start : start + length] for start in starts]), jnp.int32)
        return Batch(tokens, self._place, self._ones, self._ones.astype(bool))

    def position(self) -> dict[str, Any]:
        """Where the next batch comes from, as JSON data."""
        return dict(self._random.bit_generator.state)

    def restore(self, position: dict[str, Any]) -> None:
        """Goes to a position."""
        self._random.bit_generator.state = position


def batches(data: np.ndarray, rows: int, length: int, seed: int) -> Windows:
    """Endless random windows of `data`: [rows, length] a batch."""
    return Windows(data, rows, length, seed)


def prompts(count: int, length: int) -> list[list[int]]:
    """Held-out openings, evenly spread."""
    held_out = text()[-HELD_OUT:]
    return [held_out[i : i + length].tolist() for i in np.linspace(0, HELD_OUT - length, count).astype(int)]


def next_token_loss(target: Decoder, params: Any, _: Any, batch: Batch, key: Key[Array, ""], step: Int[Array, ""]) -> Value:
    """Cross-entropy of the next token."""
    trace = trace_of(target, params, batch)
    labels, weight = trace.ahead(1)
    logits = target.unembed(params, trace.hidden)
    return weighted_mean(cross_entropy(logits, labels), weight), {}


target_loss = partial(next_token_loss, TARGET)


def train_target(seed: int = 0, optimiser: Optimiser = OPTIMISER) -> Any:
    """The target's parameters after `optimiser.steps` steps of 16 windows of 128 bytes: under two minutes on two cores."""
    state: TrainState = begin(initialise(TARGET.specs(), jax.random.key(seed)), optimiser, seed)
    stream = batches(text()[:-HELD_OUT], 16, 128, seed)
    for _ in range(optimiser.steps):
        state, _ = train_step(target_loss, optimiser, state, {}, next(stream))
    return state.params
