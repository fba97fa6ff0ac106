"""One process of a small pod: the target writes a corpus, a drafter is trained on it, and held-out prompts are decoded.

    python -m tests.mesh.pod FOLDER CHECKPOINTS PARTS DATA FSDP MODEL

Everything goes through the launchers, in FOLDER. A pod that was killed goes on there, with a mesh of any shape. PARTS are some
of write, train and decode, with commas.
"""

import logging
import sys
from dataclasses import replace
from pathlib import Path

import jax

from experiments.config import DecodeConfig, MeshConfig
from experiments.decode import decode
from experiments.rollout import rollout
from experiments.train import train
from experiments.train_config import HeldOutConfig, TrainConfig
from sdjax.drafters.medusa import Medusa
from sdjax.drafters.no_draft import NoDraft
from sdjax.mesh.start import join_pod
from sdjax.study.compare import Decoding
from sdjax.study.methods import Method, Sampling
from sdjax.study.prompts import Prompts, load_prompts
from sdjax.targets.load import Model
from sdjax.train.optimiser import Optimiser
from sdjax.train.recipe import Cadence
from tests.experiments import tiny_rollout
from tests.experiments.tiny_model import model
from tests.mesh.native import only_python_speaks
from tests.tiny import TARGET

STEPS = 20


def write(folder: Path, checkpoints: str, mesh: MeshConfig) -> None:
    """The target's own text; where processes share no disk, a second call makes a corpus of all shares."""
    rollout(replace(tiny_rollout.config(str(folder)), prompts=Prompts(text=tiny_rollout.TEXTS[:16]), batch=4), letters())


def learn(folder: Path, checkpoints: str, mesh: MeshConfig) -> None:
    config = TrainConfig(
        "drafter",
        Medusa.tiny(TARGET),
        corpora=(str(folder / "tiny"),),
        rows=4,
        length=32,
        optimiser=Optimiser(steps=STEPS, warmup=2),
        held_out=HeldOutConfig(Prompts(text=("abc abc", "hello", "what is")), max_new=8, batch=4),
        cadence=Cadence(log_every=1, save_every=2, eval_every=STEPS),
        save_as="float32",
        mesh=mesh,
        readers=0 if (folder / "drafter" / "config.json").exists() else 2,  # a run keeps those that it began with
        runs=str(folder),
        checkpoints=checkpoints,
    )
    train(config, letters())


def compare(folder: Path, checkpoints: str, mesh: MeshConfig) -> None:
    methods = {"plain": Method(NoDraft()), "drafter": Method(weights=str(folder / "drafter" / "drafter"))}
    decoding = Decoding(max_new=12, batch=4, chunk=16)
    prompts = Prompts(text=("hello hello hel", "abc abc", "what is it?", "a"))
    compared = DecodeConfig("compared", methods, prompts, Sampling((1.0,)), decode=decoding, mesh=mesh, runs=str(folder))
    assert decode(compared, load_prompts(prompts), letters()) == 0


def letters() -> Model:
    return model()._replace(name="letters")


PARTS = {"write": write, "train": learn, "decode": compare}


if __name__ == "__main__":
    only_python_speaks()
    join_pod()
    logging.getLogger("absl").setLevel(logging.ERROR)
    jax.config.update("jax_default_matmul_precision", "float32")
    folder, checkpoints, parts, *shape = sys.argv[1:]
    for part in parts.split(","):
        PARTS[part](Path(folder), checkpoints, MeshConfig(*map(int, shape)))
