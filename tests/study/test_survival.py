"""Drafts as they are served: survival as stated, acceptance as recorded; what calibration finds is kept with the weights."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from experiments import calibrate
from experiments.calibrate import Calibration
from experiments.train_config import HeldOutConfig
from sdjax.decode.generate import prefill, start
from sdjax.decode.state import Params
from sdjax.drafters.block import Block
from sdjax.drafters.block_tree import BlockTree
from sdjax.drafters.head import DraftHead
from sdjax.study.calibration import sigmoid
from sdjax.study.prompts import Prompts
from sdjax.study.survival import served_drafts
from sdjax.train.saved import load_drafter, notes_of, save_drafter
from sdjax.verify.token import TokenRejection
from tests.experiments.tiny_model import model
from tests.tiny import NEW, PROMPTS, TARGET, decode, drafter_params, loop_of, target_params

pytestmark = pytest.mark.families

DRAFTER = Block((0, 2), 3, layers=1, sampled=True, layout="anchor_first", markov="vanilla", rank=4, confidence=1.0)
DRAFTER = replace(DRAFTER, head=DraftHead(20))


def test_drafts_are_those_that_were_judged():
    """Each step's acceptance in order, by any batch; the first draft's survival is what `propose` says behind the prompt."""
    loop, params = loop_of(DRAFTER, 1.0, TokenRejection()), Params(target_params(), drafter_params(DRAFTER))
    drafts = served_drafts(loop, params, PROMPTS, NEW, batch=2)
    made = decode(DRAFTER, 1.0, TokenRejection(), seeds=[0, 1, 2])
    for row, steps in enumerate(made.steps):
        np.testing.assert_array_equal(drafts.accepted[drafts.request == row], steps.accepted)
    state, lengths = start(loop, PROMPTS, NEW, range(3), 64)
    state = prefill(loop, params, state, lengths)
    draft = jax.jit(DRAFTER.propose)(loop.context(params, state), params.drafter, state.drafter)[0]
    first = [np.flatnonzero(drafts.request == row)[0] for row in range(3)]
    np.testing.assert_allclose(np.cumprod(sigmoid(drafts.logits[first]), 1), draft.survival[:, 1:], atol=1e-5)


def test_drafters_that_state_nothing_are_refused():
    plain = replace(DRAFTER, confidence=0.0)
    params = Params(target_params(), drafter_params(plain))
    with pytest.raises(ValueError, match="states no survival"):
        served_drafts(loop_of(plain, 1.0, TokenRejection()), params, PROMPTS, NEW, batch=2)


def test_trees_are_refused_however_few_nodes_they_have():
    tree = BlockTree(replace(DRAFTER, markov="none", confidence=0.0), 4, 2)
    with pytest.raises(ValueError, match="drafts a tree"):
        served_drafts(loop_of(tree, 1.0), Params(target_params(), drafter_params(tree)), PROMPTS, NEW, batch=2)


def test_temperatures_are_kept_with_the_weights(tmp_path, monkeypatch):
    """As fitted on all prompts; the weights stay as they were, and the drafter is served calibrated."""
    monkeypatch.setattr(calibrate, "load_model", lambda config: model())
    folder, weights = tmp_path / "drafter", drafter_params(DRAFTER)
    save_drafter(folder, DRAFTER, Params(target_params(), weights), TARGET, model().identity, "float32")
    prompts = Prompts(text=("hello", "abc abc", "what is it?", "so"), chat=False)
    held_out, plot, page = HeldOutConfig(prompts, max_new=16, batch=4), tmp_path / "a.png", tmp_path / "pages" / "a.md"
    config = Calibration(str(folder), held_out=held_out, write=True, plot=plot, page=page)
    found = calibrate.main(config)
    kept, params = load_drafter(folder, model())
    assert kept == replace(DRAFTER, temperatures=tuple(found["temperatures"])) and len(kept.temperatures) == 3
    jax.tree.map(np.testing.assert_array_equal, params, weights)
    assert notes_of(folder)["calibration"]["drafts"] == found["drafts"] and plot.stat().st_size
    assert f"{found['drafts']:,} of {found['requests']} requests" in page.read_text() and page.read_text().count("\n| ") == 5
    again = calibrate.main(replace(config, write=False, plot=None, page=None))
    assert again["temperatures"] == found["temperatures"], "fitting starts from the uncalibrated logits"
