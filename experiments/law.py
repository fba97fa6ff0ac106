"""The exact law of a rule's output on a small model: is it the target's, and how long are its blocks?

    python -m experiments.law --rule traversal --tree 2x2 --vocab 3 --seed 0
    python -m experiments.law --rule block --tree 1x1 --tables experiments/tables/fixture.json
    python -m experiments.law --rule lenience --tree 1x1 --knob 0.5 --plot lenience.png
    python -m experiments.law --rule token --tree 1x1 --schedule best-of-all

A tree is the number of children at each depth (2x2; 1x1x1 is a chain of three), or a JSON list of rank paths. Prints
total variation to the target, τ and its upper bound; the last line is one JSON object {"tv", "expected_accepted",
"bound"}, the last two without the bonus. Lossy rules have a knob (lenience: l; typical: epsilon, with delta its square
root; approximate: the budget), which --plot draws against TV and accepted tokens, averaged over --models random models
or for the tables.

With --schedule the draft is cut before it is judged, in the example of DSpark's Appendix A (arXiv:2607.05147), where the
second token's survival is high only behind the first token 0: prefix and delayed are the rules of sdjax/decode/schedule.py,
best-of-all and snap-down the two mistakes that the paper and compiled widths invite to. The last line is then {"tv",
"expected_accepted", "first"}, the law of the first token emitted.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
import tyro

from experiments.launch import command_line, mistakes_end_the_program
from sdjax.core.pack import widths_of
from sdjax.core.types import Draft, Law
from sdjax.decode.schedule import Delayed, Prefix, Throughput, best_size, ranked
from sdjax.trees.hardware import CostCurve
from sdjax.trees.tree import Tree
from sdjax.verify.base import Rule
from sdjax.verify.law import exact_law, greedy
from sdjax.verify.registry import rule_named
from sdjax.verify.schedule_law import Cut, scheduled_law
from sdjax.verify.tables import Tables, random_tables, read_tables
from sdjax.verify.transport import transport_bound

# A lossy rule's main knob, and the values that --plot goes through.
KNOBS = {
    "lenience": ("l", np.linspace(0.1, 1, 19)),
    "typical": ("epsilon", np.linspace(0, 1, 21)),
    "approximate": ("budget", np.linspace(0, 4, 21)),
}

FIXTURE = "experiments/tables/fixture.json"


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
    """tokens of the random model"""
    seed: int = 0
    """of the random model"""
    tables: Path | None = None
    """a JSON file of p and q per prefix, instead of random ones (the format: sdjax/verify/tables.py)"""
    knob: float | None = None
    """a lossy rule's knob"""
    plot: Path | None = None
    """draws TV and accepted tokens as functions of a lossy rule's knob"""
    models: int = 100
    """random models behind each point of the plot"""
    schedule: Literal["prefix", "delayed", "best-of-all", "snap-down"] | None = None
    """cuts the draft before it is judged, in the example of DSpark's Appendix A"""


def main(question: Question) -> dict:
    """Answers, prints and returns what was found; raises ValueError for what cannot be asked."""
    tree = parse_tree(question.tree)
    rule = with_knob(question.rule, question.knob)
    law = question.law or (Law.IID if Law.IID in rule.laws else Law.ONE_HOT)
    if question.schedule:
        return answer_scheduled(question, rule, tree, law)
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
        return tables_at(question.tables)
    if question.vocab < 2:
        raise ValueError(f"--vocab {question.vocab}: a model needs at least two tokens")
    return random_tables(np.random.default_rng(question.seed), question.vocab, tree.depth, models)


def tables_at(path: Path) -> Tables:
    """Those of a file; ValueError where there is none."""
    if not path.is_file():
        raise ValueError(f"--tables: there is no file {path}; the format is in sdjax/verify/tables.py, {FIXTURE} is an example")
    return read_tables(path)


# SPS at 1, 2, 3 verified rows: the paper's; and one by which the first draft always joins, and the second not always.
APPENDIX = Throughput(CostCurve((1, 2, 3), (1.0, 1 / 0.5, 1 / 0.45), 0.0))
JOINING = Throughput(CostCurve((1, 2, 3), (1.0, 1 / 0.6, 1 / 0.55), 0.0))
REMEMBERED = (0.8, 0.1)  # survivals of the first draft and of all others, some steps ago: JOINING lets one draft in
UNREAD: Any = None  # the context, of which these schedules read nothing


def answer_scheduled(question: Question, rule: Rule, tree: Tree, law: Law) -> dict:
    """Prints and returns the law behind a cut draft."""
    cuts: dict[str, Cut] = {
        "prefix": lambda draft: Prefix(APPENDIX).cut(None, UNREAD, draft, ())[1].valid,
        "delayed": lambda draft: Delayed(JOINING).cut(remembered(tree.nodes), UNREAD, draft, ())[1].valid,
        "best-of-all": best_of_all(APPENDIX),
        "snap-down": snapped_down(JOINING, (1,)),
    }
    tables = tables_at(question.tables) if question.tables else appendix_tables(tree.depth)
    found = scheduled_law(rule, [tables], tree, law, appendix_confidence, cuts[str(question.schedule)])
    first, wanted = (law.sum(tuple(range(1, tree.depth + 1))) for law in (found.law, found.target))
    shown = lambda law: ", ".join(f"{mass:.4g}" for mass in law)
    print(f"{question.rule} behind the schedule {question.schedule}, a tree of {tree.nodes - 1} drafts drawn {law}")
    print(f"first token emitted             ({shown(first)}), the target's is ({shown(wanted)})")
    print(f"total variation to the target  {float(found.tv):.3g}")
    answer = {"tv": float(found.tv), "expected_accepted": float(found.expected_accepted), "first": first.tolist()}
    print(json.dumps(answer))
    return answer


def appendix_tables(depth: int = 2) -> Tables:
    """p = (.7, .3) and q = (.5, .5) behind every prefix."""
    rows = lambda row, levels: tuple(np.broadcast_to(row, (2,) * (level + 1)).astype(np.float64) for level in range(levels))
    return Tables(rows((0.7, 0.3), depth + 1), rows((0.5, 0.5), depth))


def appendix_confidence(path: tuple[int, ...], elders: tuple[int, ...]) -> float:
    """0.8 of the first draft; of the next all or nothing, as the token before it is 0 or not."""
    return 0.8 if not path else float(path[-1] == 0)


def remembered(nodes: int) -> Any:
    """The memory of `Delayed`: REMEMBERED at every step."""
    first, others = REMEMBERED
    return Delayed(JOINING).empty(1, nodes).at[..., 1:].set(others).at[..., 1].set(first)


def best_of_all(throughput: Throughput) -> Cut:
    """A mistake: the best Θ over all candidates, instead of up to the first that does not raise it."""

    def cut(draft: Draft) -> Any:
        order = ranked(draft)
        return order.first(draft, best_size(order.survival, order.running, throughput.rates(draft.tokens.size))).valid

    return cut


def snapped_down(throughput: Throughput, pack: tuple[int, ...]) -> Cut:
    """A mistake: the rule's size, then the largest compiled width that does not exceed it."""

    def cut(draft: Draft) -> Any:
        widths = jnp.asarray(widths_of(pack, draft.tokens.size))
        size = jnp.sum(Prefix(throughput).cut(None, UNREAD, draft, ())[1].valid)
        return ranked(draft).first(draft, widths[jnp.searchsorted(widths, size, side="right") - 1]).valid

    return cut


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
        main(command_line("law", Question, __doc__, config=(tyro.conf.EnumChoicesFromValues,)))
