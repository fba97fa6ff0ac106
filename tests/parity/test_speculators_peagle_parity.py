"""P-EAGLE against PyPI `speculators`: an exported folder is read by it, and both draft the same behind every row."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from sdjax.drafters.head import DraftHead
from sdjax.drafters.mask_chains import Chains, Drop
from sdjax.drafters.peagle import PEagle
from sdjax.drafters.published.registry import read_folder
from sdjax.targets.packed import trace_of
from sdjax.train.context import training_context
from tests.drafters.mask_chains import first_on
from tests.parity.test_speculators_parity import BATCH, LENGTH, TARGET, TOKENS, WEIGHTS, YARN, drawn, opened

torch = pytest.importorskip("torch", reason="needs torch: install the extra `parity`")
pytest.importorskip("speculators", reason="needs speculators: install the extra `parity`")

from speculators.models.peagle import PEagleDraftModel, core  # noqa: E402

pytestmark = pytest.mark.parity

UNUSED = min(set(range(TARGET.vocab)) - set(TOKENS.tolist()))  # its row is the mask's in the folder
PAPER = PEagle((1, 3, 4), 4, layers=3, head=DraftHead(40, trained=True), mask_token=UNUSED)
DRAFTERS = {
    "paper": PAPER,
    "norms": replace(PAPER, taps=("embed", 7), head=DraftHead(trained=True), norm_before_fc=True, norm_before_residual=True),
    "norm of each tap": replace(PAPER, layers=2, fc_norm=True, layer=YARN),
    "qwen3": replace(PAPER, layer=replace(TARGET, layers=1, qk_norm=True, norm_eps=1e-3)),
}
SLOTS = Chains(Drop(1, 1).counts(LENGTH, PAPER.length))
PLACE = first_on([0], LENGTH)


def ours(drafter, params, trace):
    """Logits of every slot, [S D]."""

    @jax.jit
    def run(params, trace):
        ctx = training_context(TARGET, WEIGHTS, BATCH)
        return drafter.logits(ctx, params, drafter.run_slots(ctx, params, trace, PLACE, SLOTS))[0]

    return np.asarray(run(params, trace))


def theirs(model, features, monkeypatch):
    """The same from speculators, whose row r is fed token r + 1; its loss and choice of slots are left out."""
    kept = []
    model.lm_head.register_forward_hook(lambda module, given, out: kept.append(out[0].numpy()))
    at = torch.tensor(np.asarray(PLACE)[0][SLOTS.chain]), torch.tensor(SLOTS.depth)
    fits = at[0] + at[1] < LENGTH  # it knows no slot behind the text
    chosen = tuple(x[fits] for x in at)
    monkeypatch.setattr(core, "generate_cod_sample_indices", lambda **given: chosen)
    monkeypatch.setattr(core, "compute_metrics", lambda **given: (None, None))
    states = torch.tensor(features.reshape(1, LENGTH, -1))
    final = torch.zeros(1, LENGTH, TARGET.width)
    tokens = torch.tensor(np.append(TOKENS[1:], 0))[None]
    with torch.no_grad():
        model(states, tokens, torch.zeros(1, LENGTH, dtype=torch.long), verifier_last_hidden_states=final)
    return kept[0], fits.numpy()


@pytest.mark.parametrize("name", DRAFTERS)
def test_speculators_reads_and_drafts_the_same(name, tmp_path, monkeypatch):
    drafter = DRAFTERS[name]
    params = drawn(drafter.specs(TARGET), 3)
    model = opened(tmp_path, "speculators-peagle", drafter, params)
    assert isinstance(model, PEagleDraftModel)
    trace = jax.jit(trace_of, static_argnums=(0, 3))(TARGET, WEIGHTS, BATCH, drafter.taps)
    other, fits = theirs(model, np.asarray(trace.features), monkeypatch)
    mine = ours(drafter, params, trace)[fits]
    assert mine.shape == other.shape
    known = ~((SLOTS.depth == 0) & (np.asarray(PLACE)[0][SLOTS.chain] == LENGTH - 1))[fits]  # the last row's token is unknown
    worst = np.abs(mine - other)[known].max()
    assert worst <= 1e-4, f"largest difference of logits {worst:.1e}, of {np.abs(other).max():.1f}"

    model.save_pretrained(str(tmp_path / "again"))
    layout, back = read_folder(tmp_path / "again", TARGET, WEIGHTS)
    assert layout.name == "speculators-peagle" and back.drafter == drafter
    jax.tree.map(np.testing.assert_array_equal, back.params, params)
