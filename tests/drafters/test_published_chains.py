"""P-EAGLE and PARD in published layouts: they come back as they were, and folders that contradict themselves are refused."""

import json
from dataclasses import replace

import numpy as np
import pytest

from sdjax.drafters.eagle3 import Eagle3
from sdjax.drafters.pard import Pard
from sdjax.drafters.peagle import PEagle
from sdjax.drafters.published.registry import read_folder, write_folder
from tests.drafters.test_published import LAYER, REDUCED, TARGET, TRAINED, params_of, read, same, target_params, written

PEAGLE, PARD = "speculators-peagle", "pard"
PAPER = PEagle((1, 3, 4), 5, layers=3, head=REDUCED, mask_token=7)
SMALL = Pard(replace(TARGET, width=12, layers=2, tied=True), mask_token=3)
CASES = {
    "peagle": (PEAGLE, PAPER),
    "peagle, whole": (PEAGLE, replace(PAPER, layers=1, head=TRAINED, layer=LAYER)),
    "peagle, norms": (PEAGLE, replace(PAPER, taps=("embed", 5), fc_norm=True, norm_before_residual=True)),
    "peagle, qwen3": (PEAGLE, replace(PAPER, norm_before_fc=True, layer=replace(LAYER, qk_norm=True))),
    "pard": (PARD, SMALL),
    "pard, untied": (PARD, replace(SMALL, model=replace(SMALL.model, tied=False, qkv_bias=True, windows=()))),
}


@pytest.mark.parametrize("case", CASES)
def test_ours_come_back(case, tmp_path):
    """The drafter and every number; through a folder whose layout is detected."""
    name, drafter = CASES[case]
    params = params_of(drafter)
    write_folder(tmp_path / "d", name, drafter, params, TARGET, target_params(), "float32")
    layout, found = read_folder(tmp_path / "d", TARGET, target_params())
    assert layout.name == name and found.drafter == drafter and same(found.params, params)


def test_the_published_names():
    made = written(PEAGLE, PAPER)
    params = params_of(PAPER)
    assert json.loads(json.dumps(made.config)) == made.config
    assert made.tensors["mask_hidden"].shape == (1, 1, 24)
    assert made.tensors["layers.0.self_attn.q_proj.weight"].shape == (8, 16)
    assert made.tensors["layers.2.self_attn.q_proj.weight"].shape == (8, 8)
    assert {"fc.weight", "norm.weight", "lm_head.weight", "d2t", "layers.1.input_layernorm.weight"} <= made.tensors.keys()
    embed = np.array(target_params()["embed"])
    embed[7] = params["mask"]
    np.testing.assert_array_equal(made.tensors["embed_tokens.weight"], embed)
    assert made.config["transformer_layer_config"]["num_hidden_layers"] == 3
    assert written(PARD, SMALL).config["pard_token"] == 3


def test_an_embedding_left_out_is_the_targets():
    made = written(PEAGLE, PAPER)
    found = read(PEAGLE, made._replace(tensors={k: x for k, x in made.tensors.items() if k != "embed_tokens.weight"}))
    np.testing.assert_array_equal(found.params["mask"], target_params()["embed"][7])
    assert any("the mask is the target's row 7" in note for note in found.notes)


@pytest.mark.parametrize(
    "case, changes, said",
    [
        ("peagle", {"mask_token_id": ...}, "mask_token_id is None"),
        ("peagle", {"mask_token_id": 31}, r"mask_token_id is 31.*0\.\.30"),
        ("peagle", {"mask_token_id": 8}, "not the target's"),
        ("peagle", {"speculators_config": {}}, "proposal_methods is missing"),
        ("pard", {"pard_token": None}, "pard_token is None"),
        ("pard", {"spd_type": "pard2"}, "spd_type 'pard2'"),
        ("pard", {"pard_token": 40}, "mask_token is 40"),
        ("pard", {"num_hidden_layers": 3}, r"missing model\.layers\.2\."),
    ],
)
def test_settings_that_contradict_are_named(case, changes, said):
    made = written(*CASES[case])
    with pytest.raises(ValueError, match=said):
        read(CASES[case][0], made, **changes)


@pytest.mark.parametrize("name", ["mask_hidden", "layers.2.mlp.up_proj.weight"])
def test_tensors_that_are_missing_are_named(name):
    made = written(PEAGLE, PAPER)
    tensors = {key: x for key, x in made.tensors.items() if key != name}
    with pytest.raises(ValueError, match=rf"missing {name}"):
        read(PEAGLE, made._replace(tensors=tensors))


@pytest.mark.parametrize(
    "name, drafter, said",
    [
        (PEAGLE, replace(PAPER, mask_token=None), "give mask_token"),
        (PEAGLE, Eagle3((1, 3, 4)), "holds PEagle, not Eagle3"),
        (PARD, replace(SMALL, mask_token=None), "train with mask_token"),
        (PARD, replace(SMALL, head=REDUCED), "know the model's own"),
    ],
)
def test_what_a_layout_does_not_hold_is_refused(name, drafter, said):
    with pytest.raises(ValueError, match=said):
        written(name, drafter, {})
