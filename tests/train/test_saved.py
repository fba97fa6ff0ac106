"""Saved drafters come back as they were, for their own target alone; configs in JSON make nothing but sdjax's data."""

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from safetensors.numpy import load_file, save_file

import sdjax
from sdjax.core.spec import initialise
from sdjax.core.types import Law
from sdjax.decode.state import Params
from sdjax.drafters.draft_model import DraftModel
from sdjax.drafters.head import DraftHead
from sdjax.drafters.medusa import Medusa
from sdjax.drafters.tree_model import TreeDraftModel
from sdjax.targets.decoder import types
from sdjax.targets.load import Model
from sdjax.targets.rope import Llama3Scaling, Rope, YarnScaling
from sdjax.train import saved
from sdjax.train.described import describe, rebuild
from sdjax.train.saved import load_drafter, load_tuned, save_drafter
from sdjax.train.tiny_model import byte_tokenizer
from sdjax.trees.dynamic import DynamicTree
from sdjax.trees.tree import Tree
from tests.train.micro import DRAFTER, TARGET, same, target_params

HEADS = Medusa(Tree.chain(2), head=DraftHead(size=12))
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


def heads():
    """Medusa's parameters, drawn at random, with the target's rows as its head."""
    found = initialise(HEADS.specs(TARGET), jax.random.key(2))
    noisy = jax.tree.map(lambda x: x + jax.random.normal(jax.random.key(3), x.shape), found["heads"])
    head = HEADS.head.initial(TARGET, target_params(), np.arange(TARGET.vocab) % 7)
    return Params(target_params(), {"heads": noisy, "head": [head]})


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


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_draft_model_follows_its_targets_precision(tmp_path, precision):
    """One that was trained in mixed precision beside a mixed target serves another in that one's; others keep their own."""
    mixed, asked = types("mixed"), types(precision)
    drafter, target = DraftModel(replace(DRAFTER.model, **mixed), length=2), replace(TARGET, **mixed)
    made = initialise(drafter.specs(target), jax.random.key(0))
    save_drafter(tmp_path / "d", drafter, Params(None, made), target, MODEL.identity)
    model = MODEL._replace(target=replace(TARGET, **asked))
    loaded, params = load_drafter(tmp_path / "d", model)
    assert loaded == replace(drafter, model=replace(drafter.model, **asked))
    assert {x.dtype for x in jax.tree.leaves(params)} == {jnp.dtype(precision)}
    save_drafter(tmp_path / "d", drafter, Params(None, made), TARGET, MODEL.identity)
    assert load_drafter(tmp_path / "d", model)[0] == drafter


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


def test_without_a_zoo_a_name_says_where_it_would_be(tmp_path, monkeypatch):
    monkeypatch.setattr(saved, "ZOO", tmp_path / "zoo")
    with pytest.raises(ValueError, match=r"zoo/ in sdjax's repository, which is not part of an installed package"):
        load_drafter("one-layer")


FLOATS = st.floats(-(2.0**100), 2.0**100, width=32)
MATRICES = arrays(np.float32, array_shapes(min_dims=2, max_dims=3, max_side=5), elements=FLOATS)


@given(MATRICES)
def test_no_entry_is_off_by_more_than_half_its_rows_scale(x):
    integers, scale = saved.quantised(x)
    assert integers.dtype == np.int8 and scale.shape == x.shape[:-1] and np.isfinite(scale).all() and (integers > -128).all()
    exact = lambda x: x.astype(np.float64)
    off = np.abs(exact(integers) * exact(scale)[..., None] - exact(x))
    assert (off <= 0.5001 * exact(scale)[..., None]).all()


def test_int8_keeps_ids_and_rounds_the_rest(tmp_path):
    folder = write(tmp_path / "d", drafter=HEADS, params=heads(), dtype="int8")
    stored = load_file(folder / saved.DRAFTER)
    assert {leaf.dtype.name for leaf in stored.values()} == {"int8", "float32", "bfloat16", "int32"}
    _, found = load_drafter(folder, MODEL)
    same_ids = found["head"][0]["ids"] == heads().drafter["head"][0]["ids"]
    assert same_ids.all() and same(found["head"], heads().drafter["head"])
    for mine, theirs in zip(found["heads"], heads().drafter["heads"], strict=True):
        assert mine[0]["w"].dtype == theirs[0]["w"].dtype
        half = np.abs(theirs[0]["w"]).max(-1, keepdims=True) / 254
        assert (np.abs(mine[0]["w"] - theirs[0]["w"]) <= 1.001 * half).all() and (mine[0]["w"] != theirs[0]["w"]).any()
        assert same(mine[0]["b"], rounded(theirs[0]["b"]))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_the_targets_rows_are_taken_from_the_target(tmp_path, dtype):
    folder = write(tmp_path / "d", drafter=HEADS, params=heads(), dtype=dtype)
    assert "head.0.weight" not in load_file(folder / saved.DRAFTER)
    assert same(load_drafter(folder, MODEL)[1]["head"], heads().drafter["head"])
    with pytest.raises(ValueError, match=r"leaves head\.0\.weight to the target, whose rows it is: load_drafter\('d', model\)"):
        load_drafter(folder)


def test_a_head_that_is_not_the_targets_is_stored(tmp_path):
    other = heads()
    other.drafter["head"][0]["weight"] = other.drafter["head"][0]["weight"].at[3, 4].add(1)
    kept = write(tmp_path / "d", drafter=HEADS, params=other, dtype="float32")
    assert same(load_drafter(kept)[1], other.drafter)
    unknown = write(tmp_path / "e", drafter=HEADS, params=heads().replace(target=None), dtype="float32")
    assert same(load_drafter(unknown)[1], heads().drafter)


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda leaves: leaves.pop("heads.0.0.w.scale"), r"missing heads\.0\.0\.w\.scale"),
        (lambda leaves: leaves.pop("heads.0.0.w"), r"missing heads\.0\.0\.w; unexpected heads\.0\.0\.w\.scale"),
        (lambda leaves: leaves.pop("head.0.ids"), r"missing head\.0\.ids; missing head\.0\.weight"),
        (
            lambda leaves: leaves.update({"heads.0.0.w.scale": np.ones((16, 1), np.float32)}),
            r"heads\.0\.0\.w\.scale has shape \(16, 1\), expected \(16,\)",
        ),
    ],
    ids=["no scale", "no integers", "no ids", "a scale's shape"],
)
def test_what_int8_lacks_is_named(tmp_path, change, words):
    folder = write(tmp_path / "d", drafter=HEADS, params=heads(), dtype="int8")
    leaves = load_file(folder / saved.DRAFTER)
    change(leaves)
    save_file(leaves, folder / saved.DRAFTER)
    with pytest.raises(ValueError, match=words):
        load_drafter(folder, MODEL)


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
