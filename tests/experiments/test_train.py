"""The launcher of training, end to end on a random model of bytes; and what is refused before anything compiles."""

import io
import json
from dataclasses import replace

import jax
import numpy as np
import pytest
from rich.console import Console

import sdjax
from experiments import features
from experiments.config import config_files, load_file
from experiments.train import how_many_readers, main, train
from experiments.train_config import HeldOutConfig, TrainConfig
from sdjax.core.spec import initialise
from sdjax.drafters.block import Block
from sdjax.drafters.draft_model import DraftModel
from sdjax.drafters.ngram import NGram
from sdjax.drafters.self_draft import SelfDraft
from sdjax.study.prompts import Prompts
from sdjax.targets.decoder import Decoder
from sdjax.targets.load import Model
from sdjax.train import tiny_model
from sdjax.train.corpus import Origin, write_corpus
from sdjax.train.documents import Document
from sdjax.train.joint import Joint
from sdjax.train.optimiser import Optimiser
from sdjax.train.saved import notes_of
from sdjax.train.tiny_model import byte_tokenizer

TARGET = Decoder(vocab=256, width=16, layers=1, heads=2, kv_heads=1, head_width=8, ffw=24, max_position=512)
OPTIMISER = Optimiser(learning_rate=1e-2, steps=4, warmup=1)


def model(name="tiny") -> Model:
    return Model(name, TARGET, initialise(TARGET.specs(), jax.random.key(0)), byte_tokenizer(), "sha256:bytes")


def config(folder, **changes) -> TrainConfig:
    fields = {
        "name": "micro",
        "drafter": DraftModel(replace(TARGET, width=8), length=2),
        "rows": 4,
        "length": 32,
        "optimiser": OPTIMISER,
        "held_out": HeldOutConfig(Prompts(count=2), max_new=8),
        "runs": str(folder),
    }
    return TrainConfig(**(fields | changes))


def run(config, model):
    printed = io.StringIO()
    return train(config, model, Console(file=printed, width=120)), printed.getvalue()


def corpus(folder, target="sha256:bytes", tokenizer=None):
    text = np.frombuffer(b"to learn from, to learn from, again and again", np.uint8).astype(np.int32)
    documents = [Document(text, np.arange(len(text)) > 9, f"d{i}", "own") for i in range(20)]
    write_corpus(folder, documents, Origin(target, tokenizer or byte_tokenizer().identity, None, 1.0, 0))
    return str(folder)


@pytest.mark.parametrize("asked, parts, found", [(0, 1, 6), (0, 3, 6), (0, 4, 4), (0, 12, 12), (2, 1, 2)])
def test_a_run_keeps_the_readers_that_it_began_with(tmp_path, asked, parts, found):
    """Where the mesh splits a batch into as many parts, or into a divisor of it."""
    given = config(tmp_path, rows=12, readers=asked)
    assert how_many_readers(given, parts) == (asked or parts)
    (tmp_path / "micro").mkdir()
    (tmp_path / "micro" / "config.json").write_text(json.dumps({"inputs": {"readers": 6}}))
    assert how_many_readers(given, parts) == found


def test_readers_that_other_rows_do_not_divide_over_are_not_kept(tmp_path):
    """Of a first start that ran out of memory, say, and was given fewer rows."""
    (tmp_path / "micro").mkdir()
    (tmp_path / "micro" / "config.json").write_text(json.dumps({"inputs": {"readers": 8}}))
    assert how_many_readers(config(tmp_path, rows=4), 4) == 4


def test_from_config_to_a_drafter_that_decodes(tmp_path):
    """Started again it shows the same, with as many readers as it began with, be they named or not."""
    code, printed = run(config(tmp_path, readers=2), model())
    assert code == 0 and "survival" in printed and "finished" in printed
    folder = tmp_path / "micro"
    final = json.loads((folder / "final.json").read_text())
    assert final["step"] == 4 and set(final["acceptance"]) == {"0", "1"}
    drafter, _ = sdjax.load_drafter(folder / "drafter", model())
    assert drafter == config(tmp_path).drafter
    notes = notes_of(folder / "drafter")
    assert notes["tokens"] == notes["step"] * config(tmp_path).rows * config(tmp_path).length
    assert notes["flops"] > 0 and notes["seconds"] > 0 and 0 < notes["supervised"] <= notes["tokens"]
    assert len(json.loads((folder / "launches.json").read_text())) == 1
    code, again = run(config(tmp_path, readers=0), model())
    assert code == 0 and again.splitlines()[-3:] == printed.splitlines()[-3:]
    with pytest.raises(ValueError, match=r"config.optimiser.steps was 4, is 9"):
        run(config(tmp_path, optimiser=replace(OPTIMISER, steps=9)), model())


def test_a_target_trained_beside_its_drafter_is_saved_with_it(tmp_path):
    joint = config(tmp_path, joint=Joint(), corpora=(corpus(tmp_path / "corpus"),))
    assert run(joint, model())[0] == 0
    assert (tmp_path / "micro" / "drafter" / "target.safetensors").exists()
    with pytest.raises(ValueError, match="identity"):
        sdjax.load_drafter(tmp_path / "micro" / "drafter", model())


def test_a_folder_that_cannot_be_written_is_named_before_a_target_is_trained(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sdjax.train.tiny_world.train_target", lambda **_: pytest.fail("the tiny target was trained"))
    monkeypatch.setattr("experiments.train.decode_in_float32", lambda: None)
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit) as left:
        main(["--config", "configs/train/eagle3_tiny.py", "--runs", str(tmp_path / "file" / "x")])
    assert left.value.code == 2 and "give --runs a folder that can" in capsys.readouterr().err
    with pytest.raises(ValueError, match=r"where the tiny world's target is kept, cannot be written"):
        tiny_model.tiny_model(tmp_path / "file")


def test_asked_to_leave_before_the_first_step(tmp_path, monkeypatch, capsys):
    def interrupted(**_):
        assert "training the tiny world's target" in capsys.readouterr().out, "it took minutes without a word"
        raise KeyboardInterrupt

    monkeypatch.setattr("sdjax.train.tiny_world.train_target", interrupted)
    monkeypatch.setattr("experiments.train.decode_in_float32", lambda: None)
    assert main(["--config", "configs/train/eagle3_tiny.py", "--runs", str(tmp_path / "train")]) == 75
    assert "the same command goes on" in capsys.readouterr().err


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"drafter": NGram(length=2)}, "NGram has nothing to learn"),
        ({"drafter": SelfDraft(layers=1, length=2)}, "SelfDraft has nothing to learn"),
        ({"drafter": DraftModel(replace(TARGET, vocab=31))}, "vocab"),
        ({"length": 1024}, "512 positions"),
        ({"frozen": ("drafter.heads.*",)}, "no parameter matches"),
        ({"held_out": HeldOutConfig(longest=3)}, "all 8 prompts are longer"),
    ],
)
def test_what_does_not_go_together_is_refused(tmp_path, changes, words):
    with pytest.raises(ValueError, match=words):
        run(config(tmp_path, **changes), model())


def test_masks_that_end_texts_are_refused(tmp_path):
    ending = model()._replace(tokenizer=replace(byte_tokenizer(), stops=(10,)))
    with pytest.raises(ValueError, match="mask_token is 10, which ends texts"):
        run(config(tmp_path, drafter=Block.dflash((0,), 10, 3, layers=1)), ending)


def test_states_are_not_kept_by_many_hosts_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(ValueError, match="states are kept by one process"):
        features.main(features.Caching(tmp_path / "corpus", tmp_path / "out"))


def test_text_of_another_target_is_refused(tmp_path):
    other = config(tmp_path, corpora=(corpus(tmp_path / "a", target="sha256:other"),))
    with pytest.raises(ValueError, match=r"another target \(sha256:other\) than tiny \(sha256:bytes\)"):
        run(other, model())
    tokens = config(tmp_path, corpora=(corpus(tmp_path / "b", tokenizer="t"),))
    with pytest.raises(ValueError, match="another tokenizer"):
        run(tokens, model())
    with pytest.raises(ValueError, match="corpora is empty"):
        run(config(tmp_path), model("large"))


@pytest.mark.parametrize(
    "changes",
    [{"name": "a/b"}, {"rows": 3, "optimiser": Optimiser(micro_batches=2)}, {"from_scratch": True}, {"save_as": "int3"}],
)
def test_bad_fields_are_named(tmp_path, changes):
    with pytest.raises(ValueError, match=next(iter(changes))):
        config(tmp_path, **changes)


@pytest.mark.parametrize("path", config_files("train"), ids=lambda path: path.stem)
def test_every_config_says_its_command(path):
    module = load_file(path)
    assert f"--config configs/train/{path.name}" in module.__doc__
    assert module.get_config().name == path.stem
