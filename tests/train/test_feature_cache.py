"""Cached states are the target's, whatever they are packed with; a cache of anything else is refused."""

import json

import jax
import numpy as np
import pytest

from sdjax.core.spec import initialise
from sdjax.drafters.eagle3 import Eagle3
from sdjax.targets.packed import trace_of
from sdjax.train import feature_cache
from sdjax.train.corpus import Origin, open_corpus, write_corpus
from sdjax.train.data import batches
from sdjax.train.feature_cache import open_features, write_features
from sdjax.train.optimiser import Optimiser
from sdjax.train.step import begin, drafter_loss, train_step
from tests.experiments.tiny_model import model
from tests.tiny import TARGET, target_params
from tests.train.texts import document

TAPS = (2, "embed", 0, 1)
LENGTH = 16


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A corpus and its cache, written through rows that are filled otherwise than in training."""
    folder = tmp_path_factory.mktemp("cache")
    texts = [document(1 + i % 3, 3 + i % 5, f"d{i}", i) for i in range(12)]
    origin = Origin(model().identity, model().tokenizer.identity, None, 1.0, 0)
    write_corpus(folder / "corpus", texts, origin)
    corpus = open_corpus(folder / "corpus")
    write_features(folder / "features", corpus, model(), TAPS, rows=2, length=20)
    return corpus, folder / "features"


def test_batches_come_with_the_states_that_the_target_makes(made):
    corpus, folder = made
    cached = open_features(folder, corpus, model(), (0, "final"))
    traced, plain = (batches([source], 2, LENGTH, seed=3) for source in (cached, corpus))
    for _ in range(5):
        trace, batch = next(traced), next(plain)
        jax.tree.map(np.testing.assert_array_equal, trace.batch, batch)
        fresh = trace_of(TARGET, target_params(), batch, (0, "final"))
        real = batch.segments > 0
        for kept, new in ((trace.features, fresh.features), (trace.hidden, fresh.hidden)):
            np.testing.assert_allclose(kept[real], np.asarray(new)[real], atol=2e-3 * np.abs(new).max())


def test_a_position_in_the_cache_is_exact(made):
    corpus, folder = made
    stream = batches([open_features(folder, corpus, model(), TAPS)], 2, LENGTH, seed=3)
    next(stream)
    position = json.loads(json.dumps(stream.position()))
    again = batches([open_features(folder, corpus, model(), TAPS)], 2, LENGTH, seed=3)
    again.restore(position)
    jax.tree.map(np.testing.assert_array_equal, next(stream), next(again))


def test_a_step_on_cached_states_is_that_on_fresh_ones(made):
    corpus, folder = made
    drafter, optimiser = Eagle3.tiny(TARGET), Optimiser(steps=4, warmup=0)
    cached = (
        open_features(folder, corpus, model(), tuple(dict.fromkeys(drafter.taps))) if set(drafter.taps) <= set(TAPS) else None
    )
    if cached is None:
        pytest.skip(f"the tiny drafter taps {drafter.taps}, the cache holds {TAPS}")
    losses = []
    for source in (cached, corpus):
        state = begin(initialise(drafter.specs(TARGET), jax.random.key(0)), optimiser, 0)
        batch = next(batches([source], 2, LENGTH, seed=3))
        _, metrics = train_step(drafter_loss(drafter, TARGET), optimiser, state, target_params(), batch)
        losses.append(float(metrics["loss"]))
    np.testing.assert_allclose(*losses, rtol=1e-3)


def test_caches_of_anything_else_are_refused(made, tmp_path):
    corpus, folder = made
    with pytest.raises(ValueError, match=r"lacks the taps \[3\]"):
        open_features(folder, corpus, model(), (3,))
    with pytest.raises(ValueError, match="target_identity"):
        open_features(folder, corpus, model()._replace(identity="sha256:other"), TAPS)
    with pytest.raises(ValueError, match="no complete feature cache"):
        open_features(tmp_path, corpus, model(), TAPS)
    with pytest.raises(ValueError, match="exists already"):
        write_features(folder, corpus, model(), TAPS)
    with pytest.raises(ValueError, match="tokens, but a row only 4"):
        write_features(tmp_path / "short", corpus, model(), TAPS, length=4)
    assert list(tmp_path.iterdir()) == []


def test_damaged_states_are_found(made, monkeypatch):
    corpus, folder = made
    whole = feature_cache.states_on
    monkeypatch.setattr(feature_cache, "states_on", lambda *arguments: -whole(*arguments))
    with pytest.raises(ValueError, match="differ from the target's"):
        open_features(folder, corpus, model(), TAPS)
