"""A corpus comes back as it was written or not at all; masks cover what the assistant says and nothing else."""

import json
import sys
from dataclasses import replace

import numpy as np
import pytest
import tensorflow_datasets as tfds
import tokenizers
from array_record.python.array_record_module import ArrayRecordReader
from hypothesis import given
from hypothesis import strategies as st
from tensorflow_datasets.proto import tf_example_pb2

from sdjax.targets.load import Model
from sdjax.targets.tokenizer import Tokenizer
from sdjax.train.builder import NAME, SPLIT, VERSION
from sdjax.train.conversations import conversation, plain_text, read_conversations, read_tfds
from sdjax.train.corpus import Origin, check_target, open_corpus, write_corpus
from sdjax.train.data import batches, token_counts
from sdjax.train.documents import Document, windows
from tests.train.texts import ORIGIN, document, documents, prepare, same, spaced_tokenizer

CHATML = (
    "{% for m in messages %}<s>{{ m.role }}\n{{ m.content }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)
# Like Qwen3's: what the assistant thought is shown in the last turn only.
FORGETFUL = (
    "{% for m in messages %}<s>{{ m.role }}\n{% if loop.last %}{{ m.thought }}{% endif %}{{ m.content }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)
CHAT = [{"role": r, "content": c} for r, c in (("system", "be nice"), ("user", "hi"), ("assistant", "oh"), ("user", "so?"))]
CHAT.append({"role": "assistant", "content": "yes yes"})


def tokenizer(template=CHATML):
    """A token a character; <s> begins a turn, </s> ends it."""
    vocab = {"<s>": 0, "</s>": 1} | {chr(c): i for i, c in enumerate([10, *range(32, 127)], 2)}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, unk_token="?"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex(r"[\s\S]"), "isolated")
    backend.decoder = tokenizers.decoders.Fuse()
    backend.add_special_tokens(["<s>", "</s>"])
    return Tokenizer(backend, stops=(1,), template=template)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A corpus of twenty documents, and these."""
    folder = tmp_path_factory.mktemp("corpora") / "twenty"
    made = documents(20)
    write_corpus(folder, made, ORIGIN)
    return folder, made


@pytest.fixture
def copy(written, tmp_path):
    """A fresh copy of it."""
    write_corpus(tmp_path / "copy", written[1], ORIGIN)
    return tmp_path / "copy"


def test_round_trip(written):
    folder, made = written
    corpus = open_corpus(folder)
    assert len(corpus) == 20 and all(map(same, corpus, made))
    assert same(corpus[-1], made[-1]) and all(map(same, corpus[3:7], made[3:7]))
    assert corpus[0].tokens.dtype == np.int32 and corpus[0].loss_mask.dtype == bool
    manifest = corpus.manifest
    assert Origin(**{key: getattr(manifest, key) for key in vars(ORIGIN)}) == ORIGIN
    assert manifest.tokens == sum(len(d.tokens) for d in made)
    assert manifest.supervised == sum(d.supervised for d in made) == token_counts([corpus], 1000).sum()
    with pytest.raises(IndexError):
        corpus[20]


def test_the_same_documents_are_the_same_bytes(written, copy):
    assert open_corpus(copy).manifest.identity == open_corpus(written[0]).manifest.identity


def test_records_do_not_depend_on_the_process(written):
    """protobuf keeps a map's entries in an order of the process's own, unless told otherwise."""
    (shard,) = (written[0] / NAME / VERSION).glob("*.array_record*")
    for record in ArrayRecordReader(str(shard)).read_all():
        assert record == tf_example_pb2.Example.FromString(record).SerializeToString(deterministic=True)


def test_tfds_opens_it(written):
    folder, made = written
    opened = [
        tfds.data_source(NAME, data_dir=folder, split=SPLIT),
        tfds.builder_from_directory(folder / NAME / VERSION).as_data_source(SPLIT),
    ]
    for source in opened:
        assert [row["tokens"].tolist() for row in source] == [d.tokens.tolist() for d in made]
    info = tfds.builder_from_directory(folder / NAME / VERSION).info
    assert info.metadata["target_identity"] == ORIGIN.target_identity and info.metadata["seed"] == ORIGIN.seed


def test_tensorflow_is_never_imported(written):
    next(batches([open_corpus(written[0])], 1, 16, 0))
    assert not {"tensorflow", "torch"} & sys.modules.keys()


def files(folder):
    return sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file() and path.name != "manifest.json")


@pytest.mark.parametrize("which", range(4))
def test_a_damaged_file_is_named(copy, which):
    path = copy / files(copy)[which]
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"{path.name} is damaged.*make it again"):
        open_corpus(copy)


def test_a_half_written_folder_is_refused(copy):
    shard = next(path for path in files(copy) if "array_record" in path.name)
    (copy / shard).write_bytes((copy / shard).read_bytes()[:1000])
    with pytest.raises(ValueError, match=r"array_record.* is damaged"):
        open_corpus(copy)
    (copy / shard).unlink()
    with pytest.raises(ValueError, match=r"array_record.* is missing; the corpus is incomplete"):
        open_corpus(copy)
    (copy / "manifest.json").write_text('{"tokens": ')
    with pytest.raises(ValueError, match=r"manifest\.json is damaged"):
        open_corpus(copy)
    (copy / "manifest.json").unlink()
    with pytest.raises(ValueError, match=r"is no corpus \(.*manifest\.json is missing\)"):
        open_corpus(copy)
    with pytest.raises(ValueError, match="is not there"):
        open_corpus(copy / "nowhere")


def test_nothing_remains_of_a_write_that_failed(tmp_path):
    def broken():
        yield document(2, 2)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_corpus(tmp_path / "c", broken(), ORIGIN)
    assert not list(tmp_path.iterdir())


def test_a_bad_line_is_named_and_nothing_remains(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"text": "abc"}\n{"text": "abc"}\n{')
    with pytest.raises(ValueError, match=r"x.jsonl, line 3: not JSON"):
        write_corpus(tmp_path / "c", read_conversations(tmp_path / "x.jsonl", tokenizer()), ORIGIN)
    assert [p.name for p in tmp_path.iterdir()] == ["x.jsonl"]


def test_leftovers_of_a_killed_write_do_no_harm(tmp_path):
    (tmp_path / ".c.part0" / NAME / VERSION).mkdir(parents=True)
    (tmp_path / ".c.part0" / NAME / VERSION / "dataset_info.json").write_text("{")
    write_corpus(tmp_path / "c", [document(2, 2)], ORIGIN)
    assert len(open_corpus(tmp_path / "c")) == 1 and [p.name for p in tmp_path.iterdir()] == ["c"]


def test_a_corpus_is_never_overwritten(copy):
    with pytest.raises(ValueError, match="exists already"):
        write_corpus(copy, [document(2, 2)], ORIGIN)


def test_documents_without_supervision_are_counted_out(tmp_path):
    manifest = write_corpus(tmp_path / "c", [document(3, 0), document(2, 2), document(1, 0)], ORIGIN)
    assert (manifest.documents, manifest.dropped) == (1, 2)
    for nothing in ([], [document(3, 0)]):
        with pytest.raises(ValueError, match="none has a supervised token"):
            write_corpus(tmp_path / "d", nothing, ORIGIN)
    assert [p.name for p in tmp_path.iterdir()] == ["c"]


def test_a_corpus_that_lost_its_supervision_is_refused(written):
    corpus = open_corpus(written[0])
    corpus.manifest = replace(corpus.manifest, supervised=0)
    with pytest.raises(ValueError, match="no supervised token"):
        batches([corpus], 1, 8, 0)


def test_truncation_keeps_supervision(tmp_path):
    write_corpus(tmp_path / "c", [document(30, 3), document(2, 30)], ORIGIN, longest=10)
    first, second = open_corpus(tmp_path / "c")
    assert first.tokens.tolist() == list(range(23, 33)) and first.supervised == 3
    assert second.tokens.tolist() == list(range(22, 32)) and second.supervised == 9


@given(st.lists(st.booleans(), min_size=1, max_size=40), st.integers(2, 12))
def test_windows_supervise_each_token_once_and_in_context(mask, length):
    mask = [False, *mask]
    whole = Document(np.arange(len(mask), dtype=np.int32), np.array(mask), "d", "s")
    pieces = windows(whole, length)
    learnt = [token for piece in pieces for token in piece.tokens[piece.loss_mask].tolist()]
    assert learnt == np.flatnonzero(mask).tolist()
    for piece in pieces:
        assert len(piece.tokens) <= length and piece.supervised
        assert np.array_equal(piece.tokens, np.arange(piece.tokens[0], piece.tokens[-1] + 1))
    if pieces and len(mask) > length:
        assert all(len(piece.tokens) == length or piece.tokens[0] == 0 for piece in pieces)
    if len(mask) <= length and pieces:
        assert same(pieces[0], whole)


def test_the_mask_is_what_the_assistant_says():
    t = tokenizer()
    d = conversation(t, CHAT, "c", "s")
    assert t.decode(d.tokens) == t.chat(CHAT, add_generation_prompt=False)
    assert t.decode(d.tokens[d.loss_mask]) == "oh</s>yes yes</s>"
    served = t.encode(t.chat(CHAT[:2], add_generation_prompt=True))
    assert d.tokens[: len(served)].tolist() == served and not d.loss_mask[: len(served)].any()


def test_a_template_that_forgets_is_an_error():
    forgetful = [m | ({"thought": "hm "} if m["role"] == "assistant" else {}) for m in CHAT]
    t = tokenizer(FORGETFUL)
    with pytest.raises(ValueError, match="renders its first 3 messages otherwise"):
        conversation(t, forgetful, "c", "s")
    assert t.decode((d := conversation(t, forgetful[:3], "c", "s")).tokens[d.loss_mask]) == "hm oh</s>"


# Like Llama 2's, but for the `end` of the prompt.
INST = (
    "{{{{ bos_token }}}}{{% for m in messages %}}{{% if m.role == 'user' %}}[INST] {{{{ m.content }}}} [/INST]{end}"
    "{{% else %}}{answer}{{{{ m.content }}}}{{{{ eos_token }}}}{{% endif %}}{{% endfor %}}"
)
SPACED = [{"role": r, "content": c} for r, c in (("user", "yo"), ("assistant", "hi"), ("user", "hi"), ("assistant", "yo hi"))]


def test_a_tokenizer_that_marks_beginnings_marks_none_within_a_conversation():
    t = spaced_tokenizer(INST.format(end="", answer=" "))
    d = conversation(t, SPACED, "c", "s")
    assert d.tokens.tolist() == t.encode(t.chat(SPACED, add_generation_prompt=False))
    learnt = [t.backend.id_to_token(token) for token in d.tokens[d.loss_mask]]
    assert learnt == ["▁hi", "</s>", "▁yo", "▁hi", "</s>"]
    served = t.encode(t.chat(SPACED[:3]))
    assert d.tokens[: len(served)].tolist() == served


def test_a_prompt_whose_last_token_the_answer_joins_is_an_error_where_beginnings_are_marked():
    t = spaced_tokenizer(INST.format(end=" ", answer=""))
    with pytest.raises(ValueError, match=r"conversation c: .* one token.* take a template"):
        conversation(t, SPACED, "c", "s")


def test_an_answer_that_would_join_the_prompts_last_token_stays_apart():
    """A served model has the prompt's own tokens before it, and goes on from these."""
    t = tokenizer()
    vocab = t.backend.get_vocab() | {"\n\n": 200}
    t.backend.model = tokenizers.models.WordLevel(vocab, unk_token="?")
    t.backend.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex(r"\n\n|[\s\S]"), "isolated")
    chat = [CHAT[1], {"role": "assistant", "content": "\noh"}]
    served, d = t.encode(t.chat(chat[:1])), conversation(t, chat, "c", "s")
    assert 200 in t.encode(t.chat(chat)) and 200 not in d.tokens
    assert d.tokens[: len(served)].tolist() == served and t.decode(d.tokens[d.loss_mask]) == "\noh</s>"


def test_plain_text_is_supervised_but_for_its_first_token():
    assert plain_text(tokenizer(), "abc", "d", "s").loss_mask.tolist() == [False, True, True]
    with pytest.raises(ValueError, match="supervises its first token"):
        Document(np.zeros(2, np.int32), np.ones(2, bool), "d", "s")


def test_conversations_from_a_file(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text("\n".join(map(json.dumps, [{"messages": CHAT, "id": 7, "source": "mine"}, {"text": "abc"}])) + "\n")
    first, second = read_conversations(path, tokenizer())
    assert (first.id, first.source, second.id) == ("7", "mine", "x/2")
    for line, words in (("{", "not JSON"), ('{"a": 1}', "neither"), ('{"messages": []}', "non-empty list")):
        path.write_text(line)
        with pytest.raises(ValueError, match=f"line 1.*{words}"):
            list(read_conversations(path, tokenizer()))
    with pytest.raises(ValueError, match="is not there"):
        list(read_conversations(tmp_path / "nowhere", tokenizer()))


def test_texts_of_tfds(tmp_path):
    prepare(tmp_path)
    t = tokenizer()
    found = list(read_tfds("some_texts", "train", "text", t, str(tmp_path)))
    assert {"ab", "cde"} < {t.decode(d.tokens) for d in found} and {d.source for d in found} == {"some_texts"}
    with pytest.raises(ValueError, match="no column 'words'; it has text"):
        list(read_tfds("some_texts", "train", "words", t, str(tmp_path)))
    with pytest.raises(ValueError, match="cannot open 'other_texts'"):
        list(read_tfds("other_texts", "train", "text", t, str(tmp_path)))


def test_a_corpus_of_another_model_is_refused(tmp_path):
    t = tokenizer()
    model = Model("mine", None, None, t, "sha256:mine")
    origin = Origin.of(model, 0.0, 0)
    for name, o in [("own", origin), ("given", Origin.of(model, None, 0)), ("other", replace(origin, target_identity="x"))]:
        write_corpus(tmp_path / name, [document(2, 2)], o)
    check_target([open_corpus(tmp_path / name) for name in ("own", "given")], model)
    with pytest.raises(ValueError, match=r"other was sampled by another target \(x\)"):
        check_target([open_corpus(tmp_path / "other")], model)
    with pytest.raises(ValueError, match="another tokenizer"):
        check_target([open_corpus(tmp_path / "own")], model._replace(tokenizer=tokenizer(FORGETFUL)))


def test_counts_beyond_the_vocabulary_are_refused(written):
    with pytest.raises(ValueError, match="beyond"):
        token_counts([open_corpus(written[0])], 10)
