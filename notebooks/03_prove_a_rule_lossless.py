# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Proving a rule lossless
#
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/OWNER/sdjax/blob/main/notebooks/03_prove_a_rule_lossless.ipynb)
#
# An acceptance rule promises that what comes out has the target's law, whatever the drafter guesses. Sampling can make that
# plausible; on a small vocabulary it can be enumerated: every draft, every coin, in float64. This notebook states a rule,
# proves it, breaks it in ways that have been published, and measures what a rule costs that is lossy by design. It runs in
# well under a minute.

# %% [markdown]
# On Colab, this installs the library. Elsewhere it does nothing: run `pip install -e ".[demo]"` in a copy of the repository.

# %%
import subprocess
import sys

if "google.colab" in sys.modules:
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "git+https://github.com/OWNER/sdjax"], check=True)

# %%
from dataclasses import dataclass
from typing import Any, ClassVar

import matplotlib.pyplot as plt
import numpy as np
from flax import struct

from sdjax.core.types import Law
from sdjax.study.statistics import effect, samples_needed
from sdjax.trees.tree import Tree
from sdjax.verify.base import WarpedRows, judge_by_coins
from sdjax.verify.drafts import draw_top, draw_without_replacement
from sdjax.verify.law import exact_law
from sdjax.verify.lenience import Lenience
from sdjax.verify.recursive import Recursive
from sdjax.verify.tables import Tables, random_tables
from sdjax.verify.transport import transport_bound
from sdjax.verify.typical import TypicalAcceptance

# %% [markdown]
# ## A model that can be written down
#
# Three tokens. `p[d]` holds the target's law of the next token behind every prefix of d tokens, `q[d]` the drafter's; p goes
# one level deeper, since the target adds a token behind an accepted draft. These are the tables of
# `experiments/tables/fixture.json`.

# %%
tables = Tables(
    p=(
        np.array([5, 2, 3]) / 10,
        np.array([[5, 1, 4], [3, 1, 6], [1, 4, 5]]) / 10,
        np.array(
            [
                [[4, 5, 1], [7, 1, 2], [3, 1, 6]],
                [[7, 1, 2], [4, 5, 1], [4, 2, 4]],
                [[6, 2, 2], [4, 2, 4], [5, 3, 2]],
            ]
        )
        / 10,
    ),
    q=(
        np.array([7, 1, 2]) / 10,
        np.array([[4, 5, 1], [6, 2, 2], [3, 5, 2]]) / 10,
    ),
).check()


# %% [markdown]
# ## A rule, stated
#
# Rejection sampling along a chain (Leviathan et al. 2022; Chen et al. 2023): accept the draft x, drawn from q, with
# probability min(1, p(x)/q(x)); at the first refusal, emit a token from what p has in excess of q, norm((p - q)+); where all
# drafts were accepted, from p.
#
# A rule is four functions of one sequence: `start`, the state before the first coin; `odds` (a, b), by which the next coin is
# heads with probability min(1, a/b); `toss`, the state after it; and `residual`, the unnormalised law of the last token. The
# compiled loop (`judge`) tosses coins against the odds; the enumeration below branches on them. It is the same code: `xp` is
# `jax.numpy` there and `numpy` here.


# %%
@struct.dataclass
class Trial:
    node: Any  # the last node accepted
    refused: Any
    done: Any

    @property
    def coin(self):  # the address of the next coin's noise: (depth, rank among siblings)
        return self.node + 1, 0


@dataclass(frozen=True)
class Rejection:
    laws: ClassVar = frozenset({Law.IID})  # how a draft must have been drawn
    chains_only: ClassVar = True
    lossless: ClassVar = True
    by_numbers: ClassVar = False
    greedy: ClassVar = False

    def start(self, xp, case):
        return Trial(xp.int32(0), xp.bool_(False), xp.bool_(case.max_depth == 0))

    def odds(self, xp, case, trial):
        token = case.tokens[trial.node + 1]
        return case.p[trial.node, token], case.q[case.q_row[trial.node], token]

    def toss(self, xp, case, trial, heads):
        node = xp.where(heads, trial.node + 1, trial.node)
        return Trial(node, ~heads, ~heads | (node == case.max_depth))

    def residual(self, xp, case, trial):
        p, q = case.p[trial.node], case.q[xp.maximum(case.q_row[trial.node], 0)]
        return xp.where(trial.refused, xp.maximum(p - q, 0), p)

    def judge(self, ctx, draft, logits):
        return judge_by_coins(self, ctx, draft, WarpedRows(logits, ctx.warp))


# %% [markdown]
# ## Proved
#
# `exact_law` goes through every draft of two tokens and every way the coins can fall, completes each block with the target to
# three tokens, and adds up their joint law. Total variation (TV) is half the sum of absolute differences to the target's
# law: 0 is equality, up to rounding. One model proves little, so the same is asked of a thousand random ones, about a third of
# whose entries are zero.

# %%
chain = Tree.chain(2)
found = exact_law(Rejection(), tables, chain, Law.IID)
many = random_tables(np.random.default_rng(0), vocab=3, depth=2, models=(1000,), zeros=1 / 3)
worst = exact_law(Rejection(), many, chain, Law.IID).tv.max()

print(f"total variation         {found.tv:.1e}, at most {worst:.1e} on 1,000 random models")
print(f"accepted drafts         {found.expected_accepted:.4f} of 2")
print(f"no lossless rule accepts more than {transport_bound(tables, chain, Law.IID):.4f}")
assert found.tv < 1e-12 and worst < 1e-12

# %% [markdown]
# The same as a picture: the probability of each of the 27 blocks.

# %%
figure, axis = plt.subplots(figsize=(8, 2.4), layout="constrained")
blocks = ["".join(map(str, block)) for block in np.ndindex(3, 3, 3)]
axis.bar(range(27), found.target.ravel(), color="C7", label="target")
axis.plot(range(27), found.law.ravel(), "C1.", label="rule")
axis.set_xticks(range(27), blocks, rotation=90, fontsize=8)
axis.set_ylabel("probability")
axis.legend()
plt.show()


# %% [markdown]
# ## Broken on purpose
#
# Each of these has been found in a public system, or is one step from such a fault. A fault is either a rule that computes
# something else, or a drafter that does not draw as it says (`draw` replaces how siblings are drawn, while the rule is told
# the same law as before). The tree has two children at each node, judged one after the other by `Recursive`: a refused
# child's law is taken off p before its sibling is tested.


# %%
class NotUpdated(Recursive):
    """A refusal leaves p as it was, for the siblings and for the last token."""

    def refused(self, xp, case, trial):
        return super().refused(xp, case, trial).replace(r=trial.r)


class LastFromTarget(Recursive):
    """The last token is drawn from p even behind refusals."""

    def residual(self, xp, case, trial):
        return case.p[trial.node]


pairs, iid, without = Tree.branching(2, 2), Law.IID, Law.WITHOUT_REPLACEMENT
outputs = {
    "correct, i.i.d.": exact_law(Recursive(), tables, pairs, iid),
    "correct, without replacement": exact_law(Recursive(), tables, pairs, without),
    "drawn without replacement, judged as i.i.d.": exact_law(Recursive(), tables, pairs, iid, draw_without_replacement),
    "p not updated by refusals": exact_law(NotUpdated(), tables, pairs, iid),
    "last token from p": exact_law(LastFromTarget(), tables, pairs, iid),
    "the two likeliest, judged as if drawn": exact_law(Recursive(), tables, pairs, without, draw_top),
}
print(f"{'':46}{'TV':>7}{'first token':>13}{'accepted':>10}   samples to notice")
for name, out in outputs.items():
    samples = f"{samples_needed(effect(out.law, out.target), out.law.size):,}" if out.tv > 1e-9 else "–"
    print(f"{name:46}{out.tv:7.3f}{out.tv_of_first(1):13.3f}{out.expected_accepted:10.3f}{samples:>20}")

assert max(outputs[name].tv for name in list(outputs)[:2]) < 1e-12
assert min(outputs[name].tv for name in list(outputs)[2:]) > 0.08

# %%
figure, axis = plt.subplots(figsize=(8, 2.6), layout="constrained")
axis.barh(list(outputs), [out.tv for out in outputs.values()])
axis.invert_yaxis()
axis.set_xlabel("total variation to the target's law")
plt.show()

# %% [markdown]
# The first two faults accept more than the correct rule for i.i.d. drafts, so a rising acceptance is no sign of health. The
# last column says how many blocks a χ² test on sampled output would need to see the fault (at a level of 10⁻⁶, with power
# 0.99), on a vocabulary of three. Enumeration needs none.

# %% [markdown]
# ## Lossy by design
#
# Some rules trade the law for speed, and have a knob for how much. Lenience accepts with min(1, p/(l q)), exact at l = 1.
# Typical acceptance passes what the target finds likely enough, p(x) > min(ε, √ε·exp(-H(p))), on a tree of the drafter's
# two likeliest tokens; no ε makes it exact. Means over 100 random models:

# %%
some = random_tables(np.random.default_rng(0), vocab=3, depth=2, models=(100,))
lenience = np.linspace(0.1, 1, 19)
thresholds = np.linspace(0, 1, 21)
curves = {
    "Lenience: l": (lenience, [exact_law(Lenience(factor), some, chain, Law.IID) for factor in lenience]),
    "Typical acceptance: ε": (
        thresholds,
        [exact_law(TypicalAcceptance(epsilon, epsilon**0.5), some, pairs, Law.ONE_HOT) for epsilon in thresholds],
    ),
}
figure, axes = plt.subplots(1, 2, figsize=(9, 3), layout="constrained")
for axis, (name, (knob, outs)) in zip(axes, curves.items(), strict=True):
    drift = axis.plot(knob, [out.tv.mean() for out in outs], label="total variation")
    axis.set(xlabel=name, ylabel="total variation", ylim=(0, None))
    right = axis.twinx()
    accepted = right.plot(knob, [out.expected_accepted.mean() for out in outs], "C1--", label="accepted drafts")
    right.set(ylabel="accepted drafts of 2", ylim=(0, 2))
figure.legend(handles=drift + accepted, ncols=2, loc="outside lower center")
plt.show()
