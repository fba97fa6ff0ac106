"""Trains a drafter, decodes held-out prompts with it, and prints its τ.

    python -m experiments.train --config configs/train/draft_model_tiny.py --optimiser.steps 500

The run's folder (runs/train/NAME) holds config.json, metrics.jsonl, tensorboard/, checkpoints/, launches.json, final.json
and, at the end, drafter/: what sdjax.load_drafter reads. Exit codes: 0; 2 for a mistake in config or input, or a step whose
loss is not finite; 75 where a signal asked it to leave: all is saved, and the same command goes on.
"""

import json
import logging
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from etils import epath
from jaxtyping import Int
from rich.console import Console
from rich.table import Table

from experiments.config import parse
from experiments.launch import (
    decode_in_float32,
    folder_for,
    in_host_memory,
    launch_identity,
    mistakes_end_the_program,
    package_version,
)
from experiments.train_config import HeldOutConfig, TrainConfig
from sdjax.core.metrics import Acceptance
from sdjax.core.plain import plain_data, write_json
from sdjax.core.spec import initialise
from sdjax.decode.state import Params
from sdjax.drafters.base import check_masks
from sdjax.mesh.layout import TRAIN, Layout
from sdjax.mesh.place import on_host, spread
from sdjax.mesh.start import join_pod, speaks
from sdjax.study.prompts import encode, load_prompts
from sdjax.targets.load import Model
from sdjax.train import tiny_model, tiny_world
from sdjax.train.corpus import Corpus, check_target, open_corpus
from sdjax.train.data import batches, token_counts
from sdjax.train.evaluate import HeldOut
from sdjax.train.feature_cache import open_features
from sdjax.train.flops import matmul_flops
from sdjax.train.hosts import first_process_first, from_first, told_by_first
from sdjax.train.log import account, read
from sdjax.train.loop import End, Fitted, Job, fit
from sdjax.train.place import batch_sharding, begin_on
from sdjax.train.readers import Readers, parts_of, readers_here
from sdjax.train.recipe import Recipe
from sdjax.train.saved import load_drafter, load_tuned, save_drafter
from sdjax.train.step import TrainState, train_step

ASKED_TO_LEAVE = 75  # "temporary failure": run it again
TEMPERATURES = (0.0, 1.0)


def main(arguments: Sequence[str]) -> int:
    with mistakes_end_the_program():
        join_pod()
        config = parse(arguments, "python -m experiments.train", "train", TrainConfig)
        logging.getLogger("absl").setLevel(logging.ERROR)
        decode_in_float32()
        try:
            run_folder(config)  # before a target is loaded or trained for it
            with in_host_memory() if jax.device_count() > 1 else nullcontext():
                model = load_model(config)
            return train(config, model)
        except KeyboardInterrupt:  # outside the steps, which heed it themselves
            print("stopped; the same command goes on from here", file=sys.stderr)
            return ASKED_TO_LEAVE


def load_model(config: TrainConfig) -> Model:
    """The target, as it is or with random weights."""
    if config.target.name == tiny_model.NAME:
        with first_process_first("tiny target"):
            model = tiny_model.tiny_model(Path(config.runs).parent)
    else:
        model = config.target.load()
    if not config.from_scratch:
        return model
    return model._replace(params=initialise(model.target.specs(), jax.random.key(config.seed)))


@dataclass(frozen=True)
class Input:
    """What a run learns from: batches, how often each token comes, and, as JSON data, what decides them and what they are."""

    data: Readers
    counts: Int[np.ndarray, " V"]
    identity: Any
    readers: int
    about: list[dict[str, Any]]


def train(config: TrainConfig, model: Model, console: Console | None = None) -> int:
    """Trains or goes on, decodes, saves and shows; the exit code."""
    console = console or Console(quiet=not speaks())
    recipe = Recipe(model.target, config.drafter, config.optimiser, config.joint, config.frozen, config.cadence)
    layout = config.mesh.layout(TRAIN)
    check_fit(config, recipe, layout)
    check_masks(config.drafter, model.tokenizer.stops)
    given, held_out, folder = read_input(config, model, layout), read_held_out(config.held_out, model), run_folder(config)
    state, target_params = first_state(config, recipe, model, given, layout)
    job = Job(
        recipe,
        target_params,
        given.data,
        held_out,
        folder,
        resolved(config, model, given, held_out),
        layout,
        epath.Path(config.checkpoints) if config.checkpoints else None,
    )
    console.print(f"{type(recipe.drafter).__name__} for {model.name} → {folder}", markup=False, soft_wrap=True)
    fitted = fit(job, state, console)
    if speaks():
        note_launch(folder)
    if fitted.end is End.ASKED:
        return ASKED_TO_LEAVE
    finish(config, job, model, fitted, given.about, console)
    return 0


def first_state(
    config: TrainConfig, recipe: Recipe, model: Model, given: Input, layout: Layout | None
) -> tuple[TrainState, Any]:
    """The state before the first step, and the target's parameters: on the mesh, where there is one."""
    initial = lambda: recipe.drafter.initial(model.target, model.params, given.counts, jax.random.key(config.seed))
    if layout is None:
        return recipe.begin(model.params, initial(), config.seed), model.params
    with in_host_memory():
        fresh = initial()
    target_params = spread(model.params, layout.params(model.target.specs()))
    drafter_params = spread(fresh, layout.params(recipe.drafter.specs(model.target)))
    return begin_on(layout, recipe, target_params, drafter_params, config.seed), target_params


def check_fit(config: TrainConfig, recipe: Recipe, layout: Layout | None) -> None:
    """ValueError, before anything compiles, where drafter, target and shapes do not go together."""
    if not hasattr(recipe.drafter, "loss"):
        raise ValueError(f"{type(recipe.drafter).__name__} has nothing to learn; take a drafter with a loss")
    target = recipe.target
    lacking = [tap for tap in recipe.drafter.taps if tap not in ("embed", "final", *range(target.layers))]
    if lacking:
        raise ValueError(f"the drafter taps {lacking}, but the target has layers 0..{target.layers - 1}, embed and final")
    if len(set(recipe.drafter.taps)) < len(recipe.drafter.taps):
        raise ValueError(f"the drafter's taps {recipe.drafter.taps} name a state twice; each must be another one")
    if config.length > target.max_position:
        raise ValueError(f"length is {config.length}, but the target was made for {target.max_position} positions")
    if not jax.tree.leaves(recipe.specs):
        raise ValueError(f"{type(recipe.drafter).__name__} has no parameters of its own to learn here")
    parts = 1 if layout is None else layout.mesh.shape["data"] * layout.mesh.shape["fsdp"]
    if config.rows % (parts * config.optimiser.micro_batches):
        raise ValueError(
            f"rows is {config.rows}; make it a multiple of mesh.data · mesh.fsdp · micro_batches "
            f"({parts} · {config.optimiser.micro_batches})"
        )


def read_input(config: TrainConfig, model: Model, layout: Layout | None) -> Input:
    """The batches of this process; ValueError for corpora that another target made."""
    sharding = None if layout is None else batch_sharding(layout)
    readers = how_many_readers(config, parts_of(sharding, config.rows))
    rows, mine = config.rows // readers, readers_here(sharding, config.rows, readers)
    if not config.corpora:
        return tiny_input(config, model, rows, readers, mine)
    corpora = [open_corpus(folder) for folder in config.corpora]
    check_target(corpora, model)
    traced = [open_features(*pair, model, config.drafter.taps) for pair in zip(config.features, corpora, strict=False)]
    data = Readers({i: batches(traced or corpora, rows, config.length, config.seed, i, readers) for i in mine})
    counts, identity = token_counts(corpora, model.target.vocab), [corpus.manifest.identity for corpus in corpora]
    return Input(data, counts, identity, readers, [about_corpus(corpus) for corpus in corpora])


def how_many_readers(config: TrainConfig, parts: int) -> int:
    """As many as were asked for; else as the run began with, where mesh and rows can do with those; else one for each part."""
    begun = Path(config.runs) / config.name / "config.json"
    known = told_by_first(json.loads(begun.read_text(encoding="utf-8"))["inputs"]["readers"] if begun.exists() else 0)
    goes_on = known and known % parts == 0 and config.rows % known == 0
    return config.readers or (known if goes_on else parts)


def about_corpus(corpus: Corpus) -> dict[str, Any]:
    """What a drafter's notes say of a corpus that it learnt from."""
    kept = ("documents", "tokens", "supervised", "sources", "temperature", "identity")
    return {"name": corpus.folder.name} | {key: getattr(corpus.manifest, key) for key in kept}


def tiny_input(config: TrainConfig, model: Model, rows: int, readers: int, mine: Sequence[int]) -> Input:
    """The text of the tiny world."""
    if model.name != tiny_model.NAME:
        raise ValueError(
            f"corpora is empty; {model.name} learns from its own text: make some with python -m experiments.rollout, and "
            "give --corpora FOLDER"
        )
    text = tiny_world.text()[: -tiny_world.HELD_OUT]
    data = Readers({i: tiny_world.batches(text, rows, config.length, config.seed + i) for i in mine})
    name = "the tiny world's text"
    counts = np.bincount(text, minlength=model.target.vocab)
    return Input(data, counts, name, readers, [{"name": name, "tokens": len(text)}])


def read_held_out(config: HeldOutConfig, model: Model) -> HeldOut:
    """The prompts to decode, as token ids."""
    chosen = config.prompts
    if model.name == tiny_model.NAME:
        found = tiny_world.prompts(chosen.skip + (chosen.count or 8), 32)[chosen.skip :]
    else:
        found = [encode(model.tokenizer, prompt, [], chosen.chat) for prompt in load_prompts(chosen)]
    kept = tuple(tuple(ids) for ids in found if len(ids) <= config.longest)
    if not kept:
        raise ValueError(f"held_out.longest is {config.longest}, but all {len(found)} prompts are longer; raise it")
    return HeldOut(kept, model.tokenizer.stops, config.max_new, config.batch)


def run_folder(config: TrainConfig) -> Path:
    """The run's folder, made; ValueError where it cannot be."""
    return folder_for(Path(config.runs) / config.name, "--runs")


def resolved(config: TrainConfig, model: Model, given: Input, held_out: HeldOut) -> dict[str, Any]:
    """All that decides a run's result: the config, and the identities of what it names."""
    elsewhere = ("name", "runs", "checkpoints", "save_as", "mesh", "readers")
    fields = {key: value for key, value in plain_data(config).items() if key not in elsewhere}
    inputs = {"target": model.identity, "data": given.identity, "held_out": held_out.prompts, "readers": given.readers}
    return plain_data({"config": fields, "inputs": inputs})


def note_launch(folder: Path) -> None:
    """Adds what ran, and where, to launches.json."""
    path = folder / "launches.json"
    before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    write_json(path, [*before, launch_identity()])


def finish(config: TrainConfig, job: Job, model: Model, fitted: Fitted, learnt_from: Any, console: Console) -> None:
    """Writes the drafter with the best τ, reads it back, and decodes with it: what is shown is what was saved."""
    recipe, folder = job.recipe, job.folder / "drafter"
    best = on_host(recipe.decodable(fitted.best, None))
    best = best if recipe.joint else best.replace(target=model.params)
    step = int(fitted.best.step)
    if speaks():
        notes = {"run": config.name, "step": step, "sdjax": package_version("sdjax"), "dtype": config.save_as}
        notes |= training_of(config, job, fitted) | {"data": learnt_from}
        tuned = config.joint is not None
        save_drafter(folder, recipe.drafter, best, model.target, model.identity, config.save_as, tuned, notes)
    params = read_back(folder, recipe, model)
    found = {t: job.held_out.acceptance(model.target, recipe.drafter, params, t, job.layout) for t in TEMPERATURES}
    sizes = {"drafter": size(params.drafter), "target": size(model.params)}
    figures = {f"{t:g}": found[t].to_json() for t in TEMPERATURES}
    result = {"end": fitted.end, "step": int(fitted.state.step), "best_step": step, "parameters": sizes, "acceptance": figures}
    if speaks():
        write_json(job.folder / "final.json", result)
    console.print(f"{fitted.end}; the best was step {step}, and is in {folder}", markup=False, soft_wrap=True)
    console.print(table(config.name, found))


def read_back(folder: Path, recipe: Recipe, model: Model) -> Params:
    """What the first process saved, in all processes; a frozen target is the model's own."""

    def read() -> Params:
        served = load_tuned(folder, model)
        return Params(served.params if recipe.joint else None, load_drafter(folder, served)[1])

    found = from_first(read, recipe.specs)
    return found if recipe.joint else found.replace(target=model.params)


def training_of(config: TrainConfig, job: Job, fitted: Fitted) -> dict[str, Any]:
    """What training up to the best step took: positions run, supervised tokens, seconds, operations in products."""
    step, update = int(fitted.best.step), partial(train_step, job.recipe.loss, job.recipe.optimiser)
    batch = next(job.data)
    shares = config.rows // jax.tree.leaves(batch)[0].shape[0]
    of_step = matmul_flops(update, fitted.state, job.target_params, batch) * shares
    sizes = {"tokens": step * config.rows * config.length, "flops": step * of_step}
    return account(read(job.folder / "metrics.jsonl"), step) | sizes


def table(name: str, found: Mapping[float, Acceptance]) -> Table:
    """τ at each temperature, and how far drafts were accepted."""
    shown = Table("T", "τ", "accepted/step", "survival at 1, 2, …", title=f"{name}: held-out prompts", title_justify="left")
    for temperature, row in found.items():
        survival = " ".join(f"{rate:.2f}" for rate in row.survival)
        shown.add_row(f"{temperature:g}", f"{row.tau:.3f}", f"{row.accepted_per_step:.3f}", survival)
    return shown


def size(params: Any) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(params))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
