"""The results page: what summaries say, side by side, as Markdown. It is made from run folders, never by hand."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from sdjax.core.spec import Spec
from sdjax.study.methods import Method, with_weights
from sdjax.targets.load import Model
from sdjax.train.saved import is_saved, notes_of

SURVIVAL = 5
Row = Mapping[str, str]


@dataclass(frozen=True)
class PromptSet:
    """One comparison of a sweep: its name, and what its summary.json and launches.json hold."""

    name: str
    arms: Sequence[Mapping[str, Any]]
    mismatches: int
    launches: Sequence[Mapping[str, Any]]
    precision: str

    @classmethod
    def read(cls, name: str, folder: Path) -> "PromptSet":
        """ValueError where the comparison has not been run."""
        if not (folder / "summary.json").is_file():
            raise ValueError(f"{folder} holds no summary.json; run the sweep to its end first")
        found = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        launches = json.loads((folder / "launches.json").read_text(encoding="utf-8"))
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        return cls(name, found["arms"], len(found["mismatches"]), launches, config["config"]["target"]["dtype"])


def about_methods(methods: Mapping[str, Method], model: Model) -> dict[str, Any]:
    """What each method's drafter is: its configuration, its parameters and how they were trained."""
    about = {}
    for name, method in methods.items():
        drafter, _ = with_weights(name, method, model)
        training = notes_of(method.weights) if is_saved(method.weights) else {}
        about[name] = {"drafter": repr(drafter)} | sizes(drafter.specs(model.target)) | {"training": training}
    return about


def sizes(specs: Any) -> dict[str, int]:
    """How many parameters there are, and how many of them are trained."""
    leaves = jax.tree.leaves(specs, is_leaf=lambda x: isinstance(x, Spec))
    whole = lambda chosen: sum(math.prod(spec.shape) for spec in chosen)
    return {"parameters": whole(leaves), "trained": whole(spec for spec in leaves if spec.trainable)}


def results_page(title: str, about: Mapping[str, Any], sets: Sequence[PromptSet]) -> str:
    """The page: for each prompt set and temperature what was accepted and what it cost, then each category's τ."""
    parts = [f"# {title}", preface(sets), "## Drafters", table([drafter_row(*item) for item in about.items()])]
    for chosen in sets:
        for temperature in sorted({arm["temperature"] for arm in chosen.arms}):
            arms = [arm for arm in chosen.arms if arm["temperature"] == temperature]
            parts += [f"## {chosen.name}, temperature {temperature:g} ({arms[0]['prompts']} prompts)"]
            parts += [table([result_row(arm) for arm in arms])]
            if len(arms[0]["tau_by_category"]) > 1:
                parts += ["τ by category:", table([category_row(arm) for arm in arms])]
    return "\n\n".join(parts) + "\n"


def preface(sets: Sequence[PromptSet]) -> str:
    """Where and by what the figures were made: one command for each sweep that joins the page."""
    made = dict.fromkeys(f"`{s.launches[-1]['command']}` {place(s.launches[-1])}, target in {s.precision}" for s in sets)
    return (
        f"Made by {'; '.join(made)}. τ counts the bonus token (plain decoding is 1); "
        "speed-ups are measured against plain decoding of the same prompts, interleaved, with a 95 % bootstrap interval; "
        "costs are in plain decoding steps. Definitions: `sdjax/core/metrics.py`."
    )


def place(launch: Mapping[str, Any]) -> str:
    """The commit, the machine and the version of JAX that ran."""
    device, cores = launch["device"], launch["host"]["cores"]
    return (
        f"at commit {launch['git']} on {device['kind'] or device['platform']} ({cores} cores), "
        f"jax {launch['versions'].get('jax')}"
    )


def drafter_row(name: str, about: Mapping[str, Any]) -> Row:
    training = about["training"]
    return {
        "method": name,
        "parameters": millions(about["parameters"]),
        "of them trained": millions(about["trained"]),
        "training tokens": count(training.get("tokens")),
        "training FLOPs": scientific(training.get("flops")),
        "training minutes": figure(minutes(training.get("seconds")), ".0f"),
    }


def result_row(arm: Mapping[str, Any]) -> Row:
    found, speed, cost = arm["acceptance"], arm["speed"], arm["costs"] or {}
    spread = f" [{figure(speed['low'])}, {figure(speed['high'])}]" if speed["low"] is not None else ""
    return {
        "method": arm["method"],
        "rule": arm["rule"],
        "τ": figure(found["tau"]),
        "survival at 1, 2, …": " ".join(figure(rate) for rate in found["survival"][:SURVIVAL]) or "–",
        "draft": figure(cost.get("draft")),
        "verify": figure(cost.get("verify")),
        "overhead": figure(cost.get("overhead")),
        "predicted": figure(arm["predicted_speedup"]),
        "measured speed-up": figure(speed["speedup"]) + spread,
        "equal to plain": equality(arm["equality"]),
    }


def category_row(arm: Mapping[str, Any]) -> Row:
    return {"method": arm["method"], "rule": arm["rule"]} | {name: figure(tau) for name, tau in arm["tau_by_category"].items()}


def equality(found: Mapping[str, Any]) -> str:
    """How many outputs equal plain decoding's, where the method promises it; at temperature 0 how far a lossy one's do."""
    if found["promise"] == "nothing" and found.get("shared") is not None:
        return f"lossy: {found['equal']}/{found['compared']}, {found['shared']:.0%} shared"
    if found["promise"] != "tokens":
        return "in law" if found["promise"] == "law" else "lossy"
    return f"{found['equal']}/{found['compared']}"


def table(rows: Sequence[Row]) -> str:
    """A Markdown table."""
    lines = [list(rows[0]), ["---"] * len(rows[0]), *(list(row.values()) for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def figure(value: float | None, form: str = ".2f") -> str:
    return "–" if value is None or not math.isfinite(value) else format(value, form)


def millions(value: int) -> str:
    return f"{value / 1e6:.1f} M" if value else "–"


def count(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"


def scientific(value: float | None) -> str:
    return figure(value, ".1e")


def minutes(seconds: float | None) -> float | None:
    return None if seconds is None else seconds / 60
