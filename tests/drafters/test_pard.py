"""PARD: training sees what drafting sees; what is dropped and what is learnt; a model of the family to start from."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sdjax.core.spec import check_params
from sdjax.drafters import block_attention, losses
from sdjax.drafters.head import DraftHead
from sdjax.drafters.mask_chains import Chains, Drop, draw_chains
from sdjax.drafters.pard import Pard
from sdjax.targets.packed import trace_of
from sdjax.train.context import training_context
from tests.drafters.eagle_texts import (
    LENGTHS,
    PACKED,
    TEXTS,
    WEIGHTS,
    assert_close_gradients,
    batch_of,
    check_history,
    check_packing,
    drafted,
    floats,
    random_params,
    shapes,
    traced,
    with_gradient,
)
from tests.drafters.mask_chains import (
    T,
    check_definition,
    check_length,
    check_nothing_behind_is_seen,
    check_parity,
    slots_of,
)
from tests.tiny import TARGET, decode, plain

pytestmark = pytest.mark.families

MODEL = replace(TARGET, layers=2, windows=())
FEW = Pard(MODEL, 4, sampled=True, head=DraftHead(20, trained=True), text=0.3, soft=0.7)
PAPER = Pard(replace(MODEL, width=8, heads=2, tied=True), 4, sampled=True, mask_token=5)
WHOLE = replace(PAPER, drop=Drop(1, 1))
each = pytest.mark.parametrize("drafter", [FEW, PAPER], ids=["few", "paper"])
LOSS = with_gradient(FEW)


@each
def test_training_sees_what_drafting_sees(drafter):
    check_parity(drafter, lag=0)


def test_a_chain_that_hangs_one_row_too_early_is_seen():
    with pytest.raises(AssertionError, match="Mismatched elements"):
        check_parity(PAPER, lag=1)


def test_a_draft_is_the_models_own_pass_over_masks_as_tokens():
    """PARD's definition: the last logits of a language model behind the text and three tokens that stand for masks."""
    params, (draft, _) = random_params(PAPER), drafted(PAPER)
    given = [[*TEXTS[b, : length + 1], *[PAPER.mask_token] * 3] for b, length in enumerate(LENGTHS)]
    states = jax.jit(trace_of, static_argnums=0)(PAPER.model, params, batch_of([[row] for row in given], T)).hidden
    last = jnp.stack([row[length : length + 4] for row, length in zip(states, LENGTHS, strict=True)])
    np.testing.assert_allclose(np.log(draft.q), jax.nn.log_softmax(PAPER.model.unembed(params, last)), atol=1e-4)


def test_a_chain_sees_nothing_behind_its_anchor():
    check_nothing_behind_is_seen(PAPER, lag=0)


def test_a_draft_does_not_depend_on_those_behind_it():
    check_length(PAPER, replace(PAPER, length=2))


def test_masks_are_kept_nowhere_and_tokens_that_never_ran_are():
    check_history(PAPER, 0)


def test_packed_is_unpacked():
    check_packing(WHOLE, with_gradient(WHOLE))


@pytest.mark.parametrize("drafter", [FEW, WHOLE], ids=["few", "whole"])
def test_loss_is_its_definition(drafter):
    check_definition(drafter, LOSS if drafter is FEW else with_gradient(drafter), PACKED, lag=0)


def test_gradients_reach_all():
    _, (params, _) = LOSS(random_params(FEW), traced(PACKED, ()))
    assert not [name for name, x in floats(params).items() if not np.abs(x).max() > 0]


@pytest.mark.parametrize("n, length, counts", [(10, 4, (10, 7, 5, 4)), (100, 8, (100, 70, 49, 35, 25, 20, 20, 20))])
def test_the_published_shares_are_kept(n, length, counts):
    """0.7 of the depth before, and at least 0.2 of all."""
    assert Drop().counts(n, length) == counts
    slots = Chains(counts)
    assert tuple(np.bincount(slots.depth)) == counts
    for depth in range(length):
        assert sorted(slots.chain[slots.depth == depth]) == list(range(counts[depth]))


def test_chains_are_nested_and_drawn_anew():
    """Of what is learnt from, each depth keeps its share of a row's chains, all of them kept at the depth before."""
    drafter, trace = replace(FEW, length=6), traced(PACKED, ())
    slots = slots_of(drafter)
    able = np.asarray(trace.ahead(1)[1] > 0)[0]
    longest = set()
    for seed in range(10):
        place, weight = draw_chains(drafter.drop, slots, trace, jax.random.key(seed), 0)
        assert sorted(place[0].tolist()) == list(range(T))
        weight = np.asarray(slots.table(weight))[:, 0] > 0
        assert set(np.asarray(place)[0, weight[0]]) == set(np.flatnonzero(able))
        assert (weight[1:] <= weight[:-1]).all()
        for depth, count in enumerate(drafter.drop.counts(able.sum(), 6)):
            learnt = np.asarray(jnp.stack([trace.ahead(d + 1)[1] for d in range(depth + 1)]).prod(0))[0, place[0]] > 0
            np.testing.assert_array_equal(weight[depth], learnt & (np.arange(T) < count))
        longest.add(tuple(np.asarray(place)[0, weight[3]]))
    assert len(longest) > 5


def test_chunks_change_nothing(monkeypatch):
    params, trace = random_params(FEW), traced(PACKED, ())
    whole = LOSS(params, trace)
    monkeypatch.setattr(block_attention, "QUERIES", 5 * 6)
    monkeypatch.setattr(losses.in_chunks, "__defaults__", (7,))
    chunked = with_gradient(FEW)(params, trace)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), whole[0], chunked[0])
    assert_close_gradients(whole[1][0], chunked[1][0])


def test_no_array_spans_all_chains_times_the_text():
    """With 1214 masks behind 512 tokens, scores are the text's own or those of a few chains."""
    wide, length = replace(FEW, length=8), 512
    of = lambda specs: jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), specs)
    ints, states = jax.ShapeDtypeStruct((1, length), jnp.int32), jax.ShapeDtypeStruct((1, length, 16), jnp.float32)
    batch = PACKED.replace(tokens=ints, positions=ints, segments=ints, loss_mask=jax.ShapeDtypeStruct((1, length), bool))
    features = jax.ShapeDtypeStruct((1, length, 0, 16), jnp.float32)
    trace = traced(PACKED, ()).replace(batch=batch, features=features, hidden=states)

    def loss(params, target_params, trace, key):
        return wide.loss(training_context(TARGET, target_params, trace.batch), params, trace, key)[0]

    arguments = of(wide.specs(TARGET)), of(TARGET.specs()), trace, jax.eval_shape(lambda: jax.random.key(0))
    made = list(shapes(jax.make_jaxpr(jax.grad(loss, allow_int=True))(*arguments).jaxpr))
    assert max(np.prod(shape) for shape in made) <= TARGET.heads * length**2


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_argmaxes_of_a_published_mask_change_no_token(temperature):
    assert decode(replace(PAPER, sampled=False), temperature).tokens == plain(temperature)


def test_it_starts_as_the_targets_first_layers():
    drafter = Pard(replace(TARGET, layers=1, windows=(None,)), 3, head=DraftHead(20))
    params = drafter.initial(TARGET, WEIGHTS, np.ones(TARGET.vocab, int), jax.random.key(0))
    check_params(drafter.specs(TARGET), params, "PARD")
    jax.tree.map(np.testing.assert_array_equal, params["layers"], WEIGHTS["layers"][:1])
    assert "mask" not in PAPER.specs(TARGET)


def test_what_cannot_be_is_named():
    with pytest.raises(ValueError, match="length is 1"):
        Pard(MODEL, 1)
    with pytest.raises(ValueError, match=r"windows are \(4, None\)"):
        Pard(replace(MODEL, windows=(4, None)))
    with pytest.raises(ValueError, match="mask_token is 29"):
        Pard(MODEL, mask_token=29)
    with pytest.raises(ValueError, match=r"keep is 0\.1 and least 0\.2"):
        Drop(0.1)
    with pytest.raises(ValueError, match="one must be positive"):
        Pard(MODEL, text=0.0)
    with pytest.raises(ValueError, match="vocabulary has 7 entries"):
        Pard(replace(MODEL, vocab=7)).specs(TARGET)
