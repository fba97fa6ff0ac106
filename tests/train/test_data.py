"""Packed batches hold every supervised token once an epoch, whole documents, and go on exactly where they were."""

import json
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sdjax.train.corpus import open_corpus, write_corpus
from sdjax.train.data import LEAST_BINS, batches, token_counts
from tests.train.texts import ORIGIN, document, documents

FIELDS = ("tokens", "positions", "segments", "loss_mask")
LONG = 50  # tokens of one document, more than a row of the tests holds
VOCAB = 1000


@pytest.fixture(scope="module")
def corpora(tmp_path_factory):
    """Two corpora of documents of distinct tokens: a long one, and thirty of at most 22."""
    folder = tmp_path_factory.mktemp("corpora")
    made = [document(5, LONG - 5, "long"), *documents(30, start=LONG)]
    write_corpus(folder / "a", made[:12], ORIGIN)
    write_corpus(folder / "b", made[12:], ORIGIN)
    return [open_corpus(folder / name) for name in "ab"]


@pytest.fixture(scope="module")
def singles(tmp_path_factory):
    """Documents of which a row of ten tokens holds one alone, so that rows come in the order of the stream."""
    folder = tmp_path_factory.mktemp("singles") / "c"
    write_corpus(folder, [document(2, 4 + i % 5, f"d{i}", 20 * i) for i in range(13)], ORIGIN)
    return [open_corpus(folder)]


def pieces(batch):
    """Of every segment in a batch its tokens, positions and loss mask."""
    for row, segments in enumerate(batch.segments):
        numbers = segments[segments > 0]
        assert np.array_equal(segments, np.pad(np.sort(numbers), (0, len(segments) - len(numbers)))), "contiguous, then padding"
        assert set(numbers) == set(range(1, numbers.max() + 1))
        for number in range(1, numbers.max() + 1):
            here = segments == number
            yield batch.tokens[row, here], batch.positions[row, here], batch.loss_mask[row, here]


def equal(one, other):
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in FIELDS)


@settings(max_examples=8)
@given(rows=st.integers(1, 5), length=st.integers(22, 40), seed=st.integers(0, 99))
def test_every_supervised_token_comes_once_an_epoch_in_whole_documents(corpora, rows, length, seed):
    whole = {d.tokens[0]: d for corpus in corpora for d in corpus}
    marked = token_counts(corpora, VOCAB) > 0
    seen, stream = np.zeros(VOCAB, int), batches(corpora, rows, length, seed)
    while seen[marked].min() < 2:
        # So many batches hold a stretch of the stream of documents; within, a short one may overtake a long one.
        for batch in islice(stream, -(-LEAST_BINS // rows)):
            assert batch.tokens.shape == (rows, length) and {getattr(batch, name).dtype for name in FIELDS[:3]} == {
                np.dtype("int32")
            }
            padding = batch.segments == 0
            assert not (batch.tokens[padding].any() or batch.positions[padding].any() or batch.loss_mask[padding].any())
            for tokens, positions, mask in pieces(batch):
                assert np.array_equal(positions, np.arange(len(tokens)))
                assert mask.any() and not mask[0], "a piece has something to learn, and not from nothing"
                if tokens[-1] >= LONG:
                    assert np.array_equal(tokens, whole[tokens[0]].tokens) and np.array_equal(mask, whole[tokens[0]].loss_mask)
                seen[tokens[mask]] += 1
        assert seen[marked].max() - seen[marked].min() <= 1
    assert not seen[~marked].any()


@pytest.mark.parametrize("rows", [1, 3])
def test_resuming_at_every_step_changes_nothing(corpora, rows):
    stream, positions, run = batches(corpora, rows, 24, 5), [], []
    for _ in range(16):
        positions.append(json.dumps(stream.position()))
        run.append(next(stream))
    for step, position in enumerate(positions):
        resumed = batches(corpora, rows, 24, 5)
        resumed.restore(json.loads(position))
        assert json.dumps(resumed.position()) == position
        assert all(map(equal, run[step : step + 3], resumed)), f"after step {step}"
    stream.restore(json.loads(positions[7]))  # going back works as well
    assert equal(next(stream), run[7])


def test_epochs_differ_in_order_alone_and_seeds_in_order(singles):
    def first_tokens(seed, count):
        return [int(batch.tokens[0, 0]) for batch in islice(batches(singles, 1, 10, seed), count)]

    n = len(singles[0])
    two = first_tokens(0, 2 * n)
    assert sorted(two[:n]) == sorted(two[n:]) == [20 * i for i in range(n)] and two[:n] != two[n:]
    assert first_tokens(0, n) == two[:n] != first_tokens(1, n)


@pytest.mark.parametrize("hosts", [2, 3])
def test_hosts_share_the_stream(singles, hosts):
    one = list(islice(batches(singles, 1, 10, 4), 30))
    shares = [list(islice(batches(singles, 1, 10, 4, host, hosts), 30 // hosts)) for host in range(hosts)]
    assert all(equal(batch, shares[i % hosts][i // hosts]) for i, batch in enumerate(one))


def test_a_position_of_another_run_is_refused(corpora):
    position = batches(corpora, 2, 24, 0).position()
    for stream, words in [
        (batches(corpora, 2, 24, 1), "seed was 0, is 1"),
        (batches(corpora, 2, 24, 0, 1, 2), "host was 0, is 1; hosts was 1, is 2"),
        (batches(corpora[:1], 2, 24, 0), "corpora was"),
    ]:
        with pytest.raises(ValueError, match=words):
            stream.restore(position)


@pytest.mark.parametrize(
    "arguments, words",
    [((0, 8, 0), "rows is 0"), ((1, 1, 0), "length 1"), ((1, 8, 0, 2, 2), "host is 2 of 2")],
)
def test_bad_shapes_are_refused(corpora, arguments, words):
    with pytest.raises(ValueError, match=words):
        batches(corpora, *arguments)
    with pytest.raises(ValueError, match="no corpora"):
        batches([], 1, 8, 0)
