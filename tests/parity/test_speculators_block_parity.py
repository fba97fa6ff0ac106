"""DFlash and DSpark against PyPI `speculators`: it reads our folders, and both draft the same behind every anchor."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sdjax.core.linear import product
from sdjax.core.types import rows
from sdjax.drafters.block import Block
from sdjax.drafters.confidence import confidence_logit
from sdjax.drafters.head import DraftHead
from sdjax.drafters.published.registry import read_folder
from sdjax.targets.packed import trace_of
from sdjax.train.context import training_context
from tests.parity.test_speculators_parity import BATCH, LENGTH, TARGET, TOKENS, WEIGHTS, drawn, opened

torch = pytest.importorskip("torch", reason="needs torch: install the extra `parity`")
pytest.importorskip("speculators", reason="needs speculators: install the extra `parity`")


pytestmark = pytest.mark.parity

DFLASH = Block.dflash((1, 4, 6), 5, 4, layers=2)
DSPARK = Block.dspark((1, 4, 6), 60, 5, layers=2, rank=6)
DRAFTERS = {
    "dflash": DFLASH,
    "dflash, anchor first": replace(DFLASH, layout="anchor_first"),
    "dspark": DSPARK,
    "dspark, gated, draft vocabulary": replace(DSPARK, markov="gated", head=DraftHead(40)),
    "dspark, fill in": replace(DSPARK, layout="fill_in", confidence=0.0),
    "dspark, rnn": replace(DSPARK, markov="rnn"),
    "dspark, confidence alone": replace(DSPARK, markov="none"),
}


def params_of(drafter):
    counts = np.random.default_rng(4).permutation(TARGET.vocab)
    own = {"mask": WEIGHTS["embed"][drafter.mask_token], "head": drafter.head.initial(TARGET, WEIGHTS, counts)}
    return drawn(drafter.specs(TARGET), 3) | own


def ours(drafter, params, trace, anchors):
    """Behind every anchor, the text's own tokens before each slot: logits [A N D], and those of the confidence [A N]."""

    @jax.jit
    def run(params, trace):
        ctx, place = training_context(TARGET, WEIGHTS, BATCH), jnp.arange(anchors)[None]
        hidden = drafter.run_blocks(ctx, params, trace, place)
        previous = rows(BATCH.tokens, place[..., None] + jnp.arange(drafter.length))
        logits, told = drafter.head.logits(ctx, params["head"], hidden), drafter.told_of_text(ctx, params, previous, hidden)
        logits = logits if told is None else logits + product(told, params["markov"]["after"])
        return logits[0], confidence_logit(params, previous, hidden)[0] if drafter.confidence else None

    return jax.tree.map(np.asarray, run(params, trace))


def theirs(model, features, anchors):
    """The same from speculators, which takes every place that it may as an anchor; of slots that do not predict, too."""
    kept, trust = [], []
    model.lm_head.register_forward_hook(lambda module, given, out: kept.append(out[0]))
    if getattr(model, "markov_head", None):
        bias = model.markov_head.block_bias
        model.markov_head.block_bias = lambda **given: kept.append(bias(**given)) or kept[-1]
    if getattr(model, "confidence_head", None):
        model.confidence_head.register_forward_hook(lambda module, given, out: trust.append(out))
    ones = torch.ones(1, LENGTH, dtype=torch.long)
    states = torch.tensor(features.reshape(1, LENGTH, -1))
    final = torch.zeros(1, LENGTH, TARGET.width)
    settings, _ = model.get_trainer_kwargs(loss_fn="kl_div", loss_implementation="eager", max_anchors=anchors)
    with torch.no_grad():
        model(states, torch.tensor(TOKENS)[None], ones, final, 0 * ones, **settings)
    by_block = lambda parts, *width: sum(part.reshape(anchors, model.block_size, *width) for part in parts).numpy()
    return by_block(kept, -1), by_block(trust) if trust else None


@pytest.mark.parametrize("name", DRAFTERS)
def test_speculators_reads_and_drafts_the_same(name, tmp_path):
    drafter = DRAFTERS[name]
    params, anchors = params_of(drafter), LENGTH - drafter.width
    model = opened(tmp_path, "speculators-block", drafter, params)
    model.load_verifier_weights()
    trace = jax.jit(trace_of, static_argnums=(0, 3))(TARGET, WEIGHTS, BATCH, drafter.taps)
    mine, other = ours(drafter, params, trace, anchors), theirs(model, np.asarray(trace.features), anchors)
    for one, its in zip(mine, other, strict=True):
        assert (one is None) == (its is None)
        worst = 0 if one is None else np.abs(one - its[:, -drafter.length :]).max()
        assert worst <= 1e-4, f"largest difference of logits {worst:.1e}, of {np.abs(its).max():.1f}"

    model.save_pretrained(str(tmp_path / "again"))
    layout, back = read_folder(tmp_path / "again", TARGET, WEIGHTS)
    assert layout.name == "speculators-block"
    assert (back.drafter.layout, back.drafter.taps, back.drafter.width) == (drafter.layout, drafter.taps, drafter.width)
    jax.tree.map(np.testing.assert_array_equal, back.params, params)
