"""The exact law of a rule's output on a small model: is it the target's, and how long are its blocks?

    python -m experiments.law --rule traversal --tree 2x2 --vocab 3 --seed 0
    python -m experiments.law --rule block --tree 1x1 --tables experiments/tables/fixture.json
    python -m experiments.law --rule lenience --tree 1x1 --knob 0.5 --plot lenience.png

A tree is the number of children at each depth (2x2; 1x1x1 is a chain of three), or a JSON list of rank paths. Prints
total variation to the target, τ and its upper bound; the last line is one JSON object {"tv", "expected_accepted",
"bound"}, the last two without the bonus. Lossy rules have a knob (lenience: l; typical: epsilon, with delta its square
root; approximate: the budget), which --plot draws against TV and accepted tokens, averaged over --models random models
or for the tables.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from experiments.launch import mistakes_end_the_program
from sdjax.core.types import Law
from sdjax.trees.tree import Tree
from sdjax.verify.base import Rule
from sdjax.verify.law import exact_law, greedy
from sdjax.verify.registry import rule_named
from sdjax.verify.tables import Tables, random_tables, read_tables
from sdjax.verify.transport import transport_bound

# A lossy rule's main knob, and the values that --plot goes through.
KNOBS = {
    "lenience": ("l", np.linspace(0.1, 1, 19)),
    "typical": ("epsilon", np.linspace(0, 1, 21)),
    "approximate": ("budget", np.linspace(0, 4, 21)),
}


@dataclass(frozen=True)
class Question:
    """Which rule, on which model, for a draft drawn how."""

    rule: str
    """walk, token, block, recursive, kseq, kseq-k, traversal, best-path, self-selection;
    lossy: typical, lenience, approximate"""
    tree: str
    """children at each depth (2x2), or a JSON list of rank paths ([[0], [1], [0, 0]])"""
    law: Law | None = None
    """how the draft is drawn; by default i.i.d., or one-hot where the rule takes nothing else"""
    vocab: int = 3
    seed: int = 0
    tables: Path | None = None
    """a JSON file of p and q per prefix, instead of random ones (the format: sdjax/verify/tables.py)"""
    knob: float | None = None
    """a lossy rule's knob"""
    plot: Path | None = None
    """draws TV and accepted tokens as functions of a lossy rule's knob"""
    models: int = 100
    """random models behind each point of the plot"""


def main(question: Question) -> dict:
    """Answers, prints and returns what was found; raises ValueError for what cannot be asked."""
    tree = parse_tree(question.tree)
    rule = with_knob(question.rule, question.knob)
    law = question.law or (Law.IID if Law.IID in rule.laws else Law.ONE_HOT)
    tables = tables_of(question, tree, ())
    found = exact_law(rule, tables, tree, law)
    bound = transport_bound(greedy(tables) if getattr(rule, "greedy", False) else tables, tree, law)
    accepted = float(found.expected_accepted)
    print(f"{question.rule} on a tree of {tree.nodes - 1} drafts, {tree.depth} deep, drawn {law}, vocabulary {tables.vocab}")
    print(f"total variation to the target  {float(found.tv):.3g}  (first token {float(found.tv_of_first(1)):.3g})")
    print(f"τ                              {accepted + 1:.4f}")
    print(f"τ at most, for a lossless rule  {'not computed: too many variables' if bound is None else f'{bound + 1:.4f}'}")
    if question.plot:
        plot(question, question.plot, tree, law)
    answer = {"tv": float(found.tv), "expected_accepted": accepted, "bound": bound}
    print(json.dumps(answer))
    return answer


def parse_tree(text: str) -> Tree:
    """2x2, or [[0], [1], [0, 0]]."""
    try:
        if text.strip().startswith("["):
            return Tree.from_paths(json.loads(text))
        widths = [int(width) for width in text.split("x")]
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"--tree {text!r}: write children per depth, such as 2x2, or a list of rank paths ({error})"
        ) from error
    if min(widths) < 1:
        raise ValueError(f"--tree {text!r}: every depth needs at least one child")
    return Tree.branching(*widths)


def with_knob(name: str, knob: float | None) -> Rule:
    rule: Any = rule_named(name)
    if knob is None:
        return rule
    if name not in KNOBS:
        raise ValueError(f"--knob: {name} is lossless and has none; the rules that have one: {', '.join(KNOBS)}")
    values = {KNOBS[name][0]: knob}
    if name == "typical":  # the authors' rule for the second threshold
        values["delta"] = knob**0.5
    return replace(rule, **values)


def tables_of(question: Question, tree: Tree, models: tuple[int, ...]) -> Tables:
    if question.tables:
        return read_tables(question.tables)
    if question.vocab < 2:
        raise ValueError(f"--vocab {question.vocab}: a model needs at least two tokens")
    return random_tables(np.random.default_rng(question.seed), question.vocab, tree.depth, models)


def plot(question: Question, path: Path, tree: Tree, law: Law) -> None:
    """Writes the picture; raises ValueError for a rule without a knob."""
    import matplotlib.pyplot as plt

    if question.rule not in KNOBS:
        raise ValueError(f"--plot: {question.rule} is lossless and has no knob; the rules that have one: {', '.join(KNOBS)}")
    tables = tables_of(question, tree, (question.models,))
    name, values = KNOBS[question.rule]
    points = [exact_law(with_knob(question.rule, float(value)), tables, tree, law) for value in values]
    figure, axis = plt.subplots(figsize=(5, 3.2), layout="constrained")
    axis.plot(values, [np.mean(point.tv) for point in points], label="total variation to the target")
    axis.set(xlabel=name, ylabel="total variation", title=f"{question.rule}, tree {question.tree}, drawn {law}", ylim=(0, None))
    right = axis.twinx()
    right.plot(values, [np.mean(point.expected_accepted) for point in points], "C1--", label="accepted tokens")
    right.set(ylabel="accepted tokens a block", ylim=(0, None))
    figure.legend(loc="outside lower center", ncols=2)
    figure.savefig(path, dpi=150)
    plt.close(figure)
    print(f"wrote {path}")


if __name__ == "__main__":
    with mistakes_end_the_program():
        main(tyro.cli(Question, description=__doc__, config=(tyro.conf.EnumChoicesFromValues,)))
