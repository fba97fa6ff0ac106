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
# # Plan for a pod
#
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/OWNER/sdjax/blob/main/notebooks/05_plan_for_a_pod.ipynb)
#
# Which machine does a target with its drafter need, what do its chips send each other in a step, and how large a tree is
# worth verifying on it? TPU's compiler is a Python package and needs no TPU: it compiles the whole decode loop for any
# topology and says what the program allocates, what it exchanges, and how many cycles it expects. **All figures here are its
# estimates; none was measured on hardware.**
#
# Without the package (`pip install libtpu`) the answers below come from a file beside this notebook; other questions need it.

# %%
import subprocess
import sys

if "google.colab" in sys.modules:
    packages = ["git+https://github.com/OWNER/sdjax", "libtpu"]
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", *packages], check=True)

# %%
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import sdjax
from sdjax.decode.schedule import Throughput, worth
from sdjax.drafters.block import Block, spread_taps
from sdjax.drafters.eagle3 import Eagle3, published_taps
from sdjax.drafters.head import DraftHead
from sdjax.drafters.medusa import Medusa
from sdjax.drafters.no_draft import NoDraft
from sdjax.mesh.chips import GIB
from sdjax.study.plan import Case
from sdjax.study.promises import examine
from sdjax.study.record import asked
from sdjax.study.verify_cost import verify_cost
from sdjax.targets.decoder import Decoder
from sdjax.targets.rope import Llama3Scaling, Rope
from sdjax.trees.hardware import CostCurve, choices
from sdjax.trees.published import named_tree

RECORD = Path(sdjax.__file__).parents[1] / "notebooks" / "05_plan_for_a_pod.json"

# %% [markdown]
# ## Target, drafter, topology
#
# A target is its shape: no weights are needed. A case says which drafter runs, on which topology, how many sequences there
# are and how many rows their caches have. Change any of it and run on.

# %%
target = Decoder(  # Llama-3.1-8B
    vocab=128_256,
    width=4096,
    layers=32,
    heads=32,
    kv_heads=8,
    head_width=128,
    ffw=14_336,
    rope=Rope(500_000.0, Llama3Scaling(8.0, 1.0, 4.0, 8192)),
    max_position=131_072,
    dtype="bfloat16",
)
TOPOLOGY = "v5e:2x4"  # eight chips

cases = {
    "plain": Case(TOPOLOGY, NoDraft()),
    "EAGLE-3": Case(TOPOLOGY, Eagle3(published_taps(32), head=DraftHead(size=32_000, trained=True))),
    "Medusa, 8 texts": Case(
        TOPOLOGY, Medusa(named_tree("mc_sim_7b_63"), heads=5, head=DraftHead(trained=True), own_heads=True), batch=8
    ),
    "DFlash, 8 texts, 32k": Case(
        TOPOLOGY, Block.dflash(spread_taps(32), mask_token=128_255, length=9), batch=8, context=32_768
    ),
    "plain, 64 texts, 32k": Case(TOPOLOGY, NoDraft(), batch=64, context=32_768, fits=False),
}
plans = {
    name: asked(RECORD, f"{name} on {TOPOLOGY}", [target, case], lambda case=case: examine(target, case))
    for name, case in cases.items()
}
print("answers of", plans["plain"]["compiler"])
for plan in plans.values():
    assert not plan["faults"], plan["faults"]  # no parameter, cache or vocabulary moves; nothing is copied

# %% [markdown]
# ## Memory
#
# What one chip holds: the part of the weights and of the caches that is its own, and what a step needs beside them. A program
# that does not fit is refused, and the refusal says by how much.

# %%
figure, axes = plt.subplots(figsize=(8, 3), layout="constrained")
left = np.zeros(len(plans))
parts = ["target", "drafter", "target's cache", "drafter's state"]
for part in parts:
    widths = np.array([plan["parts"][part] for plan in plans.values()]) / GIB
    axes.barh(list(plans), widths, left=left, label=part)
    left += widths
beside = np.array([plan["memory"]["total"] for plan in plans.values()]) / GIB - left
axes.barh(list(plans), np.maximum(beside, 0), left=left, label="beside")
axes.axvline(plans["plain"]["hbm"] / GIB, color="black", linestyle="--", label="a chip's memory")
axes.invert_yaxis()
axes.set(xlabel="GiB on one chip")
axes.legend(fontsize=8, loc="lower right")
plt.show()

for name, plan in plans.items():
    total, hbm = plan["memory"]["total"] / GIB, plan["hbm"] / GIB
    fits = f"{1 - total / hbm:.0%} free" if "cycles" in plan else f"{total - hbm:.1f} GiB too much"
    print(f"{name:22} {total:5.1f} of {hbm:.2f} GiB: {fits}")

# %% [markdown]
# ## What chips send each other
#
# Heads, feed-forward width and vocabulary are split over the chips, so each layer of the target's pass sums twice over all of
# them. What the drafter and the rule send is counted apart, by where in the step it stands. Exchanges in a loop are counted
# once, and there the compiler forgets whose they are.

# %%
for name, plan in plans.items():
    for scope in dict.fromkeys(exchange["scope"] for exchange in plan.get("collectives", [])):
        here = [exchange for exchange in plan["collectives"] if exchange["scope"] == scope]
        sent = sum(exchange["count"] * exchange["bytes"] for exchange in here)
        print(f"{name:22} {scope:16} {sum(e['count'] for e in here):4} exchanges, {sent / 1e6:8.2f} MB")

# %% [markdown]
# ## What a wider pass costs
#
# A pass over one token reads all weights, one over sixteen reads them once, too: until the chips' arithmetic is busy, width is
# nearly free. The estimate takes the longer of the two, the compiler's cycles and reading weights and caches from memory.

# %%
draft = Decoder(  # Llama-3.2-1B: its step is the price of a draft
    vocab=128_256,
    width=2048,
    layers=16,
    heads=32,
    kv_heads=8,
    head_width=64,
    ffw=8192,
    rope=Rope(500_000.0, Llama3Scaling(32.0, 1.0, 4.0, 8192)),
    tied=True,
    max_position=131_072,
    dtype="bfloat16",
)
cost = asked(RECORD, f"verify cost on {TOPOLOGY}", [target, draft], lambda: verify_cost(target, draft, TOPOLOGY))

figure, axes = plt.subplots(figsize=(6, 3), layout="constrained")
axes.loglog(cost["tokens"], cost["verify"], "o-")
axes.loglog(cost["tokens"], cost["tokens"], color="grey", linestyle=":", label="in proportion")
axes.set(xlabel="tokens n in the pass", ylabel="t(n) / t(1)", xticks=cost["tokens"], xticklabels=cost["tokens"])
axes.minorticks_off()
axes.legend()
plt.show()
print(f"a step of the draft model: {cost['draft']:.2f} plain steps")

# %% [markdown]
# ## The tree that pays
#
# Sequoia's choice weighs the tokens that a tree is expected to commit against its pass and its draft steps. The rates at
# which first, second, ... children are accepted are assumed here; `experiments.acceptance` measures them.

# %%
RATES = [0.7, 0.12, 0.05, 0.03, 0.02]
curve = CostCurve(tuple(cost["tokens"]), tuple(cost["verify"]), cost["draft"], cost["data"])
found = choices(RATES, curve, depths=range(1, 13))
for size in curve.tokens[1:]:
    best = next((choice for choice in found if choice.size == size), None)
    if best:
        mark = "  <- best" if best == found[0] else ""
        print(f"{size:5} nodes, {best.depth:2} deep: {best.expected:.2f} tokens a step, {best.speedup:.2f} times plain{mark}")

# %% [markdown]
# ## The drafts of a batch that pay
#
# In a batch the rows of all sequences share a pass, and a schedule (`sdjax.decode.schedule.Prefix`) admits drafts, likeliest
# first, while each of them raises Θ = expected tokens · steps per second; steps per second are the curve's. Here every
# sequence drafts seven tokens in one pass, as DSpark does, and each is accepted with probability 0.8 where those before it
# were. Alone, a sequence verifies them all; in a large batch the chips are busy, and only the first are worth their rows.
# `configs/decode/qwen3_8b_pod.py` decodes with such a schedule.

# %%
survival = 0.8 ** np.arange(1, 8)
for batch in (1, 8, 32, 64, 128):
    likeliest = np.sort(np.tile(survival, batch))[::-1]
    value = np.asarray(worth(likeliest, batch, Throughput(curve, levels=1).rates(8 * batch)))
    kept = int(np.argmax(np.append(value[1:] <= value[:-1], True)))
    print(
        f"{batch:4} sequences: {kept / batch:.1f} of 7 drafts each, "
        f"{value[kept] / batch:.2f} tokens a plain step; all seven: {value[-1] / batch:.2f}"
    )
