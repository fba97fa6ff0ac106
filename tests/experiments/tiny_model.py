"""A tiny random model with a tokenizer of letters, and a comparison of three methods on it."""

import io
from functools import cache

import tokenizers
from rich.console import Console

from experiments.config import DecodeConfig
from experiments.decode import decode
from sdjax.drafters.ngram import NGram
from sdjax.drafters.no_draft import NoDraft
from sdjax.drafters.self_draft import SelfDraft
from sdjax.study.compare import Decoding
from sdjax.study.methods import Method, Sampling
from sdjax.study.prompts import Prompts, load_prompts
from sdjax.targets.load import Model
from sdjax.targets.tokenizer import Tokenizer
from sdjax.verify.token import TokenRejection
from tests.tiny import TARGET, target_params

LETTERS = "abcdefghijklmnopqrstuvwxyz .?"
TEMPLATE = "{% for m in messages %}{{ m.role[0] }} {{ m.content }}. {% endfor %}a "


@cache
def model() -> Model:
    words = tokenizers.models.WordLevel({letter: i for i, letter in enumerate(LETTERS)}, unk_token="?")
    backend = tokenizers.Tokenizer(words)
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex("."), "isolated")
    backend.decoder = tokenizers.decoders.Fuse()
    return Model("tiny", TARGET, target_params(), Tokenizer(backend, template=TEMPLATE), "sha256:tiny")


def config(folder, **changes) -> DecodeConfig:
    fields = {
        "name": "tiny",
        "runs": str(folder),
        "prompts": Prompts(text=("hello hello hel", "abc abc abc", "what is it?")),
        "rule": Sampling(temperature=(0.0, 1.0)),
        "decode": Decoding(max_new=12, chunk=16, costs=False),
        "methods": {
            "plain": Method(NoDraft()),
            "lookup": Method(NGram(length=3)),
            "sampled": Method(SelfDraft(layers=1, length=2), rule=TokenRejection(), greedy=False),
        },
    }
    return DecodeConfig(**(fields | changes))


def run(config: DecodeConfig) -> tuple[int, str]:
    """Runs the comparison; its exit code and what it printed."""
    printed = io.StringIO()
    code = decode(config, load_prompts(config.prompts), model(), Console(file=printed, width=200))
    return code, printed.getvalue()
