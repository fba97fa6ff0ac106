"""Block drafters: training sees what drafting sees, in either layout, under any mask and correction; the loss is its
definition.
"""

import itertools
from dataclasses import dataclass, fields, replace
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sdjax.core.linear import linear, product
from sdjax.core.spec import Spec, check_params, zeros
from sdjax.core.types import Law, rows
from sdjax.drafters import block_attention, losses
from sdjax.drafters.anchored import tokens_behind
from sdjax.drafters.base import check_masks
from sdjax.drafters.block import Block, spread_taps
from sdjax.drafters.block_loss import among
from sdjax.drafters.block_tree import BlockTree
from sdjax.drafters.confidence import chain_survival, confidence_logit
from sdjax.drafters.head import DraftHead, own_tokens
from sdjax.drafters.markov import gru_step
from sdjax.targets.decoder import Decoder
from sdjax.targets.packed import trace_of
from sdjax.targets.rope import Rope
from sdjax.train.context import training_context
from sdjax.train.step import drafter_loss
from tests.drafters.eagle_texts import (
    LENGTHS,
    PACKED,
    WEIGHTS,
    assert_close_gradients,
    batch_of,
    check_gradients,
    check_history,
    check_packing,
    drafted,
    random_params,
    shapes,
    texts,
    traced,
    with_gradient,
)
from tests.tiny import PROMPTS, TARGET, decode, plain

pytestmark = pytest.mark.families

ALL = 24  # as many anchors as a text has tokens: none is left to chance
PLAIN = Block((0, 2), 4, layers=1, sampled=True, anchors=ALL, decay=3.0, confidence=0.8)
DRAWN = replace(
    PLAIN, layout="anchor_first", markov="gated", rank=5, head=DraftHead(20, trained=True), text=0.3, soft=0.5, l1=0.9
)
SHAPE = replace(TARGET, heads=2, kv_heads=1, ffw=20, rope=Rope(100.0), norm_eps=0.1)
CAUSAL = replace(
    DRAWN, layers=2, block_mask="causal", markov="vanilla", head=DraftHead(), shape=SHAPE, taps=("embed", 1, "final")
)
DOMINO = replace(CAUSAL, layout="fill_in", markov="domino", gru=6, uncorrected=1, soft=0.0, l1=0.0, confidence=0.0)
WINDOWS = replace(DRAWN, layers=2, markov="rnn", windows=(4, None))
SELECTOR = Block.dflash2(
    (0, 2), None, 4, layers=1, rank=5, candidates=6, anchors=ALL, head=DraftHead(20, trained=True), confidence=0.8, choice=0.7
)
VARIANTS = {
    "fill_in-full": PLAIN,
    "fill_in-causal-domino": DOMINO,
    "anchor_first-full-gated": DRAWN,
    "anchor_first-causal-vanilla": CAUSAL,
    "anchor_first-windows-rnn": WINDOWS,
    "fill_in-full-selector": SELECTOR,
}
every_variant = pytest.mark.parametrize("drafter", list(VARIANTS.values()), ids=list(VARIANTS))
loss_of = cache(with_gradient)


@partial(jax.jit, static_argnames="drafter")
def trained(drafter, params, trace, place):
    """The slots' states, and behind the text's own tokens their logits and how far they are trusted: [B, A, N, ...]."""
    ctx = training_context(TARGET, WEIGHTS, trace.batch)
    hidden = drafter.run_blocks(ctx, params, trace, place)
    behind = jnp.minimum(place[..., None] + jnp.arange(drafter.length), trace.batch.tokens.shape[1] - 1)
    previous = rows(trace.batch.tokens, behind)
    logits, told = drafter.head.logits(ctx, params["head"], hidden), drafter.told_of_text(ctx, params, previous, hidden)
    if told is not None:
        logits = among(logits, logits + product(told, params["markov"]["after"]), drafter.candidates)
    return hidden, logits, confidence_logit(params, previous, hidden) if drafter.confidence else None


@every_variant
def test_training_sees_what_drafting_sees(drafter):
    """Slot j of the block behind an anchor is the law from which draft j + 1 behind that anchor is drawn, and as trusted."""
    draft, batch = drafted(drafter)
    assert draft.law == Law.IID
    _, logits, trust = trained(drafter, random_params(drafter), traced(batch, drafter.taps), jnp.asarray(LENGTHS)[:, None])
    ids = random_params(drafter)["head"].get("ids", np.arange(TARGET.vocab))
    np.testing.assert_allclose(jnp.log(draft.q[:, :, ids]), jax.nn.log_softmax(logits[:, 0]), atol=1e-4)
    assert ((draft.q > 0).sum(-1) == (drafter.candidates or len(ids))).all()
    if drafter.confidence:
        assert (draft.survival[:, 0] == 1).all() and np.ptp(draft.survival[:, 1:]) > 0.1
        np.testing.assert_allclose(draft.survival[:, 1:], np.cumprod(jax.nn.sigmoid(trust[:, 0]), -1), atol=1e-5)


@pytest.mark.parametrize("drafter", [DOMINO, DRAWN, WINDOWS], ids=["domino", "gated", "rnn"])
def test_slots_are_told_of_all_earlier_tokens_or_of_the_last(drafter):
    """Never of their own or a later one; trust looks at the last alone, and what is left uncorrected at none."""
    params, trace, at = random_params(drafter), traced(texts(), drafter.taps), 11
    of = lambda trace: trained(drafter, params, trace, jnp.full((3, 1), at))[1:]
    recurrent = drafter.markov in ("domino", "rnn")
    for slot in range(1, 4):  # the anchor's own embedding is in every slot's state
        tokens = trace.batch.tokens.at[:, at + slot].add(1) % TARGET.vocab
        other = trace.replace(batch=trace.batch.replace(tokens=tokens))
        moved = lambda a, b: [float(np.abs(a[:, 0, j] - b[:, 0, j]).max()) > 1e-5 for j in range(4)]
        told = [slot <= j if recurrent else slot == j for j in range(4)]
        told = [seen and j >= drafter.uncorrected for j, seen in enumerate(told)]
        assert moved(of(trace)[0], of(other)[0]) == told
        if drafter.confidence:
            assert moved(of(trace)[1][..., None], of(other)[1][..., None]) == [slot == j for j in range(4)]


def test_the_first_slots_are_left_alone():
    """The anchor is told to the GRU all the same."""
    params, trace, place = random_params(DOMINO), traced(texts(), DOMINO.taps), jnp.full((3, 1), 11)
    base = trained(replace(DOMINO, markov="none"), params, trace, place)[1]
    later, all_ = (trained(replace(DOMINO, uncorrected=n), params, trace, place)[1] for n in (1, 0))
    np.testing.assert_array_equal(later[:, :, 0], base[:, :, 0])
    np.testing.assert_array_equal(later[:, :, 1:], all_[:, :, 1:])
    assert (np.abs(all_ - base).max((0, 1, 3)) > 1e-3).all()


def test_the_gru_is_pytorchs():
    """Gate by gate in its order: h ← (1 - z) n + z h, the reset gate inside the new state's recurrent half."""
    random, sigmoid = np.random.default_rng(0), lambda x: 1 / (1 + np.exp(-x))
    into, state, x, h = (random.normal(size=size) for size in ((12, 3), (12, 4), (2, 3), (2, 4)))
    r, z = (sigmoid(x @ into[i : i + 4].T + h @ state[i : i + 4].T) for i in (0, 4))
    expected = (1 - z) * np.tanh(x @ into[8:].T + r * (h @ state[8:].T)) + z * h
    p = {"gru_in": jnp.float32(into), "gru_state": jnp.float32(state)}
    np.testing.assert_allclose(gru_step(p, jnp.float32(h), jnp.float32(x)), expected, atol=1e-5)


@every_variant
def test_a_block_sees_nothing_from_its_anchor_on(drafter):
    """But the anchor's token: not its state, nor any token or state behind it; and of the text before it, all."""
    params, trace, at = random_params(drafter), traced(texts(), drafter.taps), 11
    place = jnp.full((3, 1), at)
    hidden, *_ = trained(drafter, params, trace, place)
    tokens = trace.batch.tokens.at[:, at + 1 :].set(1)
    later = trace.replace(batch=trace.batch.replace(tokens=tokens), features=trace.features.at[:, at:].add(3.0))
    np.testing.assert_array_equal(hidden, trained(drafter, params, later, place)[0])
    for changed in (0, at - 1):
        other = trace.replace(features=trace.features.at[:, changed].add(3.0))
        assert (np.abs(hidden - trained(drafter, params, other, place)[0]).max((1, 3)) > 1e-4).all()
    other = trace.replace(batch=trace.batch.replace(tokens=trace.batch.tokens.at[:, at].add(1) % TARGET.vocab))
    assert (np.abs(hidden - trained(drafter, params, other, place)[0]).max((1, 3)) > 1e-4).all()


BACK = replace(PLAIN, windows=(4,))


@pytest.mark.parametrize("drafter", [PLAIN, CAUSAL, BACK], ids=["full", "causal", "window"])
def test_slots_see_each_other_under_the_mask(drafter):
    """All do, or each those before it: a shorter block is then the beginning of a longer one."""
    params, trace, place = random_params(drafter), traced(texts(), drafter.taps), jnp.full((3, 1), 11)
    long, short = (trained(replace(drafter, length=n), params, trace, place)[0] for n in (4, 2))
    assert np.allclose(long[:, :, :2], short, atol=1e-5) == (drafter is not PLAIN)


def test_a_window_ends_at_the_query():
    """Row i of a block sees the text at most three places before its own, and the anchor as long."""
    params, trace, at = random_params(BACK), traced(texts(), BACK.taps), 11
    of = lambda trace: trained(BACK, params, trace, jnp.full((3, 1), at))[0]
    moved = lambda other: [float(np.abs(of(trace) - of(other))[:, :, j].max()) > 1e-6 for j in range(4)]
    slots = at + 1 + np.arange(4)  # filled in: the anchor's own is not among them
    for place in range(at - 5, at):
        assert moved(trace.replace(features=trace.features.at[:, place].add(3.0))) == (slots - place < 4).tolist()
    tokens = trace.batch.tokens.at[:, at].add(1) % TARGET.vocab
    assert moved(trace.replace(batch=trace.batch.replace(tokens=tokens))) == (slots - at < 4).tolist()


@pytest.mark.parametrize("drafter", [PLAIN, CAUSAL], ids=["full", "causal"])
def test_keys_and_values_that_were_kept_are_those_made_anew(drafter):
    check_history(drafter, 0)


@pytest.mark.parametrize("drafter", [PLAIN, DRAWN], ids=["fill_in", "anchor_first"])
def test_packed_is_unpacked(drafter):
    check_packing(drafter, loss_of(drafter))


@pytest.mark.parametrize("drafter", [DRAWN, DOMINO, WINDOWS, SELECTOR], ids=["gated", "domino", "rnn", "selector"])
def test_gradients_reach_all_and_leak_nowhere(drafter):
    check_gradients(drafter, loss_of(drafter))


FEW = replace(PLAIN, head=DraftHead(20), anchors=5, lk=0.7)


@pytest.mark.parametrize("drafter", [DRAWN, FEW, replace(FEW, dpace=0.3)], ids=["all", "few", "dpace"])
def test_loss_is_its_definition(drafter):
    """Slot by slot, in float64: which blocks and slots count, the cut law, the weights, the trust, accuracies and τ."""
    params, trace, key = random_params(drafter), traced(PACKED, drafter.taps), jax.random.key(0)
    (loss, metrics), _ = loss_of(drafter)(params, trace)
    place, drawn = (np.asarray(x)[0] for x in drafter.draw_anchors(trace, key))
    _, logits, trust = trained(drafter, params, trace, jnp.asarray(place)[None])
    logits, trust = np.asarray(logits, np.float64)[0], np.asarray(trust, np.float64)[0]
    teacher = np.asarray(TARGET.unembed(WEIGHTS, trace.hidden), np.float64)[0]
    tokens, segments, mask = (np.asarray(x)[0] for x in (PACKED.tokens, PACKED.segments, PACKED.loss_mask))
    ids = np.asarray(params["head"]["ids"]).tolist()
    softmax = lambda x: np.exp(x - x.max()) / np.exp(x - x.max()).sum()
    hits, found = [], {name: [] for name in ("text", "soft", "l1", "lk", "confidence")}
    for r, here, trusted in zip(place[drawn > 0], logits[drawn > 0], trust[drawn > 0], strict=True):
        assert mask[r] and mask[r + 1] and segments[r] == segments[r + 1]
        hits.append([])
        block = []
        for j in range(drafter.length):
            at = r + j + 1
            if at >= len(tokens) or not mask[at] or segments[at] != segments[r]:
                break
            q, p, whole = softmax(here[j]), softmax(teacher[at - 1, ids]), softmax(teacher[at - 1])
            drafted = q[ids.index(tokens[at])] if tokens[at] in ids else 0.0
            accepted, tv = np.minimum(q, whole[ids]).sum(), np.abs(p - q).sum() / 2
            blend, certain = np.exp(-3 * (1 - tv)), 1 / (1 + np.exp(-trusted[j]))
            losses_here = {
                "soft": -(p * np.log(q)).sum(),
                "l1": 2 * tv,
                "lk": blend * (p * np.log(p / q)).sum() + (1 - blend) * tv,
                "confidence": -accepted * np.log(certain) - (1 - accepted) * np.log(1 - certain),
            } | ({"text": -np.log(drafted)} if drafted else {})
            block.append((drafted, losses_here))
            hits[-1].append(ids[q.argmax()] == tokens[at])
        for j, (_, losses_here) in enumerate(block):
            weight = np.exp(-j / drafter.decay)
            if drafter.dpace is not None:
                smooth = [(1 - drafter.dpace) * drafted + drafter.dpace for drafted, _ in block]
                weight = sum(np.prod(smooth[: m + 1]) for m in range(j, len(block)))
            for name, value in losses_here.items():
                found[name].append((weight, value))
    mean = lambda pairs: np.prod(pairs, 1).sum() / np.array(pairs)[:, 0].sum()
    np.testing.assert_allclose(loss, sum(getattr(drafter, name) * mean(found[name]) for name in found), rtol=1e-5)
    accuracy = [np.mean([row[j] for row in hits if len(row) > j]) for j in range(drafter.length)]
    np.testing.assert_allclose([metrics[f"accuracy_{j + 1}"] for j in range(drafter.length)], accuracy, rtol=1e-6)
    survival = [np.mean([all(row[: j + 1]) for row in hits if len(row) > j]) for j in range(drafter.length)]
    np.testing.assert_allclose(metrics["tau"], 1 + sum(survival), rtol=1e-6)


def test_the_uncorrected_logits_hand_over_to_the_corrected():
    """Linearly, in `base_steps`; at the first step the correction learns nothing."""
    drafter, params = replace(DOMINO, text=1.0, base_steps=8), random_params(DOMINO)
    loss = partial(drafter_loss(drafter, TARGET), target_params=WEIGHTS, batch=PACKED, key=jax.random.key(0))
    gradient_at = jax.jit(jax.value_and_grad(lambda params, step: loss(params, step=step)[0]))
    (first, early), (some, _), (last, _), (later, late) = (gradient_at(params, step) for step in (0, 2, 8, 20))
    np.testing.assert_allclose(some, 0.75 * first + 0.25 * last, rtol=1e-5)
    assert later == last != first
    assert not any(np.any(x) for x in early["markov"].values()) and all(np.any(x) for x in late["markov"].values())
    alone = loss_of(replace(DOMINO, markov="none", text=1.0))
    plain_params = {name: leaf for name, leaf in params.items() if name != "markov"}
    np.testing.assert_allclose(first, alone(plain_params, traced(PACKED, DOMINO.taps))[0][0], rtol=1e-5)


def test_a_selector_scores_pairs_of_candidates():
    """U(c) + ⟨A(a) ⊙ W h, B(c)⟩ for the likeliest c by U; walked greedily, each slot behind the last one's choice."""
    greedy = replace(SELECTOR, sampled=False)
    (draft, batch), params = drafted(greedy), random_params(greedy)
    hidden = trained(greedy, params, traced(batch, greedy.taps), jnp.asarray(LENGTHS)[:, None])[0]
    h, head, ids, weight = (
        jax.tree.map(lambda x: np.asarray(x, np.float64), x)
        for x in (hidden[:, 0], params["markov"], params["head"]["ids"], params["head"]["weight"])
    )
    for b, chain in enumerate(np.asarray(draft.tokens)):
        for j, (before, token) in enumerate(itertools.pairwise(chain)):
            unary = weight @ h[b, j]
            kept = np.argsort(-unary)[: greedy.candidates]
            told = head["before"][before] * (head["project"] @ h[b, j])
            assert token == ids[kept[np.argmax(unary[kept] + head["after"][kept] @ told)]]


def test_a_selector_learns_the_candidates_beside_the_token():
    """The slots alone as DFlash does, whatever the selector says; and its own choice, the token put among the candidates."""
    params, trace = random_params(SELECTOR), traced(PACKED, SELECTOR.taps)
    whole, unary = (loss_of(replace(SELECTOR, confidence=0.0, choice=w))(params, trace)[0][0] for w in (0.7, 0.0))
    alone = replace(SELECTOR, markov="none", candidates=None, choice=0.0, confidence=0.0)
    plain_params = {name: leaf for name, leaf in params.items() if name not in ("markov", "confidence")}
    np.testing.assert_allclose(unary, loss_of(alone)(plain_params, trace)[0][0], rtol=1e-5)
    place, drawn = SELECTOR.draw_anchors(trace, jax.random.key(0))
    label, weight = tokens_behind(trace, place, drawn, SELECTOR.length)
    free = replace(SELECTOR, candidates=20)
    _, cut, _ = trained(SELECTOR, params, trace, place)
    _, full, _ = trained(free, params, trace, place)
    own, inside = own_tokens(params["head"]["ids"], label)
    scores = np.where(np.arange(20) == np.asarray(own)[..., None], full, cut).astype(np.float64)
    surprise = np.log(np.exp(scores).sum(-1)) - np.take_along_axis(scores, np.asarray(own)[..., None], -1)[..., 0]
    weight = np.asarray(weight * inside) * np.exp(-np.arange(4) / SELECTOR.decay)
    np.testing.assert_allclose(whole - unary, 0.7 * (weight * surprise).sum() / weight.sum(), rtol=1e-4)
    assert (cut == -np.inf).sum(-1).max() == 14


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"candidates": None}, "selector has candidates"),
        ({"markov": "vanilla"}, "selector has candidates"),
        ({"candidates": 1}, "at least 2"),
        ({"l1": 0.5, "dpace": 0.3}, "leave out l1, dpace"),
        ({"markov": "none", "candidates": None}, "choice is 0.7"),
    ],
)
def test_what_a_selector_cannot_be_is_named(changes, words):
    with pytest.raises(ValueError, match=words):
        replace(SELECTOR, **changes)
    with pytest.raises(ValueError, match="21, but the drafter's vocabulary has 20"):
        replace(SELECTOR, candidates=21).specs(TARGET)


def test_anchors_are_drawn_anew_by_the_key():
    few, trace = replace(PLAIN, anchors=5), traced(PACKED, PLAIN.taps)
    learnt = (trace.batch.loss_mask & (trace.ahead(1)[1] > 0))[0]
    seen = set()
    for seed in range(20):
        place, drawn = few.draw_anchors(trace, jax.random.key(seed))
        assert len(set(place[0].tolist())) == 5 and drawn.all() and learnt[place[0]].all()
        seen |= {frozenset(place[0].tolist())}
    assert len(seen) == 20
    place, drawn = PLAIN.draw_anchors(trace, jax.random.key(0))
    assert sorted(place[0, drawn[0] > 0].tolist()) == np.flatnonzero(learnt).tolist()


def test_chunks_change_nothing(monkeypatch):
    params, trace = random_params(DRAWN), traced(PACKED, DRAWN.taps)
    whole = loss_of(DRAWN)(params, trace)
    monkeypatch.setattr(block_attention, "QUERIES", 5 * 8)  # 24 blocks of 4 rows for 2 heads, in fives
    monkeypatch.setattr(losses.in_chunks, "__defaults__", (7,))
    chunked = with_gradient(DRAWN)(params, trace)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), whole[0], chunked[0])
    assert_close_gradients(whole[1][0], chunked[1][0])


def test_no_array_spans_all_blocks_times_the_text():
    """128 blocks of 8 rows on 512 tokens: neither a mask nor scores of 1024 · 512, nor logits of 1024 rows."""
    wide, length = replace(DRAWN, length=8, anchors=128, head=DraftHead(trained=True)), 512
    target = replace(TARGET, vocab=997)
    of = lambda specs: jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), specs)
    ints, hidden = jax.ShapeDtypeStruct((1, length), jnp.int32), jax.ShapeDtypeStruct((1, length, 16), jnp.float32)
    batch = PACKED.replace(tokens=ints, positions=ints, segments=ints, loss_mask=jax.ShapeDtypeStruct((1, length), bool))
    trace = traced(PACKED, wide.taps).replace(
        batch=batch, features=jax.ShapeDtypeStruct((1, length, 2, 16), jnp.float32), hidden=hidden
    )

    def loss(params, target_params, trace, key):
        return wide.loss(training_context(target, target_params, trace.batch), params, trace, key)[0]

    arguments = of(wide.specs(target)), of(target.specs()), trace, jax.eval_shape(lambda: jax.random.key(0))
    made = list(shapes(jax.make_jaxpr(jax.grad(loss))(*arguments).jaxpr))
    assert max(np.prod(shape) for shape in made if 997 not in shape) <= 2 * block_attention.QUERIES * length
    assert max(np.prod(shape) for shape in made if 997 in shape) <= 997 * losses.ROWS


@dataclass(frozen=True)
class Knowing(Decoder):
    """Layers that know the text: the row at position i ends as the target's state that predicts token i + `ahead`."""

    ahead: int = 0

    def forward(self, params, x, positions, cache, mask, **rest):
        out = super().forward(params, x, positions, cache, mask, **rest)
        return out.replace(hidden=rows(params["known"], positions + self.ahead - 1))


@dataclass(frozen=True)
class Oracle(Block):
    """Its layers know the text, and speak as `ahead` says."""

    ahead: int = 0

    def specs(self, target):
        return super().specs(target) | {"known": Spec((len(PROMPTS), 96, target.width), jnp.float32, (None,) * 3, zeros)}

    def model(self, target):
        own = super().model(target)
        return Knowing(**{field.name: getattr(own, field.name) for field in fields(own)}, ahead=self.ahead)


def known_states():
    """The target's final states along what it writes behind each prompt, [B, S, E]."""
    whole = [prompt + text for prompt, text in zip(PROMPTS, plain(0.0), strict=True)]
    return trace_of(TARGET, WEIGHTS, batch_of([[text] for text in whole], 96)).hidden


@pytest.mark.parametrize("layout, ahead", [("fill_in", 0), ("anchor_first", 1)])
def test_an_oracle_is_accepted_whole_in_its_own_layout_alone(layout, ahead):
    right = Oracle((0,), 3, layers=1, layout=layout, ahead=ahead)
    wrong = replace(right, layout={"fill_in": "anchor_first", "anchor_first": "fill_in"}[layout])
    params = random_params(right) | {"known": known_states()}
    for drafter in (right, wrong):
        steps = decode(drafter, 0.0, params=params).steps
        accepted, proposed = (np.concatenate([getattr(s, name) for s in steps]) for name in ("accepted", "proposed"))
        assert (accepted == proposed).all() if drafter is right else accepted.mean() < 1


def test_survival_is_of_calibrated_slots():
    logits = jnp.array([[0.0, 2.0, -1.0]])
    np.testing.assert_allclose(chain_survival(logits), [[1, 0.5, 0.5 / (1 + np.exp(-2)), 0.5 / (1 + np.exp(-2)) / (1 + np.e)]])
    np.testing.assert_allclose(chain_survival(logits[:, :2], (4.0, 0.5, 9.0)), [[1, 0.5, 0.5 / (1 + np.exp(-4))]], rtol=1e-6)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_argmaxes_of_few_tokens_change_no_token(temperature):
    drafter = replace(PLAIN, sampled=False, markov="vanilla", rank=3, head=DraftHead(14))
    assert decode(drafter, temperature).tokens == plain(temperature)


def test_presets_are_as_published():
    dflash, dspark = Block.dflash(spread_taps(36), 5), Block.dspark(spread_taps(36), 5)
    domino = Block.domino(spread_taps(36), 5, base_steps=100)
    assert (domino.nodes, domino.width, domino.markov, domino.uncorrected) == (17, 16, "domino", 1) and not domino.sampled
    assert (dflash.nodes, dflash.width, dflash.decay) == (16, 16, 7.0) and not dflash.sampled
    assert (dspark.nodes, dspark.width, dspark.decay) == (8, 7, 4.0) and dspark.sampled
    deepspec, jetspec = Block.deepspec_dflash(spread_taps(36), 5), Block.jetspec(spread_taps(36), 5)
    assert (deepspec.layout, deepspec.width, deepspec.decay, deepspec.markov) == ("anchor_first", 7, 4.0, "none")
    assert deepspec.sampled and deepspec.objectives(None) == {"text": 1.0}
    assert (jetspec.block_mask, jetspec.width, jetspec.decay, jetspec.objectives(None)) == ("causal", 16, None, {"soft": 1.0})
    assert spread_taps(36) == (1, 9, 17, 25, 33) and spread_taps(40) == (1, 10, 19, 28, 37)
    assert spread_taps(64) == (1, 16, 31, 46, 61) and spread_taps(36, 1) == (18,)


def test_a_mask_that_is_a_token_is_the_targets_row_and_stays():
    drafter = replace(PLAIN, mask_token=3)
    params = drafter.initial(TARGET, WEIGHTS, np.ones(TARGET.vocab, int), jax.random.key(0))
    check_params(drafter.specs(TARGET), params, "a block drafter")
    np.testing.assert_array_equal(params["mask"], WEIGHTS["embed"][3])
    assert not drafter.specs(TARGET)["mask"].trainable and PLAIN.specs(TARGET)["mask"].trainable


def test_a_start_from_the_target_is_its_last_layers_behind_the_deepest_tap():
    drafter = replace(PLAIN, layers=2, start="target")
    params = drafter.initial(TARGET, WEIGHTS, np.ones(TARGET.vocab), jax.random.key(0))
    check_params(drafter.specs(TARGET), params, "block")
    jax.tree.map(np.testing.assert_array_equal, params["layers"], WEIGHTS["layers"][-2:])
    np.testing.assert_array_equal(params["norm"], WEIGHTS["norm"])
    states = jax.random.normal(jax.random.key(1), (1, 3, 2, TARGET.width))
    np.testing.assert_allclose(linear(states.reshape(1, 3, -1), params["fc"]), states[:, :, -1], rtol=1e-6)
    with pytest.raises(ValueError, match="layers is 4, the target has 3"):
        replace(drafter, layers=4).initial(TARGET, WEIGHTS, np.ones(TARGET.vocab), jax.random.key(0))
    with pytest.raises(ValueError, match="leave out `shape`"):
        replace(drafter, shape=SHAPE)


def test_what_cannot_be_is_named():
    with pytest.raises(ValueError, match="mask_token is 3, which ends texts"):
        check_masks(BlockTree(Block.dflash((0, 2), 3, 4), 9), (2, 3))
    check_masks(BlockTree(Block.dflash((0, 2), None, 4), 9), (2, 3))
    with pytest.raises(ValueError, match="layout is 'shifted'"):
        Block((0,), layout="shifted")
    with pytest.raises(ValueError, match=r"5 layers.*collide"):
        spread_taps(5)
    with pytest.raises(ValueError, match="colliding: 1"):
        Block((1, 1))
    with pytest.raises(ValueError, match=r"no taps \[3\]"):
        Block((0, 3)).specs(TARGET)
    with pytest.raises(ValueError, match="mask_token is 29"):
        Block((0,), mask_token=29).specs(TARGET)
    with pytest.raises(ValueError, match="decay must be positive"):
        Block((0,), text=0.0)
    with pytest.raises(ValueError, match=r"dpace is 1\.5"):
        Block((0,), dpace=1.5)
    with pytest.raises(ValueError, match="a positive one for each of 7 slots"):
        Block((0,), temperatures=(1.0, 2.0))
