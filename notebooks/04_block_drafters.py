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
# # Block drafters, and what is worth verifying
#
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/OWNER/sdjax/blob/main/notebooks/04_block_drafters.ipynb)
#
# EAGLE-3 drafts a chain by as many passes as it has tokens. A block drafter fills a whole block in one pass. This notebook
# trains two of them for a tiny target, DFlash (Chen et al. 2026) and DSpark (2026); turns the first one's slots into a tree;
# checks whether the second one's confidence is true; and lets that confidence decide how much of each draft is verified. On
# two CPU cores it runs in about two minutes.

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

from sdjax.core.metrics import acceptance
from sdjax.core.sampling import Warp
from sdjax.decode.generate import generate
from sdjax.decode.schedule import Prefix, Throughput
from sdjax.decode.state import Loop
from sdjax.drafters.block import Block
from sdjax.drafters.block_tree import BlockTree
from sdjax.study.calibration import BINS, Drafts, figures, fit_temperatures, reliability
from sdjax.study.survival import served_drafts
from sdjax.train import tiny_world
from sdjax.train.evaluate import HeldOut
from sdjax.train.optimiser import Optimiser
from sdjax.train.recipe import Recipe
from sdjax.train.step import train_step
from sdjax.train.tiny_model import tiny_model
from sdjax.trees.hardware import CostCurve
from sdjax.verify.token import TokenRejection

# Accelerators multiply float32 in fewer bits by default; equality of tokens is claimed for float32.
jax.config.update("jax_default_matmul_precision", "float32")

# %% [markdown]
# ## The target and its text
#
# The *tiny world* of the other notebooks: a two-layer transformer over bytes, trained once and kept in the folder `runs`.

# %%
model = tiny_model(Path("runs"), replace(tiny_world.OPTIMISER, steps=200))
text = tiny_world.text()[: -tiny_world.HELD_OUT]
counts = np.bincount(text, minlength=model.target.vocab)  # chooses a draft vocabulary, where a drafter has a smaller one

# %% [markdown]
# ## Two blocks
#
# Both are one class, `Block`, whose fields are the papers' choices. The block is the *anchor*, the newest token, and masks
# behind it; each layer's attention sees the block and, as further keys and values, the target's own states on the text.
#
# - **DFlash** fills masks in: the slot at position i predicts the token at i. All slots see each other. Drafts are argmaxes.
# - **DSpark** lets the anchor predict first: the slot at i predicts the token at i + 1, so that one row fewer is run. Slots are
#   predicted independently of each other, so a small *Markov head* then corrects them from left to right, each by the token
#   drafted before it, and a *confidence* says how likely each draft is to be accepted.
#
# The mask is a byte that no text has. `taps` are the target's states that are read: its embeddings and both layers. Drawn is
# what each row of a block sees (grey), the text left of the line, and which position it predicts; in JetSpec, a third kind,
# slots see those before them alone.

# %%
SHAPE = {"taps": ("embed", 0, 1), "mask_token": 255, "length": 4, "layers": 2, "anchors": 16}
drafters = {"DFlash": Block.dflash(**SHAPE), "DSpark": Block.dspark(**SHAPE, rank=32)}


def show_block(axis, name, block, seen=5):
    """What each row of a block sees, the text's last tokens left of the line, and the position that each row predicts."""
    axis.imshow(
        np.concatenate([np.ones((block.width, seen)), np.asarray(block.slots_seen()[0])], 1), cmap="Greys", vmin=0, vmax=2
    )
    axis.axvline(seen - 0.5, color="C1")
    ahead = [i if block.layout == "fill_in" else i + 1 for i in range(block.width)]
    rows = [f"{'anchor' if i == 0 else 'mask'} p+{i} → " + (f"p+{k}" if k else "–") for i, k in enumerate(ahead)]
    axis.set_yticks(range(block.width), rows)
    axis.set_xticks(range(seen + block.width), [f"p−{seen - i}" for i in range(seen)] + [f"p+{i}" for i in range(block.width)])
    axis.tick_params(axis="x", rotation=60)
    axis.set_title(f"{name}: {block.layout}")


shown = drafters | {"JetSpec": replace(drafters["DFlash"], block_mask="causal")}
figure, axes = plt.subplots(1, len(shown), figsize=(11, 2.6), layout="constrained")
for axis, (name, block) in zip(axes, shown.items(), strict=True):
    show_block(axis, name, block)
plt.show()

# %% [markdown]
# ## Training
#
# Each row of a batch is cut at random *anchors*, and all their blocks are run at once behind the text. Both drafters see the
# same text for as many steps. DFlash learns the text's tokens; DSpark mostly the target's law, by the total variation
# between the two, which is the chance that a sampled draft is rejected.


# %%
def train(drafter, steps=200):
    """The drafter's weights, beside the target's."""
    recipe = Recipe(model.target, drafter, Optimiser(learning_rate=4e-3, steps=steps, warmup=20))
    state = recipe.begin(model.params, drafter.initial(model.target, model.params, counts, jax.random.key(0)), seed=0)
    for batch in islice(tiny_world.batches(text, rows=8, length=128, seed=0), steps):
        state, _ = train_step(recipe.loss, recipe.optimiser, state, model.params, batch)
    return recipe.decodable(state, model.params)


weights = {name: train(drafter) for name, drafter in drafters.items()}

# %% [markdown]
# τ is the number of tokens that a pass of the target commits; *survival* at i is the share of steps that accepted at least i
# drafts. `HeldOut` decodes prompts that no one trains on, here greedily: drafts are accepted where they are the target's own
# argmaxes. (Sampled drafts want a rule that knows the law they were drawn from, as the one further below.)

# %%
held_out = HeldOut(tuple(tuple(prompt) for prompt in tiny_world.prompts(count=16, length=32)))


def measure(name, drafter, params):
    row = held_out.acceptance(model.target, drafter, params, temperature=0.0)
    print(f"{name:12} τ = {row.tau:.2f}   survival at 1, 2, …: " + " ".join(f"{rate:.2f}" for rate in row.survival))


for name, drafter in drafters.items():
    measure(name, drafter, weights[name])

# %% [markdown]
# ## A tree of slots
#
# The slots of a block without a Markov head are independent, so the likeliest trees can be read off one pass: DDTree takes
# DFlash's weights as they are and spends a budget of nodes, here 12, on the likeliest prefixes. Nothing is trained anew.

# %%
tree = BlockTree(drafters["DFlash"], nodes=12)
measure("DDTree of 12", tree, weights["DFlash"])

# %% [markdown]
# ## Is the confidence true?
#
# DSpark's head states for each draft the chance that it is accepted if those before it are; their product is the *survival* of
# a slot. Acceptance depends on the temperature and the rule of serving, so that drafts are collected as they are served:
# sampled at T = 1 and judged by rejection sampling. Half of the requests then fit one temperature for each slot, from first
# to last (*sequential temperature scaling*), and the other half judge them. ECE, the expected calibration error, is the mean
# distance between what was stated and what came true.

# %%
prompts = tiny_world.prompts(count=160, length=32)
served = Loop(model.target, drafters["DSpark"], TokenRejection(), Warp(1.0))
drafts = served_drafts(served, weights["DSpark"], prompts, max_new=96, batch=80)


def part(which):
    kept = drafts.request % 2 == which
    return Drafts(drafts.logits[kept], drafts.accepted[kept], drafts.request[kept])


fitted, judged = part(0), part(1)
temperatures = fit_temperatures(fitted)
before, after = figures(judged), figures(judged, temperatures)
print(f"{len(judged.logits)} drafts judge")
for k, (t, old, new) in enumerate(zip(temperatures, before, after, strict=True), 1):
    low, high = new.ece_interval
    print(f"slot {k}: temperature {t:.2f}, ECE {old.ece:.3f} → {new.ece:.3f} [{low:.3f}, {high:.3f}], AUC {new.auc:.2f}")

# %%
figure, axes = plt.subplots(1, len(temperatures), figsize=(9, 2.6), sharey=True, layout="constrained")
for k, axis in enumerate(axes):
    axis.plot([0, 1], [0, 1], "k:", linewidth=0.8)
    for label, scale in (("as trained", 1.0), ("calibrated", temperatures)):
        bins = reliability(judged.survival(scale)[:, k], judged.survived[:, k], np.ones(len(judged.logits)), BINS)
        filled = bins.count > 0
        axis.plot(bins.predicted[filled], bins.observed[filled], "o-", markersize=3, label=label)
    axis.set(title=f"slot {k + 1}", xlabel="stated survival", xlim=(0, 1), ylim=(0, 1))
axes[0].set_ylabel("share that survived")
axes[-1].legend()
plt.show()

# %% [markdown]
# The head was trained on the acceptance rate itself, so there was little to mend; some thousand drafts cannot tell an ECE of
# 2 % from one of 3 %. Ranking (AUC: how likely a draft that came true was trusted more than one that did not) no temperature
# changes much. On real models `python -m experiments.calibrate` does the same and keeps the temperatures with the drafter.

# %% [markdown]
# ## Verifying what pays
#
# In a batch a pass of the target gets dearer with its rows, and a draft that will be rejected costs as much as a good one.
# DSpark's schedule admits drafts of the whole batch, likeliest first, while each of them raises Θ = expected tokens · steps
# per second, and stops at the first that does not. Stopping there, and not at the best Θ of all, is what keeps the output
# the target's own: whether a token is verified may not depend on that token.
#
# How dear rows are is a property of the machine: here a made-up one, on which 64 rows double the time of a pass.
# (`experiments.aot` makes such curves for TPUs.)

# %%
curve = CostCurve(tokens=(1, 128), verify=(1.0, 3.0), draft=0.05)
calibrated = replace(drafters["DSpark"], temperatures=tuple(temperatures))
schedules = {"all of a draft": None, "what pays": Prefix(Throughput(curve, levels=1))}

print(f"{'':16}{'τ':>6}{'rows a step':>14}{'tokens a unit of time':>24}")
for name, schedule in schedules.items():
    loop = Loop(model.target, calibrated, TokenRejection(), Warp(1.0), schedule=schedule)
    steps = generate(loop, weights["DSpark"], prompts[:16], max_new=64).steps
    rows = 1 + np.concatenate([request.proposed for request in steps]).mean()  # the anchor is one
    tau = acceptance(steps, calibrated.depth).tau
    print(f"{name:16}{tau:6.2f}{rows:14.2f}{tau / curve.verify_time(round(16 * rows)):20.2f}")

# %% [markdown]
# Fewer rows commit almost as many tokens. How much time that saves is the curve's affair: with packed verification
# (`Loop(pack=...)`) a step costs what is verified, and not the batch times its longest draft; `make bench-pack` measures it.
