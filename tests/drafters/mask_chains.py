"""What PARD and P-EAGLE must keep alike: chains of masks in training and in drafting."""

import jax
import jax.numpy as jnp
import numpy as np

from sdjax.core.types import Law
from sdjax.drafters.mask_chains import Chains, draw_chains
from sdjax.train.context import training_context
from tests.drafters.eagle_texts import LENGTHS, WEIGHTS, drafted, prompted, propose, random_params, texts, traced
from tests.tiny import TARGET

T = 24


def slots_of(drafter):
    return Chains(drafter.drop.counts(T, drafter.length))


def first_on(places, length=T):
    """An order of each row's places, that of `places` first."""
    rest = np.arange(length)
    return jnp.array([[place, *rest[rest != place]] for place in places], jnp.int32)


def trained(drafter, batch, place, params=None):
    """Log laws of all slots by depth and chain [N B T D], where chain i hangs on place[:, i]."""

    @jax.jit
    def run(params, trace):
        return drafter_logits(drafter, training_context(TARGET, WEIGHTS, batch), params, trace, place)

    return run(random_params(drafter) if params is None else params, traced(batch, drafter.taps))


def drafter_logits(drafter, ctx, params, trace, place):
    logits = jax.nn.log_softmax(drafter.logits(ctx, params, drafter.run_slots(ctx, params, trace, place, slots_of(drafter))))
    by_token = jnp.moveaxis(logits, -1, 0)
    return jnp.moveaxis(jax.vmap(slots_of(drafter).table)(by_token), 0, -1)


def check_parity(drafter, lag):
    """Slot d of the chain that hangs on the row of an anchor is the law from which draft d + 1 behind that anchor is drawn."""
    draft, batch = drafted(drafter)
    assert draft.law == Law.IID
    places = np.maximum(LENGTHS - lag, 0)
    logits = trained(drafter, batch, first_on(places))[:, :, 0]
    ids = np.asarray(random_params(drafter).get("head", {}).get("ids", np.arange(TARGET.vocab)))
    np.testing.assert_allclose(np.log(draft.q[:, :, ids]), jnp.moveaxis(logits, 0, 1), atol=1e-4)


def check_nothing_behind_is_seen(drafter, lag):
    """By a chain, of its text behind the anchor: neither tokens nor states; and of the text before it, the first too."""
    batch, at = texts(), 11
    place = first_on([at] * 3)
    kept = lambda tokens: trained(drafter, batch.replace(tokens=tokens), place)[:, :, 0]
    whole = kept(batch.tokens)
    np.testing.assert_allclose(whole, kept(batch.tokens.at[:, at + 1 + lag :].set(1)), atol=1e-6)
    for seen in (1, at, at + lag):
        assert (np.abs(whole - kept(batch.tokens.at[:, seen].add(1) % TARGET.vocab)).max((1, 2)) > 1e-4).all()


def check_length(drafter, shorter):
    """Draft i is drawn from the same law, whatever stands behind it."""
    state, params = prompted(drafter), random_params(drafter)
    long, short = (propose(d, params, texts(), state) for d in (drafter, shorter))
    n = shorter.length
    assert n < drafter.length
    np.testing.assert_array_equal(long.tokens[:, : n + 1], short.tokens)
    np.testing.assert_allclose(long.q[:, :n], short.q, atol=1e-6)


def definition(drafter, batch, lag, key):
    """The loss and its figures in float64, slot by slot of the chains as `key` draws them."""
    params, trace = random_params(drafter), traced(batch, drafter.taps)
    place, weight = draw_chains(drafter.drop, slots_of(drafter), trace, key, lag)
    logits = np.asarray(trained(drafter, batch, place), np.float64)
    weight, place = np.asarray(slots_of(drafter).table(weight)), np.asarray(place)
    teacher = np.asarray(TARGET.unembed(WEIGHTS, trace.hidden), np.float64)
    ids = np.asarray(params.get("head", {}).get("ids", np.arange(TARGET.vocab))).tolist()
    text, soft = [], []
    hits, seen = np.zeros(weight.shape), weight > 0
    for depth, b, chain in np.argwhere(seen):
        at = place[b, chain] + depth + lag
        p = np.exp(teacher[b, at, ids] - teacher[b, at, ids].max())
        token, log_q = int(batch.tokens[b, at + 1]), logits[depth, b, chain]
        soft.append(-(p / p.sum() * log_q).sum())
        if token in ids:
            text.append(-log_q[ids.index(token)])
        hits[depth, b, chain] = ids[log_q.argmax()] == token
    loss = drafter.text * np.mean(text) + drafter.soft * np.mean(soft)
    accuracy = [hits[depth][seen[depth]].mean() for depth in range(drafter.length)]
    survival = [np.cumprod(hits, 0)[depth][seen[depth]].mean() for depth in range(drafter.length)]
    return loss, accuracy, 1 + sum(survival)


def check_definition(drafter, loss, batch, lag):
    (value, metrics), _ = loss(random_params(drafter), traced(batch, drafter.taps))
    expected, accuracy, tau = definition(drafter, batch, lag, jax.random.key(0))
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    np.testing.assert_allclose([metrics[f"accuracy_{d + 1}"] for d in range(drafter.length)], accuracy, rtol=1e-6)
    np.testing.assert_allclose(metrics["tau"], tau, rtol=1e-6)
