"""Code prompts that every Python has: functions of the standard library, as HumanEval asks for them."""

import importlib
import inspect
import random
import sys
import textwrap
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from sdjax.study.prompts import HUMAN_EVAL_TASK, Prompt

# Importing these does something: it opens a browser, prints, starts a program, needs a screen; or they are tests and tools.
UNSAFE = {"antigravity", "this", "idlelib", "turtle", "turtledemo", "tkinter", "lib2to3", "test", "ensurepip", "venv"}
SHORTEST, LONGEST, SIGNATURE = 60, 500, 150  # characters of a docstring worth asking by, shown at most, of a signature


@dataclass(frozen=True)
class StandardLibrary:
    """Public functions and methods of the running Python's own modules, by signature and docstring, shuffled."""

    count: int = 0
    """At most so many prompts; 0: all."""
    skip: int = 0
    """Leaves out the first so many."""
    seed: int = 0
    """Of the order."""

    def prompts(self) -> list[Prompt]:
        found: dict[str, Prompt] = {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # some modules are deprecated; their functions are as good as any
            for module in modules():
                for name, function in functions(module):
                    if text := header(name.rpartition(".")[2], function):
                        task = HUMAN_EVAL_TASK.format(text)
                        found.setdefault(task, Prompt(f"{module.__name__}.{name}", "stdlib", (task,)))
        order = sorted(found.values(), key=lambda prompt: prompt.id)
        random.Random(self.seed).shuffle(order)
        return order[self.skip :][: self.count or None]


def modules() -> Iterator[ModuleType]:
    """The standard library's public top-level modules, where they can be imported here."""
    for name in sorted(sys.stdlib_module_names - UNSAFE):
        if name.startswith("_"):
            continue
        try:
            yield importlib.import_module(name)
        except ImportError:  # of another system, or left out of this build
            continue


def functions(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """The module's own public functions, and those of its public classes, by dotted name."""
    classes = [(f"{name}.", c) for name, c in inspect.getmembers(module, inspect.isclass) if not name.startswith("_")]
    for prefix, owner in [("", module), *classes]:
        for name, function in inspect.getmembers(owner, inspect.isfunction):
            if not name.startswith("_") and (function.__module__ or "").partition(".")[0] == module.__name__:
                yield prefix + name, function


def header(name: str, function: Any) -> str | None:
    """The function without its body; None where its documentation says too little."""
    doc = inspect.getdoc(function) or ""
    try:
        signature = str(inspect.signature(function))
    except ValueError:
        return None
    if len(doc) < SHORTEST or len(signature) > SIGNATURE or " at 0x" in signature:
        return None
    return f'def {name}{signature}:\n    """ {textwrap.indent(doc[:LONGEST], "    ").strip()}\n    """\n'
