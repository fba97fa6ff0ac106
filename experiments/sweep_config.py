"""What a sweep compares: the config of experiments.sweep."""

from dataclasses import dataclass, field
from pathlib import Path

from experiments.config import DecodeConfig, MeshConfig, TargetConfig
from sdjax.study.compare import Decoding
from sdjax.study.methods import Method, Sampling
from sdjax.study.prompts import Prompts


@dataclass(frozen=True)
class SweepConfig:
    """Methods (drafters × rules × trees) on several prompt sets, at several temperatures."""

    name: str
    """The sweep's folder is runs/NAME."""
    methods: dict[str, Method]
    """What is compared, by name. The first is plain decoding, the baseline."""
    sets: dict[str, Prompts]
    """The prompt sets, by name."""
    title: str = "Results"
    """The page's heading."""
    rule: Sampling = Sampling()
    target: TargetConfig = TargetConfig()
    decode: Decoding = field(default_factory=Decoding)
    mesh: MeshConfig = MeshConfig()
    """How devices share the work."""
    runs: str = "runs"
    """Where sweeps' folders are."""
    page: str = ""
    """Where the page goes; empty: results.md in the sweep's folder."""
    beside: tuple[str, ...] = ()
    """Folders of sweeps of the same methods and sets, at other temperatures or of other machines, that join the page."""

    @property
    def folder(self) -> Path:
        return Path(self.runs) / self.name

    def comparison(self, name: str) -> DecodeConfig:
        """The comparison on one of the prompt sets."""
        folder = str(self.folder)
        return DecodeConfig(name, self.methods, self.sets[name], self.rule, self.target, self.decode, self.mesh, folder)
