"""Chunked losses equal whole ones, gradients included; shifting keeps documents apart."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sdjax.core.types import Batch, Trace
from sdjax.drafters import losses
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
