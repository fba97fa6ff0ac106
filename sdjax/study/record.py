"""Answers of the TPU compiler that are kept in a file, for machines on which libtpu is not installed."""

import json
from collections.abc import Callable
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sdjax.core.plain import plain_data, write_json


def asked(record: Path, question: str, about: Any, ask: Callable[[], Any]) -> Any:
    """What `ask` returns (JSON data), by libtpu where it is installed, else as the file has it under `question`.

    `about` is all that the answer depends on, as dataclasses and JSON data: an answer of something else is none. The compiler's
    answers are written to the file, if its folder is there. ValueError where there is neither libtpu nor an answer.
    """
    known = json.loads(record.read_text(encoding="utf-8")) if record.is_file() else {}
    digest = sha256(json.dumps(plain_data(about), sort_keys=True).encode()).hexdigest()
    if find_spec("libtpu") is None:
        if known.get(question, {}).get("about") != digest:
            there = ", ".join(known) or "nothing"
            raise ValueError(
                f"{question!r} was not asked of this when {record.name} was written ({there}): pip install libtpu to ask it"
            )
        return known[question]["answer"]
    answer = ask()
    if record.parent.is_dir():
        write_json(record, known | {question: {"about": digest, "answer": answer}})
    return answer
