"""Masked diffusion: training sees what drafting sees, masks hide and clean slots tell, the losses are their definitions."""

from dataclasses import replace
from functools import cache, partial
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sdjax.core.types import Law
from sdjax.drafters.diffuspec import DiffuSpec
from sdjax.drafters.head import DraftHead
from sdjax.drafters.masked_diffusion import Guesses, MaskedDiffusion, Noised, diffusion_loss, expected_streak
from sdjax.drafters.specdiff2 import SpecDiff2
from sdjax.train.context import training_context
from sdjax.verify.selection import SelfSelection
from tests.drafters.eagle_texts import (
    LENGTHS,
    PACKED,
    WEIGHTS,
    assert_close_gradients,
    check_history,
    check_packing,
    context_of,
    floats,
    prompted,
    propose,
    random_params,
    texts,
    traced,
    with_gradient,
)
from tests.tiny import TARGET, decode, plain

pytestmark = pytest.mark.families

MODEL = MaskedDiffusion(4, layers=2, anchors=24, whole=1.0)
FEW = replace(MODEL, layers=1, head=DraftHead(20), anchors=24)
DRAFTS = SpecDiff2(FEW, drafts=3)
PATH = DiffuSpec(FEW, candidates=5, rank=4, shortest=1, growth=1, stops=tuple(range(0, 29, 3)))
loss_of = cache(with_gradient)


@partial(jax.jit, static_argnames="model")
def slots(model, params, batch, noised):
    return model.slots(training_context(TARGET, WEIGHTS, batch), params, batch, noised)


@partial(jax.jit, static_argnames="model")
def denoised(model, params, batch, state):
    """What drafting reads off the state behind the prompts: log q of every slot."""
    return jax.nn.log_softmax(model.denoise(context_of(batch), params, state))


def blocks(place, masked=None, batch=None):
    """Blocks of MODEL's length behind given anchors [B, A], masked whole where nothing else is said."""
    batch = texts() if batch is None else batch
    at = jnp.minimum(place[..., None] + 1 + jnp.arange(MODEL.length), batch.tokens.shape[1] - 1)
    labels = jax.vmap(lambda tokens, at: tokens[at])(batch.tokens, at)
    masked = jnp.ones(labels.shape, bool) if masked is None else jnp.broadcast_to(masked, labels.shape)
    return Noised(place, labels, jnp.ones(labels.shape), masked, jnp.ones(place.shape))


@pytest.mark.parametrize("model", [MODEL, FEW], ids=["two-layers", "few-tokens"])
def test_training_sees_what_drafting_sees(model):
    drafter = SpecDiff2(model, drafts=2)
    params = random_params(drafter)
    drafting = denoised(model, params, texts(), prompted(drafter))
    hidden = slots(model, params, texts(), blocks(jnp.asarray(LENGTHS)[:, None]))[:, 0]
    training = jax.nn.log_softmax(model.head.logits(context_of(texts()), params["head"], hidden))
    np.testing.assert_allclose(drafting, training, atol=1e-4)


def test_a_block_sees_the_text_before_it_and_its_anchor_and_nothing_behind():
    params, batch, at = random_params(DRAFTS), texts(), 11
    place = jnp.full((3, 1), at)
    whole = slots(FEW, params, batch, blocks(place))
    changed = lambda where: batch.replace(tokens=(batch.tokens.at[:, where].add(1)) % TARGET.vocab)
    behind = changed(slice(at + 1, None))
    np.testing.assert_array_equal(whole, slots(FEW, params, behind, blocks(place, batch=behind)))
    for where in (0, at - 1, at):
        other = changed(where)
        assert (np.abs(whole - slots(FEW, params, other, blocks(place, batch=other))).max((1, 3)) > 1e-4).all()


def test_a_mask_hides_its_token_and_a_clean_slot_tells_all_the_others():
    params, batch, place = random_params(DRAFTS), texts(), jnp.full((3, 1), 11)
    noised = blocks(place, jnp.array([True, False, True, True]))
    found = slots(FEW, params, batch, noised)
    told = lambda slot: slots(FEW, params, batch, noised.replace(labels=(noised.labels.at[..., slot].add(1)) % TARGET.vocab))
    np.testing.assert_array_equal(found, told(0))
    assert (np.abs(found - told(1)).max((0, 1, 3)) > 1e-4).all()


@pytest.mark.parametrize("drafter", [DRAFTS, PATH], ids=["specdiff2", "diffuspec"])
def test_keys_and_values_that_were_kept_are_those_made_anew(drafter):
    check_history(drafter, 0)


@pytest.mark.parametrize("drafter", [DRAFTS, PATH], ids=["specdiff2", "diffuspec"])
def test_packed_is_unpacked(drafter):
    check_packing(drafter, loss_of(drafter))


@pytest.mark.parametrize("drafter", [DRAFTS, PATH], ids=["specdiff2", "diffuspec"])
def test_gradients_reach_all_and_leak_nowhere(drafter):
    """To every parameter that is learnt; and a document that is not learnt from changes nothing for the other."""
    batch = PACKED.replace(loss_mask=PACKED.loss_mask & (PACKED.segments == 1))
    params, trace = random_params(drafter), traced(PACKED, ())
    other = batch.replace(tokens=jnp.where(batch.segments == 2, 3, batch.tokens))
    (loss, _), (gradient, _) = loss_of(drafter)(params, trace.replace(batch=batch))
    (same, _), (same_gradient, _) = loss_of(drafter)(params, trace.replace(batch=other))
    assert not [name for name, x in floats(gradient).items() if not np.abs(x).max() > 0 and "['head']" not in name]
    np.testing.assert_allclose(loss, same, rtol=1e-6)
    assert_close_gradients(gradient, same_gradient)


def test_masks_are_drawn_at_the_block_s_rate():
    """A share of blocks is masked whole, the rates of the others are uniform, and what is not learnt from is always masked."""
    model, trace = replace(FEW, whole=0.25), traced(PACKED, ())
    many = jax.vmap(lambda key: model.noised(trace, key))(jax.random.split(jax.random.key(0), 400))
    rate, masked, learnt = (np.asarray(x) for x in (many.rate, many.masked, many.learnt))
    assert abs((rate == 1).mean() - 0.25) < 0.02
    partly = np.sort(rate[rate < 1])
    assert np.abs(partly - np.linspace(0, 1, len(partly))).max() < 0.03
    assert masked[learnt == 0].all() and masked[rate == 1].all()
    for low in (0.1, 0.5, 0.8):
        here = (rate > low) & (rate < low + 0.1)
        assert abs(masked[here][learnt[here] > 0].mean() - low - 0.05) < 0.03
    assert model.noised(trace, jax.random.key(1)).whole.sum() < model.noised(trace, jax.random.key(1)).learnt.sum()


def guessed(*surprises, **changes):
    """A row of blocks of given surprises, masked whole where nothing else is said."""
    surprise = jnp.asarray(surprises, jnp.float32)[None]
    ones, place = jnp.ones(surprise.shape), jnp.zeros(surprise.shape[:2], int)
    noised = Noised(place, jnp.zeros(surprise.shape, int), ones, ones > 0, jnp.ones(place.shape))
    return noised.replace(**changes), Guesses(surprise, jnp.zeros(surprise.shape, int))


def test_the_diffusion_loss_weighs_by_one_over_the_rate():
    """Over all masks of a block, beside one that is masked whole, Σ w · loss is both blocks' loss on the mean."""
    part, whole, rate, total = np.array([0.3, 2.0, 0.7]), np.array([1.0, 0.1, 0.4]), 0.4, 0.0
    for masked in product([True, False], repeat=3):
        masks = jnp.array([[masked, (True,) * 3]])
        noised, guesses = guessed(part, whole, masked=masks, rate=jnp.array([[rate, 1.0]]))
        weights = sum(masked) / rate + 3
        total += float(diffusion_loss(noised, guesses)) * weights * rate ** sum(masked) * (1 - rate) ** (3 - sum(masked))
    np.testing.assert_allclose(total, part.sum() + whole.sum(), rtol=1e-5)


@pytest.mark.parametrize("q", [(0.9, 0.5, 0.2), (0.5, 0.0, 0.7)])
def test_the_streak_is_the_mean_over_all_verdicts(q):
    """Every slot is accepted or refused on its own; what is accepted before the first refusal is counted."""
    expected = 0.0
    for verdict in product([True, False], repeat=3):
        chance = np.prod([p if accepted else 1 - p for p, accepted in zip(q, verdict, strict=True)])
        expected += chance * ([*verdict, False].index(False))
    noised, guesses = guessed([-np.log(p) if p else np.inf for p in q])
    value, slope = jax.value_and_grad(lambda s: expected_streak(noised, guesses.replace(surprise=s)))(guesses.surprise)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    assert np.isfinite(slope).all() and slope[0, 0, 0] < 0
    learnt = jnp.array([[[1.0, 0.0, 0.0]]])
    np.testing.assert_allclose(expected_streak(noised.replace(learnt=learnt), guesses), q[0], rtol=1e-5)
    assert expected_streak(noised.replace(rate=jnp.full((1, 1), 0.9)), guesses) == 0


@pytest.mark.parametrize("model", [MODEL, FEW], ids=["all-tokens", "few-tokens"])
def test_the_losses_are_what_drafting_would_have_given(model):
    """From the slots' states in float64: of every block the text's tokens, up to the first that is not learnt from."""
    drafter = SpecDiff2(model, text=0.5, streak=2.0)
    params, trace = random_params(drafter), traced(PACKED, ())
    (loss, figures), _ = loss_of(drafter)(params, trace)
    noised = model.noised(trace, jax.random.key(0))
    hidden = slots(model, params, PACKED, noised)
    logits = np.asarray(model.head.logits(training_context(TARGET, WEIGHTS, PACKED), params["head"], hidden), np.float64)[0]
    tokens, segments, mask = (np.asarray(x)[0] for x in (PACKED.tokens, PACKED.segments, PACKED.loss_mask))
    ids = np.asarray(params["head"].get("ids", np.arange(TARGET.vocab))).tolist()
    surprises, streaks = [], []
    for place, here in zip(np.asarray(noised.place)[0], logits, strict=True):
        if not (mask[place] and place + 1 < len(tokens) and mask[place + 1] and segments[place + 1] == segments[place]):
            continue
        reach, streak = 1.0, 0.0
        for j, row in enumerate(here):
            at = place + j + 1
            if at >= len(tokens) or not mask[at] or segments[at] != segments[place]:
                break
            q = np.exp(row) / np.exp(row).sum()
            own = q[ids.index(tokens[at])] if tokens[at] in ids else 0.0
            surprises += [-np.log(own)] if own else []
            reach *= own
            streak += reach
        streaks.append(streak)
    np.testing.assert_allclose(figures["streak"], np.mean(streaks), rtol=1e-4)
    np.testing.assert_allclose(loss, 0.5 * np.mean(surprises) - 2.0 * np.mean(streaks), rtol=1e-4)


def test_drafts_are_independent_draws_from_the_laws_they_tell():
    """Over many seeds: how often each pair of tokens starts two of the drafts, and the law of the last slot."""
    params, state, batch = random_params(DRAFTS), prompted(DRAFTS), texts()

    @jax.jit
    def draft(seed):
        ctx = context_of(batch).replace(seed=jnp.full(3, seed, jnp.uint32))
        return DRAFTS.propose(ctx, params, state)[0]

    drafts, n = jax.lax.map(draft, jnp.arange(6000), batch_size=100), DRAFTS.drafts
    assert drafts.law is Law.IID and drafts.q.shape[2] == FEW.length
    np.testing.assert_allclose(drafts.q[0], drafts.q[-1], atol=1e-6)
    q, tokens = np.asarray(drafts.q[0, 0], np.float64), np.asarray(drafts.tokens[:, 0])
    both = np.zeros((TARGET.vocab, TARGET.vocab))
    np.add.at(both, (tokens[:, 1], tokens[:, 2]), 1 / len(tokens))
    assert np.abs(both - np.outer(q[0], q[0])).sum() / 2 < 0.15
    last = np.bincount(tokens[:, -n:].ravel(), minlength=TARGET.vocab) / tokens[:, -n:].size
    assert np.abs(last - q[-1]).sum() / 2 < 0.02
    depth, row = np.asarray(drafts.depth[0, 0]), np.asarray(drafts.q_row[0, 0])
    np.testing.assert_array_equal(row, np.where(depth < FEW.length, depth, -1))


def test_at_temperature_0_the_drafts_begin_differently_and_go_on_alike():
    steps = decode(DRAFTS, 0.0, SelfSelection())
    assert steps.tokens == plain(0.0)
    state, params = prompted(DRAFTS), random_params(DRAFTS)
    log_q = denoised(FEW, params, texts(), state)
    ids = params["head"]["ids"]
    cold = DRAFTS.propose(context_of(texts()).replace(warp=replace(context_of(texts()).warp, temperature=0.0)), params, state)[
        0
    ]
    assert cold.law is Law.ONE_HOT and cold.q is None
    np.testing.assert_array_equal(cold.tokens[:, 1:4], ids[jax.lax.top_k(log_q[:, 0], 3)[1]])
    np.testing.assert_array_equal(cold.tokens[:, 4:].reshape(3, 3, 3)[:, :, 1], ids[jnp.argmax(log_q[:, 1:], -1)])


def test_a_path_is_drafted_as_far_as_the_controller_and_a_stop_let_it():
    params, state = random_params(PATH), prompted(PATH)
    for k in (1.0, 2.0, 4.0):
        pace = state.pace.replace(generated=jnp.full(3, k), accepted=jnp.zeros(3))
        draft = propose(PATH, params, texts(), state.replace(pace=pace))
        for tokens, valid in zip(np.asarray(draft.tokens)[:, 1:], np.asarray(draft.valid)[:, 1:], strict=True):
            stop = next((i for i, token in enumerate(tokens) if token in PATH.stops), 9)
            assert valid.sum() == min(int(k), stop + 1) and valid[: valid.sum()].all()


def test_lengths_follow_the_drafts_while_decoding():
    steps = decode(PATH, 1.0).steps
    assert len({int(k) for request in steps for k in request.proposed}) > 2


def test_what_cannot_be_is_named():
    for call, message in [
        (lambda: MaskedDiffusion(whole=0), r"whole is 0.*\(0, 1\]"),
        (lambda: MaskedDiffusion(layers=0), "layers is 0"),
        (lambda: MaskedDiffusion(layers=9).specs(TARGET), "cannot keep 9 layers of a model that has 3"),
        (lambda: SpecDiff2(drafts=0), "drafts is 0"),
        (lambda: SpecDiff2(text=0, streak=0), "one must be positive"),
        (lambda: SpecDiff2(FEW, drafts=21).specs(TARGET), "21 drafts cannot begin differently with 20 tokens"),
        (lambda: DiffuSpec(FEW, shortest=5), "1 ≤ shortest ≤ longest; got 5 and 4"),
        (lambda: DiffuSpec(FEW, candidates=21, shortest=1).specs(TARGET), "candidates is 21.*has 20 tokens"),
        (lambda: DiffuSpec(mass=0), "mass is 0"),
    ]:
        with pytest.raises(ValueError, match=message):
            call()
