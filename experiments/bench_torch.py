"""One training step of EAGLE-3 on SmolLM2-135M beside other people's: `make bench-torch` (an environment with PyTorch), or

    python -m experiments.bench_torch [--rounds 5] [--no-train-head] [--attention sdpa]

The same weights, 2 × 512 packed tokens with the target's states given, 3 unrolled steps, 8192 draft tokens, AdamW with a
clipped gradient; float32, all cores; the steps take turns and medians are quoted. `speculators` freezes its lm_head, which
is learnt here as in the paper, unless --no-train-head freezes all three. It takes one row, into which all documents are
packed: here the batch as one row of 1024, and its rows one by one (`speculators_rows`), whose gradients add up. Its targets
are the draft vocabulary's alone; the other two also find the target's argmax in the whole vocabulary. The last line is one
JSON object:

ours_s, torch_s, speculators_s, speculators_rows_s   seconds of a step
torch_over_ours, speculators_over_ours               the latter of the faster of its two
losses                                               of the first step: ours and torch's agree
"""

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any, Literal

import jax
import numpy as np

try:
    import torch
    import torch.nn.functional as F
    from speculators import SpeculatorModelConfig
    from speculators.losses import resolve_loss_config
    from speculators.models.eagle3 import Eagle3DraftModel
except ImportError as error:
    sys.exit(f"error: {error}; make bench-torch sets up the environment of make test-parity, with PyTorch, and runs this")

import sdjax
from experiments.bench_train import configs_of, packed, rounded, traced
from experiments.launch import command_line, decode_in_float32, mistakes_end_the_program
from sdjax.core.types import Trace
from sdjax.drafters.eagle3 import Eagle3
from sdjax.drafters.head import target_head
from sdjax.drafters.published.registry import layout_named
from sdjax.targets.decoder import Decoder
from sdjax.targets.load import Model
from sdjax.targets.packed import packed_mask
from sdjax.train.optimiser import Optimiser
from sdjax.train.recipe import Recipe
from sdjax.train.step import train_step

Tree = dict[str, Any]


@dataclass(frozen=True)
class Bench:
    """What is measured."""

    rounds: int = 5
    """steps of each that are timed"""
    train_head: bool = True
    """whether the drafter's vocabulary matrix is learnt"""
    attention: Literal["sdpa", "eager"] = "sdpa"
    """of speculators; its default is compiled for GPUs"""


def main(bench: Bench) -> dict[str, Any]:
    decode_in_float32()
    torch.set_num_threads(os.cpu_count() or 1)
    model, config = sdjax.load("smollm2-135m"), configs_of(("eagle3",))["eagle3"]
    drafter = replace(config.drafter, head=replace(config.drafter.head, trained=bench.train_head))
    trace = traced(model.target, len(drafter.taps), packed(config.rows, config.length, model.target.vocab))
    counts = np.bincount(np.ravel(trace.batch.tokens), minlength=model.target.vocab)
    params = drafter.initial(model.target, model.params, counts, jax.random.key(config.seed))
    steps = {
        "ours": our_step(drafter, params, model, config.optimiser, trace),
        "torch": torch_step(drafter, params, model, config.optimiser, trace),
        "speculators": speculators_step(bench, drafter, params, model, config.optimiser, trace, rows=1),
        "speculators_rows": speculators_step(bench, drafter, params, model, config.optimiser, trace, rows=config.rows),
    }
    losses = {name: step() for name, step in steps.items()}
    print("loss of the first step:", ", ".join(f"{name} {loss:.4f}" for name, loss in losses.items()), flush=True)
    np.testing.assert_allclose(losses["torch"], losses["ours"], rtol=1e-3)
    seconds = {name: median(times) for name, times in in_turns(steps, bench.rounds).items()}
    found: dict[str, Any] = {f"{name}_s": value for name, value in seconds.items()}
    found["torch_over_ours"] = seconds["torch"] / seconds["ours"]
    found["speculators_over_ours"] = min(seconds["speculators"], seconds["speculators_rows"]) / seconds["ours"]
    found |= {"supervised_per_second": float(trace.ahead(1)[1].sum()) / seconds["ours"], "train_head": bench.train_head}
    found |= {"attention": bench.attention, "rounds": bench.rounds, "losses": losses}
    print(json.dumps(rounded(found)))
    return found


def in_turns(steps: dict[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Seconds of `rounds` calls of each."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            begin = time.perf_counter()
            step()
            times[name].append(time.perf_counter() - begin)
    for name, found in times.items():
        print(f"{name:18} {median(found):8.3f} s", flush=True)
    return times


def our_step(drafter: Eagle3, params: Any, model: Model, optimiser: Optimiser, trace: Trace) -> Callable[[], float]:
    recipe = Recipe(model.target, drafter, optimiser)
    state = recipe.begin(model.params, params, 0)
    run = train_step.lower(recipe.loss, optimiser, state, model.params, trace).compile()
    held = [state]

    def step() -> float:
        state, metrics = run(held.pop(), model.params, trace)
        held.append(jax.block_until_ready(state))
        return float(metrics["loss"])

    return step


# The same in plain PyTorch.


@dataclass
class Torch:
    """EAGLE-3's loss in operations of PyTorch, with autograd: the logits of supervised rows alone, nothing computed anew."""

    drafter: Eagle3
    target: Decoder
    params: Tree
    embed: torch.Tensor
    trace: Trace
    learnt: list[torch.Tensor] = field(default_factory=list)

    def __post_init__(self):
        batch, head = self.trace.batch, self.params["head"]
        self.features, self.hidden = tensor(self.trace.features).flatten(2), tensor(self.trace.hidden)
        self.ahead = [tuple(map(tensor, self.trace.ahead(i + 1))) for i in range(self.drafter.steps)]
        self.angles = [
            tuple(tensor(a)[:, :, None] for a in self.target.rope.angles(batch.positions + i, self.target.head_width))
            for i in range(self.drafter.steps)
        ]
        self.mask = tensor(packed_mask(batch))[:, None]
        self.judging = tensor(batch.loss_mask)
        self.judge = self.embed[head["ids"].long()]
        self.place = torch.full((self.target.vocab,), -1)
        self.place[head["ids"].long()] = torch.arange(len(head["ids"]))
        self.learnt = [leaf for leaf in jax.tree.leaves(self.params) if leaf.requires_grad]

    def norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, weight.shape, weight, self.target.norm_eps)

    def heads(self, x: torch.Tensor, weight: torch.Tensor, count: int) -> torch.Tensor:
        return F.linear(x, weight).unflatten(-1, (count, self.target.head_width))

    def rotate(self, x: torch.Tensor, step: int) -> torch.Tensor:
        (cos, sin), (first, second) = self.angles[step], x.chunk(2, -1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)

    def unroll(self) -> list[torch.Tensor]:
        """Every step's outputs, [B T E] each."""
        p, layer, shared = self.params, self.params["layer"], self.target.heads // self.target.kv_heads
        hidden, keys, values, outputs = F.linear(self.features, p["fc"]), [], [], []
        for i in range(self.drafter.steps):
            embedded = self.norm(F.embedding(self.ahead[i][0].long(), self.embed), p["input_norm"])
            x = torch.cat([embedded, self.norm(hidden, p["hidden_norm"])], -1)
            q = self.rotate(self.heads(x, layer["q"], self.target.heads), i).transpose(1, 2)
            k = self.rotate(self.heads(x, layer["k"], self.target.kv_heads), i).transpose(1, 2)
            v = self.heads(x, layer["v"], self.target.kv_heads).transpose(1, 2)
            keys.append(k.repeat_interleave(shared, 1))
            values.append(v.repeat_interleave(shared, 1))
            mixed = self.attend(q * self.target.head_width**-0.5, keys, values).transpose(1, 2).flatten(2)
            x = hidden + F.linear(mixed, layer["o"])
            y = self.norm(x, layer["mlp_norm"])
            hidden = x + F.linear(F.silu(F.linear(y, layer["gate"])) * F.linear(y, layer["up"]), layer["down"])
            outputs.append(hidden)
        return outputs

    def attend(self, q: torch.Tensor, keys: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> torch.Tensor:
        """Step 0's rows under the mask; of every later step, the row itself. [B H T K]."""
        wide = (q @ keys[0].mT).masked_fill(~self.mask, -1e30)
        own = [(q * k).sum(-1, keepdim=True) for k in keys[1:]]
        p = torch.cat([wide, *own], -1).softmax(-1)
        length = wide.shape[-1]
        mixed = p[..., :length] @ values[0]
        for i, v in enumerate(values[1:]):
            mixed = mixed + p[..., length + i, None] * v
        return mixed

    def loss(self) -> torch.Tensor:
        """Σ_i decay^i · the mean cross-entropy of step i with the target's law, as in `Eagle3.loss`."""
        with torch.no_grad():
            theirs = self.hidden[self.judging]
            best = self.place[F.linear(theirs, self.embed).argmax(-1)]
            law = F.linear(theirs, self.judge).softmax(-1)
        row = torch.zeros_like(self.judging, dtype=torch.long)
        row[self.judging] = torch.arange(len(best))
        total = torch.zeros(())
        for i, hidden in enumerate(self.unroll()):
            weight = self.ahead[i][1] > 0
            judged = row.roll(-i - 1, 1)[weight]
            logits = F.linear(self.norm(hidden[weight], self.params["norm"]), self.params["head"]["weight"])
            entropy = -(law[judged] * logits.log_softmax(-1)).sum(-1)
            inside = (best[judged] >= 0).float()
            total = total + self.drafter.decay**i * (entropy * inside).sum() / inside.sum().clamp(min=1)
            self.agreement = (logits.argmax(-1) == best[judged]).float().mean()
        return total


def torch_step(drafter: Eagle3, params: Any, model: Model, optimiser: Optimiser, trace: Trace) -> Callable[[], float]:
    own = jax.tree.map(tensor, params)
    for spec, leaf in zip(jax.tree.leaves(drafter.specs(model.target)), jax.tree.leaves(own), strict=True):
        leaf.requires_grad_(spec.trainable)
    plain = Torch(drafter, model.target, own, tensor(target_head(model.target, model.params)), trace)
    settings: Any = {"lr": optimiser.learning_rate, "betas": (optimiser.b1, optimiser.b2)}
    update = torch.optim.AdamW(plain.learnt, weight_decay=optimiser.weight_decay, fused=True, **settings)

    def step() -> float:
        update.zero_grad()
        loss = plain.loss()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(plain.learnt, optimiser.clip)
        update.step()
        return loss.item()

    return step


def tensor(x: Any) -> torch.Tensor:
    return torch.from_numpy(np.array(x))


# The module of PyPI `speculators`, called as its own trainer does.


def speculators_step(
    bench: Bench, drafter: Eagle3, params: Any, model: Model, optimiser: Optimiser, trace: Trace, rows: int
) -> Callable[[], float]:
    """A step on the batch as `rows` rows of its own, one after the other."""
    module = speculators_module(bench, drafter, params, model)
    update = torch.optim.AdamW(module.named_parameters(), lr=optimiser.learning_rate, weight_decay=optimiser.weight_decay)
    call = {
        "ttt_steps": drafter.steps,
        "ttt_step_loss_decay": drafter.decay,
        "loss_config": resolve_loss_config("kl_div", "eager"),  # its fused losses run on GPUs alone
    }
    parts = speculators_batches(trace, rows)

    def step() -> float:
        update.zero_grad()
        total = 0.0
        for part in parts:
            _, loss, _ = module(**part, **call)
            (loss / rows).backward()
            total += loss.item() / rows
        torch.nn.utils.clip_grad_norm_(module.parameters(), optimiser.clip)
        update.step()
        return total

    return step


def speculators_module(bench: Bench, drafter: Eagle3, params: Any, model: Model) -> Any:
    """Its drafter, with our weights."""
    made = layout_named("speculators").write(drafter, params, model.target, model.params)
    config = SpeculatorModelConfig.from_dict(dict(made.config))
    config.transformer_layer_config._attn_implementation = bench.attention
    module = Eagle3DraftModel(config).float()
    tensors = {name: tensor(x) for name, x in made.tensors.items()}
    tensors["verifier_lm_head.weight"] = tensor(target_head(model.target, model.params)[params["head"]["ids"]])
    tensors["verifier_norm.weight"] = torch.ones(model.target.width)  # our states are normed; once more is another target
    odd = module.load_state_dict(tensors, strict=False)
    if odd.missing_keys or odd.unexpected_keys:
        raise ValueError(f"speculators lacks {odd.missing_keys} and does not know {odd.unexpected_keys}; is it version 0.9?")
    module.lm_head.weight.requires_grad_(bench.train_head)
    return module.train()


def speculators_batches(trace: Trace, rows: int) -> list[dict[str, torch.Tensor]]:
    """The batch as its collate function makes it: token, mask and target's state stand where the state before them does."""
    batch = trace.batch
    tokens, weight = trace.ahead(1)
    documents = batch.segments + batch.segments.max() * np.arange(len(batch.segments))[:, None]
    whole: Tree = {
        "hidden_states": trace.features.reshape(*batch.tokens.shape, -1),
        "input_ids": np.asarray(tokens, np.int64),
        "document_ids": np.asarray(documents, np.int64),
        "loss_mask": weight > 0,
        "position_ids": np.asarray(batch.positions + 1, np.int64),
        "verifier_last_hidden_states": np.roll(trace.hidden, -1, 1),
    }
    shaped = {name: np.asarray(x).reshape(rows, 1, -1, *x.shape[2:]) for name, x in whole.items()}
    return [{name: tensor(x[row]) for name, x in shaped.items()} for row in range(rows)]


if __name__ == "__main__":
    with mistakes_end_the_program():
        main(command_line("bench_torch", Bench, __doc__))
