"""EAGLE-3 against PyPI `speculators`: an exported folder is read by it, and both draft the same from the same states."""

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sdjax.drafters.eagle3 import Eagle3
from sdjax.drafters.head import DraftHead
from sdjax.drafters.published.pickled import read_pickled
from sdjax.drafters.published.registry import read_folder, write_folder
from sdjax.targets.decoder import Decoder
from sdjax.targets.huggingface import save_huggingface
from sdjax.targets.packed import trace_of
from sdjax.targets.rope import Llama3Scaling, Rope, YarnScaling
from sdjax.train.context import training_context
from sdjax.trees.tree import Tree
from tests.drafters.eagle_texts import batch_of

torch = pytest.importorskip("torch", reason="needs torch: install the extra `parity`")
pytest.importorskip("speculators", reason="needs speculators: install the extra `parity`")

from speculators import SpeculatorModel, SpeculatorModelConfig  # noqa: E402
from speculators.models.eagle3 import Eagle3DraftModel  # noqa: E402

pytestmark = pytest.mark.parity

STEPS, LENGTH = 3, 40
ROPE = Rope(5e5, Llama3Scaling(8.0, 1.0, 4.0, 16))
TARGET = Decoder(vocab=61, width=32, layers=8, heads=4, kv_heads=2, head_width=8, ffw=48, rope=ROPE, max_position=256)
PAPER = Eagle3((1, 3, 4), Tree.chain(STEPS), head=DraftHead(40, trained=True), steps=STEPS)
LATER = {"norm_output": True, "norm_before_residual": True}
YARN = replace(TARGET, layers=1, heads=2, ffw=40, rope=Rope(1e4, YarnScaling(4.0, 64)))
DRAFTERS = {
    "paper": PAPER,
    "whole vocabulary": replace(PAPER, head=DraftHead(trained=True), taps=("embed", 7)),
    "3.1": replace(PAPER, norm_before_fc=True, **LATER),
    "norm of each tap": replace(PAPER, fc_norm=True, **LATER, layer=YARN),
    "qwen3": replace(PAPER, layer=replace(TARGET, layers=1, qk_norm=True, norm_eps=1e-3)),
}


def drawn(specs, seed):
    """Weights of one over the root of their width, norms about one."""
    random = np.random.default_rng(seed)

    def leaf(spec):
        if not jnp.issubdtype(spec.dtype, jnp.floating):
            return spec.init(None, spec.shape, spec.dtype)
        x = random.normal(size=spec.shape)
        return jnp.asarray(1 + 0.3 * x if len(spec.shape) == 1 or spec.shape[0] < 4 else x * spec.shape[-1] ** -0.5, spec.dtype)

    return jax.tree.map(leaf, specs)


WEIGHTS = drawn(TARGET.specs(), 1)
TOKENS = np.random.default_rng(2).integers(0, TARGET.vocab, LENGTH)
BATCH = batch_of([[TOKENS.tolist()]], LENGTH)


def ours(drafter, params, trace):
    """Logits of every step and row, [N T D]."""

    @jax.jit
    def run(params, trace):
        ctx = training_context(TARGET, WEIGHTS, BATCH)
        return drafter.logits(ctx, params, drafter.unroll(ctx, params, trace))[:, 0]

    return np.asarray(run(params, trace))


def theirs(model, features):
    """The same from speculators: row r is fed token r + 1, at position r + 1 by its own count."""
    kept = []
    hook = model.lm_head.register_forward_hook(lambda module, given, out: kept.append(out[0].numpy()))
    tokens = torch.tensor(np.append(TOKENS[1:], 0))[None]
    states = torch.tensor(features.reshape(1, LENGTH, -1))
    with torch.no_grad():
        model(states, tokens, document_ids=torch.zeros(1, LENGTH, dtype=torch.long), ttt_steps=STEPS)
    hook.remove()
    return np.stack(kept)


def opened(folder, layout, drafter, params):
    """Our folder in one of speculators' layouts, as speculators reads it."""
    save_huggingface(folder / "target", TARGET, WEIGHTS)
    write_folder(folder / "d", layout, drafter, params, TARGET, WEIGHTS, "float32")
    config = json.loads((folder / "d" / "config.json").read_text())
    config["speculators_config"]["verifier"]["name_or_path"] = str(folder / "target")
    (folder / "d" / "config.json").write_text(json.dumps(config))
    config = SpeculatorModelConfig.from_pretrained(str(folder / "d"))
    config.transformer_layer_config._attn_implementation = "eager"  # flex attention would be compiled
    return SpeculatorModel.from_pretrained(str(folder / "d"), config=config).float().eval()


@pytest.mark.parametrize("name", DRAFTERS)
def test_speculators_reads_and_drafts_the_same(name, tmp_path):
    drafter = DRAFTERS[name]
    params = drawn(drafter.specs(TARGET), 3)
    model = opened(tmp_path, "speculators", drafter, params)
    assert isinstance(model, Eagle3DraftModel)
    trace = jax.jit(trace_of, static_argnums=(0, 3))(TARGET, WEIGHTS, BATCH, drafter.taps)
    mine, other = ours(drafter, params, trace), theirs(model, np.asarray(trace.features))
    assert mine.shape == other.shape
    rows = [slice(0, LENGTH - 1 - step) for step in range(STEPS)]  # further ones are fed tokens beyond the text
    worst = max(np.abs(mine[i, row] - other[i, row]).max() for i, row in enumerate(rows))
    assert worst <= 1e-4, f"largest difference of logits {worst:.1e}, of {np.abs(other).max():.1f}"

    model.save_pretrained(str(tmp_path / "again"))
    layout, back = read_folder(tmp_path / "again", TARGET, WEIGHTS)
    assert layout.name == "speculators" and back.drafter == replace(drafter, steps=back.drafter.steps, law=back.drafter.law)
    jax.tree.map(np.testing.assert_array_equal, back.params, params)


def test_files_of_torch_save(tmp_path):
    """An official folder's pytorch_model.bin holds half, bool and long storages; views and parameters, too."""
    half = torch.arange(12.0).reshape(3, 4).half()
    given = {
        "half": half,
        "turned": half.T,
        "row": half[1],
        "brain": half.bfloat16(),
        "parameter": torch.nn.Parameter(half.float()),
        "long": torch.arange(-2, 3),
        "bool": torch.tensor([True, False]),
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 3),
    }
    torch.save(given, tmp_path / "pytorch_model.bin")
    found = read_pickled(tmp_path / "pytorch_model.bin")
    assert found.keys() == given.keys()
    for name, tensor in given.items():
        assert found[name].shape == tuple(tensor.shape) and str(found[name].dtype) == str(tensor.dtype).removeprefix("torch.")
        np.testing.assert_array_equal(found[name].astype(np.float64), tensor.detach().double().numpy())
    torch.save(torch.nn.Linear(2, 2), tmp_path / "module.pt")
    with pytest.raises(ValueError, match="which no file of tensors needs"):
        read_pickled(tmp_path / "module.pt")
