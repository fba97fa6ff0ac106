"""Saved drafters come back as they were, for their own target alone; configs in JSON make nothing but sdjax's data."""

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest

import sdjax
from sdjax.core.spec import initialise
from sdjax.core.types import Law
from sdjax.decode.state import Params
from sdjax.drafters.draft_model import DraftModel
from sdjax.drafters.tree_model import TreeDraftModel
from sdjax.targets.load import Model
from sdjax.targets.rope import Llama3Scaling, Rope, YarnScaling
from sdjax.train import saved
from sdjax.train.described import describe, rebuild
from sdjax.train.saved import load_drafter, load_tuned, save_drafter
from sdjax.train.tiny_model import byte_tokenizer
from sdjax.trees.dynamic import DynamicTree
from sdjax.trees.tree import Tree
from tests.train.micro import DRAFTER, TARGET, same, target_params

MODEL = Model("micro", TARGET, target_params(), byte_tokenizer(), "sha256:micro")
NESTED = [
    DRAFTER,
    TreeDraftModel(TARGET, Tree.branching(2, 1), Law.WITHOUT_REPLACEMENT),
    replace(TARGET, rope=Rope(5e5, Llama3Scaling(8.0, 1.0, 4.0, 8192)), windows=(None,)),
    replace(TARGET, rope=Rope(1e4, YarnScaling(4.0, 4096))),
    DynamicTree(3, 10, 4),
]


def params():
    return Params(target_params(), initialise(DRAFTER.specs(TARGET), jax.random.key(0)))


def write(folder, **changes):
    options = {"drafter": DRAFTER, "params": params(), "target": TARGET, "identity": MODEL.identity} | changes
    save_drafter(folder, **options)
    return folder


def rounded(tree):
    return jax.tree.map(lambda x: x.astype(jnp.bfloat16).astype(x.dtype), tree)


@pytest.mark.parametrize("config", NESTED, ids=lambda config: type(config).__name__)
def test_configs_come_back_from_json(config):
    assert rebuild(json.loads(json.dumps(describe(config)))) == config


@pytest.mark.parametrize(
    "data, words",
    [
        ({"class": "os.system"}, "no class of sdjax"),
        ({"class": "sdjax.train.saved.Path"}, "no frozen dataclass"),
        ({"class": "sdjax.train.saved.save_drafter"}, "no frozen dataclass"),
        ({"class": "sdjax.nowhere.Thing"}, "another version"),
        ({"class": "sdjax.trees.tree.Tree", "parents": [-1], "more": 1}, r"no fields \['more'\]"),
        ({"class": "sdjax.trees.tree.Tree"}, "cannot be made"),
        ({"class": "sdjax.trees.tree.Tree", "parents": [0]}, "first node is the anchor"),
        ({"parents": [-1]}, "no class"),
    ],
)
def test_anything_else_in_json_is_refused(data, words):
    with pytest.raises(ValueError, match=words):
        rebuild(data)


def test_a_drafter_comes_back_in_the_targets_dtype(tmp_path):
    drafter, found = sdjax.load_drafter(write(tmp_path / "d"), MODEL)
    assert drafter == DRAFTER
    assert same(found, rounded(params().drafter))
    _, exact = load_drafter(write(tmp_path / "d", dtype="float32"))
    assert same(exact, params().drafter)
    assert {path.name for path in tmp_path.iterdir()} == {"d"}


def test_a_tuned_target_travels_along(tmp_path):
    folder = write(tmp_path / "d", tuned=True)
    with pytest.raises(ValueError, match="identity was"):
        load_drafter(folder, MODEL)
    tuned = load_tuned(folder, MODEL)
    assert same(tuned.params, rounded(target_params()))
    assert load_drafter(folder, tuned)[0] == DRAFTER
    assert load_tuned(write(tmp_path / "e"), MODEL) is MODEL


@pytest.mark.parametrize(
    "model, words",
    [
        (MODEL._replace(identity="sha256:other"), 'identity was "sha256:micro", is "sha256:other"'),
        (MODEL._replace(target=replace(TARGET, vocab=31, layers=2)), "vocab was 29, is 31; layers was 1, is 2"),
        (MODEL._replace(target=replace(TARGET, rope=Rope(5e5))), "rope.theta was 10000.0, is 500000.0"),
    ],
)
def test_another_target_is_refused_by_what_differs(tmp_path, model, words):
    with pytest.raises(ValueError, match=words):
        load_drafter(write(tmp_path / "d"), model)


def test_names_are_looked_up_in_the_zoo(tmp_path, monkeypatch):
    monkeypatch.setattr(saved, "ZOO", tmp_path)
    write(tmp_path / "one-layer")
    assert load_drafter("one-layer", MODEL)[0] == DRAFTER
    with pytest.raises(ValueError, match="did you mean 'one-layer'"):
        load_drafter("one-later")


def test_damage_is_named(tmp_path):
    folder = write(tmp_path / "d")
    whole = (folder / saved.DRAFTER).read_bytes()
    (folder / saved.DRAFTER).write_bytes(whole[:-40])
    with pytest.raises(ValueError, match=r"drafter\.safetensors cannot be read"):
        load_drafter(folder, MODEL)
    config = json.loads((folder / saved.CONFIG).read_text())
    config["drafter"]["model"]["layers"] = 2
    (folder / saved.CONFIG).write_text(json.dumps(config))
    (folder / saved.DRAFTER).write_bytes(whole)
    with pytest.raises(ValueError, match=r"missing layers\.1\."):
        load_drafter(folder, MODEL)
    (folder / saved.CONFIG).write_text("{")
    with pytest.raises(ValueError, match=r"drafter\.json is damaged"):
        load_drafter(folder, MODEL)


def test_parameters_that_do_not_fit_are_not_written(tmp_path):
    with pytest.raises(ValueError, match="do not fit the drafter DraftModel"):
        write(tmp_path / "d", drafter=DraftModel(TARGET))
    assert not list(tmp_path.iterdir())
