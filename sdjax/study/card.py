"""The model card of a shipped drafter: what drafter.json says of it, and its rows of sweeps, as Markdown."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sdjax.study.page import PromptSet, Row, count, figure, minutes, place, result_row, scientific, sizes, table
from sdjax.train.described import rebuild

SAME = ("run", "step", "tokens", "seconds")  # notes that tell two trained drafters apart
COMPARED = ("rule", "τ", "survival at 1, 2, …", "measured speed-up", "equal to plain")


def model_card(name: str, config: Mapping[str, Any], size: int, sweeps: Sequence[Path] = ()) -> str:
    """The card of the drafter that `config` (drafter.json) describes, in files of `size` bytes."""
    notes, target, kind = config["notes"], config["notes"]["target"], config["drafter"]["class"].rpartition(".")[2]
    return (
        "\n\n".join(
            [
                f"# {name}",
                f"{kind}, a drafter for speculative decoding, trained on the frozen {target} (`{config['identity']}`). "
                f"{files(config, size)} Licence: {notes['licence']}, as the target's.",
                usage(name, target),
                *acceptance(notes),
                *(part for folder in sweeps for part in comparison(folder, notes)),
                *recipe(config),
                *data(notes),
            ]
        )
        + "\n"
    )


def files(config: Mapping[str, Any], size: int) -> str:
    """How large it is."""
    found = sizes(rebuild(config["drafter"]).specs(rebuild(config["target"])))
    return (
        f"{found['parameters']:,} parameters, {found['trained']:,} of them trained; {size / 1e6:.1f} MB as "
        f"{config['notes']['dtype']}."
    )


def usage(name: str, target: str) -> str:
    """How it is loaded."""
    return (
        f'```python\nimport sdjax\n\nmodel = sdjax.load("{target}")\n'
        f'drafter, params = sdjax.load_drafter("{name}", model)\n```\n\n'
        f"In a config's comparison it is `Method(weights={name!r})`. Names are found in a copy of the repository; an "
        "installed package has no zoo/, and takes the folder's path."
    )


def acceptance(notes: Mapping[str, Any]) -> list[str]:
    """τ on the prompts that the training run held out."""
    held_out = notes["held_out"]
    rows = [
        {
            "weights": dtype,
            "T": temperature,
            "τ": figure(found["tau"]),
            "accepted/step": figure(found["accepted_per_step"]),
            "survival at 1, 2, …": " ".join(map(figure, found["survival"])),
            "conditional at 1, 2, …": " ".join(map(figure, found["conditional"])),
            "steps": count(found["steps"]),
        }
        for dtype, by_temperature in notes["acceptance"].items()
        for temperature, found in by_temperature.items()
    ]
    intro = (
        f"{held_out['count']} prompts ({source(held_out['prompts'])}), {held_out['max_new']} new tokens each. The step that is "
        "shipped was chosen by τ at T = 0 on them. τ counts the bonus token (plain decoding is 1); definitions: "
        "`sdjax/core/metrics.py`."
    )
    return ["## Acceptance on held-out prompts", intro, table(rows)]


def source(prompts: Mapping[str, Any]) -> str:
    """Where held-out prompts come from."""
    return "texts of its config" if prompts["text"] else Path(prompts["file"]).name or "HumanEval"


def comparison(folder: Path, notes: Mapping[str, Any]) -> list[str]:
    """Its rows of a sweep. ValueError for a sweep that is not at its end, or was made without this drafter."""
    if not (folder / "methods.json").is_file():
        raise ValueError(f"{folder} holds no methods.json; give the folder of a sweep, and run it to its end first")
    about = json.loads((folder / "methods.json").read_text(encoding="utf-8"))
    mine = [name for name, found in about.items() if all(found["training"].get(key) == notes[key] for key in SAME)]
    if not mine:
        raise ValueError(f"{folder} compares {', '.join(about)}, none of which is step {notes['step']} of run {notes['run']!r}")
    sets = [PromptSet.read(path.parent.name, path.parent) for path in sorted(folder.glob("*/summary.json"))]
    rows = [
        compared_row(chosen.name, arm, about[arm["method"]]["training"].get("dtype", "–"))
        for chosen in sets
        for arm in chosen.arms
        if arm["method"] in mine
    ]
    intro = (
        f"Made {place(sets[0].launches[-1])}. Speed-ups are against plain decoding of the same prompts by the same loop, "
        "interleaved, with a 95 % bootstrap interval."
    )
    return [f"## In the sweep {folder.name}", intro, table(rows)]


def compared_row(prompts: str, arm: Mapping[str, Any], dtype: str) -> Row:
    row = result_row(arm)
    first = {"prompts": f"{prompts} ({arm['prompts']})", "T": f"{arm['temperature']:g}", "method": row["method"]}
    return first | {"weights": dtype} | {key: row[key] for key in COMPARED}


def recipe(config: Mapping[str, Any]) -> list[str]:
    """The drafter's fields, and how it was trained."""
    notes, drafter = config["notes"], rebuild(config["drafter"])
    shape = [{"field": f.name, "value": f"`{getattr(drafter, f.name)!r}`"} for f in dataclasses.fields(drafter) if f.init]
    chosen = {"training FLOPs": scientific(notes["flops"]), "minutes": figure(minutes(notes["seconds"]), ".0f")}
    trained = [{"field": name, "value": f"`{value!r}`"} for name, value in leaves(notes["recipe"])]
    trained += [{"field": name, "value": value} for name, value in chosen.items()]
    done = (
        f"Step {notes['step']:,} of run {notes['run']!r}: {notes['tokens']:,} tokens, {notes['supervised']:,.0f} of them "
        f"supervised, {place(notes['launch'])}."
    )
    return ["## Recipe", table(shape), done, table(trained)]


def leaves(value: Any, at: str = "") -> list[tuple[str, Any]]:
    """Fields of JSON data by path, without the names of classes."""
    if not isinstance(value, dict):
        return [(at, value)]
    parts = [(f"{at}.{key}" if at else key, part) for key, part in value.items() if key != "class"]
    return [leaf for name, part in parts for leaf in leaves(part, name)]


def data(notes: Mapping[str, Any]) -> list[str]:
    """What it learnt from."""
    rows = [
        {
            "corpus": corpus["name"],
            "documents": count(corpus.get("documents")),
            "tokens": count(corpus["tokens"]),
            "supervised": count(corpus.get("supervised")),
            "sampled by the target at T": "–" if corpus.get("temperature") is None else f"{corpus['temperature']:g}",
            "SHA-256 of its manifest": f"`{corpus['identity']}`" if "identity" in corpus else "–",
        }
        for corpus in notes["data"]
    ]
    return ["## Data", table(rows)]
