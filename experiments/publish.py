"""Ships the drafter of a finished training run: zoo/NAME with drafter.json, drafter.safetensors and a model card.

    python -m experiments.publish --run runs/train/RUN --name eagle3-smollm2-135m --dtype int8
    python -m experiments.publish --run runs/train/RUN --name eagle3-smollm2-135m --dtype int8 --sweep runs/SWEEP

The card, README.md, is made from drafter.json, which takes over what the run has noted, and from the sweep's folders. Weights
in another dtype than the run's are measured anew, on the run's own held-out prompts. Exit code 2 refuses: a run that is not
at its end, a drafter that is larger than a zoo may hold.
"""

import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import sdjax
from experiments.launch import command_line, decode_in_float32, mistakes_end_the_program
from sdjax.core.plain import write_json
from sdjax.decode.state import Params
from sdjax.study.card import model_card
from sdjax.targets.load import Model
from sdjax.train import saved
from sdjax.train.evaluate import HeldOut
from sdjax.train.saved import load_drafter, notes_of, read_config, save_drafter

LICENCES = {"smollm2-135m": "Apache-2.0"}  # of targets, and so of what starts from their weights and learns their texts
RECIPE = ("optimiser", "rows", "length", "frozen", "seed")
LAUNCH = ("git", "device", "host", "versions")
LARGEST, ALL = 20e6, 48e6  # bytes


@dataclass(frozen=True)
class Publish:
    """A run's drafter in zoo/."""

    run: Path
    """The folder of the training run."""
    name: str
    """The drafter's name; zoo/NAME is replaced if it is there."""
    dtype: Literal["int8", "bfloat16"] = "bfloat16"
    """Of the weights that are shipped; int8 has a float32 scale for each row of a matrix, and leaves vectors in bfloat16."""
    target: str = "smollm2-135m"
    """The drafter's target: a known name."""
    sweep: tuple[Path, ...] = ()
    """Folders of sweeps with this drafter: their rows go on the card."""

    def __post_init__(self):
        if not self.name or "/" in self.name or self.name.startswith("."):
            raise ValueError(f"name is {self.name!r}; it names a folder, so it must not be empty, hidden or hold a slash")


def main(arguments: Sequence[str]) -> int:
    with mistakes_end_the_program():
        config = command_line("publish", Publish, __doc__, arguments)
        decode_in_float32()
        publish(config, sdjax.load(config.target))
    return 0


def publish(config: Publish, model: Model) -> None:
    """Loads, measures, writes and tells; zoo/NAME is replaced as a whole or not at all."""
    source, folder = config.run / "drafter", saved.ZOO / config.name
    notes = noted(config, model)
    drafter, params = load_drafter(source, model)
    hidden = folder.with_name(f".{folder.name}.new")
    try:
        save_drafter(hidden, drafter, Params(model.params, params), model.target, model.identity, config.dtype, notes=notes)
        size = size_of(hidden)
        check_size(config.name, size)
        if config.dtype not in notes["acceptance"]:
            notes["acceptance"][config.dtype] = measure(hidden, config.run, model)
            write_json(hidden / saved.CONFIG, read_config(hidden) | {"notes": notes})
        card = model_card(config.name, read_config(hidden), size, config.sweep)
        (hidden / "README.md").write_text(card, encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        hidden.replace(folder)
    finally:
        shutil.rmtree(hidden, ignore_errors=True)
    print(f"{source} → {folder} ({size / 1e6:.1f} MB)")


def noted(config: Publish, model: Model) -> dict[str, Any]:
    """The run's notes, and of its other files what the card needs, without paths of the machine that it ran on."""
    if model.name not in LICENCES:
        raise ValueError(f"no licence is known for drafters of {model.name}; known are those of {', '.join(LICENCES)}")
    resolved, final, launches = (run_file(config.run, name) for name in ("config.json", "final.json", "launches.json"))
    notes = notes_of(config.run / "drafter")
    if "data" not in notes:
        raise ValueError(f"{config.run} does not note what it learnt from: an earlier sdjax wrote it; run its training again")
    chosen, inputs = resolved["config"], resolved["inputs"]
    prompts = chosen["held_out"]["prompts"]
    return notes | {
        "dtype": config.dtype,
        "target": model.name,
        "licence": LICENCES[model.name],
        "recipe": {key: chosen[key] for key in RECIPE} | {"readers": inputs["readers"]},
        "held_out": {
            "prompts": prompts | {"file": Path(prompts["file"]).name},
            "count": len(inputs["held_out"]),
            "max_new": chosen["held_out"]["max_new"],
        },
        "launch": {key: launches[-1][key] for key in LAUNCH},
        "acceptance": {notes["dtype"]: final["acceptance"]},
    }


def run_file(run: Path, name: str) -> Any:
    """What a training run wrote; ValueError where it has not yet."""
    if not (run / name).is_file():
        raise ValueError(f"{run} holds no {name}; give the folder of a training run, and run it to its end first")
    return json.loads((run / name).read_text(encoding="utf-8"))


def measure(folder: Path, run: Path, model: Model) -> dict[str, Any]:
    """The acceptance of a saved drafter on a run's held-out prompts, as the run measures it."""
    resolved = run_file(run, "config.json")
    chosen, prompts = resolved["config"]["held_out"], resolved["inputs"]["held_out"]
    held_out = HeldOut(tuple(map(tuple, prompts)), model.tokenizer.stops, chosen["max_new"], chosen["batch"])
    drafter, params = load_drafter(folder, model)
    both = Params(model.params, params)
    return {
        t: held_out.acceptance(model.target, drafter, both, float(t)).to_json()
        for t in run_file(run, "final.json")["acceptance"]
    }


def check_size(name: str, size: int) -> None:
    """ValueError for a drafter, or a zoo with it, that is larger than it may be."""
    others = sum(size_of(path) for path in saved.ZOO.iterdir() if path.name != name and not path.name.startswith("."))
    for what, bytes_, limit in ((name, size, LARGEST), ("zoo/ with it", others + size, ALL)):
        if bytes_ > limit:
            raise ValueError(
                f"{what} has {bytes_ / 1e6:.1f} MB, and may have {limit / 1e6:.0f}; take --dtype int8, or ship less"
            )


def size_of(folder: Path) -> int:
    """Bytes of a folder's files."""
    return sum(path.stat().st_size for path in folder.iterdir())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
