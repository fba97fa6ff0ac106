"""GGUF files: un-permuted, dequantised, every tensor consumed; damaged ones named. Then the real SmolLM2."""

from dataclasses import replace

import gguf
import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sdjax
from sdjax.targets.decoder import Decoder
from sdjax.targets.gguf import load_gguf, unpermute
from sdjax.targets.load import PACKAGED, packaged_file
from sdjax.targets.rope import LinearScaling, Llama3Scaling, Rope, YarnScaling
from tests.targets.families import assert_same, random_params, run
from tests.targets.gguf_files import metadata, permute, tensors, write_gguf

LLAMA = Decoder(vocab=64, width=32, layers=2, heads=4, kv_heads=2, head_width=8, ffw=64, tied=True, max_position=256)
SHAPES = {
    "llama": LLAMA,
    "llama-head": replace(LLAMA, tied=False, head_width=16),
    "llama-biases": replace(LLAMA, qkv_bias=True, o_bias=True, mlp_bias=True),
    "qwen2": replace(LLAMA, qkv_bias=True, tied=False, rope=Rope(1e6)),
    "qwen3": replace(LLAMA, qk_norm=True, head_width=16, norm_eps=1e-6),
}


def write(path, arch, target, params, kind="F32", extra=None, drop=(), more=None):
    values = {key: value for key, value in metadata(target, arch).items() if key not in drop} | (extra or {})
    arrays = {name: x for name, x in tensors(target, params, arch).items() if name not in drop} | (more or {})
    return write_gguf(path, arch, values, arrays, kind)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", SHAPES)
def test_what_the_converter_writes_is_loaded(shape, dtype, tmp_path):
    target, arch = SHAPES[shape], shape.split("-")[0]
    params = random_params(target)
    again, loaded = load_gguf(write(tmp_path / "m.gguf", arch, target, params), dtype)
    assert again == replace(target, dtype=dtype)
    assert_same(loaded, jax.tree.map(lambda x: x.astype(dtype), params))


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_quantised_types_are_dequantised_before_they_are_unpermuted(kind, tmp_path):
    params = random_params(LLAMA)
    _, loaded = load_gguf(write(tmp_path / "m.gguf", "llama", LLAMA, params, kind))
    quantised = gguf.GGMLQuantizationType[kind]

    def rounded(x):
        x = np.asarray(x)
        return gguf.quants.dequantize(gguf.quants.quantize(x, quantised), quantised) if x.ndim > 1 else x

    assert_same(loaded, jax.tree.map(lambda x: jax.numpy.asarray(rounded(x)), params))  # rows are quantised one by one


def test_unpermute_undoes_the_converters_order():
    rows = np.arange(24 * 5).reshape(24, 5)
    assert (unpermute(permute(rows, 3), 3) == rows).all()
    assert (permute(rows[:, 0], 1)[:4] == [0, 60, 5, 65]).all()
    assert (unpermute(permute(rows[:, 0], 3), 3) == rows[:, 0]).all()


def test_scaling_is_read(tmp_path):
    params = random_params(LLAMA)

    def rope(**extra):
        return load_gguf(
            write(tmp_path / "m.gguf", "llama", LLAMA, params, extra={f"llama.rope.{k}": v for k, v in extra.items()})
        )[0].rope

    assert rope().scaling is None
    assert rope(**{"scaling.type": "none"}).scaling is None
    assert rope(**{"scaling.type": "linear", "scaling.factor": 4.0}).scaling == LinearScaling(4.0)
    assert rope(**{"scale_linear": 2.0}).scaling == LinearScaling(2.0)
    yarn = {"scaling.type": "yarn", "scaling.factor": 4.0, "scaling.original_context_length": 64}
    assert rope(**yarn).scaling == YarnScaling(4.0, 64)
    weighted = rope(**yarn, **{"scaling.attn_factor": 0.5})
    assert weighted.magnitude == pytest.approx(0.5 * rope(**yarn).magnitude)
    with pytest.raises(ValueError, match=r"m\.gguf.*longrope"):
        rope(**{"scaling.type": "longrope", "scaling.factor": 4.0})


def test_llama3_frequencies_become_their_scaling(tmp_path):
    scaled = replace(LLAMA, head_width=64, rope=Rope(500_000.0, Llama3Scaling(32.0, 1.0, 4.0, 8192)))
    params = random_params(scaled)
    divisors = Rope(500_000.0).frequencies(64) / scaled.rope.frequencies(64)
    path = write(tmp_path / "m.gguf", "llama", scaled, params, more={"rope_freqs.weight": divisors})
    assert load_gguf(path)[0] == scaled
    path = write(tmp_path / "n.gguf", "llama", scaled, params, more={"rope_freqs.weight": divisors**2})
    with pytest.raises(ValueError, match=r"n\.gguf: rope_freqs"):
        load_gguf(path)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"extra": {"llama.expert_count": 8}}, "mixture of experts"),
        ({"extra": {"llama.attention.causal": False}}, r"llama\.attention\.causal"),
        ({"extra": {"llama.vocab_size": 65}}, "vocab_size is 65"),
        ({"extra": {"llama.rope.dimension_count": 4}}, "rotated 4"),
        ({"extra": {"llama.block_count": "two"}}, "block_count"),
        ({"extra": {"llama.block_count": 4_000_000_000}}, r"block_count is 4000000000, but the file holds \d+ tensors"),
        ({"extra": {"llama.block_count": 3}}, r"missing blk\.2\.attn_norm\.weight \[32\]"),
        ({"extra": {"llama.attention.head_count": 3}}, "heads"),
        ({"extra": {"llama.attention.head_count_kv": [2, 1]}}, "head_count_kv"),
        ({"extra": {"split.count": 2}}, "merge"),
        ({"drop": ("llama.embedding_length",)}, r"llama\.embedding_length is missing"),
        ({"drop": ("blk.1.attn_q.weight",)}, r"missing blk\.1\.attn_q\.weight \[32, 32\]"),
        ({"drop": ("token_embd.weight",)}, r"missing token_embd\.weight"),
        ({"more": {"blk.0.attn_sinks.weight": np.ones(4)}}, r"unexpected blk\.0\.attn_sinks\.weight \[4\]"),
        ({"more": {"output_norm.weight": np.ones(31)}}, r"output_norm\.weight has shape \[31\], expected \[32\]"),
        ({"more": {"output_norm.weight": np.full(32, np.inf)}}, r"output_norm\.weight holds NaN or infinity"),
    ],
)
def test_what_is_wrong_is_named(changes, named, tmp_path):
    path = write(tmp_path / "m.gguf", "llama", LLAMA, random_params(LLAMA), **changes)
    with pytest.raises(ValueError, match=named) as error:
        load_gguf(path)
    assert str(path) in str(error.value)


def test_architectures_and_types_that_are_not_supported(tmp_path):
    with pytest.raises(ValueError, match=r"m\.gguf: architecture 'gemma3' is not supported; known: llama"):
        load_gguf(write(tmp_path / "m.gguf", "gemma3", LLAMA, random_params(LLAMA)))
    writer = gguf.GGUFWriter(tmp_path / "n.gguf", "llama")
    for key, value in metadata(LLAMA, "llama").items():
        (writer.add_uint32 if isinstance(value, int) else writer.add_float32)(key, value)
    for name, array in tensors(LLAMA, random_params(LLAMA), "llama").items():
        writer.add_tensor(name, array.astype(np.int8) if name == "blk.0.ffn_up.weight" else array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ValueError, match=r"n\.gguf: blk\.0\.ffn_up\.weight is of type I8"):
        load_gguf(tmp_path / "n.gguf")


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    target = replace(LLAMA, layers=1)
    path = write(tmp_path_factory.mktemp("healthy") / "m.gguf", "llama", target, random_params(target), "Q4_1")
    return path.read_bytes()


@settings(max_examples=60)
@given(data=st.data())
def test_a_truncated_file_is_named(healthy, tmp_path_factory, data):
    path = tmp_path_factory.mktemp("cut") / "m.gguf"
    kept = data.draw(st.integers(0, len(healthy) - 1))
    # The writer pads the end of a file; what counts is that no tensor is short.
    path.write_bytes(healthy[: min(kept, len(healthy) - 32)])
    with pytest.raises(ValueError, match=r"m\.gguf"):
        load_gguf(path)


@settings(max_examples=150)
@given(data=st.data())
def test_damaged_bytes_are_an_error_that_names_the_file_or_a_consistent_model(healthy, tmp_path_factory, data):
    damaged = bytearray(healthy)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, 1500) | st.integers(0, len(damaged) - 1))
        damaged[place] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("damaged") / "m.gguf"
    path.write_bytes(damaged)
    try:
        target, params = load_gguf(path)
    except ValueError as error:
        assert str(path) in str(error)
    else:
        assert jax.tree.map(lambda spec: spec.shape, target.specs()) == jax.tree.map(lambda leaf: leaf.shape, params)


def test_a_file_that_is_absent_or_empty_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"absent\.gguf: no such file"):
        load_gguf(tmp_path / "absent.gguf")
    (tmp_path / "empty.gguf").touch()
    with pytest.raises(ValueError, match=r"empty\.gguf"):
        load_gguf(tmp_path / "empty.gguf")


@pytest.fixture(scope="module")
def smollm2():
    try:
        packaged_file(PACKAGED["smollm2-135m"])
    except ValueError as error:
        pytest.skip(str(error))
    return sdjax.load("smollm2-135m")


def test_smollm2_knows_the_capital_of_france(smollm2):
    """Wrong rotary order, a missed scale or a wrong template all break this: without un-permuting, it stops at once."""
    tokenizer = smollm2.tokenizer
    text = tokenizer.chat([{"role": "user", "content": "What is the capital of France?"}])
    reply = "The capital of France is Paris."
    prompt, answer = tokenizer.encode(text), [*tokenizer.encode(reply), tokenizer.eos]
    logits, _ = run(smollm2.target, smollm2.params, [[*prompt, *answer[:-1]]])
    said = [int(token) for token in logits[0, len(prompt) - 1 :].argmax(-1)]
    assert tokenizer.decode(said[:-1]) == reply
    assert said[-1] in tokenizer.stops


def test_smollm2_is_the_model_it_should_be(smollm2):
    target = smollm2.target
    assert (target.layers, target.width, target.heads, target.kv_heads, target.vocab) == (30, 576, 9, 3, 49_152)
    assert target.tied and target.rope == Rope(100_000.0) and target.norm_eps == 1e-5
    assert smollm2.identity == "sha256:16399c58348341f1727030d1fc312a7fb25819f69fcbb6d15fd0687f698a49c4"
