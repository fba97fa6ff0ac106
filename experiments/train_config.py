"""What is trained, on what, and how: the config of experiments.train."""

from dataclasses import dataclass
from typing import Any

from experiments.config import MeshConfig, TargetConfig
from sdjax.study.prompts import Prompts
from sdjax.train.joint import Joint
from sdjax.train.optimiser import Optimiser
from sdjax.train.recipe import Cadence


@dataclass(frozen=True)
class HeldOutConfig:
    """The decoding that a drafter is judged by."""

    prompts: Prompts = Prompts(count=8)
    """Not to be trained on. The tiny world has its own: `count` and `skip` alone matter there."""
    max_new: int = 64
    """New tokens a prompt."""
    batch: int = 8
    """Prompts decoded at once."""
    longest: int = 512
    """Leaves out longer prompts, in tokens."""


@dataclass(frozen=True)
class TrainConfig:
    """One drafter, trained."""

    name: str
    """The run's folder is RUNS/NAME; a run that was stopped goes on there."""
    drafter: Any
    """Who is trained."""
    target: TargetConfig = TargetConfig()
    """Whom it drafts for; the name "tiny" is the tiny world's target, which is trained first where it is not there yet."""
    corpora: tuple[str, ...] = ()
    """Folders made by experiments.rollout with this target; none: the tiny world's text."""
    features: tuple[str, ...] = ()
    """Folders made by experiments.features, one for each corpus: the target's states are read, and not made anew."""
    rows: int = 8
    """Rows of a batch, over all processes."""
    length: int = 512
    """Tokens of a row, into which documents are packed."""
    optimiser: Optimiser = Optimiser()
    """The optimiser; its `steps` are the run's length."""
    joint: Joint | None = None
    """How the target is trained beside the drafter; None: it is frozen."""
    from_scratch: bool = False
    """Whether such a target starts from random weights instead of its own."""
    frozen: tuple[str, ...] = ()
    """Globs over parameters that stay as they start, such as "drafter.layers.*"."""
    held_out: HeldOutConfig = HeldOutConfig()
    """The prompts that say what the drafter is worth."""
    cadence: Cadence = Cadence()
    """How often it is measured and saved."""
    seed: int = 0
    """Of the drafter's first weights, of the order of the data, and of what the loss draws."""
    save_as: str = "bfloat16"
    """The dtype in which the finished drafter is written."""
    mesh: MeshConfig = MeshConfig()
    """How the work is spread over devices: no part of what decides a result, and free to change between launches."""
    readers: int = 0
    """Readers of the data, each of which fills as many rows of a batch; 0: as many as the run began with, and at first as the
    mesh splits a batch into."""
    runs: str = "runs/train"
    """Where run folders are."""
    checkpoints: str = ""
    """Where checkpoints are, as gs://… where processes do not share a disk; empty: in the run's folder."""

    def __post_init__(self):
        if not self.name or "/" in self.name or self.name.startswith("."):
            raise ValueError(f"name is {self.name!r}; it names a folder, so it must not be empty, hidden or hold a slash")
        if self.rows % self.optimiser.micro_batches:
            raise ValueError(f"rows is {self.rows}; make it a multiple of micro_batches ({self.optimiser.micro_batches})")
        if self.readers < 0 or (self.readers and self.rows % self.readers):
            raise ValueError(f"readers is {self.readers}; rows ({self.rows}) must be a multiple of it (0: found out)")
        if self.features and (self.joint or len(self.features) != len(self.corpora)):
            raise ValueError(
                f"features has {len(self.features)} folders for {len(self.corpora)} corpora, joint is {self.joint}: give one "
                "for each corpus, and none where the target is trained"
            )
        if self.from_scratch and not self.joint:
            raise ValueError("from_scratch is set, but the target is not trained; give joint, or leave it out")
        if self.save_as not in ("bfloat16", "float32"):
            raise ValueError(f"save_as is {self.save_as!r}; it must be 'bfloat16' or 'float32'")
