"""Drafters in published layouts come back as they were, draft the same, and folders that contradict themselves are refused."""

import json
import re
import struct
import zipfile
from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from experiments.export import Export, export
from experiments.import_drafter import Import, import_drafter
from sdjax.core.types import Law
from sdjax.decode.state import Params
from sdjax.drafters.block import Block
from sdjax.drafters.block_tree import BlockTree
from sdjax.drafters.deepseek_mtp import DeepSeekMTP
from sdjax.drafters.draft_model import DraftModel
from sdjax.drafters.eagle import Eagle
from sdjax.drafters.eagle3 import Eagle3
from sdjax.drafters.gloeckle import Gloeckle
from sdjax.drafters.head import DraftHead
from sdjax.drafters.hydra import Hydra, HydraPlus
from sdjax.drafters.medusa import Medusa
from sdjax.drafters.published.pickled import read_pickled
from sdjax.drafters.published.registry import LAYOUTS, detect, layout_named, read_folder, write_folder
from sdjax.drafters.published.taps import ids_of, taps_from
from sdjax.drafters.published.vocabulary import from_offsets, to_offsets
from sdjax.targets.decoder import Decoder
from sdjax.targets.load import Model
from sdjax.targets.rope import LinearScaling, Llama3Scaling, Rope, YarnScaling
from sdjax.train.saved import load_drafter, save_drafter
from sdjax.trees.dynamic import DynamicTree
from sdjax.trees.published import named_tree
from sdjax.trees.tree import Tree
from tests.experiments.tiny_model import model as tiny
from tests.parity.test_medusa_hydra_formulas import published_hydra, published_medusa

ROPE = Rope(5e5, Llama3Scaling(8.0, 1.0, 4.0, 64))
TARGET = Decoder(vocab=31, width=8, layers=8, heads=2, kv_heads=1, head_width=4, ffw=12, rope=ROPE, max_position=128)
LAYER = replace(TARGET, layers=1, heads=4, ffw=20, norm_eps=0.1, rope=Rope(1e4), max_position=64)
CHAIN, DYNAMIC = Tree.chain(3), DynamicTree(depth=8, nodes=60, width=10)
TRAINED, REDUCED, BIASED = DraftHead(trained=True), DraftHead(20, trained=True), DraftHead(trained=True, bias=True)
HYDRA = Hydra(named_tree("mc_sim_7b_63"), 4, head=TRAINED, own_heads=True)
PAPER = Eagle3((1, 3, 4), DYNAMIC, head=REDUCED)
DFLASH = Block.dflash((1, 4), 3, 7, layers=2, layout="fill_in")
DSPARK = Block.dspark((0, 3, 5), 30, 7, layers=2, rank=3)
DOMINO = Block.domino((1, 4), 3, 0, 7, layers=2, rank=3, gru=5)
CASES = {
    "dflash": ("dflash", DFLASH),
    "dflash, anchor first": ("dflash", replace(DFLASH, layout="anchor_first", shape=replace(LAYER, qk_norm=True))),
    "dflash, jetspec": ("dflash", Block.jetspec((4, 1), 3, 7, layers=2)),
    "dflash, windows": ("dflash", replace(DFLASH, windows=(None, 9))),
    "dflash, domino": ("dflash", DOMINO),
    "deepspec": ("deepspec", DSPARK),
    "deepspec, no confidence": ("deepspec", replace(DSPARK, markov="rnn", confidence=0.0)),
    "deepspec, gated": ("deepspec", replace(DSPARK, markov="gated", anchors=9)),
    "deepspec, dflash": ("deepspec", Block.deepspec_dflash((0, 3, 5), 30, 7, layers=2)),
    "deepspec, confidence alone": ("deepspec", replace(DSPARK, markov="none", rank=256)),
    "speculators-block, confidence": ("speculators-block", replace(DSPARK, markov="none", rank=256)),
    "speculators-block": ("speculators-block", DFLASH),
    "speculators-block, some": ("speculators-block", replace(DSPARK, head=DraftHead(20))),
    "speculators-block, fill in": ("speculators-block", replace(DSPARK, layout="fill_in", markov="gated")),
    "eagle": ("eagle", Eagle()),
    "eagle, no bias": ("eagle", Eagle(fc_bias=False, layer=LAYER)),
    "eagle3": ("eagle3", PAPER),
    "eagle3, whole": ("eagle3", replace(PAPER, head=TRAINED, layer=LAYER)),
    "eagle3, norms": ("eagle3", replace(PAPER, taps=(2, 5), fc_norm=True, norm_before_residual=True)),
    "speculators": ("speculators", replace(PAPER, tree=CHAIN)),
    "speculators, 3.1": (
        "speculators",
        replace(PAPER, taps=("embed", 0, 7), tree=CHAIN, norm_before_fc=True, norm_output=True, norm_before_residual=True),
    ),
    "speculators, qwen3": ("speculators", replace(PAPER, tree=CHAIN, layer=replace(LAYER, qk_norm=True))),
    "medusa": ("medusa", Medusa(named_tree("mc_sim_7b_63"), 5, head=TRAINED, own_heads=True)),
    "medusa, few": ("medusa", Medusa(Tree.chain(2), 2, head=TRAINED, own_heads=True)),
    "hydra": ("hydra", HYDRA),
    "hydra, tied": ("hydra", replace(HYDRA, layers=3)),
    "hydra, bias": ("hydra", replace(HYDRA, head=BIASED)),
    "hydra++": ("hydra", HydraPlus(replace(HYDRA, layers=4))),
    "hydra++, bias": ("hydra", HydraPlus(replace(HYDRA, layers=2, head=BIASED))),
    "deepseek-mtp": ("deepseek-mtp", DeepSeekMTP(2, CHAIN)),
    "deepseek-mtp, head": ("deepseek-mtp", DeepSeekMTP(1, CHAIN, head=TRAINED)),
    "qwen3-next-mtp": ("qwen3-next-mtp", DeepSeekMTP(1, CHAIN)),
}


@cache
def target_params():
    return drawn(TARGET.specs(), 1)


def drawn(specs, seed):
    """Random weights, norms and biases too; ids as they start."""
    random = np.random.default_rng(seed)
    floats = lambda spec: jnp.asarray(random.normal(size=spec.shape), spec.dtype)
    is_float = lambda spec: jnp.issubdtype(spec.dtype, jnp.floating)
    return jax.tree.map(lambda spec: floats(spec) if is_float(spec) else spec.init(None, spec.shape, spec.dtype), specs)


def params_of(drafter):
    """Blocks that the layout ties are equal."""
    params = drawn(drafter.specs(TARGET), 2)
    if isinstance(drafter, Block):
        params["mask"] = target_params()["embed"][drafter.mask_token]
        params["head"] = drafter.head.initial(TARGET, target_params(), np.arange(TARGET.vocab))
    if isinstance(drafter, (Hydra, HydraPlus)):
        for head in params["heads"]:
            head["blocks"] = head["blocks"][:1] * len(head["blocks"])
    return params


def written(name, drafter, params=None):
    return LAYOUTS[name].write(drafter, params_of(drafter) if params is None else params, TARGET, target_params())


def read(name, made, **changes):
    config = {key: value for key, value in (made.config | changes).items() if value is not ...}
    return LAYOUTS[name].read(dict(made.tensors), config, TARGET, target_params())


def same(a, b):
    return jax.tree.structure(a) == jax.tree.structure(b) and jax.tree.all(
        jax.tree.map(lambda x, y: x.dtype == y.dtype and bool((x == y).all()), a, b)
    )


@pytest.mark.parametrize("case", CASES)
def test_ours_come_back(case, tmp_path):
    """The drafter and every number; through a folder whose layout is detected."""
    name, drafter = CASES[case]
    params = params_of(drafter)
    write_folder(tmp_path / "d", name, drafter, params, TARGET, target_params(), "float32")
    layout, found = read_folder(tmp_path / "d", TARGET, target_params())
    assert layout.name == name
    assert found.drafter == drafter
    assert same(found.params, params)


@pytest.mark.parametrize("case", CASES)
def test_names_and_config_are_plain(case):
    made = written(*CASES[case])
    assert json.loads(json.dumps(made.config)) == made.config
    assert not [name for name in made.tensors if "#" in name]
    again = read(CASES[case][0], made)
    assert same(written(CASES[case][0], again.drafter, again.params).tensors, made.tensors)


def test_of_a_tree_the_block_is_written():
    block = CASES["dflash, jetspec"][1]
    params = params_of(block)
    tree, alone = (written("dflash", drafter, params) for drafter in (BlockTree(block, 32), block))
    assert same(tree.tensors, alone.tensors) and tree.config == alone.config
    assert any("the tree of 32 nodes is left out" in note for note in tree.notes)


def test_the_published_names_of_eagle3():
    made = written(*CASES["eagle3"])
    layer = "self_attn.q_proj self_attn.k_proj self_attn.v_proj self_attn.o_proj mlp.gate_proj mlp.up_proj mlp.down_proj"
    layer = f"{layer} input_layernorm hidden_norm post_attention_layernorm".split()
    plain = {f"midlayer.{name}.weight" for name in layer} | {"fc.weight", "norm.weight", "lm_head.weight", "d2t", "t2d"}
    assert made.tensors.keys() == plain
    assert made.tensors["d2t"].dtype == np.int64 and made.tensors["t2d"].dtype == bool
    assert made.tensors["midlayer.self_attn.q_proj.weight"].shape == (8, 16)
    assert not any("layer_ids" in key or key == "eagle_config" for key in made.config)
    later = {name.replace("midlayer.", "layers.0."): found for name, found in made.tensors.items()}
    assert detect(later, made.config).name == "eagle3"
    assert same(read("eagle3", made._replace(tensors=later)).params, params_of(PAPER))


def test_the_names_that_the_formulas_read():
    """tests/parity computes by these names what the drafters compute."""
    for case, formulas, prefix in (
        ("medusa", published_medusa, "medusa_head."),
        ("hydra, tied", published_hydra, ""),
        ("hydra, bias", published_hydra, ""),
        ("hydra++, bias", published_hydra, ""),
        ("hydra++", published_hydra, ""),
    ):
        made = {f"{prefix}{name}": found for name, found in written(*CASES[case]).tensors.items()}
        expected = formulas(params_of(CASES[case][1]))
        assert all(not made[name].any() and "hydra_lm_head" in name for name in made.keys() - expected.keys())
        assert all(np.array_equal(made[name], found) for name, found in expected.items())
    module = params_of(CASES["deepseek-mtp"][1])["modules"][1]
    found = written(*CASES["deepseek-mtp"]).tensors
    for name, ours in {"enorm": "embed_norm", "hnorm": "hidden_norm", "eh_proj": "fuse", "shared_head.norm": "norm"}.items():
        assert np.array_equal(found[f"model.layers.9.{name}.weight"], module[ours])
    assert np.array_equal(found["model.layers.9.self_attn.k_proj.weight"], module["layer"]["k"])


def test_draft_vocabularies_are_offsets():
    ids = np.array([2, 3, 7, 30])
    tensors = to_offsets(ids, 31)
    assert tensors["d2t"].tolist() == [2, 2, 5, 27]
    assert np.flatnonzero(tensors["t2d"]).tolist() == ids.tolist()
    assert from_offsets(tensors, 4, 31, []).tolist() == ids.tolist()
    notes: list[str] = []
    assert from_offsets({"d2t": tensors["d2t"]}, 4, 31, notes).tolist() == ids.tolist() and "t2d is missing" in notes[0]
    assert from_offsets({}, 31, 31, []) is None
    for change, words in (
        ({"d2t": ids}, "offsets"),
        ({"d2t": np.array([3, 1, 5, 27])}, "ascending"),
        ({"d2t": tensors["d2t"].astype(float)}, "expected integers"),
        ({"t2d": tensors["t2d"][:30]}, r"expected booleans \[31\]"),
        ({"t2d": np.roll(tensors["t2d"], 1)}, "not the 4 tokens of d2t"),
    ):
        with pytest.raises(ValueError, match=words):
            from_offsets(tensors | change, 4, 31, [])
    with pytest.raises(ValueError, match="d2t is missing"):
        from_offsets({"t2d": tensors["t2d"]}, 4, 31, [])
    with pytest.raises(ValueError, match=r"d2t is int64 \[4\]; expected integers \[5\]"):
        from_offsets(tensors, 5, 31, [])


@pytest.mark.parametrize("counting, ids", [("input", [2, 16, 29]), ("output", [1, 15, 28]), ("hidden_states", [2, 16, 29])])
def test_three_countings_of_one_state(counting, ids):
    """eagle.md's table, for a target of 32 layers."""
    assert taps_from(ids, counting, 32) == (1, 15, 28)
    assert ids_of((1, 15, 28), counting, 32) == ids


def test_countings_at_the_ends():
    assert taps_from([0, 32], "input", 32) == ("embed", 31)
    assert taps_from([0, 32], "hidden_states", 32) == ("embed", "final")
    assert ids_of(("embed", "final"), "hidden_states", 32) == [0, 32]
    for taps, counting in ((("final",), "input"), ((31,), "hidden_states"), (("embed",), "output")):
        with pytest.raises(ValueError, match="no number"):
            ids_of(taps, counting, 32)
    for ids, counting in (([33], "input"), ([32], "output"), ([-1], "input"), ([1, 1], "input"), ([], "input")):
        with pytest.raises(ValueError, match="layer id"):
            taps_from(ids, counting, 32)


def test_taps_in_a_flat_config():
    """SGLang's rule for nested ids, vLLM's for those above; the released code's where there are none."""
    made = written("eagle3", PAPER)
    taps = lambda **changes: read("eagle3", made, **changes).drafter.taps
    nested = lambda *ids: {"eagle_config": {"eagle_aux_hidden_state_layer_ids": list(ids)}}
    assert taps() == (1, 3, 4)
    assert taps(**nested(1, 3, 4)) == (1, 3, 4)
    assert taps(**nested(2, 4, 6)) == (1, 3, 5)
    assert taps(eagle_aux_hidden_state_layer_ids=[1, 3, 4]) == (0, 2, 3)
    with pytest.raises(ValueError, match="names different states"):
        taps(eagle_aux_hidden_state_layer_ids=[1, 3, 4], **nested(1, 3, 4))
    assert taps(eagle_config={"layer_ids": [1, 3, 4]}) == (0, 2, 3)
    assert taps(eagle_config={"layer_ids": [2, 4, 6], "eagle_aux_hidden_state_layer_ids": [2, 4, 6]}) == (1, 3, 5)
    found = read("eagle3", made, eagle_config={"layer_ids": [1, 3, 4]})
    assert not any("no layer ids are given" in note for note in found.notes)
    for inner in ({"layer_ids": 7}, {"eagle_aux_hidden_state_layer_ids": 5}):
        with pytest.raises(ValueError, match=r"layer ids are [57]; they must be a list"):
            taps(eagle_config=inner)
    with pytest.raises(ValueError, match=r"names different states.*eagle_config\.layer_ids"):
        taps(eagle_config={"layer_ids": [1, 3, 4]}, eagle_aux_hidden_state_layer_ids=[2, 4, 5])
    with pytest.raises(ValueError, match=r"fc.weight has shape \[8, 24\], expected \[8, 32\]"):
        taps(**nested(2, 4, 6, 7))


def test_the_nested_config_is_read_to_the_last_setting():
    """What ModelOpt writes of an ordinary head is known; what would change the head is refused by name."""
    made, layers = written("eagle3", PAPER), {"eagle_aux_hidden_state_layer_ids": [1, 3, 4], "use_aux_hidden_state": True}
    norms = {"use_input_layernorm_in_first_layer": True, "use_last_layernorm": True, "use_mtp_layernorm": False}
    more = {"next_layer_regular": True, "parallel_draft_step": 1, "parallel_draft_heads_num_layers": None}
    assert read("eagle3", made, eagle_config=layers | norms | more).drafter == PAPER
    for changes, words in (
        ({"use_last_layernorm": False}, "eagle_config.use_last_layernorm is false"),
        ({"use_input_layernorm_in_first_layer": False}, "eagle_config.use_input_layernorm_in_first_layer is false"),
        ({"use_mtp_layernorm": True}, "eagle_config has {'use_mtp_layernorm': True}, which are not supported"),
        ({"parallel_draft_step": 4}, "eagle_config has {'parallel_draft_step': 4}"),
        ({"capture_layers": [1, 3, 4]}, "eagle_config has {'capture_layers': [1, 3, 4]}"),
        ({"return_hidden_post_norm": True}, "eagle_config has {'return_hidden_post_norm': True}"),
    ):
        with pytest.raises(ValueError, match=re.escape(words)):
            read("eagle3", made, eagle_config=layers | changes)


@pytest.mark.parametrize("scaling", [None, LinearScaling(4.0), Llama3Scaling(8.0, 1.0, 4.0, 64), YarnScaling(4.0, 64)])
@pytest.mark.parametrize("name", ["eagle", "eagle3", "speculators"])
def test_rotary_settings_survive(name, scaling):
    rope = Rope(123456.0, scaling)
    drafter = replace(CASES[name][1], layer=replace(LAYER, rope=rope))
    made = written(name, drafter)
    assert read(name, made).drafter.layer.rope == rope
    if name == "speculators":  # as transformers 5 writes them
        layer = dict(made.config["transformer_layer_config"])
        layer["rope_parameters"] = (layer.pop("rope_scaling") or {"rope_type": "default"}) | {
            "rope_theta": layer.pop("rope_theta")
        }
        assert read(name, made, transformer_layer_config=layer).drafter.layer.rope == rope


def test_open_settings_are_noted():
    found = read("eagle3", written("eagle3", PAPER), rope_theta=..., rope_scaling=..., norm_before_residual=...)
    assert found.drafter.layer == replace(TARGET, layers=1, rope=Rope(1e4))
    notes = " ".join(found.notes)
    for word in ("rope_theta is not given: 10000", "norm_before_residual is not given: false", "layer ids", "the tree is not"):
        assert word in notes
    short = read("eagle3", written("eagle3", PAPER), max_position_embeddings=64)
    assert short.drafter.layer.max_position == 64 and any("max_position_embeddings is 64" in note for note in short.notes)
    layer = {"model_type": "llama", **written(*CASES["speculators"]).config["transformer_layer_config"]}
    del layer["rms_norm_eps"], layer["max_position_embeddings"]
    layer["rope_scaling"] = None
    found = read("speculators", written(*CASES["speculators"]), transformer_layer_config=layer)
    assert (found.drafter.layer.norm_eps, found.drafter.layer.max_position) == (1e-6, 2048)
    assert any("max_position_embeddings 2048" in note for note in found.notes)


def test_one_key_two_meanings():
    """SpecForge's norm_output is not speculators'."""
    flat, nested = written("eagle3", PAPER), written(*CASES["speculators"])
    assert not read("eagle3", flat, norm_output=True).drafter.norm_output
    assert read("speculators", nested, norm_output=True).drafter.norm_output
    with pytest.raises(ValueError, match="norm_output is False"):
        read("eagle3", flat, norm_output=False)
    with pytest.raises(ValueError, match="one thing to SpecForge and another"):
        read("eagle3", flat, norm_output=True, architectures=["LlamaForCausalLM"])


def test_forged_configs_keep_settings_of_their_targets():
    """SpecForge's of Qwen targets: windows that are switched off, and a tie that the head's own lm_head contradicts."""
    made = written("eagle3", PAPER)
    off = {"max_window_layers": 36, "sliding_window": None, "use_sliding_window": False, "tie_word_embeddings": True}
    wide = off | {"sliding_window": 131072, "tie_word_embeddings": False}
    for changes in (off, wide, {"max_window_layers": 64}, {"layer_types": ["full_attention"]}):
        found = read("eagle3", made, **changes)
        assert found.drafter == PAPER and same(found.params, params_of(PAPER))
        tied = [note for note in found.notes if "tie_word_embeddings is true, but lm_head.weight is there" in note]
        assert len(tied) == changes.get("tie_word_embeddings", False)
    with pytest.raises(ValueError, match="use_sliding_window is true; a head's layer sees all positions here"):
        read("eagle3", made, **off | {"use_sliding_window": True, "sliding_window": 4096})
    with pytest.raises(ValueError, match="sliding_window=4096 is not known"):
        read("eagle3", made, sliding_window=4096)
    for kinds in (5, True, [["full_attention"]]):
        with pytest.raises(ValueError, match=r"layer_types=.* is not known"):
            read("eagle3", made, layer_types=kinds)
    with pytest.raises(ValueError, match="max_window_layers=36 is not known"):
        read("eagle3", made, **off, architectures=["LlamaForCausalLM"])
    bare = {name: found for name, found in made.tensors.items() if name != "lm_head.weight"}
    with pytest.raises(ValueError, match=r"tie_word_embeddings is true and lm_head\.weight is missing"):
        read("eagle3", made._replace(tensors=bare), tie_word_embeddings=True)


@pytest.mark.parametrize(
    "case, changes, words",
    [
        ("eagle", {"bias": False}, "fc.bias is present"),
        ("eagle, no bias", {"bias": ...}, "open means true"),
        ("eagle", {"hidden_size": 16}, "hidden_size is 16, the target's 8"),
        ("eagle", {"num_hidden_layers": 2}, "num_hidden_layers is 2"),
        ("eagle", {"strange": 1}, "strange=1 is not known"),
        ("eagle3", {"vocab_size": 32}, "vocab_size is 32, the target's 31"),
        ("eagle3", {"draft_vocab_size": ...}, "draft_vocab_size is None"),
        ("eagle3", {"draft_vocab_size": 21}, r"d2t is int64 \[20\]"),
        ("eagle3", {"max_position_embeddings": ...}, "max_position_embeddings is None"),
        ("eagle3", {"rope_theta": -1}, "rope_theta is -1"),
        ("eagle3", {"target_hidden_size": 16}, "target_hidden_size is 16"),
        ("eagle3", {"fc_norm": True}, r"missing fc_norm\.0\.weight"),
        ("eagle3, norms", {"fc_norm": False}, r"unexpected fc_norm\.0\.weight"),
        ("eagle3, norms", {"norm_before_fc": True}, "both true"),
        ("eagle3", {"norm_before_residual": "yes"}, "must be true or false"),
        ("eagle3", {"eagle_config": {"use_aux_hidden_state": False}}, "use_aux_hidden_state is false"),
        ("speculators", {"transformer_layer_config": ...}, "transformer_layer_config is None"),
        ("speculators", {"transformer_layer_config": {"model_type": "gemma"}}, "model_type is 'gemma'"),
        ("speculators", {"speculators_config": ...}, "proposal_methods is missing"),
        ("speculators", {"norm_before_fc": True}, r"missing input_norm\.weight"),
        ("speculators", {"eagle_aux_hidden_state_layer_ids": [2, 4, 9]}, "layer id 9"),
        ("medusa", {"medusa_num_heads": 6}, "medusa_num_heads is 6, but the tensors are of 5 heads"),
        ("medusa", {"medusa_num_heads": None}, "medusa_num_heads is None"),
        ("medusa", {"medusa_num_layers": 2}, "medusa_num_layers is 2"),
        ("medusa", {"vocab_size": 32}, "vocab_size is 32"),
        ("hydra", {"hydra_num_heads": 5}, "hydra_num_heads is 5"),
        ("hydra", {"hydra_num_layers": 2}, r"missing hydra_mlp\.0\.1\.linear\.weight"),
        ("hydra", {"hydra_head_arch": "eagle-attn"}, "hydra_head_arch is 'eagle-attn'"),
        ("hydra", {"hydra_head_arch": "prefix-mlp"}, "missing"),
        ("hydra", {"grounded_heads": ...}, "grounded_heads is None"),
        ("hydra", {"hidden_state_offset": 1}, "hidden_state_offset is 1"),
        ("deepseek-mtp", {"num_nextn_predict_layers": 1}, r"modules at layers \[8, 9\]"),
        ("deepseek-mtp", {"num_hidden_layers": 9}, "num_hidden_layers is 9, the target's 8"),
        ("deepseek-mtp", {"rope_theta": 1e4}, "the rotary settings are"),
        ("deepseek-mtp", {"hidden_size": ...}, "config.json has no hidden_size"),
        ("qwen3-next-mtp", {"model_type": ...}, "model_type is missing"),
        ("qwen3-next-mtp", {"model_type": "qwen3_next"}, "gated attention"),
        ("dflash", {"block_size": ...}, "block_size is None"),
        ("dflash", {"num_target_layers": 7}, "num_target_layers is 7, the target's 8"),
        ("dflash", {"dflash_config": {"target_layer_ids": [1, 4]}}, "mask_token_id is None"),
        ("dflash", {"dflash_config": {"mask_token_id": 3, "target_layer_ids": [8]}}, "layer id 8"),
        ("dflash", {"dflash_config": {"mask_token_id": 3, "conv_kernel": 4}}, "conv_kernel.* not supported"),
        ("dflash", {"projector_type": "dflare"}, "projector_type is 'dflare'"),
        ("dflash", {"dflash_config": {"mask_token_id": 3, "use_swa": True}}, "use_swa.* not supported"),
        ("dflash", {"dflash_config": {"mask_token_id": 3, "target_layer_ids": [1, 7]}}, "name the last layer, 7"),
        ("dflash, domino", {"projector_type": "dflash"}, "projector_type is 'domino' in"),
        ("deepspec", {"confidence_head_with_markov": False}, "confidence_head_with_markov is False with markov_rank 3"),
        ("deepspec", {"enable_confidence_head": False}, "unexpected confidence_head"),
        ("dflash", {"shift_label": True}, "contradict each other about the block's layout"),
        ("dflash, jetspec", {"causal": False}, "contradict each other about the block's mask"),
        ("deepspec", {"markov_rank": 4}, r"markov_w1\.weight has shape \[31, 3\], expected \[31, 4\]"),
        ("deepspec, no confidence", {"markov_rank": 0}, r"unexpected markov_head"),
        ("deepspec", {"block_size": "7"}, "block_size is '7'"),
        ("deepspec", {"mask_token_id": 31}, "mask_token is 31"),
        ("speculators-block", {"draft_vocab_size": 20}, "d2t is missing"),
        ("speculators-block, some", {"aux_hidden_state_layer_ids": [1, 4]}, r"fc\.weight has shape"),
    ],
)
def test_damaged_configs_are_refused(case, changes, words):
    name, drafter = CASES[case]
    with pytest.raises(ValueError, match=words):
        read(name, written(name, drafter), **changes)


@pytest.mark.parametrize(
    "case, tensor, found, words",
    [
        ("eagle3", "norm.weight", None, r"missing norm\.weight \[8\]"),
        ("eagle3", "more.weight", np.zeros(3, np.float32), r"unexpected more\.weight \[3\]"),
        ("eagle3", "fc.weight", np.full((8, 24), np.nan, np.float32), "NaN"),
        ("eagle3", "fc.weight", np.zeros((8, 24), np.int8), "stored as int8"),
        ("eagle3", "embed_tokens.weight", np.ones((31, 8), np.float32), "not the target's"),
        ("hydra, bias", "hydra_lm_head.1.bias", None, r"missing hydra_lm_head\.1\.bias \[31\]"),
        ("hydra", "hydra_lm_head.1.bias", np.ones(30, np.float32), r"hydra_lm_head\.1\.bias has shape \[30\], expected \[31\]"),
        ("hydra", "hydra_mlp.0.0.linear.weight", np.ones((8, 8), np.float32), r"expected \[8, 16\]"),
        ("deepseek-mtp", "model.layers.9.shared_head.head.weight", np.ones((31, 8), np.float32), "differs between modules"),
        ("deepseek-mtp", "model.layers.8.mlp.experts.0.up_proj.weight", np.ones((4, 8), np.float32), "experts"),
    ],
)
def test_damaged_tensors_are_refused(case, tensor, found, words):
    name, drafter = CASES[case]
    made = written(name, drafter)
    tensors = {key: value for key, value in made.tensors.items() if key != tensor}
    with pytest.raises(ValueError, match=words):
        read(name, made._replace(tensors=tensors if found is None else tensors | {tensor: found}))


@pytest.mark.parametrize(
    "name, drafter, words",
    [
        ("eagle3", replace(PAPER, norm_output=True), "norm_output"),
        ("eagle3", replace(PAPER, taps=(0, 2, 3)), "SGLang takes ids that start with 1"),
        ("eagle3", replace(PAPER, taps=(1, "final")), "no number"),
        ("eagle3", replace(PAPER, fc_norm=True, norm_before_fc=True), "both on"),
        ("eagle3", replace(PAPER, layer=replace(LAYER, qk_norm=True)), "qwen3's"),
        ("eagle3", Eagle(), "holds Eagle3, not Eagle"),
        ("speculators", replace(PAPER, fc_norm=True, norm_before_fc=True), "both on"),
        ("eagle", Eagle(head=REDUCED), "was trained"),
        ("medusa", Medusa(CHAIN, head=REDUCED, own_heads=True), "draft vocabulary of 20 tokens"),
        ("medusa", Medusa(CHAIN, layers=2), "2 blocks with weights of their own"),
        ("medusa", Medusa(CHAIN, head=BIASED, own_heads=True), "has a bias"),
        ("eagle3", replace(PAPER, head=BIASED), "has a bias"),
        ("speculators", replace(PAPER, tree=CHAIN, head=BIASED), "has a bias"),
        ("deepseek-mtp", DeepSeekMTP(1, CHAIN, head=BIASED), "has a bias"),
        ("eagle", DraftModel(replace(TARGET, layers=1), head=REDUCED), "holds Eagle, not DraftModel"),
        ("deepseek-mtp", DeepSeekMTP(tap=7), "reads tap 7"),
        ("deepseek-mtp", DeepSeekMTP(head=REDUCED), "draft vocabulary"),
        ("qwen3-next-mtp", DeepSeekMTP(2), "holds one module"),
        ("hydra", Gloeckle(8, head=REDUCED), "holds Hydra or HydraPlus, not Gloeckle"),
        ("dflash", replace(DSPARK, confidence=0.0), "'vanilla' has no place in the layout 'dflash'"),
        ("dflash", replace(DFLASH, confidence=1.0), "a confidence head has no place"),
        ("deepspec", replace(DSPARK, uncorrected=1), "corrects every slot"),
        ("speculators-block", replace(DFLASH, windows=(4, None)), "they end at the anchor"),
        ("speculators-block", replace(DSPARK, layout="fill_in", markov="rnn"), "the idle slot"),
        ("deepspec", replace(DSPARK, temperatures=(1.0,) * 7), "the temperatures of a calibration"),
        ("dflash", replace(DFLASH, sampled=True), "draft the argmax"),
        ("dflash", replace(DFLASH, mask_token=None), "learnt vector"),
        ("dflash", DFLASH, "not the target's row 3"),
        ("dflash", replace(DFLASH, shape=LAYER), "readers of block drafters know qwen3's"),
        ("dflash", replace(DFLASH, head=DraftHead(20)), "holds no draft vocabulary"),
        ("deepspec", DFLASH, "the block is fill_in"),
        ("deepspec", replace(DSPARK, head=TRAINED), "the head is trained"),
        ("speculators-block", replace(DSPARK, block_mask="causal"), "know full ones"),
    ],
)
def test_what_a_layout_cannot_hold_is_refused(name, drafter, words):
    with pytest.raises(ValueError, match=words):
        written(name, drafter, drawn(drafter.specs(TARGET), 2))


def test_a_block_whose_layout_is_open_is_never_guessed_silently():
    """z-lab's and old speculators' fill in, DeepSpec's have the anchor first; and the notes say so."""
    filled = written("dflash", DFLASH)
    inner = {key: value for key, value in filled.config["dflash_config"].items() if key != "sample_from_anchor"}
    for name, made, changes, layout in (
        ("dflash", filled, {"dflash_config": inner}, "fill_in"),
        ("deepspec", written("deepspec", DSPARK), {}, "anchor_first"),
        ("speculators-block", written("speculators-block", DSPARK), {"sample_from_anchor": ...}, "fill_in"),
    ):
        found = read(name, made, **changes)
        assert found.drafter.layout == layout and any("test it on a prompt" in note for note in found.notes)
    for key in ("sample_from_anchor", "shift_label", "query_zero_predicts_next"):
        found = read("dflash", filled, dflash_config=inner | {key: True})
        assert (found.drafter.layout, found.drafter.length) == ("anchor_first", DFLASH.width)
        assert not any("test it" in note for note in found.notes)


@pytest.mark.parametrize("key", ["causal", "causal_head", "is_causal"])
def test_what_a_config_says_of_the_blocks_mask(key):
    """Windows are causal where it says nothing, as in released code; what it says is read in every layout that may say it."""
    full, windowed = written("dflash", DFLASH), written(*CASES["dflash, windows"])
    assert read("dflash", windowed).drafter == CASES["dflash, windows"][1]
    assert read("dflash", full, **{key: False}).drafter == DFLASH
    for name, made in (("dflash", full), ("dflash", windowed), ("deepspec", written("deepspec", DSPARK))):
        assert read(name, made, **{key: True}).drafter.block_mask == "causal"
    windows = {"layer_types": ["sliding_attention"] * 2, "sliding_window": 9, "use_sliding_window": True}
    inner = {"dflash_config": windowed.config["dflash_config"] | {key: False}}
    for name, made, changes in (
        ("dflash", windowed, {key: False}),
        ("dflash", windowed, inner),
        ("deepspec", written("deepspec", DSPARK), windows | {key: False}),
    ):
        with pytest.raises(ValueError, match=f"{key} is false, but layers have sliding windows"):
            read(name, made, **changes)
    with pytest.raises(ValueError, match=f"{key} is 'no'"):
        read("dflash", full, **{key: "no"})


def test_the_published_names_of_dspark():
    made = written("deepspec", replace(DSPARK, markov="gated"))
    layer = "self_attn.q_proj self_attn.k_proj self_attn.v_proj self_attn.o_proj self_attn.q_norm self_attn.k_norm"
    layer = f"{layer} mlp.gate_proj mlp.up_proj mlp.down_proj input_layernorm post_attention_layernorm".split()
    plain = {f"layers.{i}.{name}.weight" for i in (0, 1) for name in layer}
    plain |= {"fc.weight", "hidden_norm.weight", "norm.weight", "embed_tokens.weight", "lm_head.weight"}
    plain |= {f"markov_head.{name}" for name in ("markov_w1.weight", "markov_w2.weight", "gate_proj.weight", "gate_proj.bias")}
    plain |= {f"confidence_head.proj.{part}" for part in ("weight", "bias")}
    assert made.tensors.keys() == plain
    assert made.tensors["markov_head.markov_w2.weight"].shape == (31, 3)
    assert made.config["target_layer_ids"] == [0, 3, 5] and made.config["block_size"] == 7
    assert written("speculators-block", DSPARK).config["aux_hidden_state_layer_ids"] == [1, 4, 6]


def test_tied_blocks_come_in_and_untied_ones_do_not_leave():
    drafter = replace(HYDRA, layers=3)
    made = written("hydra", drafter)
    assert any("equal blocks were one" in note for note in read("hydra", made).notes)
    with pytest.raises(ValueError, match="2 blocks with weights of their own"):
        written("hydra", drafter, drawn(drafter.specs(TARGET), 2) | {"heads": untied(drafter)})


def untied(drafter):
    heads = params_of(drafter)["heads"]
    heads[1]["blocks"] = [heads[1]["blocks"][0], jax.tree.map(lambda x: x + 1, heads[1]["blocks"][1])]
    return heads


def test_heads_without_matrices_share_the_targets():
    made = written("medusa", Medusa(CHAIN, 3))
    assert np.array_equal(made.tensors["2.1.weight"], target_params()["head"])
    legacy = {f"medusa_head.{name}": found for name, found in made.tensors.items() if "linear" in name}
    found = read("medusa", made._replace(tensors=legacy))
    assert found.drafter == Medusa(CHAIN, 3) and same(found.params, params_of(Medusa(CHAIN, 3)))


def test_heads_that_the_config_does_not_count_are_taken():
    """The authors' uploads say 2, and their code builds five."""
    drafter = CASES["medusa"][1]
    found = read("medusa", written("medusa", drafter), medusa_num_heads=2)
    assert found.drafter == drafter and same(found.params, params_of(drafter))
    assert any("medusa_num_heads is 2, but the tensors are of 5 heads: all are taken" in note for note in found.notes)
    assert not any("medusa_num_heads" in note for note in read("medusa", written("medusa", drafter)).notes)


def test_a_head_that_borrows_the_targets_gets_a_copy():
    drafter = replace(PAPER, head=DraftHead())
    found = read("eagle3", written("eagle3", drafter))
    assert found.drafter == replace(PAPER, head=TRAINED)
    assert np.array_equal(found.params["head"]["weight"], target_params()["head"])


def test_layouts_are_told_apart():
    for case, (name, drafter) in CASES.items():
        made = written(name, drafter)
        assert [layout.name for layout in LAYOUTS.values() if layout.claims(made.tensors, made.config)] == [name], case
    with pytest.raises(ValueError, match=r"no known layout.*weird\.weight"):
        detect(["weird.weight"], {})
    with pytest.raises(ValueError, match="speculators_model_type 'mlp'"):
        detect(["fc.weight", "layers.0.self_attn.q_proj.weight"], {"speculators_model_type": "mlp"})
    with pytest.raises(ValueError, match="may be eagle3 or medusa"):
        detect(["midlayer.hidden_norm.weight"], {"medusa_num_heads": 3})
    with pytest.raises(ValueError, match="did you mean 'eagle3'"):
        layout_named("eagle-3")


def test_modules_are_found_in_a_whole_checkpoint(tmp_path):
    drafter = DeepSeekMTP(2, CHAIN)
    write_folder(tmp_path / "d", "deepseek-mtp", drafter, params_of(drafter), TARGET, target_params(), "float32")
    file = tmp_path / "d" / "model.safetensors"
    save_file(load_file(file) | {"model.layers.3.mlp.up_proj.weight": np.ones((3, 3)), "lm_head.weight": np.ones(2)}, file)
    assert same(read_folder(tmp_path / "d", TARGET, target_params())[1].params, params_of(drafter))


def test_folders(tmp_path):
    with pytest.raises(ValueError, match=r"config\.json"):
        read_folder(tmp_path, TARGET, target_params())
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match="0 files of tensors"):
        read_folder(tmp_path, TARGET, target_params())
    (tmp_path / "pytorch_model.bin").write_bytes(b"PK")
    with pytest.raises(ValueError, match=r"pytorch_model\.bin cannot be read"):
        read_folder(tmp_path, TARGET, target_params())
    (tmp_path / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(ValueError, match="no whole safetensors file"):
        read_folder(tmp_path, TARGET, target_params())
    with pytest.raises(ValueError, match="already exists"):
        write_folder(tmp_path, "eagle3", PAPER, {}, TARGET, target_params())


def text(word):
    return b"X" + struct.pack("<I", len(word)) + word.encode()


def integers(*values):
    return b"(" + b"".join(b"J" + struct.pack("<i", value) for value in values) + b"t"


def pickled(path, offset=0, shape=(2, 3), strides=(3, 1), call=b"ctorch._utils\n_rebuild_tensor_v2\n"):
    """What torch.save writes of {"w": a float32 tensor [2, 3] of 0..5}."""
    storage = b"(" + text("storage") + b"ctorch\nFloatStorage\n" + text("0") + text("cpu") + b"J" + struct.pack("<i", 6) + b"tQ"
    tensor = call + b"(" + storage + b"J" + struct.pack("<i", offset) + integers(*shape) + integers(*strides) + b"\x89}tR"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model/data.pkl", b"\x80\x02}" + text("w") + tensor + b"s.")
        archive.writestr("model/data/0", np.arange(6, dtype="<f4").tobytes())
    return path


def test_pytorch_files(tmp_path):
    whole = np.arange(6.0).reshape(2, 3)
    assert np.array_equal(read_pickled(pickled(tmp_path / "a.bin"))["w"], whole)
    assert np.array_equal(read_pickled(pickled(tmp_path / "b.bin", 1, (3, 1), (1, 3)))["w"], [[1], [2], [3]])
    for changes, words in (({"offset": 1}, "beyond its storage"), ({"call": b"cos\nsystem\n"}, "it names os.system")):
        with pytest.raises(ValueError, match=words):
            read_pickled(pickled(tmp_path / "c.bin", **changes))


def test_commands(tmp_path, capsys):
    """A saved drafter goes out and comes back; what it was given decides nothing silently."""
    model = Model("tiny", TARGET, target_params(), tiny().tokenizer, "sha256:tiny")
    drafter = Eagle3((0, 1, 2), Tree.chain(2), Law.IID, head=DraftHead(12, trained=True))
    params = Params(model.params, params_of(drafter))
    save_drafter(tmp_path / "saved", drafter, params, model.target, model.identity, "float32")
    export(Export(str(tmp_path / "saved"), "speculators", tmp_path / "out", dtype="float32", verifier="some/model"), model)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["speculators_config"]["verifier"]["name_or_path"] == "some/model"
    import_drafter(Import(tmp_path / "out", tmp_path / "back", dtype="float32"), model)
    back, found = load_drafter(tmp_path / "back", model)
    assert replace(back, law=Law.IID) == drafter and same(found, params.drafter)
    assert "embed_tokens.weight left out: it is the target's" in capsys.readouterr().out
    with pytest.raises(ValueError, match="others have none"):
        export(Export(str(tmp_path / "saved"), "eagle3", tmp_path / "more", verifier="some/model"), model)
    for layout in (name for name in LAYOUTS if name.startswith("speculators")):
        with pytest.raises(ValueError, match="speculators need one"):
            export(Export(str(tmp_path / "saved"), layout, tmp_path / "more"), model)
    with pytest.raises(ValueError, match="already exists"):
        import_drafter(Import(tmp_path / "out", tmp_path / "back"), model)
