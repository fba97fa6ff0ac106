"""Text to token ids and back, chat templates, and decoding for a terminal while tokens arrive."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers.processors import TemplateProcessing

from sdjax.targets.chat import Message, render
from sdjax.targets.huggingface import read_json

# Tokens that end a turn or a document, in the families supported here; where a vocabulary has one as a special token,
# generation stops at it, even if the checkpoint's own settings name another alone.
ENDS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|endoftext|>", "</s>")
ROLES = ("bos_token", "eos_token", "unk_token", "pad_token")
BROKEN = "\ufffd"  # what decoding shows for bytes that are no character, or not yet


@dataclass(frozen=True, eq=False)
class Tokenizer:
    """A vocabulary with its rules.

    `stops` are the ids that end generation; `adds_bos` says whether the model was trained with `bos` before each text;
    `special` names the special tokens that templates read (`bos_token`, …); `template` is None for a model without chat.
    """

    backend: tokenizers.Tokenizer = field(repr=False)
    bos: int | None = None
    eos: int | None = None
    stops: tuple[int, ...] = ()
    adds_bos: bool = False
    special: Mapping[str, str] = field(default_factory=dict)
    template: str | None = field(default=None, repr=False)

    @property
    def size(self) -> int:
        """One more than the largest id. A model's vocabulary may be larger: it is often padded."""
        return max(self.backend.get_vocab(with_added_tokens=True).values()) + 1

    @property
    def identity(self) -> str:
        """SHA-256 of vocabulary, rules and template: two tokenizers with the same identity give the same ids.

        What `stops` decide is another matter: settings of generation change them.
        """
        return hashlib.sha256((self._kept().to_str() + (self.template or "")).encode()).hexdigest()

    def encode(self, text: str, add_bos: bool | None = None) -> list[int]:
        """Token ids; special tokens written out in `text` become their ids.

        `add_bos` None puts `bos` first if the model expects it and `text` (say, a rendered chat) has it not already.
        """
        ids = self.backend.encode(text, add_special_tokens=False).ids
        if add_bos is None:
            add_bos = self.adds_bos and ids[:1] != [self.bos]
        if not add_bos:
            return ids
        if self.bos is None:
            raise ValueError("add_bos is true, but this tokenizer has no beginning-of-sequence token; use add_bos=False")
        return [self.bos, *ids]

    def pieces(self, text: str, cuts: Sequence[int]) -> list[list[int]] | None:
        """The ids of `text`, parted at the places `cuts`; None where a token would reach over one.

        Up to each cut they are what the text's beginning encodes to by itself, as a prompt that ends there does.
        """
        ids, heads = self.encode(text), [self.encode(text[:cut]) for cut in cuts]
        if any(ids[: len(head)] != head for head in heads):
            return None
        return [ids[start:stop] for start, stop in pairwise([0, *map(len, heads), len(ids)])]

    def decode(self, ids: Iterable[int], skip_special: bool = False) -> str:
        """Text of the ids; bytes that form no character show as U+FFFD."""
        return self.backend.decode([int(i) for i in ids], skip_special_tokens=skip_special)

    def chat(self, messages: Sequence[Message], add_generation_prompt: bool = True, **variables: Any) -> str:
        """The conversation in the model's format, ready for `encode`; `variables` reach the template (enable_thinking, tools).

        Where the template asks for today's date it gets `TODAY` of sdjax.targets.chat, so that its ids never change.

        ValueError if the model has no chat template, messages are malformed, or the template refuses them.
        """
        if self.template is None:
            raise ValueError("this model has no chat template; give plain text to encode() instead")
        given = {"tools": None, "documents": None, **self.special, **variables}
        return render(self.template, messages, given | {"add_generation_prompt": add_generation_prompt})

    def save(self, folder: str | Path) -> None:
        """Writes tokenizer.json, tokenizer_config.json, generation_config.json and chat_template.jinja into a folder."""
        folder = Path(folder)
        settings = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **self.special}
        files = {
            "tokenizer.json": self._kept().to_str(pretty=True),
            "tokenizer_config.json": json.dumps(settings, indent=2),
            "generation_config.json": json.dumps({"bos_token_id": self.bos, "eos_token_id": list(self.stops)}, indent=2),
        }
        if self.template is not None:
            files["chat_template.jinja"] = self.template
        for name, content in files.items():
            hidden = folder / f".{name}.part"
            hidden.write_text(content, encoding="utf-8", newline="")
            hidden.rename(folder / name)

    def _kept(self) -> tokenizers.Tokenizer:
        """The backend as tokenizer.json must have it: there, only post-processing says that texts begin with `bos`."""
        if self.bos is None or not self.adds_bos or self.bos in self.backend.encode("", add_special_tokens=True).ids:
            return self.backend
        bos = self.backend.id_to_token(self.bos)
        kept = tokenizers.Tokenizer.from_str(self.backend.to_str())
        kept.post_processor = TemplateProcessing([bos, "$A"], special_tokens=[(bos, self.bos)])
        return kept


class TextStream:
    """Prints tokens as they come: `push` returns the text that is certain by now, `flush` what is left at the end.

    Holds back the bytes of a character that is not complete yet. Everything pushed, joined, is the decoded whole.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special: bool = True):
        self._tokenizer, self._skip = tokenizer, skip_special
        self._context: list[int] = []  # the last tokens shown: some decoders treat the first token of a text apart
        self._pending: list[int] = []

    def push(self, ids: Iterable[int]) -> str:
        return "".join(self._push_one(int(i)) for i in ids)

    def flush(self) -> str:
        text = self._unseen()
        self._context, self._pending = [], []
        return text

    def _push_one(self, token: int) -> str:
        self._pending.append(token)
        text = self._unseen()
        if not text or text.endswith(BROKEN):
            return ""
        self._context, self._pending = self._pending, []
        return text

    def _unseen(self) -> str:
        def decode(ids: list[int]) -> str:
            return self._tokenizer.decode(ids, self._skip)

        return decode(self._context + self._pending)[len(decode(self._context)) :]


def load_tokenizer(folder: str | Path) -> Tokenizer:
    """From tokenizer.json and, where present, tokenizer_config.json, chat_template.jinja, generation_config.json, config.json.

    ValueError naming the file that is missing or damaged.
    """
    folder = Path(folder)
    backend = _backend(folder / "tokenizer.json")
    settings = _optional(folder / "tokenizer_config.json")
    special = {role: text for role in ROLES if (text := _content(settings.get(role))) is not None}
    ids = {role: backend.token_to_id(text) for role, text in special.items()}
    lost = [special[role] for role, token in ids.items() if token is None]
    if lost:
        raise ValueError(f"{folder / 'tokenizer_config.json'}: special tokens {lost} are not in tokenizer.json")
    declared = [_optional(folder / name).get("eos_token_id") for name in ("generation_config.json", "config.json")]
    bos = ids.get("bos_token")
    return Tokenizer(
        backend=backend,
        bos=bos,
        eos=ids.get("eos_token"),
        stops=stop_ids(backend, [ids.get("eos_token"), *declared], folder),
        adds_bos=bos is not None and bos in backend.encode("", add_special_tokens=True).ids,
        special=special,
        template=_template(folder, settings),
    )


def stop_ids(backend: tokenizers.Tokenizer, declared: Iterable[Any], source: Any) -> tuple[int, ...]:
    """The declared end tokens (ids, lists of ids, None) and the well-known ones that the vocabulary has as special tokens."""
    special = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
    stops: set[Any] = {backend.token_to_id(text) for text in ENDS if text in special}
    for value in declared:
        stops |= set(value) if isinstance(value, list) else {value} - {None}
    bad = [stop for stop in stops if not isinstance(stop, int) or backend.id_to_token(stop) is None]
    if bad:
        raise ValueError(f"{source}: end-of-sequence ids {bad} are outside the tokenizer's vocabulary")
    return tuple(sorted(stops))


def _backend(path: Path) -> tokenizers.Tokenizer:
    if not path.is_file():
        raise ValueError(f"{path}: no such file; a tokenizer in another format must be converted to tokenizer.json first")
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the package raises bare Exceptions
        raise ValueError(f"{path}: not a valid tokenizer.json ({error}); fetch the file again") from error
    backend.no_truncation()
    backend.no_padding()
    return backend


def _optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def _content(token: Any) -> str | None:
    """A special token's text: kept as a string, or as an object with its matching rules."""
    value = token.get("content") if isinstance(token, Mapping) else token
    return value if isinstance(value, str) else None


def _template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    template = settings.get("chat_template")
    if isinstance(template, list):  # several, by name
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, Mapping)}
        template = named.get("default")
    if template is not None and not isinstance(template, str):
        raise ValueError(f"{folder / 'tokenizer_config.json'}: chat_template is {template!r:.80}; it must be text")
    return template
