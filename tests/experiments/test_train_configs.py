"""Every training config builds: its drafter fits the shape of its target, and a step of it traces there, without weights."""

import shlex
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs.shapes import LLAMA31_8B, QWEN3_4B, QWEN3_8B, SMOLLM2_135M
from experiments.config import config_files, load_file, parse
from experiments.launch import ROOT
from experiments.rollout_config import RolloutConfig
from experiments.train import check_fit
from experiments.train_config import TrainConfig
from sdjax.core.spec import check_params
from sdjax.core.types import Batch
from sdjax.targets.decoder import types
from sdjax.targets.gguf import decoder_from_gguf
from sdjax.targets.gguf_file import open_gguf
from sdjax.targets.load import PACKAGED, packaged_file
from sdjax.train import tiny_world
from sdjax.train.partition import learnt_of
from sdjax.train.recipe import Recipe

TARGETS = {
    "tiny": tiny_world.TARGET,
    "smollm2-135m": SMOLLM2_135M,
    "meta-llama/Llama-3.1-8B-Instruct": LLAMA31_8B,
    "Qwen/Qwen3-8B": QWEN3_8B,
    "Qwen/Qwen3-4B": QWEN3_4B,
}
SEQUENTIAL = {"draft_model", "medusa", "hydra", "hydra_plus", "eagle", "eagle3", "deepseek_mtp", "gloeckle"}
PARALLEL = {"dflash", "dspark", "domino", "jetspec", "d2sd", "pard", "peagle", "diffuspec", "specdiff2"}
FAMILIES = SEQUENTIAL | PARALLEL
CONFIGS = {path.stem: path for path in config_files("train")}
every_config = pytest.mark.parametrize("name", CONFIGS)


def recipe_of(config: TrainConfig) -> Recipe:
    target = replace(TARGETS[config.target.name], **types(config.target.dtype))
    return Recipe(target, config.drafter, config.optimiser, config.joint, config.frozen, config.cadence)


def shapes(specs):
    return jax.tree.map(lambda spec: jax.ShapeDtypeStruct(spec.shape, spec.dtype), specs)


@pytest.mark.parametrize("ending", ["tiny", "smollm2"])
def test_every_family_has_one(ending):
    assert {f"{family}_{ending}" for family in FAMILIES} <= CONFIGS.keys()


@pytest.mark.parametrize("name", [name for name, path in CONFIGS.items() if "experiments.rollout" in path.read_text()])
def test_its_corpus_is_that_of_its_command(name):
    """With prompts as long as docs/pod.md takes them, and rows that hold a prompt with its answer."""
    module = load_file(CONFIGS[name])
    command = module.__doc__.partition("experiments.rollout ")[2].partition("\n\n")[0].replace("\\\n", " ")
    made, config = parse(shlex.split(command), "rollout", "rollout", RolloutConfig), module.get_config()
    assert config.corpora == (str(made.folder),) and config.target == made.target
    page = (ROOT / "docs" / "pod.md").read_text(encoding="utf-8")
    assert f"--longest-prompt {made.longest_prompt}\n" in page
    assert made.longest_prompt + made.max_new <= config.length


@pytest.mark.parametrize("name", [name for name in CONFIGS if name.endswith("b")])
def test_a_pod_finds_its_corpora(name):
    """Hosts are given the bucket's runs/ and nothing else (experiments/tpu/common.sh)."""
    config = load_file(CONFIGS[name]).get_config()
    assert "/" in config.target.name and all(folder.startswith("runs/") for folder in config.corpora)


@every_config
def test_it_fits_its_target(name):
    config = load_file(CONFIGS[name]).get_config()
    recipe = recipe_of(config)
    check_fit(config, recipe, None)
    assert any(learnt_of(recipe.specs, config.frozen))
    assert config.optimiser.target_from < config.optimiser.steps
    assert not config.joint or all(step < config.optimiser.steps for step, _ in config.joint.weights)
    assert name.endswith("_tiny") == (not config.corpora)


@every_config
def test_its_loss_traces(name):
    """With all the target's layers, and rows of few tokens."""
    recipe = recipe_of(load_file(CONFIGS[name]).get_config())
    target, drafter = map(shapes, (recipe.target.specs(), recipe.drafter.specs(recipe.target)))
    state = jax.eval_shape(partial(recipe.begin, seed=0), target, drafter)
    ints, bools = (jax.ShapeDtypeStruct((2, 16), dtype) for dtype in (jnp.int32, jnp.bool))
    batch, key = Batch(ints, ints, ints, bools), jax.eval_shape(lambda: jax.random.key(0))
    loss, metrics = jax.eval_shape(recipe.loss, state.params, target, batch, key, state.step)
    assert loss.shape == () and all(figure.shape == () for figure in metrics.values())


@pytest.mark.parametrize("name", [name for name in CONFIGS if name.endswith("_tiny")])
def test_a_tiny_one_starts(name):
    drafter = load_file(CONFIGS[name]).get_config().drafter
    target = jax.tree.map(lambda spec: jnp.ones(spec.shape, spec.dtype), tiny_world.TARGET.specs())
    params = drafter.initial(tiny_world.TARGET, target, np.ones(tiny_world.TARGET.vocab, int), jax.random.key(0))
    check_params(drafter.specs(tiny_world.TARGET), params, name)


def test_drafters_of_smollm2_have_one_budget():
    """They differ in drafter, rate and what is frozen, and in nothing else; all draft as many tokens. The long run is apart."""
    names = {name for name in CONFIGS if name.endswith("_smollm2")} - {"eagle3_long_smollm2"}
    configs = [load_file(CONFIGS[name]).get_config() for name in sorted(names)]
    first = configs[0]
    for config in configs:
        optimiser = replace(config.optimiser, learning_rate=first.optimiser.learning_rate)
        same = {"name": first.name, "drafter": first.drafter, "frozen": first.frozen, "optimiser": optimiser}
        assert replace(config, **same) == first
        assert config.drafter.depth == first.drafter.depth


@pytest.mark.model
def test_the_shape_of_smollm2_is_that_of_its_file():
    assert decoder_from_gguf(open_gguf(packaged_file(PACKAGED["smollm2-135m"])), "float32") == SMOLLM2_135M
