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
# # Training a drafter
#
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/OWNER/sdjax/blob/main/notebooks/02_train_a_drafter.ipynb)
#
# EAGLE-3 (Li et al. 2025) drafts with one transformer layer that reads the target's own hidden states. This notebook trains
# one for a tiny target, measures τ (tokens committed by a pass of the target) before and after, saves it, loads it and
# decodes with it. On two CPU cores it runs in about two minutes, half of which go into training the target.

# %% [markdown]
# On Colab, this installs the library. Elsewhere it does nothing: run `pip install -e ".[demo]"` in a copy of the repository.

# %%
import subprocess
import sys

if "google.colab" in sys.modules:
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "git+https://github.com/OWNER/sdjax"], check=True)

# %%
from dataclasses import replace
from itertools import islice
from pathlib import Path

import jax
import matplotlib.pyplot as plt
import numpy as np

import sdjax
from sdjax.core.sampling import Warp
from sdjax.decode.generate import generate
from sdjax.decode.state import Loop, Params
from sdjax.drafters.eagle3 import Eagle3
from sdjax.drafters.no_draft import NoDraft
from sdjax.train import tiny_world
from sdjax.train.evaluate import HeldOut
from sdjax.train.optimiser import Optimiser
from sdjax.train.recipe import Recipe
from sdjax.train.saved import save_drafter
from sdjax.train.step import train_step
from sdjax.train.tiny_model import tiny_model
from sdjax.trees.dynamic import DynamicTree
from sdjax.trees.tree import Tree
from sdjax.verify.walk import Walk

# Accelerators multiply float32 in fewer bits by default; equality of tokens is claimed for float32.
jax.config.update("jax_default_matmul_precision", "float32")

# %% [markdown]
# ## The target and its text
#
# The *tiny world* is a two-layer transformer over bytes and half a megabyte of text: the help topics that come with Python.
# The target is trained here, once, and kept in the folder `runs`. From now on it is frozen.

# %%
model = tiny_model(Path("runs"), replace(tiny_world.OPTIMISER, steps=200))
text = tiny_world.text()[: -tiny_world.HELD_OUT]
print(bytes(text[:200]).decode())

# %% [markdown]
# ## The drafter and its recipe
#
# A drafter is a frozen dataclass of hyper-parameters. `taps` name the target's layers whose states it reads; `tree` is the
# shape of a draft, here a chain of four; `steps` is how many drafts ahead training unrolls. A `Recipe` puts it together
# with its target and an optimiser, and says what is learnt: without `joint`, the drafter alone.

# %%
drafter = Eagle3(taps=(0, 1), tree=Tree.chain(4), steps=4)
recipe = Recipe(model.target, drafter, Optimiser(learning_rate=4e-3, steps=200, warmup=20))
counts = np.bincount(text, minlength=model.target.vocab)  # chooses a draft vocabulary, where a drafter has a smaller one
state = recipe.begin(model.params, drafter.initial(model.target, model.params, counts, jax.random.key(0)), seed=0)

print(f"target:  {sum(leaf.size for leaf in jax.tree.leaves(model.params)):,} parameters")
print(f"drafter: {sum(leaf.size for leaf in jax.tree.leaves(state.params.drafter)):,} parameters")

# %% [markdown]
# `HeldOut` decodes prompts that no one trains on. Untrained, almost nothing of a draft survives:

# %%
held_out = HeldOut(tuple(tuple(prompt) for prompt in tiny_world.prompts(count=8, length=32)))
untrained = held_out.acceptance(model.target, drafter, recipe.decodable(state, model.params), temperature=0.0)
print(f"τ = {untrained.tau:.2f}")

# %% [markdown]
# ## Training
#
# One call of `train_step` is one update. The batch carries tokens alone: the target's states on them are made inside the
# step. (`sdjax.train.loop.fit` is the same loop with checkpoints, logs and evaluation, for runs that must survive.)

# %%
seen = []
for batch in islice(tiny_world.batches(text, rows=8, length=64, seed=0), recipe.optimiser.steps):
    state, metrics = train_step(recipe.loss, recipe.optimiser, state, model.params, batch)
    seen.append(metrics)
seen = jax.device_get(seen)

# %% [markdown]
# Accuracy at position i: how often the drafter's likeliest token equals the target's, behind i drafts of which it knows the
# tokens and has made the states itself. That is what decoding asks of it, on the text's tokens instead of its own.

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(8, 2.8), layout="constrained")
left.plot([row["loss"] for row in seen])
left.set(xlabel="step", ylabel="loss", ylim=(0, None))
for i in range(drafter.steps):
    right.plot(np.convolve([row[f"accuracy_{i}"] for row in seen], np.ones(10) / 10, "valid"), label=f"position {i}")
right.set(xlabel="step", ylabel="accuracy (mean of 10 steps)", ylim=(0, 1))
right.legend()
plt.show()

# %% [markdown]
# ## What it is worth
#
# The loss is a proxy; τ is measured by decoding held-out prompts, with the rule (`Walk`) under which every output token is the
# target's own choice. So small a target repeats itself when it is greedy, and is then easily guessed; sampled, it is not.

# %%
trained = {t: held_out.acceptance(model.target, drafter, recipe.decodable(state, model.params), t) for t in (0.0, 1.0)}
for name, row in {"untrained, T = 0": untrained, "trained, T = 0": trained[0.0], "trained, T = 1": trained[1.0]}.items():
    print(f"{name:17} τ = {row.tau:.2f}   survival at 1, 2, …: " + " ".join(f"{rate:.2f}" for rate in row.survival))

# %% [markdown]
# ## Saved, loaded, used
#
# A saved drafter is a folder of two files: what it is and of which target, and its weights. `load_drafter` refuses it for
# any other target.

# %%
save_drafter(Path("runs/eagle3"), drafter, recipe.decodable(state, model.params), model.target, model.identity)
loaded, weights = sdjax.load_drafter("runs/eagle3", model)
print(sorted(path.name for path in Path("runs/eagle3").iterdir()))
print("the same drafter:", loaded == drafter)

# %% [markdown]
# The shape of a draft is no matter of weights. Here the loaded drafter grows EAGLE-2's dynamic tree instead of the chain it
# was measured with: at each of four levels the three likeliest nodes bring forth three children, and the likeliest 12 nodes
# are kept. The output is still plain decoding's, token for token.

# %%
shaped = replace(loaded, tree=DynamicTree(depth=4, nodes=12, width=3))
prompts = tiny_world.prompts(count=8, length=32)
speculative = generate(Loop(model.target, shaped, Walk(), Warp(0.0)), Params(model.params, weights), prompts, max_new=64)
plain = generate(Loop(model.target, NoDraft(), Walk(), Warp(0.0)), Params(model.params, {}), prompts, max_new=64)
assert speculative.tokens == plain.tokens

passes = [sum(len(steps.committed) for steps in made.steps) for made in (plain, speculative)]
print(f"passes of the target: {passes[0]} plain, {passes[1]} with the drafter (τ = {passes[0] / passes[1]:.2f})")
