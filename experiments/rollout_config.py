"""What a corpus is made from: the config of experiments.rollout."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from experiments.config import MeshConfig, TargetConfig
from sdjax.core.sampling import Warp
from sdjax.study.prompts import Prompts
from sdjax.study.stdlib_prompts import StandardLibrary


@dataclass(frozen=True)
class OwnText:
    """Conversations of which the target writes both sides, from its template alone."""

    count: int = 2000
    """How many."""
    max_user: int = 128
    """At most so many tokens in the user's turn."""
    user: Warp = Warp(temperature=1.0)
    """The law of the user's turn; the answer's is the config's `warp`."""


@dataclass(frozen=True)
class Conversations:
    """Text given: a JSONL file whose lines have `messages` or `text`. Nothing is sampled."""

    file: str
    """The file."""
    longest: int = 0
    """At most so many tokens of each, up to its last supervised one; 0: all."""


@dataclass(frozen=True)
class Texts:
    """Text given: a prepared dataset of tensorflow-datasets. Nothing is sampled."""

    dataset: str
    """Its name, with config and version if need be."""
    split: str = "train"
    """One of its splits, or a slice: train[:10%]."""
    column: str = "text"
    """The feature that holds text."""
    data_dir: str | None = None
    """Where it was prepared; none: tfds's own place."""
    longest: int = 0
    """At most so many tokens of each, up to its last supervised one; 0: all."""


@dataclass(frozen=True)
class RolloutConfig:
    """One corpus."""

    name: str
    """The corpus is the folder CORPORA/NAME."""
    drafter: Any
    """Who guesses meanwhile; the text is the same with any that has no weights, NoDraft among them."""
    prompts: OwnText | Prompts | StandardLibrary | Conversations | Texts = OwnText()
    """What the target goes on from; or the text itself."""
    target: TargetConfig = TargetConfig()
    warp: Warp = Warp(temperature=1.0)
    """The law of the answers."""
    max_new: int = 256
    """At most so many tokens an answer."""
    longest_prompt: int = 512
    """Longer prompts are left out."""
    batch: int = 16
    """Prompts answered together."""
    chunk: int = 128
    """Tokens of a prompt that prefill runs at once."""
    seed: int = 0
    """Keys all noise, together with each prompt's id."""
    corpora: str = "runs/corpora"
    """Where corpora are."""
    mesh: MeshConfig = MeshConfig()
    """How each process's own devices share its work."""
    hosts: int = 1
    """How many processes share the work; 1: as many as JAX knows of."""
    host: int = 0
    """Which of them this is."""

    def __post_init__(self):
        if not self.name or "/" in self.name or self.name.startswith("."):
            raise ValueError(f"name is {self.name!r}; it names a folder, so it must not be empty, hidden or hold a slash")
        if self.hosts < 1 or not 0 <= self.host < self.hosts:
            raise ValueError(f"host is {self.host} of {self.hosts} hosts; it must lie in 0..hosts - 1")
        for name in ("max_new", "longest_prompt", "batch", "chunk"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be ≥ 1")

    @property
    def folder(self) -> Path:
        return Path(self.corpora) / self.name

    def place(self) -> tuple[int, int]:
        """Which process of how many this is; ValueError where both a pod and the config say."""
        if self.hosts > 1 and jax.process_count() > 1:
            raise ValueError(f"hosts is {self.hosts}, but the pod itself has {jax.process_count()} processes; leave hosts out")
        return (self.host, self.hosts) if self.hosts > 1 else (jax.process_index(), jax.process_count())
