"""Compiles decoding for TPUs that are not here, and says what their compiler answers: memory, collectives, time of a step.

    python -m experiments.aot                                                         all of it: forty minutes on two cores
    python -m experiments.aot --config configs/aot/llama31_8b.py --topology v5e:2x4 --case plain   some of one
    python -m experiments.aot --only curves                                           what wider passes cost
    python -m experiments.aot --only attention                                        forms of attention compared
    python -m experiments.aot --only page                                             docs/scale.md alone

Needs libtpu (pip install -e ".[tpu]") and no TPU. Each case is one JSON file in docs/scale/, each curve one in
experiments/tables/verify_cost/, which experiments.sequoia reads (--costs); every call writes docs/scale.md anew from all of
them. Leaves with exit code 1 where a case breaks a promise (`sdjax.study.promises`).
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

from experiments.aot_config import AotConfig, Given, asked, chosen, configs, curve_name, curves
from experiments.aot_page import cells, exchanged, page, step_cells
from experiments.launch import ROOT, command_line, mistakes_end_the_program
from sdjax.core.plain import write_json
from sdjax.mesh.layout import DECODE, Rules
from sdjax.study import promises
from sdjax.study.plan_train import examine_step
from sdjax.study.verify_cost import verify_cost


def main(given: Given) -> int:
    """Compiles what was asked for, writes files and page, and returns how many faults were found."""
    some = (given.config, given.topology, given.case) != (None, None, None)
    if given.only in ("page", "attention") and some:
        raise ValueError(
            f"--only {given.only} is of no case; leave out --config, --topology and --case "
            "(python -m experiments.aot_attention --topologies compares forms of attention elsewhere)"
        )
    read = configs(given)
    if given.only not in ("page", "attention") and not any(chosen(config, given) or curves(config, given) for config in read):
        there = ", ".join(sorted({topology for config in read for topology in config.topologies}))
        raise ValueError(
            f"configs/aot has nothing for{asked(given)}; its topologies are {there}; with --config FILE its cases are named"
        )
    for folder in (given.reports, given.curves):
        folder.mkdir(parents=True, exist_ok=True)
    if given.only in ("all", "attention") and not some:
        # A process of its own: libtpu reads where to write a kernel's schedule when it is loaded.
        folders = [f"--{name}={getattr(given, name).absolute()}" for name in ("reports", "curves", "attention")]
        subprocess.run([sys.executable, "-m", "experiments.aot_attention", *folders], cwd=ROOT, check=True)
    faults = sum(of_config(config, given) for config in read)
    given.reports.with_suffix(".md").write_text(page(given), encoding="utf-8")
    return faults


def of_config(config: AotConfig, given: Given) -> int:
    """Its cases and curves; the number of faults."""
    faults = sum(compiled_and_written(config, name, given.reports) for name in chosen(config, given))
    for topology in curves(config, given):
        written(config, topology, given)
    return faults


def compiled_and_written(config: AotConfig, name: str, folder: Path) -> int:
    """One case: its file, its line on the screen, and how many faults it has."""
    found = examine(config, name)
    write_json(folder / f"{config.name}-{name}.json", found)
    print(" · ".join(step_cells(found) if name in config.steps else cells(found)), flush=True)
    if "collectives" in found:
        print(f"  exchanges: {exchanged(found)}")
    for fault in found["faults"]:
        print(f"  fault: {fault}")
    return len(found["faults"])


def written(config: AotConfig, topology: str, given: Given) -> None:
    """One curve: its file, and its line on the screen."""
    costs = verify_cost(config.target, config.draft, topology, config.curves[topology], given.widths)
    write_json(given.curves / f"{curve_name(config, topology)}.json", {"target": config.name} | costs)
    times = zip(costs["tokens"], costs["verify"], strict=True)
    print(f"{config.name} on {topology}: " + " ".join(f"t({n}) {t:.2f}" for n, t in times), flush=True)


def examine(config: AotConfig, name: str, rules: Rules = DECODE) -> dict[str, Any]:
    """Compiles one case, a step of decoding or of training; all that the compiler says of it, and the promises it breaks."""
    named = {"case": name, "target": config.name}
    if name in config.steps:
        return named | examine_step(config.target, config.steps[name])
    return named | promises.examine(config.target, config.cases[name], rules)


if __name__ == "__main__":
    with mistakes_end_the_program():
        sys.exit(1 if main(command_line("aot", Given, __doc__)) else 0)
