"""Checkpoints of a run, by Orbax: written in the background, and never read half-written.

One holds the training state (parameters with their draft vocabularies, optimiser, step, random key, average), and as JSON
data the run's config and whatever else the loop needs to go on exactly: the position in the data above all.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from etils import epath
from orbax.checkpoint import checkpoint_managers as managers

from sdjax.core.plain import differences
from sdjax.train.hosts import seen_by_all
from sdjax.train.step import TrainState


class Restored(NamedTuple):
    """A checkpoint's content: `run` is what `save` was given beside the state."""

    state: TrainState
    run: dict[str, Any]


class Checkpoints:
    """The checkpoints of one run: the newest `keep` are kept, and the first of those with the highest τ."""

    def __init__(self, folder: epath.Path | Path, config: dict[str, Any], keep: int = 2):
        """`folder` may be in a bucket: gs://…, which all processes of a pod see.

        ValueError for a folder that cannot be written, or that holds a run of another config (naming what differs).
        """
        self.folder, self.config = folder, json.loads(json.dumps(config))
        rank = lambda metrics: (metrics["tau"], -metrics["step"])
        policy = managers.AnyPreservationPolicy(
            [managers.LatestN(keep), managers.BestN(get_metric_fn=rank, keep_checkpoints_without_metrics=False, n=1)]
        )
        options = ocp.CheckpointManagerOptions(best_fn=rank, preservation_policy=policy, cleanup_tmp_directories=True)
        remote = "://" in str(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if not remote and not os.access(folder, os.W_OK):
                raise PermissionError(f"no permission to write to {folder}")
        except OSError as error:
            raise ValueError(
                f"checkpoints cannot be kept in {folder} ({error}); choose a folder that can be written"
            ) from error
        if not seen_by_all(folder):
            raise ValueError(
                f"checkpoints in {folder} are not seen by all processes, and each writes its part: give --checkpoints a folder "
                "in a bucket (gs://…) or on a disk that they share"
            )
        self._manager = ocp.CheckpointManager(folder if remote else folder.absolute(), options=options)
        if self.latest is not None:
            self._check_config(self.latest)

    @property
    def latest(self) -> int | None:
        """The newest step that was saved whole."""
        return self._manager.latest_step()

    def save(self, state: TrainState, step: int, run: dict[str, Any], tau: float | None = None) -> None:
        """Copies the state, and writes it in the background; the step before is waited for."""
        # A copy, since on CPUs the writer reads the very buffers that the next step is given to overwrite.
        copy = jax.tree.map(jnp.copy, storable(state))
        content = ocp.args.Composite(state=ocp.args.StandardSave(copy), run=ocp.args.JsonSave(run | {"config": self.config}))
        metrics = None if tau is None else {"tau": tau, "step": step}
        self._written(lambda: self._manager.save(step, args=content, metrics=metrics, force=True), step)

    def restore(self, like: TrainState, step: int | None = None) -> Restored:
        """The checkpoint of `step` (default: the newest), laid out over devices as `like` is.

        ValueError where what it holds is not shaped as `like` is: configs do not name the program's version.
        """
        step = self.latest if step is None else step
        abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, storable(like))
        content = ocp.args.Composite(state=ocp.args.StandardRestore(abstract), run=ocp.args.JsonRestore())
        found = self._manager.restore(step, args=content)
        state = found["state"]
        held, wanted = [str(jax.tree.structure(x)) for x in (state, abstract)]
        if held != wanted:
            raise ValueError(
                f"the checkpoint of step {step} in {self.folder} holds the state of another version's optimiser; take another "
                "--name, or remove the folder"
            )
        return Restored(state.replace(key=jax.random.wrap_key_data(state.key)), found["run"])

    def wait(self) -> None:
        """Until all is on the disk."""
        self._written(self._manager.wait_until_finished, None)

    def close(self) -> None:
        self._manager.close()

    def _written(self, write: Callable[[], Any], step: int | None) -> None:
        try:
            write()
        except Exception as error:  # the storage library's own errors share no base with OSError
            good = "there is none before it" if self.latest is None else f"that of step {self.latest} is whole"
            which = "the last checkpoint" if step is None else f"a checkpoint (now at step {step})"
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise ValueError(
                f"{which} could not be written to {self.folder} ({reason}); {good}: make room or mend the disk, and run "
                "the same command again"
            ) from error

    def _check_config(self, step: int) -> None:
        known = self._manager.restore(step, args=ocp.args.Composite(run=ocp.args.JsonRestore()))["run"]["config"]
        changes = "; ".join(differences(known, self.config))
        if changes:
            raise ValueError(
                f"{self.folder} holds checkpoints of another config ({changes}); take another --name, or remove the folder"
            )


def storable(state: TrainState) -> TrainState:
    """The state with its key as plain numbers."""
    return state.replace(key=jax.random.key_data(state.key))
