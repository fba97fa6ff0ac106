"""The training loop: data → step → figures, τ on held-out prompts now and then, checkpoints from which it goes on exactly.

The device is waited for once a window of `log_every` steps. A window ends before every checkpoint, so that what is saved
was found good.
"""

from contextlib import closing
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import partial, reduce
from operator import or_
from pathlib import Path
from typing import Any

import jax
from etils import epath
from rich.console import Console

from sdjax.core.plain import write_json
from sdjax.mesh.layout import Layout
from sdjax.mesh.start import speaks
from sdjax.train.checkpoint import Checkpoints
from sdjax.train.evaluate import HeldOut
from sdjax.train.hosts import anywhere, gather, whole_batch
from sdjax.train.log import Log
from sdjax.train.place import Step, batch_sharding, sharded_step
from sdjax.train.readers import Data
from sdjax.train.recipe import Cadence, Recipe
from sdjax.train.signals import Asked, asked_to_leave
from sdjax.train.step import TrainState, train_step
from sdjax.train.window import Done, Window


class End(StrEnum):
    """Why a run ended."""

    FINISHED = "finished"
    STALE = "τ rose no more"
    ASKED = "asked to leave"


@dataclass(frozen=True)
class Progress:
    """The best τ so far (0: none was measured yet), its step, and the evaluations since."""

    tau: float = 0.0
    step: int = 0
    stale: int = 0

    def after(self, tau: float, step: int) -> "Progress":
        return Progress(tau, step) if tau > self.tau else Progress(self.tau, self.step, self.stale + 1)

    def is_stale(self, cadence: Cadence) -> bool:
        return 0 < cadence.patience <= self.stale


@dataclass(frozen=True)
class Fitted:
    """The last state, that of the best τ (where none was measured yet: the last), and why the run ended."""

    state: TrainState
    best: TrainState
    progress: Progress
    end: End


@dataclass(frozen=True)
class Job:
    """What a run works on. `config` is all that decides its result, as JSON data; it belongs to one folder.

    `layout` says how state and batches, of which each process gives its own rows, lie on a mesh, where state and target
    are already; None: this process and its first device are all there is. `checkpoints` (None: in `folder`) is a folder
    that all processes see.
    """

    recipe: Recipe
    target_params: Any
    data: Data
    held_out: HeldOut
    folder: Path
    config: dict[str, Any]
    layout: Layout | None = None
    checkpoints: epath.Path | None = None

    def step(self, state: TrainState) -> Step:
        """One update of states like this one."""
        if self.layout is None:
            return partial(train_step, self.recipe.loss, self.recipe.optimiser)
        return sharded_step(self.layout, self.recipe, state)


def fit(job: Job, state: TrainState, console: Console) -> Fitted:
    """Trains from `state`, or from the newest checkpoint in the folder, to the optimiser's last step.

    ValueError, before anything compiles, for a folder that cannot be written or holds checkpoints of another config.
    """
    folder = job.checkpoints or epath.Path(job.folder / "checkpoints")
    with closing(Checkpoints(folder, job.config, job.recipe.cadence.keep)) as checkpoints:
        if speaks():
            write_json(job.folder / "config.json", job.config)
        progress = Progress()
        if checkpoints.latest is not None:
            state, run = checkpoints.restore(state)
            progress = Progress(**run["progress"])
            job.data.restore(run["positions"])
        with closing(Log(job.folder, int(state.step), console)) as log, asked_to_leave() as asked:
            state, progress = run_steps(job, state, progress, checkpoints, log, asked)
        best = checkpoints.restore(state, progress.step).state if progress.step else state
        return Fitted(state, best, progress, why(job.recipe, state, progress))


def run_steps(
    job: Job, state: TrainState, progress: Progress, checkpoints: Checkpoints, log: Log, asked: Asked
) -> tuple[TrainState, Progress]:
    """The loop itself."""
    recipe, cadence, steps, step = job.recipe, job.recipe.cadence, job.recipe.optimiser.steps, int(state.step)
    if step:
        log.say(f"going on from step {step} of {steps}")
        log.warn_of_gap(step)
    window, update = Window(job.folder), job.step(state)
    rows = None if job.layout is None else batch_sharding(job.layout)
    while step < steps and not progress.is_stale(cadence):
        batch = next(job.data)
        state, metrics = update(state, job.target_params, whole_batch(batch, rows))
        step += 1
        window.add(Done(step, batch, metrics))
        leaves = is_time_to_leave(asked, step, cadence)
        evaluates = step % cadence.eval_every == 0 or step == steps
        saves = evaluates or leaves or step % cadence.save_every == 0
        if saves or step % cadence.log_every == 0:
            log.window(window.read(), steps, recipe.drafter.depth)
        tau = measure(job, state) if evaluates else None
        if tau is not None:
            progress = progress.after(tau, step)
            log.write([{"step": step, "tau": tau}])
            log.say(f"step {step}/{steps}  τ {tau:.3f} on held-out prompts (best: {progress.tau:.3f} at step {progress.step})")
        if saves:
            positions = reduce(or_, gather(job.data.position()))
            checkpoints.save(state, step, {"progress": asdict(progress), "positions": positions}, tau)
            window.restart()
        if leaves:
            names = ", ".join(sorted(set(gather(asked.name)) - {""}))
            log.say(f"asked to leave ({names}): saved at step {step}")
            break
    checkpoints.wait()
    return state, progress


def measure(job: Job, state: TrainState) -> float:
    """τ at temperature 0 on the held-out prompts."""
    params = job.recipe.decodable(state, job.target_params)
    return job.held_out.acceptance(job.recipe.target, job.recipe.drafter, params, 0.0, job.layout).tau


def why(recipe: Recipe, state: TrainState, progress: Progress) -> End:
    """Why a run ended in this state."""
    if int(state.step) == recipe.optimiser.steps:
        return End.FINISHED
    return End.STALE if progress.is_stale(recipe.cadence) else End.ASKED


def is_time_to_leave(asked: Asked, step: int, cadence: Cadence) -> bool:
    """A single process looks at every step; several, which must leave at the same one, where a window ends."""
    return (jax.process_count() == 1 or step % cadence.log_every == 0) and anywhere(bool(asked))
