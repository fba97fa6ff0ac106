"""The tokenizer inside a GGUF file: byte-level BPE, rebuilt from its vocabulary, merges and the name of its pre-tokenizer."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import tokenizers
from gguf import TokenType
from tokenizers import AddedToken, Regex, decoders, normalizers
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Sequence, Split

from sdjax.targets.gguf_file import GgufFile
from sdjax.targets.tokenizer import Tokenizer, stop_ids


def _split(digits: str) -> Callable[[], PreTokenizer]:
    """The pattern of Llama 3 and Qwen2, which differ in how many digits make a word."""
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
        + digits
        + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    return lambda: Sequence([Split(Regex(pattern), "isolated"), ByteLevel(add_prefix_space=False, use_regex=False)])


@dataclass(frozen=True)
class Rules:
    """What the name of a pre-tokenizer stands for."""

    split: Callable[[], PreTokenizer]
    whole_words: bool = False  # a word that is a token is not built from merges
    compose: bool = False  # Unicode NFC first
    adds_bos: bool = False  # unless the file says otherwise


GPT2 = Rules(lambda: ByteLevel(add_prefix_space=False))
SMOLLM = Rules(lambda: Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)]))
LLAMA3 = Rules(_split(r"\p{N}{1,3}"), whole_words=True, adds_bos=True)
QWEN2 = Rules(_split(r"\p{N}"), compose=True)
RULES = {
    "gpt-2": GPT2,
    "smollm": SMOLLM,
    "llama-bpe": LLAMA3,
    "llama3": LLAMA3,
    "llama-v3": LLAMA3,
    "qwen2": QWEN2,
    "deepseek-r1-qwen": QWEN2,
}
IDS = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
ENDS = ("eos", "eot", "eom")


def tokenizer_from_gguf(file: GgufFile) -> Tokenizer:
    """The tokenizer and chat template of a file. ValueError names the file and what is missing, damaged or not supported."""
    rules = _rules(file)
    backend = _backend(file, rules)
    ids = {role: token for role in IDS if (token := _id(file, backend, IDS[role])) is not None}
    return Tokenizer(
        backend=backend,
        bos=ids.get("bos_token"),
        eos=ids.get("eos_token"),
        stops=stop_ids(backend, [_id(file, backend, name) for name in ENDS], file.path),
        adds_bos=file.get("tokenizer.ggml.add_bos_token", bool, rules.adds_bos) and "bos_token" in ids,
        special={role: str(backend.id_to_token(token)) for role, token in ids.items()},
        template=file.get("tokenizer.chat_template", str, None),
    )


def _rules(file: GgufFile) -> Rules:
    model = file.get("tokenizer.ggml.model", str)
    if model != "gpt2":
        raise ValueError(
            f"{file.path}: tokenizer model {model!r} is not supported, only byte-level BPE ('gpt2'); "
            "load the model's Hugging Face folder, which has a tokenizer.json"
        )
    name = file.get("tokenizer.ggml.pre", str)
    if name not in RULES:
        raise ValueError(f"{file.path}: pre-tokenizer {name!r} is not supported; known: {', '.join(RULES)}")
    return RULES[name]


def _backend(file: GgufFile, rules: Rules) -> tokenizers.Tokenizer:
    tokens = file.get("tokenizer.ggml.tokens", list)
    merges = [tuple(merge.split(" ", 1)) for merge in file.get("tokenizer.ggml.merges", list)]
    vocab = {token: i for i, token in enumerate(tokens)}
    if len(vocab) != len(tokens):
        raise ValueError(f"{file.path}: {len(tokens) - len(vocab)} tokens of its vocabulary stand there twice; fetch it again")
    try:
        backend = tokenizers.Tokenizer(BPE(vocab, merges, ignore_merges=rules.whole_words))
    except Exception as error:  # the package raises bare Exceptions
        raise ValueError(f"{file.path}: vocabulary and merges do not fit together ({error}); fetch it again") from error
    if rules.compose:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = rules.split()
    backend.decoder = decoders.ByteLevel()
    _add_special(file, backend, vocab)
    return backend


def _add_special(file: GgufFile, backend: tokenizers.Tokenizer, vocab: Mapping[str, int]) -> None:
    """Tokens that are matched in the text as they stand, before anything is split."""
    kinds = file.get("tokenizer.ggml.token_type", list, [TokenType.NORMAL] * len(vocab))
    if len(kinds) != len(vocab):
        raise ValueError(f"{file.path}: {len(kinds)} token types for {len(vocab)} tokens; fetch it again")
    marked = {TokenType.CONTROL: True, TokenType.USER_DEFINED: False}
    added = [
        AddedToken(text, special=marked[kind], normalized=False)
        for text, kind in zip(vocab, kinds, strict=True)
        if kind in marked
    ]
    backend.add_tokens([token for token in added if token.content])


def _id(file: GgufFile, backend: tokenizers.Tokenizer, name: str) -> int | None:
    token = file.get(f"tokenizer.ggml.{name}_token_id", int, None)
    if token is not None and backend.id_to_token(token) is None:
        raise ValueError(
            f"{file.path}: tokenizer.ggml.{name}_token_id is {token}, outside its vocabulary of {backend.get_vocab_size()}"
        )
    return token
