"""A run that is stopped, killed or asked to leave goes on to the very state that it would have reached; bad steps stop it."""

import io
import json
import os
import signal
from dataclasses import replace

import jax
import numpy as np
import pytest
from rich.console import Console

from sdjax.core.plain import plain_data
from sdjax.train import loop
from sdjax.train.checkpoint import Checkpoints
from sdjax.train.evaluate import forced_acceptance
from sdjax.train.log import read, rewind
from sdjax.train.loop import End, Progress
from sdjax.train.recipe import Cadence
from tests.kills import after_kills
from tests.train.micro import HELD_OUT, LONG, RECIPE, TARGET, begin, data, run, same, target_params

STEPS = RECIPE.optimiser.steps


class Stop(Exception):
    """What ends a run in the middle."""


class Until:
    """The data of a run, with something done before batch `at` (from 1) is given."""

    def __init__(self, at, do):
        self.inner, self.at, self.do, self.given = data(), at, do, 0

    def __next__(self):
        self.given += 1
        batch = next(self.inner)
        return self.do(batch) if self.given == self.at else batch

    def position(self):
        return self.inner.position()

    def restore(self, position):
        self.inner.restore(position)


def stop(batch):
    raise Stop


def curve(folder):
    """The figures of every step, without those of the clock."""
    rows = read(folder / "metrics.jsonl")
    return [{name: value for name, value in row.items() if name != "tokens_per_second"} for row in rows]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run from start to end, and its folder."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    return run(folder), folder


def test_a_run_learns_measures_and_keeps(whole):
    fitted, folder = whole
    rows = curve(folder)
    assert [row["step"] for row in rows if "loss" in row] == list(range(1, STEPS + 1))
    assert [row["step"] for row in rows if "tau" in row] == [3, 6]
    assert fitted.end is End.FINISHED and int(fitted.state.step) == STEPS
    assert int(fitted.best.step) == fitted.progress.step == max((r["tau"], -r["step"]) for r in rows if "tau" in r)[1] * -1
    assert rows[-2]["loss"] < rows[0]["loss"]
    assert list((folder / "tensorboard").iterdir())
    assert json.loads((folder / "config.json").read_text())["class"] == "Recipe"


@pytest.mark.parametrize("at", range(1, STEPS + 1))
def test_stopped_at_any_step_it_goes_on_exactly(whole, tmp_path, at):
    with pytest.raises(Stop):
        run(tmp_path / "run", data=Until(at, stop))
    fitted = run(tmp_path / "run")
    assert same(fitted.state, whole[0].state) and same(fitted.best, whole[0].best)
    assert curve(tmp_path / "run") == curve(whole[1])


def test_a_finished_run_is_left_as_it_is(whole, tmp_path):
    before = curve(whole[1])
    again = run(whole[1])
    assert same(again.state, whole[0].state) and curve(whole[1]) == before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_asked_to_leave_it_saves_and_leaves(whole, tmp_path, number):
    def ask(batch):
        os.kill(os.getpid(), number)
        return batch

    before = signal.getsignal(number)
    left = run(tmp_path / "run", data=Until(5, ask))
    assert left.end is End.ASKED and int(left.state.step) == 5
    assert signal.getsignal(number) == before
    assert same(run(tmp_path / "run").state, whole[0].state)
    assert curve(tmp_path / "run") == curve(whole[1])


def test_the_first_process_says_what_another_was_asked_by(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "anywhere", lambda flag: True)
    monkeypatch.setattr(loop, "gather", lambda value: [value] if isinstance(value, dict) else [value, "SIGTERM"])
    said = io.StringIO()
    assert run(tmp_path / "run", console=Console(file=said, width=200)).end is End.ASKED
    assert "asked to leave (SIGTERM): saved at step 1" in said.getvalue()


def test_another_config_is_refused(whole):
    with pytest.raises(ValueError, match=r"another config \(optimiser.clip was 1.0, is 2.0\)"):
        run(whole[1], replace(RECIPE, optimiser=replace(RECIPE.optimiser, clip=2.0)))


def test_a_loss_that_is_not_finite_stops_with_its_batch(tmp_path):
    poisoned = jax.tree.map(lambda x: x * np.nan, target_params())
    with pytest.raises(ValueError, match=r"loss and gradient_norm of step 1 .* not finite; its batch is in .*step_1"):
        run(tmp_path / "run", target_params=poisoned)
    [dumped] = (tmp_path / "run").glob("bad_batch_step_1*.npz")
    first = next(data())
    with np.load(dumped) as arrays:
        assert all(np.array_equal(arrays[name], getattr(first, name)) for name in ("tokens", "segments", "loss_mask"))
    assert not list((tmp_path / "run" / "checkpoints").iterdir()), "nothing of it is saved"


def test_a_batch_without_supervision_stops(tmp_path):
    blind = Until(2, lambda batch: batch.replace(loss_mask=np.zeros_like(batch.loss_mask)))
    with pytest.raises(ValueError, match="batch of step 2 has no supervised token"):
        run(tmp_path / "run", data=blind)


def test_it_stops_where_tau_rises_no_more(tmp_path):
    recipe = replace(RECIPE, cadence=Cadence(eval_every=1, patience=2, keep=1))
    fitted = run(tmp_path / "run", recipe)
    taus = [row["tau"] for row in read(tmp_path / "run" / "metrics.jsonl") if "tau" in row]
    assert fitted.end is End.STALE and len(taus) == int(fitted.state.step) < STEPS
    assert fitted.progress == Progress(max(taus), taus.index(max(taus)) + 1, 2)
    assert int(fitted.best.step) == fitted.progress.step
    assert run(tmp_path / "run", recipe).end is End.STALE


def test_half_a_line_is_cut(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n{"step": 3}\n{"st')
    rewind(path, 2)
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n'


def test_tau_from_accuracies():
    assert forced_acceptance({"loss": 3.0}, 4) == ([], 1.0)
    assert forced_acceptance({"accuracy_1": 0.5, "accuracy_0": 0.8, "x": 1}, 3) == ([0.8, 0.5], 1 + 0.8 + 0.4 + 0.2)
    assert forced_acceptance({"agreement": 0.5}, 2) == ([0.5], 1.75)


@pytest.mark.parametrize("fields", [{"prompts": ()}, {"max_new": 1}, {"batch": 0}])
def test_held_out_decoding_needs_something_to_decode(fields):
    with pytest.raises(ValueError, match=r"must be at least"):
        replace(HELD_OUT, **fields)


def test_tau_does_not_depend_on_batches():
    params = RECIPE.decodable(begin(), target_params())
    one, two = (replace(HELD_OUT, batch=n).acceptance(TARGET, RECIPE.drafter, params, 1.0) for n in (1, 2))
    assert (one.steps, one.tau, one.survival) == (two.steps, two.tau, two.survival)


def goes_on_after_kills(root, kills, seed):
    """Each run ends like the one that was left alone; how many lines of its curve were there at each kill."""
    struck = after_kills("tests.train.micro", root, kills, seed, "metrics.jsonl")
    expected, alone = curve(struck.alone), end_of(struck.alone)
    assert int(alone.state.step) == LONG.optimiser.steps
    for folder in struck.ended:
        assert curve(folder) == expected
        end = end_of(folder)
        assert same(end.state, alone.state) and end.run == alone.run
    return struck.at


def end_of(folder):
    """What a run saved last."""
    return Checkpoints(folder / "checkpoints", plain_data(LONG)).restore(begin(LONG))


def test_killed_at_a_random_moment_it_goes_on_exactly(tmp_path):
    goes_on_after_kills(tmp_path, 2, seed=0)


@pytest.mark.slow
def test_killed_twenty_times_it_goes_on_exactly(tmp_path):
    at = goes_on_after_kills(tmp_path, 20, seed=1)
    assert len(set(at) - {0}) >= 3, "kills in the midst of the work"
