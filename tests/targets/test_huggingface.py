"""Checkpoints in Hugging Face layout: what is written is read back, and what is wrong is named."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from sdjax.targets.decoder import Decoder
from sdjax.targets.hf_config import decoder_from_config
from sdjax.targets.huggingface import load_huggingface, save_huggingface
from sdjax.targets.rope import LinearScaling, Llama3Scaling, YarnScaling
from tests.targets.families import FAMILIES, LLAMA, LLAMA3_SCALING, QWEN2, QWEN3, YARN, assert_same, random_model


@pytest.fixture
def saved(tmp_path):
    target, params = random_model("qwen2-sliding")
    save_huggingface(tmp_path / "model", target, params)
    return tmp_path / "model"


def edit_config(folder: Path, **changes) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


def edit_weights(folder: Path, change) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_saved_is_loaded(family, dtype, tmp_path):
    target, params = random_model(family, dtype)
    save_huggingface(tmp_path / "model", target, params)
    again, loaded = load_huggingface(tmp_path / "model", dtype)
    assert again.specs().keys() == target.specs().keys()
    same = ("windows", "norm_eps", "qkv_bias", "o_bias", "mlp_bias", "qk_norm", "tied", "head_width", "max_position")
    assert all(getattr(again, name) == getattr(target, name) for name in same)
    np.testing.assert_array_equal(again.rope.frequencies(16), target.rope.frequencies(16))
    assert again.rope.magnitude == target.rope.magnitude
    assert_same(loaded, params)


@pytest.mark.parametrize("shard_bytes", [1, 9_000, 40_000])
def test_shards_read_as_one_file_does(shard_bytes, tmp_path):
    target, params = random_model("llama3")
    save_huggingface(tmp_path / "shards", target, params, shard_bytes)
    files = sorted(path.name for path in (tmp_path / "shards").glob("*.safetensors"))
    assert len(files) > 1 and files[0] == f"model-00001-of-{len(files):05}.safetensors"
    again, loaded = load_huggingface(tmp_path / "shards")
    assert again == target
    assert_same(loaded, params)


def test_weights_are_converted_to_the_type_asked_for(tmp_path):
    target, params = random_model("llama2", "bfloat16")
    save_huggingface(tmp_path / "model", target, params)
    _, loaded = load_huggingface(tmp_path / "model", "float32")
    assert_same(loaded, jax.tree.map(lambda x: x.astype("float32"), params))
    with pytest.raises(ValueError, match="float16"):
        load_huggingface(tmp_path / "model", "float16")


def test_a_failed_save_leaves_nothing(tmp_path, monkeypatch):
    target, params = random_model("llama2")
    monkeypatch.setattr("sdjax.targets.huggingface.save_file", lambda *args, **options: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        save_huggingface(tmp_path / "model", target, params)
    assert not list(tmp_path.iterdir())


def test_a_model_is_never_written_over(saved):
    target, params = random_model("qwen2-sliding")
    with pytest.raises(ValueError, match="already exists"):
        save_huggingface(saved, target, params)


def test_parameters_of_another_model_are_not_saved(tmp_path):
    target, params = random_model("llama2")
    with pytest.raises(ValueError, match=r"missing \['head'\]"):
        save_huggingface(tmp_path / "model", target, {name: leaf for name, leaf in params.items() if name != "head"})


@pytest.mark.parametrize(
    ("shape", "named"),
    [({"windows": (3, 4, None)}, "windows"), ({"qk_norm": True, "mlp_bias": True}, "qk_norm"), ({"o_bias": True}, "biases")],
)
def test_what_no_architecture_computes_is_not_saved(shape, named, tmp_path):
    target = Decoder(vocab=8, width=8, layers=3, heads=2, kv_heads=1, head_width=4, ffw=8, **shape)
    with pytest.raises(ValueError, match=named):
        save_huggingface(tmp_path / "model", target, jax.tree.map(lambda spec: np.ones(spec.shape), target.specs()))


def test_missing_extra_and_misshapen_weights_are_named(saved):
    def change(weights):
        del weights["model.layers.1.mlp.up_proj.weight"]
        weights["model.layers.7.mlp.up_proj.weight"] = np.zeros((2, 2), np.float32)
        weights["model.norm.weight"] = np.zeros(31, np.float32)

    edit_weights(saved, change)
    with pytest.raises(ValueError) as error:
        load_huggingface(saved)
    for part in (
        str(saved),
        "missing model.layers.1.mlp.up_proj.weight [48, 32]",
        "unexpected model.layers.7.mlp.up_proj.weight [2, 2]",
        "model.norm.weight has shape [31], expected [32]",
    ):
        assert part in str(error.value)


def test_stored_types_and_values_are_checked(saved):
    edit_weights(saved, lambda weights: weights.update({"model.norm.weight": np.ones(32, np.int8)}))
    with pytest.raises(ValueError, match=r"model\.norm\.weight is stored as I8"):
        load_huggingface(saved)
    edit_weights(saved, lambda weights: weights.update({"model.norm.weight": np.full(32, np.nan, np.float32)}))
    with pytest.raises(ValueError, match=r"model\.norm\.weight holds NaN"):
        load_huggingface(saved)


def test_a_repeated_head_must_be_the_embedding(tmp_path):
    target, params = random_model("smollm2")
    save_huggingface(tmp_path / "model", target, params)
    embed = np.asarray(params["embed"])
    edit_weights(tmp_path / "model", lambda weights: weights.update({"lm_head.weight": embed}))
    assert_same(load_huggingface(tmp_path / "model")[1], params)
    edit_weights(tmp_path / "model", lambda weights: weights.update({"lm_head.weight": embed + 1}))
    with pytest.raises(ValueError, match=r"lm_head\.weight differs"):
        load_huggingface(tmp_path / "model")


def test_stored_frequencies_must_be_ours(tmp_path):
    target, params = random_model("llama2")
    save_huggingface(tmp_path / "model", target, params)
    name, plain = "model.layers.0.self_attn.rotary_emb.inv_freq", target.rope.frequencies(8).astype(np.float32)
    edit_weights(tmp_path / "model", lambda weights: weights.update({name: plain}))
    assert_same(load_huggingface(tmp_path / "model")[1], params)
    edit_weights(tmp_path / "model", lambda weights: weights.update({name: plain / 2}))
    with pytest.raises(ValueError, match="inv_freq"):
        load_huggingface(tmp_path / "model")


def test_missing_files_are_named(saved, tmp_path):
    with pytest.raises(ValueError, match=r"config\.json: cannot be read"):
        load_huggingface(tmp_path / "nowhere")
    (saved / "model.safetensors").rename(saved / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"neither model\.safetensors nor"):
        load_huggingface(saved)
    (saved / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "one.safetensors"}}))
    with pytest.raises(ValueError, match=r"one\.safetensors.*absent"):
        load_huggingface(saved)
    (saved / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../one.safetensors"}}))
    with pytest.raises(ValueError, match="weight_map"):
        load_huggingface(saved)


@pytest.mark.parametrize("text", ["", "{", "[]", "\x00", "nul", '"config"'])
def test_a_damaged_config_is_named(saved, text):
    (saved / "config.json").write_text(text)
    with pytest.raises(ValueError, match=r"config\.json"):
        load_huggingface(saved)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel"),
        ({"architectures": None}, "architectures"),
        ({"model_type": "llama4"}, "llama4"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"rope_interleaved": True}, "rope_interleaved"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config"),
        ({"num_local_experts": 8}, "num_local_experts"),
        ({"sliding_window": 16}, "sliding_window"),
        ({"hidden_size": "many"}, "hidden_size"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"num_hidden_layers": 4_000_000_000}, "more than 10000 are taken for damage"),
        ({"num_attention_heads": 5}, "hidden_size 32"),
        ({"num_key_value_heads": 3}, "kv_heads"),
        ({"rms_norm_eps": -1}, "rms_norm_eps"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({"rope_theta": -1.0}, "rope_theta"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "dynamic"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0, "mrope_section": [1]}}, "mrope_section"),
        ({"rope_scaling": {"rope_type": "default", "partial_rotary_factor": 0.25}}, "partial_rotary_factor"),
        ({"rope_scaling": YARN, "rope_parameters": LLAMA3_SCALING}, "disagree"),
        ({"rope_parameters": {"a": YARN, "b": LLAMA3_SCALING}}, "between layers"),
        ({"rope_scaling": 3}, "rope_scaling"),
    ],
)
def test_what_we_do_not_compute_is_refused(changes, named):
    with pytest.raises(ValueError, match=named):
        decoder_from_config(LLAMA | changes)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"use_sliding_window": True, "sliding_window": 4, "layer_types": ["full_attention"]}, "layer_types"),
        ({"use_sliding_window": True, "sliding_window": 4, "layer_types": ["chunked_attention"] * 3}, "chunked"),
        ({"use_sliding_window": False, "layer_types": ["sliding_attention"] * 3}, "use_sliding_window"),
        ({"use_sliding_window": True, "sliding_window": 4, "max_window_layers": "two"}, "max_window_layers"),
        ({"use_sliding_window": True, "sliding_window": 4, "layer_types": 3}, "layer_types"),
    ],
)
def test_odd_windows_are_refused(changes, named):
    with pytest.raises(ValueError, match=named):
        decoder_from_config(QWEN2 | changes)


def test_absent_settings_take_their_architectures_defaults():
    def without(config, *names):
        return {name: value for name, value in config.items() if name not in names}

    assert decoder_from_config(without(LLAMA, "num_key_value_heads")).kv_heads == 4
    assert decoder_from_config(without(QWEN3, "head_dim")).head_width == 128
    assert decoder_from_config(without(LLAMA, "rope_theta")).rope.theta == 10_000
    mistral = without(FAMILIES["mistral"], "sliding_window")
    assert decoder_from_config(mistral).windows == (4096,) * 3
    with pytest.raises(ValueError, match="vocab_size"):
        decoder_from_config(without(LLAMA, "vocab_size"))


def test_both_forms_of_rotary_settings_agree():
    assert decoder_from_config(FAMILIES["llama3"]).rope == decoder_from_config(FAMILIES["llama3-v5"]).rope
    assert decoder_from_config(FAMILIES["llama3"]).rope.scaling == Llama3Scaling(8.0, 1.0, 4.0, 64)
    assert decoder_from_config(FAMILIES["llama-linear"]).rope.scaling == LinearScaling(2.0)
    assert decoder_from_config(FAMILIES["llama-yarn"]).rope.scaling == YarnScaling(4.0, 32)
    assert decoder_from_config(FAMILIES["qwen2-yarn"]).rope.scaling == YarnScaling(4.0, 32)
    nested = LLAMA | {"rope_parameters": {"full_attention": YARN, "sliding_attention": YARN}}
    assert decoder_from_config(nested).rope.scaling == YarnScaling(4.0, 32)


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    folder = tmp_path_factory.mktemp("healthy") / "model"
    save_huggingface(folder, *random_model("qwen3-sliding"))
    return folder


@settings(max_examples=40)
@given(data=st.data())
def test_a_truncated_file_is_named(healthy, tmp_path_factory, data):
    whole = (healthy / "model.safetensors").read_bytes()
    folder = tmp_path_factory.mktemp("cut")
    (folder / "config.json").write_bytes((healthy / "config.json").read_bytes())
    (folder / "model.safetensors").write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(ValueError, match=r"model\.safetensors"):
        load_huggingface(folder)


@settings(max_examples=60)
@given(data=st.data())
def test_damaged_bytes_are_an_error_or_a_model_of_the_same_shape(healthy, tmp_path_factory, data):
    whole = bytearray((healthy / "model.safetensors").read_bytes())
    header = int.from_bytes(whole[:8], "little") + 8
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, header - 1) | st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    folder = tmp_path_factory.mktemp("damaged")
    (folder / "config.json").write_bytes((healthy / "config.json").read_bytes())
    (folder / "model.safetensors").write_bytes(whole)
    try:
        target, params = load_huggingface(folder)
    except ValueError as error:
        assert str(folder) in str(error)
    else:
        assert jax.tree.map(lambda spec: spec.shape, target.specs()) == jax.tree.map(lambda leaf: leaf.shape, params)


@settings(max_examples=100)
@given(
    family=st.sampled_from(sorted(FAMILIES)),
    key=st.sampled_from(sorted({key for config in FAMILIES.values() for key in config})),
    value=st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.floats()
    | st.text(max_size=3)
    | st.lists(st.integers(), max_size=2),
)
def test_a_wrong_setting_is_a_value_error_or_a_decoder(family, key, value):
    try:
        target = decoder_from_config(FAMILIES[family] | {key: value})
    except ValueError as error:
        assert str(error)
    else:
        assert isinstance(target, Decoder)
