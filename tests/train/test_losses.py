"""Chunked losses equal whole ones, gradients included; shifting keeps documents apart."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sdjax.core.types import Batch, Trace
from sdjax.drafters import losses
from sdjax.drafters.confidence import acceptance_rate
from sdjax.targets.packed import trace_of
from sdjax.train.flops import inside
from tests.tiny import TARGET, target_params

ROWS, V = 23, 7


def random_rows(seed):
    a, b, c = jax.random.split(jax.random.key(seed), 3)
    return jax.random.normal(a, (ROWS, V)), jax.random.normal(b, (ROWS, V)), jax.random.randint(c, (ROWS,), 0, V)


@pytest.mark.parametrize("size", [1, 4, 23, 100])
def test_chunks_change_neither_loss_nor_gradient(size):
    logits, teacher, _ = random_rows(0)

    def total(logits, size):
        return losses.in_chunks(lambda rows: losses.forward_kl(*rows), (logits, teacher), jnp.ones(ROWS), size).sum()

    whole, chunked = (jax.value_and_grad(total)(logits, n) for n in (ROWS, size))
    np.testing.assert_allclose(chunked[0], whole[0], rtol=1e-5)
    np.testing.assert_allclose(chunked[1], whole[1], atol=1e-6)


@pytest.mark.parametrize("size", [1, 4, 23])
@pytest.mark.parametrize("kept", [0.0, 0.1, 0.5])
def test_rows_that_are_not_needed_are_left_out_and_change_no_other(size, kept):
    logits, teacher, _ = random_rows(2)
    weight = jax.random.bernoulli(jax.random.key(3), kept, (ROWS,)).astype(jnp.float32)

    def total(logits, size):
        rows = losses.in_chunks(lambda rows: losses.forward_kl(*rows), (logits, teacher), weight, size)
        return (rows * weight).sum()

    whole, chunked = (jax.value_and_grad(total)(logits, n) for n in (ROWS, size))
    np.testing.assert_allclose(chunked[0], whole[0], rtol=1e-5)
    np.testing.assert_allclose(chunked[1], whole[1], atol=1e-6)
    made = losses.in_chunks(lambda rows: losses.forward_kl(*rows), (logits, teacher), weight, size)
    computed = size * -(-int(weight.sum()) // size) if size < ROWS else ROWS
    assert int((made != 0).sum()) == min(computed, ROWS)


def test_no_array_of_all_rows_and_the_whole_vocabulary_is_held():
    """Neither forward nor backward: what a chunk's backward pass needs is computed anew, skipped chunks or not."""
    width, vocab = 3, 50

    def total(head, x):
        return losses.in_chunks(lambda x: jax.nn.logsumexp(x @ head.T, -1), x, jnp.ones(ROWS), 4).sum()

    def largest(jaxpr):
        own = [var.aval.size for equation in jaxpr.eqns for var in equation.outvars]
        return max(own + [largest(sub) for equation in jaxpr.eqns for sub in inside(equation.params)], default=0)

    gradient = jax.make_jaxpr(jax.grad(total, (0, 1)))(jnp.ones((vocab, width)), jnp.ones((ROWS, width)))
    assert largest(gradient.jaxpr) == max(4 * vocab, vocab * width)


def test_losses_against_their_definitions():
    logits, teacher, labels = random_rows(1)
    p, q = (np.asarray(jax.nn.softmax(x), np.float64) for x in (teacher, logits))
    np.testing.assert_allclose(losses.cross_entropy(logits, labels), -np.log(q[np.arange(ROWS), labels]), atol=1e-5)
    np.testing.assert_allclose(losses.soft_cross_entropy(logits, teacher), -(p * np.log(q)).sum(-1), atol=1e-5)
    np.testing.assert_allclose(losses.forward_kl(logits, teacher), (p * np.log(p / q)).sum(-1), atol=1e-5)
    np.testing.assert_allclose(losses.reverse_kl(logits, teacher), (q * np.log(q / p)).sum(-1), atol=1e-5)
    np.testing.assert_allclose(losses.total_variation(logits, teacher), 1 - np.minimum(p, q).sum(-1), atol=1e-5)


def test_nothing_to_learn_from_is_zero_not_nan():
    assert losses.weighted_mean(jnp.ones(3), jnp.zeros(3)) == 0


PACKED = Batch(
    tokens=jnp.array([[3, 1, 4, 1, 5, 9, 2, 0]]),
    positions=jnp.array([[0, 1, 2, 3, 0, 1, 2, 0]]),
    segments=jnp.array([[1, 1, 1, 1, 2, 2, 2, 0]]),
    loss_mask=jnp.array([[0, 0, 1, 1, 0, 1, 1, 0]], bool),
)


def test_labels_and_weights_move_together_and_stay_in_their_document():
    trace = Trace(PACKED, None, None)
    tokens, weight = trace.ahead(1)
    assert tokens[0, :7].tolist() == [1, 4, 1, 5, 9, 2, 0]
    assert weight.tolist() == [[0, 1, 1, 0, 1, 1, 0, 0]]
    assert trace.ahead(2)[1].tolist() == [[1, 1, 0, 0, 1, 0, 0, 0]]


def test_packed_documents_are_as_if_alone():
    packed = trace_of(TARGET, target_params(), PACKED, taps=(0,))
    for start, end in ((0, 4), (4, 7)):
        one = jax.tree.map(lambda x: x[:, start:end], PACKED)  # noqa: B023
        alone = trace_of(TARGET, target_params(), one, taps=(0,))
        np.testing.assert_allclose(packed.hidden[:, start:end], alone.hidden, atol=1e-5)
        np.testing.assert_allclose(packed.features[:, start:end], alone.features, atol=1e-5)


def laws(seed):
    """Of a drafter and its target, float64."""
    logits, teacher, _ = (np.asarray(x, np.float64) for x in random_rows(seed))
    softmax = lambda x: np.exp(x) / np.exp(x).sum(-1, keepdims=True)
    return softmax(3 * logits), softmax(3 * teacher)


def test_lk_losses_are_those_of_the_acceptance_rate():
    """-log Σ min(p, q); and KL and TV blended by it, nearer to TV the more is accepted."""
    q, p = laws(4)
    accepted = np.minimum(p, q).sum(-1)
    kl, tv = (p * np.log(p / q)).sum(-1), np.abs(p - q).sum(-1) / 2
    np.testing.assert_allclose(losses.log_acceptance(np.log(q), np.log(p)), -np.log(accepted), rtol=1e-5)
    for eta in (0.0, 3.0):
        blend = np.exp(-eta * accepted)
        found = losses.hybrid_lk(np.log(q), np.log(p), eta)
        np.testing.assert_allclose(found, blend * kl + (1 - blend) * tv, rtol=1e-4)
    same = losses.hybrid_lk(np.log(p), np.log(p)), losses.log_acceptance(np.log(p), np.log(p))
    np.testing.assert_allclose(same, 0, atol=1e-6)


def test_acceptance_rates_of_drawn_and_of_argmax_drafts():
    """Drawn from q, Σ min(p, q); always q's likeliest token, that token's p. Half of the target's mass lies outside."""
    q, p = laws(6)
    law, whole = np.log(p), np.concatenate([np.log(p), np.log(p)], -1)
    of = lambda sampled: acceptance_rate(jnp.log(q), law, whole, sampled)
    np.testing.assert_allclose(of(True), np.minimum(p / 2, q).sum(-1), rtol=1e-5)
    np.testing.assert_allclose(of(False), np.take_along_axis(p, q.argmax(-1)[:, None], -1)[:, 0] / 2, rtol=1e-5)


def test_gradients_of_lk_losses():
    """TV's over the acceptance rate, also without any overlap that float32 could hold; the blend itself has none."""
    q, p = (jnp.asarray(x, jnp.float32) for x in laws(5))
    gradient = lambda loss: jax.grad(lambda x: loss(x, jnp.log(p)).sum())(jnp.log(q))
    accepted = jnp.minimum(p, q).sum(-1, keepdims=True)
    np.testing.assert_allclose(gradient(losses.log_acceptance), gradient(losses.total_variation) / accepted, atol=1e-5)
    blend = jnp.exp(-3 * accepted)
    mixed = blend * gradient(losses.forward_kl) + (1 - blend) * gradient(losses.total_variation)
    np.testing.assert_allclose(gradient(losses.hybrid_lk), mixed, atol=1e-5)
    apart = jax.grad(losses.log_acceptance)(jnp.array([-200.0, 0.0]), jnp.array([0.0, -300.0]))
    np.testing.assert_allclose(apart, [-1, 1], atol=1e-5)


def test_dpace_weighs_what_a_slot_adds_to_the_accepted_length():
    random = np.random.default_rng(0)
    q, seen = random.random((6, 5)), (np.arange(5) < random.integers(0, 6, (6, 1))).astype(np.float32)
    for alpha in (0.0, 0.5, 1.0):
        expected = np.zeros((6, 5))
        for b, j in np.ndindex(6, 5):
            for m in range(j, int(seen[b].sum())):
                expected[b, j] += np.prod([(1 - alpha) * q[b, i] + alpha for i in range(m + 1)])
        np.testing.assert_allclose(losses.dpace_weights(q, seen, alpha), expected * seen, rtol=1e-5)
    assert not np.any(jax.grad(lambda q: losses.dpace_weights(q, seen, 0.3).sum())(jnp.asarray(q)))


def test_binary_cross_entropy_is_its_definition():
    logits, target = np.linspace(-6, 6, 13), np.linspace(0, 1, 13)
    sure = 1 / (1 + np.exp(-logits))
    expected = -target * np.log(sure) - (1 - target) * np.log(1 - sure)
    np.testing.assert_allclose(losses.binary_cross_entropy(logits, target), expected, atol=1e-6)
