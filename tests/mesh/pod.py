"""One process of a small pod: the target writes a corpus, a drafter is trained on it, and held-out prompts are decoded.

    python -m tests.mesh.pod FOLDER DATA FSDP MODEL

Everything goes through the launchers, in FOLDER; what a drafter guessed and the target said is in FOLDER/decoded.json.
A pod that was killed goes on there, with a mesh of any shape.
"""

import logging
import sys
from dataclasses import replace
from pathlib import Path

import jax

from experiments.config import MeshConfig
from experiments.rollout import rollout
from experiments.train import train
from experiments.train_config import HeldOutConfig, TrainConfig
from sdjax.core.plain import write_json
from sdjax.core.sampling import Warp
from sdjax.decode.generate import generate
from sdjax.decode.place import params_shardings
from sdjax.decode.state import Loop, Params
from sdjax.drafters.medusa import Medusa
from sdjax.mesh.layout import DECODE
from sdjax.mesh.place import spread
from sdjax.mesh.start import join_pod, speaks
from sdjax.study.prompts import Prompts
from sdjax.train.optimiser import Optimiser
from sdjax.train.recipe import Cadence
from sdjax.train.saved import load_drafter
from sdjax.verify.walk import Walk
from tests.experiments import tiny_rollout
from tests.experiments.tiny_model import model
from tests.tiny import NEW, SEEDS, TARGET

STEPS = 20
PROMPTS = [[1, 2, 3, 4, 5, 1, 2, 3], [7] * 5, [5], [9, 8]]


def main(folder: Path, mesh: MeshConfig) -> None:
    letters = model()._replace(name="letters")
    rolled = replace(tiny_rollout.config(str(folder)), prompts=Prompts(text=tiny_rollout.TEXTS[:16]), batch=4)
    rollout(rolled, letters)
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
        readers=2,
        runs=str(folder),
    )
    train(config, letters)
    drafter, params = load_drafter(folder / "drafter" / "drafter", letters)
    loop, both, layout = Loop(TARGET, drafter, Walk(), Warp(1.0), chunk=16), Params(letters.params, params), mesh.layout(DECODE)
    if layout is not None:
        both = spread(both, params_shardings(layout, loop))
    made = generate(loop, both, PROMPTS, NEW, seeds=[*SEEDS, 14], layout=layout)
    if speaks():
        steps = [step.accepted.tolist() for step in made.steps]
        write_json(folder / "decoded.json", {"tokens": made.tokens, "accepted": steps, "devices": jax.device_count()})


if __name__ == "__main__":
    join_pod()
    logging.getLogger("absl").setLevel(logging.ERROR)
    jax.config.update("jax_default_matmul_precision", "float32")
    main(Path(sys.argv[1]), MeshConfig(*map(int, sys.argv[2:])))
