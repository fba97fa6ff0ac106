"""Text that the target did not sample: conversations whose assistant turns are learnt from, and plain text."""

import json
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import tensorflow_datasets as tfds

from sdjax.targets.chat import Message
from sdjax.targets.tokenizer import Tokenizer
from sdjax.train.documents import Document, Span


def conversation(tokenizer: Tokenizer, messages: Sequence[Message], id: str, source: str) -> Document:
    """The conversation in the model's template; assistant turns are supervised, up to and including their end token.

    Each turn stands behind the ids of its prompt, as it does when the model is served. ValueError where the template
    renders earlier turns otherwise once later ones follow: a mask could not be told from such text.
    """
    whole = tokenizer.chat(messages, add_generation_prompt=False)
    cuts: list[int] = []
    for i, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        if i == 0:
            raise ValueError(f"{source}, {id}: the assistant has the first turn; put what it answers before it")
        cuts.append(len(prefix(whole, tokenizer.chat(messages[:i], add_generation_prompt=True), id, i)))
        cuts.append(len(prefix(whole, tokenizer.chat(messages[: i + 1], add_generation_prompt=False), id, i + 1)))
    pieces = tokenizer.pieces(whole, cuts) or apart(tokenizer, whole, cuts, id)
    spans = [span for i, ids in enumerate(pieces) for span in (turn(tokenizer, ids) if i % 2 else [(ids, False)])]
    return Document.of_spans(spans, id, source)


def apart(tokenizer: Tokenizer, whole: str, cuts: Sequence[int], id: str) -> list[list[int]]:
    """The pieces, each encoded by itself: where an answer's first letters would join the prompt's last token.

    ValueError for a tokenizer that marks beginnings, as Llama 2's does: the pieces would bear marks that no prompt has.
    """
    if marks_beginnings(tokenizer):
        raise ValueError(
            f"conversation {id}: the prompt's end and the answer's beginning make one token, so that no mask can part them; "
            "take a template whose prompts end where a token does, without a space behind them"
        )
    texts = [whole[start:stop] for start, stop in pairwise([0, *cuts, len(whole)])]
    return [tokenizer.encode(text, add_bos=False if i else None) for i, text in enumerate(texts)]


def marks_beginnings(tokenizer: Tokenizer) -> bool:
    """Whether a word has other ids where a text begins than on a new line."""
    first = tokenizer.encode("a", add_bos=False)
    return tokenizer.encode("\na", add_bos=False)[-len(first) :] != first


def prefix(whole: str, part: str, id: str, count: int) -> str:
    """`part`, which must begin `whole`."""
    if not whole.startswith(part):
        raise ValueError(
            f"conversation {id}: the chat template renders its first {count} messages otherwise when more follow, so that "
            "no mask over the assistant's turns can be made; give it as several conversations, each ending at one answer"
        )
    return part


def turn(tokenizer: Tokenizer, ids: list[int]) -> list[Span]:
    """An assistant's turn: what it says through its last stop token, and what the template puts behind that."""
    stops = [i for i, token in enumerate(ids) if token in tokenizer.stops]
    end = stops[-1] + 1 if stops else len(ids)
    return [(ids[:end], True), (ids[end:], False)]


def plain_text(tokenizer: Tokenizer, text: str, id: str, source: str) -> Document:
    """All of the text is supervised, but for its first token."""
    return Document.of_spans([(tokenizer.encode(text), True)], id, source)


def existing(path: str | Path) -> Path:
    """The path of a JSONL file, which must be there."""
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"{path} is not there; give the path of a JSONL file with `messages` or `text` on each line")
    return path


def read_conversations(path: str | Path, tokenizer: Tokenizer) -> Iterator[Document]:
    """A JSONL file, each line with `messages` (chat) or `text`, and perhaps `id` and `source`. ValueError names the line."""
    path = existing(path)
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield parse(line, f"{path}, line {number}", f"{path.stem}/{number}", tokenizer)


def parse(line: str, where: str, name: str, tokenizer: Tokenizer) -> Document:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"{where}: not JSON ({error})") from error
    if not isinstance(row, dict) or not ("messages" in row or isinstance(row.get("text"), str)):
        raise ValueError(f"{where}: neither `messages` nor `text` is there, found {line:.60}")
    id, source = str(row.get("id", name)), str(row.get("source", "conversations"))
    if "messages" not in row:
        return plain_text(tokenizer, row["text"], id, source)
    try:
        return conversation(tokenizer, row["messages"], id, source)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def read_tfds(name: str, split: str, column: str, tokenizer: Tokenizer, data_dir: str | None = None) -> Iterator[Document]:
    """The texts of a prepared dataset of tensorflow-datasets (in ArrayRecord files); `column` holds text."""
    rows = open_tfds(name, split, data_dir)
    for i in range(len(rows)):
        row = rows[i]
        if column not in row:
            raise ValueError(f"{name!r} has no column {column!r}; it has {', '.join(row)}")
        yield plain_text(tokenizer, row[column].decode(), f"{split}/{i}", name)


def files_of_tfds(name: str, split: str, data_dir: str | None = None) -> Sequence[Path]:
    """The files of a prepared dataset that hold a split, or a slice of one."""
    return open_tfds(name, split, data_dir).dataset_info.splits[split].filepaths


def open_tfds(name: str, split: str, data_dir: str | None) -> Any:
    """The rows of a prepared dataset. ValueError says how to prepare it."""
    try:
        return tfds.data_source(name, split=split, data_dir=data_dir, download=False)
    except Exception as error:  # tfds raises what it likes: its own errors, AssertionError, ImportError
        reason = f"{type(error).__name__}: {str(error).strip():.200}"
        fix = f"prepare it first: tfds build {name} --file_format=array_record"
        raise ValueError(f"tfds cannot open {name!r}, split {split!r} ({reason}); {fix}") from error
