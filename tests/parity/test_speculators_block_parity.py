"""DFlash and DSpark against PyPI `speculators`: it reads our folders, and both draft the same behind every anchor."""

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sdjax.core.types import rows
from sdjax.drafters.block import Block
from sdjax.drafters.head import DraftHead
from sdjax.drafters.published.registry import read_folder, write_folder
from sdjax.targets.huggingface import save_huggingface
from sdjax.targets.packed import trace_of
from sdjax.train.context import training_context
from tests.parity.test_speculators_parity import BATCH, LENGTH, TARGET, TOKENS, WEIGHTS, drawn

torch = pytest.importorskip("torch", reason="needs torch: install the extra `parity`")
pytest.importorskip("speculators", reason="needs speculators: install the extra `parity`")

from speculators import SpeculatorModel, SpeculatorModelConfig  # noqa: E402

pytestmark = pytest.mark.parity

DFLASH = Block.dflash((1, 4, 6), 5, 4, layers=2)
DSPARK = Block.dspark((1, 4, 6), 60, 5, layers=2, rank=6)
DRAFTERS = {
    "dflash": DFLASH,
    "dflash, anchor first": replace(DFLASH, layout="anchor_first"),
    "dspark": DSPARK,
    "dspark, gated, draft vocabulary": replace(DSPARK, markov="gated", head=DraftHead(40)),
    "dspark, fill in": replace(DSPARK, layout="fill_in"),
}


def params_of(drafter):
    counts = np.random.default_rng(4).permutation(TARGET.vocab)
    own = {"mask": WEIGHTS["embed"][drafter.mask_token], "head": drafter.head.initial(TARGET, WEIGHTS, counts)}
    return drawn(drafter.specs(TARGET), 3) | own


def ours(drafter, params, trace, anchors):
    """Logits behind every anchor, the text's own tokens before each slot: [A N D]."""

    @jax.jit
    def run(params, trace):
        ctx, place = training_context(TARGET, WEIGHTS, BATCH), jnp.arange(anchors)[None]
        hidden = drafter.run_blocks(ctx, params, trace, place)
        previous = rows(BATCH.tokens, place[..., None] + jnp.arange(drafter.length))
        return drafter.corrected(params, drafter.head.logits(ctx, params["head"], hidden), hidden, previous)[0]

    return np.asarray(run(params, trace))


def theirs(model, features, anchors):
    """The same from speculators, which takes every place that it may as an anchor; slots that predict, [A N D]."""
    kept = []
    model.lm_head.register_forward_hook(lambda module, given, out: kept.append(out[0]))
    if hasattr(model, "markov_head"):
        bias = model.markov_head.block_bias
        model.markov_head.block_bias = lambda **given: kept.append(bias(**given)) or kept[-1]
    ones = torch.ones(1, LENGTH, dtype=torch.long)
    states = torch.tensor(features.reshape(1, LENGTH, -1))
    final = torch.zeros(1, LENGTH, TARGET.width)
    settings, _ = model.get_trainer_kwargs(loss_fn="kl_div", loss_implementation="eager", max_anchors=anchors)
    with torch.no_grad():
        model(states, torch.tensor(TOKENS)[None], ones, final, 0 * ones, **settings)
    return sum(part.reshape(anchors, model.block_size, -1) for part in kept).numpy()


@pytest.mark.parametrize("name", DRAFTERS)
def test_speculators_reads_and_drafts_the_same(name, tmp_path):
    drafter = DRAFTERS[name]
    params, anchors = params_of(drafter), LENGTH - drafter.width
    save_huggingface(tmp_path / "target", TARGET, WEIGHTS)
    write_folder(tmp_path / "d", "speculators-block", drafter, params, TARGET, WEIGHTS, "float32")
    config = json.loads((tmp_path / "d" / "config.json").read_text())
    config["speculators_config"]["verifier"]["name_or_path"] = str(tmp_path / "target")
    (tmp_path / "d" / "config.json").write_text(json.dumps(config))
    config = SpeculatorModelConfig.from_pretrained(str(tmp_path / "d"))
    config.transformer_layer_config._attn_implementation = "eager"  # flex attention would be compiled
    model = SpeculatorModel.from_pretrained(str(tmp_path / "d"), config=config).float().eval()
    model.load_verifier_weights()
    trace = jax.jit(trace_of, static_argnums=(0, 3))(TARGET, WEIGHTS, BATCH, drafter.taps)
    mine = ours(drafter, params, trace, anchors)
    other = theirs(model, np.asarray(trace.features), anchors)[:, -drafter.length :]
    assert mine.shape == other.shape
    worst = np.abs(mine - other).max()
    assert worst <= 1e-4, f"largest difference of logits {worst:.1e}, of {np.abs(other).max():.1f}"

    model.save_pretrained(str(tmp_path / "again"))
    layout, back = read_folder(tmp_path / "again", TARGET, WEIGHTS)
    assert layout.name == "speculators-block"
    assert (back.drafter.layout, back.drafter.taps, back.drafter.width) == (drafter.layout, drafter.taps, drafter.width)
    jax.tree.map(np.testing.assert_array_equal, back.params, params)
