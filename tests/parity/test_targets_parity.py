"""Our models, checkpoints and tokenizers against transformers': the same numbers from the same weights, in both directions."""

import itertools
import json
import random
import unicodedata

import jax.numpy as jnp
import numpy as np
import pytest
from tokenizers import Regex
from tokenizers.pre_tokenizers import Split

import sdjax
from sdjax.core.cache import Staged, commit
from sdjax.targets.decoder import Decoder, causal_mask
from sdjax.targets.gguf_tokenizer import RULES
from sdjax.targets.huggingface import load_huggingface, save_huggingface
from sdjax.targets.load import PACKAGED, packaged_file
from sdjax.targets.tokenizer import load_tokenizer
from tests.targets.families import FAMILIES, assert_same, random_model, run

torch = pytest.importorskip("torch", reason="needs torch: install the extra `parity`")
transformers = pytest.importorskip("transformers", reason="needs transformers: install the extra `parity`")

pytestmark = pytest.mark.parity

LENGTHS = [50, 31, 44]  # longer than the windows and than YaRN's original context
FIRST = [23, 9, 1]  # how much of each is in the cache when the rest is run


def sequences(vocab: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, vocab, (len(LENGTHS), max(LENGTHS)), dtype=np.int32)


def theirs(folder, tokens: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    """Logits and hidden states of a ragged batch, padded on the right, from transformers."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    return forward(model, tokens)


def forward(model, tokens: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    present = np.arange(tokens.shape[1]) < np.array(LENGTHS)[:, None]
    with torch.no_grad():
        out = model(
            torch.tensor(tokens, dtype=torch.long),
            attention_mask=torch.tensor(present).long(),
            output_hidden_states=True,
            use_cache=False,
        )
    return out.logits.numpy(), [state.numpy() for state in out.hidden_states]


def ours_in_two_steps(target: Decoder, params, tokens: np.ndarray, taps) -> list[tuple[np.ndarray, np.ndarray]]:
    """Logits and features of the rest of each sequence, after a ragged first part was committed to the cache."""
    count = jnp.array(FIRST)
    first, rest = max(FIRST), max(n - k for n, k in zip(LENGTHS, FIRST, strict=True))
    positions = jnp.broadcast_to(jnp.arange(first), (len(LENGTHS), first))
    cache = target.empty_cache(len(LENGTHS), 64)
    out = target.forward(params, target.embed(params, tokens[:, :first]), positions, cache, causal_mask(first))
    assert isinstance(out.staged, Staged)
    cache = commit(cache, out.staged, positions, count)
    positions = count[:, None] + jnp.arange(rest)
    later = jnp.take_along_axis(jnp.asarray(tokens), jnp.minimum(positions, tokens.shape[1] - 1), 1)
    out = target.forward(params, target.embed(params, later), positions, cache, causal_mask(rest), taps=taps)
    logits, features = np.asarray(target.unembed(params, out.hidden)), np.asarray(out.features)
    kept = [n - k for n, k in zip(LENGTHS, FIRST, strict=True)]
    return [(logits[b, :n], features[b, :n]) for b, n in enumerate(kept)]


def assert_close(target: Decoder, params, tokens: np.ndarray, logits: np.ndarray, states: list[np.ndarray]) -> float:
    """Whole batch and two steps; taps are their hidden states, the last of which they norm. Returns the largest error."""
    taps = ("embed", *range(target.layers - 1), "final")
    whole, features = run(target, params, tokens, taps)
    again = ours_in_two_steps(target, params, tokens, taps)
    want = np.stack(states, 2)
    worst = 0.0
    for b, n in enumerate(LENGTHS):
        pairs = [(whole[b, :n], logits[b, :n]), (features[b, :n], want[b, :n])]
        pairs += [(again[b][0], logits[b, FIRST[b] : n]), (again[b][1], want[b, FIRST[b] : n])]
        worst = max(worst, *(float(np.abs(np.asarray(a) - np.asarray(b)).max()) for a, b in pairs))
    assert worst <= 1e-4
    return worst


@pytest.mark.parametrize("family", FAMILIES)
def test_saved_by_us_and_run_by_transformers(family, tmp_path, record_property):
    target, params = random_model(family)
    save_huggingface(tmp_path / "model", target, params)
    tokens = sequences(target.vocab)
    logits, states = theirs(tmp_path / "model", tokens)
    assert logits.std() > 0.5  # a comparison of zeros proves nothing
    worst = assert_close(target, params, tokens, logits, states)
    record_property("largest error", worst)
    print(f"\nours -> transformers, {family}: {worst:.1e}")


@pytest.mark.parametrize("shards", [False, True], ids=["one file", "shards"])
@pytest.mark.parametrize("family", FAMILIES)
def test_saved_by_transformers_and_run_by_us(family, shards, tmp_path, record_property):
    torch.manual_seed(0)
    kind = FAMILIES[family]["model_type"]
    (tmp_path / "config.json").write_text(json.dumps(FAMILIES[family]))
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    assert config.model_type == kind
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.2 if parameter.ndim > 1 else 1 + 0.3 * torch.randn_like(parameter))
    model.save_pretrained(tmp_path / "model", max_shard_size="20KB" if shards else "1GB")
    assert (tmp_path / "model" / "model.safetensors.index.json").exists() == shards
    target, params = load_huggingface(tmp_path / "model")
    tokens = sequences(target.vocab)
    logits, states = forward(model, tokens)
    worst = assert_close(target, params, tokens, logits, states)
    record_property("largest error", worst)
    print(f"\ntransformers -> ours, {family}: {worst:.1e}")


@pytest.mark.parametrize("family", ["llama3", "qwen2-sliding", "qwen3-sliding"])
def test_bfloat16_checkpoints_keep_their_bits(family, tmp_path):
    target, params = random_model(family, "bfloat16")
    save_huggingface(tmp_path / "ours", target, params)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours")
    assert model.dtype == torch.bfloat16
    model.save_pretrained(tmp_path / "theirs")
    again, loaded = load_huggingface(tmp_path / "theirs", "bfloat16")
    assert again == target
    assert_same(loaded, params)


@pytest.fixture(scope="module")
def smollm2():
    try:
        packaged_file(PACKAGED["smollm2-135m"])
    except ValueError as error:
        pytest.skip(str(error))
    return sdjax.load("smollm2-135m")


def their_smollm2(kind, **options):
    path = packaged_file(PACKAGED["smollm2-135m"])
    return kind.from_pretrained(path.parent, gguf_file=path.name, **options)


def widen(monkeypatch, model):
    """Their model in float64 throughout: its norms and rotary angles fall back to float32 by themselves."""
    from transformers.models.llama import modeling_llama as llama

    def norm(self, x):
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)

    def angles(self, x, position_ids):
        width, theta = model.config.head_dim, model.config.rope_parameters["rope_theta"]
        frequencies = theta ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
        turn = position_ids[:, :, None].double() * frequencies
        return torch.cat([turn, turn], -1).cos(), torch.cat([turn, turn], -1).sin()

    monkeypatch.setattr(llama.LlamaRMSNorm, "forward", norm)
    monkeypatch.setattr(llama.LlamaRotaryEmbedding, "forward", angles)
    return torch.nn.Module.double(model)  # the class of quantised checkpoints refuses the method


def test_smollm2_errs_no_more_than_transformers_does(smollm2, monkeypatch, record_property):
    """Against the same weights in float64: our float32 error is at most twice theirs, and no token changes."""
    talk = [{"role": "user", "content": "Write a Python function that returns the n-th Fibonacci number, and explain it."}]
    ids = smollm2.tokenizer.encode(smollm2.tokenizer.chat(talk) + "Here is a function:\n\ndef fibonacci(n: int) -> int:\n    ")
    ours = np.asarray(run(smollm2.target, smollm2.params, [ids])[0])[0]
    model = their_smollm2(transformers.AutoModelForCausalLM, dtype=torch.float32).eval()
    assert np.float32(model.config.rms_norm_eps) == np.float32(smollm2.target.norm_eps)
    with torch.no_grad():
        single = model(torch.tensor([ids])).logits[0].numpy()
        exact = widen(monkeypatch, model)(torch.tensor([ids])).logits[0].numpy()
    assert exact.dtype == np.float64
    errors = {name: np.abs(logits - exact) for name, logits in (("ours", ours), ("theirs", single))}
    for name, error in errors.items():
        record_property(name, (error.max(), error.mean()))
        print(f"\nSmolLM2 in float32 against float64, {name}: largest {error.max():.2e}, mean {error.mean():.2e}")
    assert errors["ours"].max() <= 2 * errors["theirs"].max()
    assert errors["ours"].mean() <= 2 * errors["theirs"].mean()
    assert (ours.argmax(-1) == exact.argmax(-1)).all()


def varied_texts(count: int) -> list[str]:
    """Words, code, numbers, white space, many scripts, special tokens: mixed by a fixed seed."""
    parts = [
        *"the quick brown fox it's I'll we've don't CamelCase snake_case 3.14 1234567 2024-05-01".split(),
        *"x=1; {} [] () // -> != :: \\ \" ' `".split(),
        *(" ", "  ", "\n", "\n\n", "\t", " \n ", "\r\n", "    ", "\u00a0", "\u3000"),
        *("naïve", "Straße", "ﬁ", "é", "e\u0301", "日本語", "한국어", "русский", "العربية", "हिन्दी", "ไทย"),
        *("😀", "👩\u200d👩\u200d👧", "🇫🇷", "½", "①", "٣", "\x00", "\ufffd", "def f(x):\n    return x"),
        *("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<repo_name>", "<|im_start"),
    ]
    rng = random.Random(0)
    return [rng.choice(["", " "]).join(rng.choices(parts, k=rng.randint(1, 30))) for _ in range(count)] + parts + [""]


def cut_at_numbers(place: tuple[int, str]) -> int:
    """A group of its own for each numeric character; -1 for the text between them."""
    return place[0] if unicodedata.category(place[1]).startswith("N") else -1


def test_tokenizer_of_the_gguf_file(smollm2):
    """Theirs overlooks that the file asks for single digits: it gets the text cut at every one of them."""
    reference = their_smollm2(transformers.AutoTokenizer)
    for text in varied_texts(400):
        pieces = ["".join(c for _, c in piece) for _, piece in itertools.groupby(enumerate(text), cut_at_numbers)]
        ids = [token for piece in pieces for token in reference.encode(piece, add_special_tokens=False)]
        assert smollm2.tokenizer.encode(text) == ids, repr(text)
        assert smollm2.tokenizer.decode(ids) == reference.decode(ids, clean_up_tokenization_spaces=False)


@pytest.mark.parametrize("pre", ["llama-bpe", "llama3", "llama-v3", "qwen2", "deepseek-r1-qwen"])
def test_words_are_cut_as_theirs(pre):
    mapping = pytest.importorskip("transformers.integrations.gguf.gguf_tokenizer_mapping")
    theirs = Split(Regex(mapping.GGUF_PRE_TOKENIZER_SPLITS[pre]), "isolated")
    ours = RULES[pre].split()
    for text in varied_texts(400):
        words = [span for _, span in theirs.pre_tokenize_str(text)]
        assert [span for _, span in ours.pre_tokenize_str(text)] == words, repr(text)


def test_a_saved_tokenizer_is_read_by_transformers(smollm2, tmp_path):
    smollm2.tokenizer.save(tmp_path)
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert all(smollm2.tokenizer.encode(text) == reference.encode(text) for text in varied_texts(100))
    assert (reference.eos_token_id, reference.bos_token_id) == (smollm2.tokenizer.eos, smollm2.tokenizer.bos)
    talk = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hé <b>there</b>\n"}]
    for prompt in (True, False):
        for messages in (talk, talk[1:]):
            want = reference.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt)
            assert smollm2.tokenizer.chat(messages, prompt) == want


TEMPLATES = [
    "{{ bos_token }}{% for m in messages %}\n{% if m.role == 'user' %}\n  [{{ m.content | trim }}]\n{% endif %}\n{%- endfor %}",
    "{% for m in messages %}{{ m | tojson }}{% if loop.last %}{% break %}{% endif %}{% endfor %}{{ tools is none }}",
    "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}{{ eos_token }}",
    "{{ messages | tojson(indent=2) }}{{ enable_thinking | default('unset') }}",
    "{% for m in messages %}{% generation %}{{ m['content'] }}{% endgeneration %}{% endfor %}",
]


@pytest.mark.parametrize("template", TEMPLATES)
def test_templates_render_as_in_transformers(template, smollm2, tmp_path):
    smollm2.tokenizer.save(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(template)
    reference, ours = transformers.AutoTokenizer.from_pretrained(tmp_path), load_tokenizer(tmp_path)
    talk = [{"role": "user", "content": " a <é>\n"}, {"role": "assistant", "content": "b"}]
    for variables in ({}, {"enable_thinking": False}):
        want = reference.apply_chat_template(talk, tokenize=False, add_generation_prompt=True, **variables)
        assert ours.chat(talk, **variables) == want
