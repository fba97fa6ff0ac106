"""Tokenizers from both formats, chat templates in their sandbox, and text that streams in whole characters."""

import json

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from sdjax.targets.chat import render
from sdjax.targets.gguf_file import open_gguf
from sdjax.targets.gguf_tokenizer import RULES, tokenizer_from_gguf
from sdjax.targets.tokenizer import TextStream, Tokenizer, load_tokenizer
from tests.targets.gguf_files import MERGES, TOKENS, tokenizer_metadata, write_gguf

TALK = [{"role": "user", "content": "hello"}]
TEXTS = ["hello world", "héllo  wörld\n\n", "日本語 😀", "a1b23", "", " ", "<|im_start|>user\nhello<|im_end|>", "it's<tool>x"]


def from_gguf(folder, **changes) -> Tokenizer:
    values = tokenizer_metadata() | changes
    values = {key: value for key, value in values.items() if value is not None}
    return tokenizer_from_gguf(open_gguf(write_gguf(folder / "t.gguf", "llama", values, {})))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return from_gguf(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture
def folder(tokenizer, tmp_path):
    tokenizer.save(tmp_path)
    return tmp_path


@pytest.mark.parametrize("text", TEXTS)
def test_text_comes_back(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_merges_specials_and_single_digits(tokenizer):
    def pieces(text):
        return [TOKENS[i] for i in tokenizer.encode(text)]

    assert pieces("hello world") == ["hello", "Ġworld"]
    assert pieces("<|im_start|>hello<tool><|im_end|>") == ["<|im_start|>", "hello", "<tool>", "<|im_end|>"]
    assert pieces("12 3") == ["1", "2", "Ġ", "3"]
    assert tokenizer.decode([1, *tokenizer.encode("hello"), 2], skip_special=True) == "hello"
    assert (tokenizer.bos, tokenizer.eos, tokenizer.stops, tokenizer.size) == (1, 2, (0, 2), len(TOKENS))


@pytest.mark.parametrize("pre", RULES)
def test_every_known_pre_tokenizer_keeps_all_text(pre, tmp_path):
    tokenizer = from_gguf(tmp_path, **{"tokenizer.ggml.pre": pre})
    for text in TEXTS:
        assert tokenizer.decode(tokenizer.encode(text, add_bos=False)) == text


def test_the_beginning_is_marked_once(tokenizer, tmp_path):
    assert tokenizer.encode("hello")[0] != tokenizer.bos
    assert tokenizer.encode("hello", add_bos=True)[0] == tokenizer.bos
    marking = from_gguf(tmp_path, **{"tokenizer.ggml.add_bos_token": True})
    assert marking.encode("hello") == [1, *tokenizer.encode("hello")]
    assert marking.encode("<|im_start|>hello") == marking.encode("hello")
    assert marking.encode("hello", add_bos=False) == tokenizer.encode("hello")
    nothing = from_gguf(tmp_path, **{"tokenizer.ggml.bos_token_id": None})
    with pytest.raises(ValueError, match="no beginning-of-sequence"):
        nothing.encode("hello", add_bos=True)


def test_declared_ends_are_stops(tmp_path):
    assert from_gguf(tmp_path, **{"tokenizer.ggml.eot_token_id": 3}).stops == (0, 2, 3)
    with pytest.raises(ValueError, match=r"t\.gguf: tokenizer\.ggml\.eot_token_id is 999"):
        from_gguf(tmp_path, **{"tokenizer.ggml.eot_token_id": 999})


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"tokenizer.ggml.pre": "tekken"}, "pre-tokenizer 'tekken' is not supported; known: gpt-2, smollm"),
        ({"tokenizer.ggml.pre": None}, r"tokenizer\.ggml\.pre is missing"),
        ({"tokenizer.ggml.model": "llama"}, "only byte-level BPE"),
        ({"tokenizer.ggml.tokens": [*TOKENS[:-1], "a"]}, "twice"),
        ({"tokenizer.ggml.merges": [*MERGES, "x y"]}, "do not fit together"),
        ({"tokenizer.ggml.merges": [*MERGES, "xy"]}, "do not fit together"),
        ({"tokenizer.ggml.token_type": [1, 1]}, "2 token types"),
        ({"tokenizer.chat_template": 3}, "chat_template"),
    ],
)
def test_what_a_gguf_file_lacks_is_named(changes, named, tmp_path):
    with pytest.raises(ValueError, match=named) as error:
        from_gguf(tmp_path, **changes)
    assert "t.gguf" in str(error.value)


def test_a_saved_tokenizer_is_the_same(tokenizer, folder):
    again = load_tokenizer(folder)
    assert again.identity == tokenizer.identity
    for name in ("bos", "eos", "stops", "adds_bos", "special", "template", "size"):
        assert getattr(again, name) == getattr(tokenizer, name)
    assert all(again.encode(text) == tokenizer.encode(text) for text in TEXTS)


def test_a_saved_tokenizer_marks_the_beginning_as_before(tokenizer, tmp_path):
    marking = from_gguf(tmp_path, **{"tokenizer.ggml.add_bos_token": True})
    marking.save(tmp_path)
    again = load_tokenizer(tmp_path)
    assert again.adds_bos and all(again.encode(text) == marking.encode(text) for text in TEXTS)
    assert again.identity == marking.identity != tokenizer.identity, "they give other ids"
    again.save(tmp_path)
    assert load_tokenizer(tmp_path).identity == marking.identity


def test_post_processing_says_whether_the_beginning_is_marked(folder):
    backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    backend.post_processor = tokenizers.processors.TemplateProcessing("<|im_start|> $A", special_tokens=[("<|im_start|>", 1)])
    backend.save(str(folder / "tokenizer.json"))
    assert load_tokenizer(folder).adds_bos
    assert load_tokenizer(folder).encode("hello")[0] == 1


def test_settings_in_all_the_places_where_they_are_kept(folder):
    (folder / "chat_template.jinja").unlink()
    (folder / "generation_config.json").write_text('{"eos_token_id": [2, 3]}')
    (folder / "config.json").write_text('{"eos_token_id": 7}')
    settings = {
        "eos_token": {"content": "<|im_end|>"},
        "bos_token": None,
        "chat_template": [{"name": "default", "template": "hi"}],
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    loaded = load_tokenizer(folder)
    assert (loaded.bos, loaded.eos, loaded.stops, loaded.template) == (None, 2, (0, 2, 3, 7), "hi")


@pytest.mark.parametrize(
    ("file", "content", "named"),
    [
        ("tokenizer.json", "{", "not a valid tokenizer.json"),
        ("tokenizer.json", None, "no such file"),
        ("tokenizer_config.json", "[", "not valid JSON"),
        ("tokenizer_config.json", '{"eos_token": "<eos>"}', "<eos>"),
        ("generation_config.json", '{"eos_token_id": 999}', "999"),
        ("generation_config.json", '{"eos_token_id": "two"}', "two"),
    ],
)
def test_damaged_files_are_named(folder, file, content, named):
    (folder / file).unlink()
    if content is not None:
        (folder / file).write_text(content)
    with pytest.raises(ValueError, match=named) as error:
        load_tokenizer(folder)
    assert str(folder) in str(error.value)


def test_chat(tokenizer):
    assert tokenizer.chat(TALK) == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.chat(TALK, add_generation_prompt=False) == "<|im_start|>user\nhello<|im_end|>\n"
    assert tokenizer.encode(tokenizer.chat(TALK))[0] == 1
    with pytest.raises(ValueError, match="no chat template"):
        Tokenizer(tokenizer.backend).chat(TALK)


@pytest.mark.parametrize(
    "messages", [[], "hello", {"role": "user"}, [{"content": "x"}], ["hello"], [{"role": 3, "content": "x"}]]
)
def test_malformed_messages(tokenizer, messages):
    with pytest.raises(ValueError, match="message"):
        tokenizer.chat(messages)


def test_templates_find_the_helpers_they_expect():
    def text(template, **variables):
        return render(template, TALK, variables)

    assert text("{{ messages | tojson }}") == '[{"role": "user", "content": "hello"}]'
    assert text("{{ x | tojson(indent=1) }}", x={"é": "<"}) == '{\n "é": "<"\n}'
    assert (
        text("{% for m in messages %}\n  {% if true %}\n{{ m.role }}\n  {% break %}\n  {% endif %}\n{% endfor %}") == "user\n"
    )
    assert text("a{% generation %}{{ messages[0].content }}{% endgeneration %}b") == "ahellob"


def test_a_prompt_is_the_same_on_every_day():
    """Llama 3.2's system turn: it takes the clock where there is one, and its own default where there is none."""
    dated = (
        "{% if not date_string is defined %}{% if strftime_now is defined %}{% set date_string = strftime_now('%d %b %Y') %}"
        "{% else %}{% set date_string = '26 Jul 2024' %}{% endif %}{% endif %}Today Date: {{ date_string }}"
    )
    assert render(dated, TALK, {}) == "Today Date: 26 Jul 2024"
    assert render(dated, TALK, {"date_string": "1 Jan 2026"}) == "Today Date: 1 Jan 2026"
    assert render("{{ strftime_now('%H:%M') }}", TALK, {}) == "00:00"


@pytest.mark.parametrize(
    ("template", "named"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages.append(1) }}", "cannot render"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "cannot render"),
        ("{{ nothing.at.all }}", "cannot render"),
        ("{% for %}", "no valid Jinja"),
    ],
)
def test_templates_that_fail_say_so(template, named):
    with pytest.raises(ValueError, match=named):
        render(template, TALK, {})


@given(data=st.data())
def test_a_stream_is_the_whole_text_in_whole_characters(tokenizer, data):
    token = st.integers(0, len(TOKENS) - 1)
    ids = data.draw(st.lists(token, max_size=24) | st.text(max_size=12).map(tokenizer.encode))
    stream, shown = TextStream(tokenizer, skip_special=False), []
    while ids[sum(map(len, shown)) :]:
        done = sum(map(len, shown))
        shown.append(ids[done : done + data.draw(st.integers(1, 4))])
    parts = [stream.push(part) for part in shown]
    assert "".join(parts) + stream.flush() == tokenizer.decode(ids)
    assert stream.flush() == ""


@given(st.text(alphabet="aé日😀", min_size=1, max_size=8))
def test_half_a_character_is_never_shown(tokenizer, text):
    stream, seen = TextStream(tokenizer), ""
    for token in tokenizer.encode(text):
        seen += stream.push([token])
        assert text.startswith(seen)
    assert seen == text
