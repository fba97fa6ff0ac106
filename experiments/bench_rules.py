"""How long each rule takes on wide logits: 152k tokens, trees of 64 nodes (chains of 16), a batch of 8.

    python -m experiments.bench_rules [--vocab 151936 --batch 8 --repeats 5 --temperature 1 --rules walk recursive]

Drafts are drawn from q, so that acceptance is what a fair drafter's would be. The median over repeats is of the whole
`judge`, warp included; `arrays` is what XLA allocates besides its arguments, in units of one float32 array [B, N, V].
The last line is one JSON object: {rule: {"ms", "accepted", "arrays"}}.
"""

import json
import statistics
import time
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp

from experiments.launch import command_line, mistakes_end_the_program
from sdjax.core.sampling import Warp
from sdjax.core.types import Draft, Law
from sdjax.trees.draw import draw_children
from sdjax.trees.tree import Tree
from sdjax.verify.base import Rule
from sdjax.verify.registry import LOSSLESS, rule_named

# 63 drafts: 3 + 6 + 12 + 42 nodes, four deep, for rules on trees; 7 paths of 9 for the best path.
TREE = Tree(
    tuple(
        [-1]
        + [0] * 3
        + [1 + i // 2 for i in range(6)]
        + [4 + i // 2 for i in range(12)]
        + [10 + i * 12 // 42 for i in range(42)]
    )
)
CHAIN = Tree.chain(15)
PATHS = Tree(tuple([-1] + [0] * 7 + list(range(1, 57))))


@dataclass(frozen=True)
class Bench:
    """What is judged, how often, and by whom."""

    vocab: int = 151_936
    """tokens that logits are of"""
    batch: int = 8
    """sequences judged at once"""
    repeats: int = 5
    """timed calls, of which the median is told"""
    temperature: float = 1.0
    """of target and drafter"""
    top_p: float = 1.0
    """cuts both laws to this mass; 1: whole"""
    closeness: float = 1.0
    """how far the drafter's logits are from the target's: standard deviation of the difference"""
    rules: tuple[str, ...] = tuple(LOSSLESS)
    """by the names of sdjax/verify/registry.py"""


def main(bench: Bench) -> dict:
    warp, found = Warp(bench.temperature, top_p=bench.top_p), {}
    print(f"vocabulary {bench.vocab:,}, batch {bench.batch}, {TREE.nodes} nodes (chains {CHAIN.nodes}), {jax.devices()[0]}")
    for name in bench.rules:
        rule = rule_named(name)
        tree = CHAIN if rule.chains_only else PATHS if name == "best-path" else TREE
        law = Law.IID if Law.IID in rule.laws else Law.ONE_HOT
        cost = found[name] = measure(bench, rule, tree, law, warp)
        print(f"{name:12s} {cost['ms']:9.1f} ms  accepted {cost['accepted']:.2f}  arrays {cost['arrays']:.2f}")
    print(json.dumps(found))
    return found


def measure(bench: Bench, rule: Rule, tree: Tree, law: Law, warp: Warp) -> dict:
    """Compiles and times one rule on one draft."""
    draft, logits = make(bench, tree, law, warp)
    ids = jnp.arange(bench.batch)

    @jax.jit
    def judge(draft: Draft, logits: jax.Array, p: jax.Array):
        ctx: Any = SimpleNamespace(seed=ids.astype(jnp.uint32), p=p, warp=warp)
        return rule.judge(ctx, draft, logits)

    compiled = judge.lower(draft, logits, ids).compile()
    times, accepted = [], []
    for repeat in range(bench.repeats + 1):
        begin = time.perf_counter()
        verdict = jax.block_until_ready(compiled(draft, logits, ids + repeat))
        times.append(time.perf_counter() - begin)
        accepted.append(float(verdict.accepted.mean()))
    memory = compiled.memory_analysis()
    one = bench.batch * tree.nodes * bench.vocab * 4
    return {
        "ms": 1000 * statistics.median(times[1:]),
        "accepted": statistics.mean(accepted),
        "arrays": memory.temp_size_in_bytes / one if memory else None,
    }


def make(bench: Bench, tree: Tree, law: Law, warp: Warp) -> tuple[Draft, jax.Array]:
    """A draft drawn node by node from its q, and the target's logits at every node."""
    keys = jax.random.split(jax.random.key(0), 3)
    shape = (bench.batch, tree.nodes, bench.vocab)
    logits = 3 * jax.random.normal(keys[0], shape)
    noise = jax.random.normal(keys[1], (bench.batch, len(tree.inner), bench.vocab))
    drafted = logits[:, jnp.array(tree.inner)] + bench.closeness * noise
    widths = tuple(len(tree.children[node]) for node in tree.inner)
    ctx: Any = SimpleNamespace(seed=jnp.arange(bench.batch, dtype=jnp.uint32), p=jnp.arange(bench.batch), warp=warp)
    drawn = jax.jit(lambda logits: draw_children(logits, widths, law, ctx, 1))(drafted)
    order = jnp.array([child for node in tree.inner for child in tree.children[node]])
    tokens = jnp.zeros((bench.batch, tree.nodes), jnp.int32).at[:, order].set(drawn.tokens)
    q = None if law is Law.ONE_HOT else drawn.q
    return tree.draft(tokens, law, q), logits


if __name__ == "__main__":
    with mistakes_end_the_program():
        main(command_line("bench_rules", Bench, __doc__))
