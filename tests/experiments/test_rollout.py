"""The rollout launcher: one command makes a corpus, makes it once, and refuses another's."""

import io
import json
import shutil

import pytest
from rich.console import Console

from experiments.config import config_files, load_file, parse
from experiments.rollout import main, rollout
from experiments.rollout_config import Conversations, OwnText, RolloutConfig, Texts
from sdjax.core.sampling import Warp
from sdjax.drafters.no_draft import NoDraft
from sdjax.study.prompts import Prompts
from sdjax.study.stdlib_prompts import StandardLibrary
from sdjax.train.corpus import check_target, open_corpus
from tests.experiments import tiny_rollout
from tests.experiments.tiny_model import model
from tests.kills import after_kills
from tests.train.texts import SomeTexts, prepare

TEXTS = Prompts(text=("hello hello hel", "abc abc abc", "what is it?"))


def config(folder, **changes):
    fields = {
        "name": "tiny",
        "drafter": NoDraft(),
        "prompts": TEXTS,
        "max_new": 8,
        "batch": 2,
        "chunk": 16,
        "corpora": str(folder),
    }
    return RolloutConfig(**(fields | changes))


def run(config):
    """The manifest, and what was printed."""
    printed = io.StringIO()
    return rollout(config, model(), Console(file=printed, width=200)), printed.getvalue()


def test_prompts_are_answered_once(tmp_path):
    manifest, printed = run(config(tmp_path))
    assert "3 of 3 documents" in printed and f"{manifest.supervised} of them supervised" in printed
    corpus = open_corpus(tmp_path / "tiny")
    check_target([corpus], model())
    assert (corpus.manifest.temperature, corpus.manifest.supervised) == (1.0, 24)
    assert model().tokenizer.decode(corpus[1].tokens).startswith("u abc abc abc. a ")
    again, printed = run(config(tmp_path))
    assert again == manifest and "documents/s" not in printed
    with pytest.raises(ValueError, match=r"seed was 0, is 1"):
        run(config(tmp_path, seed=1))
    (tmp_path / "tiny").rename(tmp_path / "other")
    with pytest.raises(ValueError, match=r"tiny.work is of another config .*config.max_new was 8, is 9"):
        run(config(tmp_path, max_new=9))
    assert run(config(tmp_path))[0].identity == manifest.identity


def test_prompts_that_are_too_long_are_counted(tmp_path):
    """They were left out without a word."""
    lengths = [len(model().tokenizer.encode(f"u {text}. a ")) for text in TEXTS.text]
    manifest, printed = run(config(tmp_path, longest_prompt=min(lengths)))
    assert manifest.documents == lengths.count(min(lengths)) < len(lengths)
    left_out = f"{len(lengths) - manifest.documents} of {len(lengths)} prompts are longer than {min(lengths)} tokens"
    assert f"{left_out} and left out; --longest-prompt" in printed
    assert "left out" not in run(config(tmp_path, name="all", longest_prompt=max(lengths)))[1]


def test_prompts_that_are_all_too_long_are_refused(tmp_path):
    """ "no requests were given", where three were."""
    with pytest.raises(ValueError, match=r"all 3 prompts are longer than 3 tokens; --longest-prompt \d+ takes one"):
        run(config(tmp_path, longest_prompt=3))
    assert not (tmp_path / "tiny.work").exists()


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"batch": 0}, "batch is 0; it must be ≥ 1"),
        ({"max_new": 0}, "max_new is 0"),
        ({"chunk": -1}, "chunk is -1"),
        ({"longest_prompt": 0}, "longest_prompt is 0"),
        ({"prompts": OwnText(count=0)}, "count and max_user must be ≥ 1"),
        ({"prompts": OwnText(count=2, max_user=0)}, "count and max_user must be ≥ 1"),
        ({"prompts": StandardLibrary(skip=10**6)}, "leaves nothing of the standard library"),
    ],
)
def test_what_is_out_of_range_leaves_nothing_behind(tmp_path, changes, said):
    """The work folder was another config's, when the corrected command came."""
    with pytest.raises(ValueError, match=said):
        run(config(tmp_path, **changes))
    assert not list(tmp_path.iterdir())


def test_work_without_a_batch_is_nobodys(tmp_path, monkeypatch):
    """Where no process that was started apart may be sampling its first."""
    monkeypatch.setattr("experiments.rollout.roll", lambda *_: 1 / 0)
    for seed, hosts in ((0, 1), (1, 1), (2, 1), (2, 2)):
        with pytest.raises(ZeroDivisionError):
            run(config(tmp_path, seed=seed, hosts=hosts))
    with pytest.raises(ValueError, match=r"tiny.work is of another config \(.*seed was 2, is 3"):
        run(config(tmp_path, seed=3, hosts=2))


def test_another_count_is_another_corpus(tmp_path):
    """Said by the count alone: hashes of what was asked follow from it."""
    run(config(tmp_path, prompts=OwnText(count=2, max_user=4)))
    with pytest.raises(ValueError, match=r"\(recipe.config.prompts.count was 2, is 3\); a corpus is not extended"):
        run(config(tmp_path, prompts=OwnText(count=3, max_user=4)))


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"file/x cannot be written \(.*\); give --corpora a folder that can"):
        run(config(tmp_path / "file" / "x"))


def test_hosts_share_the_work(tmp_path):
    alone, _ = run(config(tmp_path / "alone"))
    first, printed = run(config(tmp_path, hosts=2, host=0))
    assert first is None and "by the last of the 2 to finish" in printed
    assert run(config(tmp_path, hosts=2, host=1))[0].identity == alone.identity


def test_the_target_may_write_both_sides(tmp_path):
    manifest, _ = run(config(tmp_path, prompts=OwnText(count=3, max_user=8), warp=Warp(0.5)))
    assert (manifest.documents + manifest.dropped, manifest.temperature) == (3, 0.5)


def test_given_conversations_are_of_no_target(tmp_path):
    chat = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "oh"}]
    (tmp_path / "x.jsonl").write_text(json.dumps({"text": "abc abc"}) + "\n")
    manifest, _ = run(config(tmp_path, prompts=Conversations(str(tmp_path / "x.jsonl"), longest=4)))
    assert (manifest.target_identity, manifest.temperature, manifest.supervised) == (None, None, 3)
    (tmp_path / "y.jsonl").write_text(json.dumps({"messages": chat}))
    manifest, _ = run(config(tmp_path, name="y", prompts=Conversations(str(tmp_path / "y.jsonl"))))
    assert (manifest.tokens, manifest.supervised) == (len("u hi. a oh. a "), len("oh. a ")), "no end token: all that follows"


def test_a_corpus_of_text_that_changed_since_is_refused(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('{"text": "abc abc"}\n')
    chosen = config(tmp_path, prompts=Conversations(str(path)))
    manifest, _ = run(chosen)
    assert run(chosen)[0] == manifest
    path.write_text('{"text": "abc abd"}\n')
    with pytest.raises(ValueError, match=r'tiny is of another config \(recipe.given was "sha256:.*", is "sha256:'):
        run(chosen)
    note = tmp_path / "tiny" / "manifest.json"
    old = json.loads(note.read_text())
    del old["recipe"]["given"]  # as corpora were noted that were made before text was hashed
    note.write_text(json.dumps(old))
    with pytest.raises(ValueError, match=r'recipe.given was null, is "sha256:.*take another --name, or remove the folder'):
        run(chosen)
    path.unlink()
    with pytest.raises(ValueError, match=r"x\.jsonl is not there"):
        run(chosen)


def test_a_corpus_of_a_dataset_that_was_prepared_anew_is_refused(tmp_path, monkeypatch):
    prepare(tmp_path / "data")
    chosen = config(tmp_path, prompts=Texts("some_texts", "train[:2]", data_dir=str(tmp_path / "data")))
    manifest, _ = run(chosen)
    assert run(chosen)[0] == manifest
    monkeypatch.setattr(SomeTexts, "TEXTS", ("ab", "cdf", "g"))
    shutil.rmtree(tmp_path / "data")
    prepare(tmp_path / "data")
    with pytest.raises(ValueError, match=r"recipe.given was"):
        run(chosen)


@pytest.mark.slow
def test_killed_twenty_times_it_makes_the_same_corpus(tmp_path):
    """At random moments of import, sampling and the final write."""
    struck = after_kills(tiny_rollout.__name__, tmp_path, 20, seed=0, log="tiny.work/*.jsonl")
    whole = open_corpus(struck.alone / "tiny").manifest
    assert whole.documents + whole.dropped == len(tiny_rollout.TEXTS)
    for folder in struck.ended:
        assert open_corpus(folder / "tiny").manifest.identity == whole.identity
        assert sorted(path.name for path in folder.iterdir()) == ["tiny", "tiny.work"]
    assert len(set(struck.at) - {0}) >= 3, "kills in the midst of the work"


def test_functions_of_the_standard_library():
    prompts = StandardLibrary(count=40).prompts()
    assert len({prompt.id for prompt in prompts}) == 40 and StandardLibrary(count=10, skip=5).prompts() == prompts[5:15]
    for prompt in prompts:
        assert "```python\ndef " in prompt.turns[0] and prompt.turns[0].endswith('    """\n```')


@pytest.mark.parametrize("path", config_files("rollout"), ids=lambda path: path.stem)
def test_every_config_says_its_command(path):
    module = load_file(path)
    assert f"--config configs/rollout/{path.name}" in module.__doc__
    options = ["--config", str(path), "--warp.temperature", "0.3", "--prompts.count", "7"]
    changed = parse(options, "rollout", "rollout", RolloutConfig)
    assert module.get_config().name == path.stem == changed.name
    assert (changed.warp.temperature, changed.prompts.count) == (0.3, 7)


@pytest.mark.parametrize(
    "options, words",
    [
        (
            ["--config", "configs/rollout/smollm2_prompts.py", "--prompts.file", "nowhere.jsonl"],
            "give the path of a JSONL file by",
        ),
        (["--config", "configs/decode/smollm2_humaneval.py"], "takes another kind, RolloutConfig"),
        (["--config", "configs/rollout/smollm2_own.py", "--hosts", "2", "--host", "2"], "host is 2 of 2 hosts"),
    ],
)
def test_mistakes_are_one_line(options, words, capsys, monkeypatch):
    monkeypatch.setattr("experiments.config.sdjax.load", lambda *_: model())
    with pytest.raises(SystemExit) as left:
        main(options)
    assert left.value.code == 2 and words in capsys.readouterr().err
