"""What experiments.aot compiles: configs of cases, and what its command line says."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from experiments.config import config_files, read_config
from experiments.launch import ROOT
from sdjax.study.plan import Case
from sdjax.study.plan_train import TrainCase
from sdjax.study.verify_cost import WIDTHS
from sdjax.targets.decoder import Decoder


@dataclass(frozen=True)
class AotConfig:
    """A target, its cases of decoding, and training steps.

    `curves` are topologies, each in so many groups of chips, for which the cost of wider passes is asked for; a step of the
    smaller model `draft` is the price of a draft there.
    """

    name: str
    target: Decoder
    draft: Decoder
    cases: dict[str, Case]
    curves: dict[str, int] = field(default_factory=dict)
    steps: dict[str, TrainCase] = field(default_factory=dict)

    @property
    def topologies(self) -> set[str]:
        """Of cases, steps and curves."""
        cases: list[Case | TrainCase] = [*self.cases.values(), *self.steps.values()]
        return {case.topology for case in cases} | self.curves.keys()


@dataclass(frozen=True)
class Given:
    """What the command line says."""

    config: str | None = None
    """a file in configs/aot; all of them where none is given"""
    topology: str | None = None
    """only cases and curves on this one"""
    case: str | None = None
    """only the case of this name, and no curves"""
    only: Literal["all", "cases", "curves", "attention", "page"] = "all"
    """page: compile nothing, write docs/scale.md anew"""
    widths: tuple[int, ...] = WIDTHS
    """tokens of the curves' passes"""
    reports: Path = ROOT / "docs" / "scale"
    """where a case's file goes; the page stands beside the folder"""
    curves: Path = ROOT / "experiments" / "tables" / "verify_cost"
    """where a curve's file goes"""
    attention: Path = ROOT / "experiments" / "tables" / "attention"
    """where experiments.aot_attention leaves its files"""


def configs(given: Given) -> list[AotConfig]:
    """Those that were asked for."""
    names = map(str, config_files("aot")) if given.config is None else [given.config]
    return [read_config(name, "python -m experiments.aot", "aot", AotConfig)[0] for name in names]


def chosen(config: AotConfig, given: Given) -> list[str]:
    """The cases that were asked for; ValueError where a config was named and has nothing of the kind."""
    if given.only not in ("all", "cases"):
        return []
    cases: dict[str, Case | TrainCase] = {**config.cases, **config.steps}
    names = [name for name, case in cases.items() if given.case in (None, name) and given.topology in (None, case.topology)]
    if not names and given.config is not None and not curves(config, given):
        there = ", ".join(f"{name} ({case.topology})" for name, case in cases.items())
        raise ValueError(f"{config.name} has no case for{asked(given)}; there are {there}")
    return names


def asked(given: Given) -> str:
    """What of the cases and curves was asked for, as it was written: " --case plain"."""
    said = {"--case": given.case, "--topology": given.topology, "--only": given.only if given.only != "all" else None}
    return "".join(f" {option} {value}" for option, value in said.items() if value)


def curve_name(config: AotConfig, topology: str) -> str:
    """Of the file of a curve."""
    return f"{config.name}-{topology.replace(':', '-')}"


def curves(config: AotConfig, given: Given) -> list[str]:
    """The topologies whose curves were asked for."""
    if given.only not in ("all", "curves") or given.case is not None:
        return []
    return [topology for topology in config.curves if given.topology in (None, topology)]
