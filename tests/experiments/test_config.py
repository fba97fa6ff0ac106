"""Configs: files, overrides, and what a wrong one is told."""

from dataclasses import replace

import jax
import pytest

from configs.smollm2 import SHIPPED
from experiments.config import DecodeConfig, MeshConfig, TargetConfig, config_files, find_config, load_file, parse
from experiments.decode import main
from sdjax.drafters.draft_model import DraftModel
from sdjax.drafters.medusa import Medusa
from sdjax.drafters.no_draft import NoDraft
from sdjax.drafters.specdiff2 import SpecDiff2
from sdjax.mesh.layout import TRAIN
from sdjax.study.methods import Method, Sampling, arms
from sdjax.study.prompts import Prompts, load_prompts
from tests.experiments.tiny_model import config, model
from tests.tiny import TARGET

DEMO = "configs/decode/smollm2_humaneval.py"


def parsed(*options):
    return parse(["--config", DEMO, *options], "decode", "decode")


def test_every_field_can_be_overridden():
    changed = parsed(
        *"--rule.temperature 0.7 --methods.lookup.drafter.length 9 --prompts.text hi --decode.max-new 5 --stream".split()
    )
    assert changed.rule.temperature == (0.7,)
    assert changed.methods["lookup"].drafter.length == 9
    assert (changed.prompts.text, changed.decode.max_new, changed.stream) == (("hi",), 5, True)
    assert changed.methods["plain"] == parsed().methods["plain"]


@pytest.mark.parametrize(
    "wrong, near",
    [("--rule.temprature", "--rule.temperature"), ("--methods.lokup.drafter.length", "--methods.lookup.drafter.length")],
)
def test_an_unknown_key_names_the_nearest(wrong, near, capsys):
    with pytest.raises(SystemExit) as left:
        parsed(wrong, "1")
    assert left.value.code == 2
    assert near in capsys.readouterr().err


@pytest.mark.parametrize(
    "folder, options",
    [
        ("decode/smollm2_humaneval", ["--runs", "gs://mine/runs"]),
        ("train/eagle3_llama31_8b", ["--corpora", "here", "gs://mine/corpus"]),
        ("rollout/smollm2_own", ["--corpora", "gs://mine/corpora"]),
    ],
)
def test_a_bucket_is_no_folder(folder, options):
    """It became the folder `gs:` beside the program, on every host."""
    kind = type(load_file(find_config(f"configs/{folder}.py")).get_config())
    with pytest.raises(ValueError, match=r"gs://mine.* must be a folder of this machine"):
        parse(["--config", f"configs/{folder}.py", *options], "program", "", kind)


@pytest.mark.parametrize("path", config_files("decode"), ids=lambda path: path.stem)
def test_every_comparison_is_read(path):
    """With its curves and trees, and with names of methods that the command line can hold."""
    config = parse(["--config", str(path), "--decode.max-new", "7"], "program", "decode")
    assert config.decode.max_new == 7 and next(iter(config.methods)) == "plain"


def test_an_unknown_file_names_the_nearest(capsys):
    assert main(["--config", "configs/decode/smollm_humaneval.py"]) == 2
    assert f"did you mean '{DEMO}'" in capsys.readouterr().err


def test_the_nearest_is_one_of_the_programs_own():
    """`aot --config nosuch.py` was offered configs/shapes.py, which is no config."""
    with pytest.raises(ValueError, match=r"did you mean 'configs/aot/llama31_8b\.py'"):
        find_config("llama31_8b", "aot")
    with pytest.raises(ValueError, match=r"these are here:\n  configs/aot/") as refused:
        find_config("nosuch.py", "aot")
    assert "configs/shapes.py" not in str(refused.value)


@pytest.mark.parametrize(
    "text, said",
    [
        ("import nosuch_package", "faulty.py, line 1: ModuleNotFoundError: No module named 'nosuch_package'"),
        ("def get_config(:\n    pass", "faulty.py: SyntaxError: .*line 1"),
        ("\ndef get_config():\n    return len(3)", "faulty.py, line 3: TypeError: object of type 'int' has no len"),
        (
            "from sdjax.study.methods import Method\n\ndef get_config():\n    return Method('ngram')",
            r"faulty.py, line 4: drafter is 'ngram', which drafts nothing: give an object such as NGram\(length=7\)",
        ),
    ],
)
def test_a_fault_in_a_config_names_the_file_and_the_line(tmp_path, text, said):
    """They were tracebacks through the loader."""
    path = tmp_path / "faulty.py"
    path.write_text(text + "\n")
    with pytest.raises(ValueError, match=f"--config: .*{said}"):
        parse(["--config", str(path)], "program", "decode")


def test_no_file_lists_them_all(capsys):
    assert main([]) == 2
    assert DEMO in capsys.readouterr().err


def test_a_config_without_get_config_is_refused(tmp_path):
    (tmp_path / "empty.py").write_text("")
    with pytest.raises(ValueError, match="has no get_config"):
        load_file(find_config(str(tmp_path / "empty.py")))


@pytest.mark.parametrize("path", config_files("decode"), ids=lambda path: path.stem)
def test_every_config_says_its_command(path):
    module = load_file(path)
    assert f"--config configs/decode/{path.name}" in module.__doc__
    assert module.get_config().name == path.stem


def chose(weights):
    """The prompts by which a training run chose these weights; none where no config here trains them."""
    runs = {f"runs/train/{path.stem}/drafter": path for path in config_files("train")}
    runs |= {shipped: runs[f"runs/train/{family}_smollm2/drafter"] for family, shipped in SHIPPED.items()}
    return {load_file(runs[weights]).get_config().held_out.prompts} if weights in runs else set()


@pytest.mark.parametrize("path", config_files("decode") + config_files("sweep"), ids=lambda path: path.stem)
def test_no_comparison_is_judged_by_what_chose_its_checkpoints(path):
    config = load_file(path).get_config()
    held_out = set().union(*(chose(method.weights) for method in config.methods.values()))
    judges = {config.prompts} if isinstance(config, DecodeConfig) else set(config.sets.values())
    ids = lambda sources: {prompt.id for prompts in sources for prompt in load_prompts(prompts)}
    assert bool(held_out) == any(method.weights for method in config.methods.values())
    assert not held_out or not ids(held_out) & ids(judges)


def test_a_missing_prompt_file_is_explained(capsys):
    assert main(["--config", "configs/decode/spec_bench.py", "--prompts.file", "nowhere.jsonl"]) == 2
    assert "nowhere.jsonl is not there" in capsys.readouterr().err


@pytest.mark.parametrize("changes, words", [({"name": "a/b"}, "slash"), ({"name": ""}, "empty")])
def test_bad_names_are_refused(tmp_path, changes, words):
    with pytest.raises(ValueError, match=words):
        config(tmp_path, **changes)


@pytest.mark.parametrize("options", [["--rule.temperature", "-1"], ["--rule.top-p", "0"], ["--decode.batch", "0"]])
def test_values_out_of_range_are_refused(options, capsys):
    try:
        assert main(["--config", DEMO, "--prompts.text", "hi", "--target.name", "nothing", *options]) == 2
    except SystemExit as left:
        assert left.code == 2
    assert capsys.readouterr().err


def test_temperatures_must_differ():
    with pytest.raises(ValueError, match="several different ones"):
        Sampling(temperature=(1.0, 1.0)).warps()


def test_the_first_method_must_be_plain(tmp_path):
    methods = dict(reversed(config(tmp_path).methods.items()))
    with pytest.raises(ValueError, match="'sampled', is the baseline"):
        arms(methods, Sampling(), model(), 16)


def test_weights_for_a_drafter_that_takes_none(tmp_path):
    with pytest.raises(ValueError, match=r"method 'plain': 'nothing' is no saved drafter .* NoDraft takes no other weights"):
        arms({"plain": Method(config(tmp_path).methods["plain"].drafter, weights="nothing")}, Sampling(), model(), 16)


def test_a_drafter_with_a_model_of_its_own_making_takes_no_other(tmp_path):
    """SpecDiff-2's is a small diffusion model: a decoder in its place ended in a traceback."""
    for weights, says in (
        ("", "give methods.own.weights a saved drafter$"),
        (str(tmp_path), "SpecDiff2 takes no other weights"),
    ):
        with pytest.raises(ValueError, match=says):
            arms({"plain": Method(NoDraft()), "own": Method(SpecDiff2.tiny(TARGET), weights=weights)}, Sampling(), model(), 16)


def test_a_drafter_that_is_not_trained_yet_is_named_with_its_method(tmp_path):
    """`unknown model 'runs/train/…/drafter'` named known models, which a drafter's weights are not."""
    missing = str(tmp_path / "drafter")
    for method in (Method(Medusa.tiny(TARGET), weights=missing), Method(weights=missing)):
        with pytest.raises(ValueError, match=r"method 'trained': .* no saved drafter") as refused:
            arms({"plain": Method(NoDraft()), "trained": method}, Sampling(), model(), 16)
        assert missing in str(refused.value) and "known names are" not in str(refused.value)
    with pytest.raises(ValueError, match=r"method 'own': .* as a draft model for DraftModel it cannot be loaded either"):
        arms({"plain": Method(NoDraft()), "own": Method(DraftModel.tiny(TARGET), weights=missing)}, Sampling(), model(), 16)


def test_prompts_is_frozen():
    assert hash(Prompts()) == hash(Prompts())


@pytest.mark.parametrize("flash", [False, True])
def test_the_target_reads_long_caches_as_asked(flash, monkeypatch):
    monkeypatch.setattr("sdjax.load", lambda name, dtype: model())
    assert TargetConfig(flash=flash).load().target == replace(model().target, flash=flash)


def test_a_mesh_that_the_devices_do_not_make_is_refused():
    with pytest.raises(ValueError, match="fsdp and model must be ≥ 1"):
        MeshConfig(fsdp=0)
    with pytest.raises(ValueError, match="takes 6 devices, but there are 1"):
        MeshConfig(1, 3, 2).layout(TRAIN, jax.devices()[:1])
    assert MeshConfig().layout(TRAIN, jax.devices()[:1]) is None
