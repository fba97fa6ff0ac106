"""Runs a frozen target over a corpus once and keeps its states, so that training several drafters runs it no more.

    python -m experiments.features --corpus corpora/own --taps 1 14 26 28 --out features/own

The folder's size is printed before anything is written; the states are float16. Taps: a layer's number from 0 (the state
behind it), "embed" or "final"; the final state is always kept. Give all taps that the drafters to be trained need.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path

import jax

import sdjax
from experiments.launch import command_line, decode_in_float32, mistakes_end_the_program
from sdjax.mesh.start import join_pod
from sdjax.targets.decoder import Tap
from sdjax.train.corpus import check_target, open_corpus
from sdjax.train.feature_cache import size_of, write_features


@dataclass(frozen=True)
class Caching:
    """What is run over what."""

    corpus: Path
    """a folder made by experiments.rollout"""
    out: Path
    """the folder to write"""
    taps: tuple[str, ...] = ()
    """the states to keep"""
    target: str = "smollm2-135m"
    """the target that wrote the corpus"""
    dtype: str = "float32"
    """float32, bfloat16 or mixed, as in training"""
    rows: int = 4
    """rows that the target runs at once"""
    length: int = 512
    """tokens of a row: at least those of the longest document"""


def main(caching: Caching) -> None:
    """Checks, says what it will take, writes. ValueError on a pod, whose hosts would all do the same."""
    if jax.process_count() > 1:
        raise ValueError("states are kept by one process; on a pod train with an empty --features: the target runs in the step")
    corpus, model = open_corpus(caching.corpus), sdjax.load(caching.target, caching.dtype)
    check_target([corpus], model)
    taps: tuple[Tap, ...] = tuple(int(tap) if tap.isdecimal() else tap for tap in caching.taps)
    size, free = size_of(corpus, model.target, taps), shutil.disk_usage(existing(caching.out)).free
    print(f"{corpus.manifest.tokens:,} tokens x {len(taps) + 1} states: {size / 1e9:.2f} GB (free: {free / 1e9:.1f} GB)")
    if size > free:
        raise ValueError(f"{caching.out} would take {size / 1e9:.2f} GB, but only {free / 1e9:.1f} are free; keep fewer taps")
    write_features(caching.out, corpus, model, taps, caching.rows, caching.length)
    print(f"states → {caching.out}")


def existing(path: Path) -> Path:
    """The nearest folder above that is there."""
    return next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.is_dir())


if __name__ == "__main__":
    with mistakes_end_the_program():
        said = command_line("features", Caching, __doc__)
        join_pod()
        decode_in_float32()
        main(said)
