"""Answers of the TPU compiler that are kept in a file, for machines on which libtpu is not installed."""

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sdjax.core.plain import write_json


def asked(record: Path, question: str, ask: Callable[[], Any]) -> Any:
    """What `ask` returns (JSON data), by libtpu where it is installed, else as the file has it under `question`.

    A new answer is added to the file. ValueError where there is neither libtpu nor an answer.
    """
    known = json.loads(record.read_text(encoding="utf-8")) if record.is_file() else {}
    if find_spec("libtpu") is None:
        if question not in known:
            there = ", ".join(known) or "nothing"
            raise ValueError(
                f"{question!r} was not asked when {record.name} was written ({there}): pip install libtpu to ask it"
            )
        return known[question]
    answer = ask()
    if question not in known:
        write_json(record, known | {question: answer})
    return answer
