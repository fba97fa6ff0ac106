"""Calibrates a drafter's confidence at the temperature that is served: a temperature for each slot.

    python -m experiments.calibrate --drafter runs/train/dspark_smollm2/drafter --write

Decodes held-out prompts and fits the temperatures on them (sequential temperature scaling, arXiv:2607.05147). Each prompt
judges temperatures that were fitted on others, four fifths of all: expected calibration error and AUC of each slot's survival,
with 95 % intervals over prompts. With --write the saved drafter keeps those that fit all. What is accepted depends on the
rule, too: give the one that is served. The last line is one JSON object.
"""

import json
import sys
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from experiments.config import TargetConfig
from experiments.launch import command_line, decode_in_float32, mistakes_end_the_program
from experiments.train import read_held_out
from experiments.train_config import HeldOutConfig
from sdjax.core.plain import finite
from sdjax.core.sampling import Warp
from sdjax.decode.state import Loop, Params
from sdjax.study.calibration import BINS, Drafts, SlotFigures, cross_fitted, figures, fit_temperatures, reliability
from sdjax.study.page import table as markdown
from sdjax.study.prompts import Prompts
from sdjax.study.survival import served_drafts
from sdjax.targets.load import Model
from sdjax.train import tiny_model
from sdjax.train.saved import change_drafter, load_drafter, load_tuned
from sdjax.verify.registry import rule_named


@dataclass(frozen=True)
class Calibration:
    """What is calibrated, on what, and where it goes."""

    drafter: str
    """A saved drafter with a confidence head: a folder, or a name in zoo/."""
    temperature: float = 1.0
    """At which the target is sampled."""
    rule: str = "token"
    """Who judges the drafts, by the name that experiments.law takes."""
    target: TargetConfig = TargetConfig()
    """The drafter's target; the name "tiny" is the tiny world's, from `runs`."""
    held_out: HeldOutConfig = HeldOutConfig(Prompts(skip=8, count=40))
    """The prompts. They must not have chosen the drafter's checkpoint: skip as many as its config's held_out counts."""
    plot: Path | None = None
    """Writes a reliability plot (PNG) there."""
    page: Path | None = None
    """Writes the table there, as Markdown."""
    write: bool = False
    """Writes the temperatures into the saved drafter."""
    runs: str = "runs"
    """Where the tiny world's target is."""


def main(config: Calibration) -> dict[str, Any]:
    """Decodes, fits, judges, shows and writes; raises ValueError for a drafter without a confidence head."""
    rule, warp = rule_named(config.rule), Warp(config.temperature)
    model = load_model(config)
    drafter, params = load_drafter(config.drafter, model)
    if "temperatures" not in {field.name for field in fields(drafter)}:
        raise ValueError(f"{config.drafter} holds {type(drafter).__name__}, which has no temperatures; take a block drafter")
    held_out = read_held_out(config.held_out, model)
    loop = Loop(model.target, replace(drafter, temperatures=()), rule, warp, held_out.stop, held_out.chunk)
    drafts = served_drafts(loop, Params(model.params, params), held_out.prompts, held_out.max_new, held_out.batch)
    temperatures, apart = fit_temperatures(drafts), cross_fitted(drafts)
    before, after = figures(drafts), figures(drafts, apart)
    rows = [row(k, *slot) for k, slot in enumerate(zip(temperatures, before, after, strict=True), 1)]
    show(rows)
    found = {
        "drafter": config.drafter,
        "temperature": config.temperature,
        "rule": config.rule,
        "drafts": len(drafts.logits),
        "requests": len(np.unique(drafts.request)),
        "temperatures": temperatures.tolist(),
        "before": [asdict(slot) for slot in before],
        "after": [asdict(slot) for slot in after],
    }
    if config.plot:
        plot(config.plot, drafts, apart)
    if config.page:
        write_page(config.page, config, found, rows)
    if config.write:
        kept = replace(drafter, temperatures=tuple(temperatures.tolist()))
        change_drafter(config.drafter, kept, {"calibration": finite(found)})
    print(json.dumps(finite(found)))
    return found


def load_model(config: Calibration) -> Model:
    """The target that the drafter was trained on."""
    tiny = config.target.name == tiny_model.NAME
    return load_tuned(config.drafter, tiny_model.tiny_model(Path(config.runs)) if tiny else config.target.load())


def row(slot: int, temperature: float, before: SlotFigures, after: SlotFigures) -> dict[str, str]:
    """A slot's figures, by the titles of their columns."""
    span = lambda value, ends: f"{value:.3f} [{ends[0]:.3f}, {ends[1]:.3f}]"
    return {
        "slot": str(slot),
        "temperature": f"{temperature:.2f}",
        "survived": f"{after.observed:.3f}",
        "ECE before [95 %]": span(before.ece, before.ece_interval),
        "ECE after [95 %]": span(after.ece, after.ece_interval),
        "AUC [95 %]": span(after.auc, after.auc_interval),
    }


def show(rows: list[dict[str, str]]) -> None:
    """A line for each slot."""
    shown = Table(*rows[0])
    for line in rows:
        shown.add_row(*line.values())
    Console().print(shown)


def write_page(page: Path, config: Calibration, found: dict[str, Any], rows: list[dict[str, str]]) -> None:
    """The table under what was measured, and how."""
    page.parent.mkdir(parents=True, exist_ok=True)
    command = f"python -m experiments.calibrate {' '.join(sys.argv[1:])}"
    text = f"""# Is the confidence of {Path(config.drafter).parent.name or config.drafter} true?

Made by `{command}`.
Drafts as served at T = {config.temperature:g} under the rule {config.rule}, target in {config.target.dtype}:
{found["drafts"]:,} of {found["requests"]} requests, each judged by temperatures that were fitted on others, four fifths of
all; the temperatures shown fit all. Survival at a slot is the chance that it and all before it are accepted; ECE is over
{BINS} bins of it, intervals over requests.

"""
    page.write_text(text + markdown(rows) + "\n", encoding="utf-8")


def plot(path: Path, drafts: Drafts, temperatures: np.ndarray) -> None:
    """What was stated against what came true, slot by slot, before and after."""
    import matplotlib.pyplot as plt

    depth = drafts.logits.shape[1]
    figure, axes = plt.subplots(1, depth, figsize=(2.4 * depth, 2.8), sharey=True, layout="constrained", squeeze=False)
    weight = np.ones(len(drafts.logits))
    for k, axis in enumerate(axes[0]):
        axis.plot([0, 1], [0, 1], "k:", linewidth=0.8)
        for label, scale in (("as trained", 1.0), ("calibrated", temperatures)):
            found = reliability(drafts.survival(scale)[:, k], drafts.survived[:, k], weight, BINS)
            filled = found.count > 0
            axis.plot(found.predicted[filled], found.observed[filled], "o-", markersize=3, label=label)
        axis.set(title=f"slot {k + 1}", xlabel="stated survival", xlim=(0, 1), ylim=(0, 1))
    axes[0, 0].set(ylabel="share that survived")
    axes[0, 0].legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)
    print(f"wrote {path}")


if __name__ == "__main__":
    with mistakes_end_the_program():
        said = command_line("calibrate", Calibration, __doc__)
        decode_in_float32()
        main(said)
