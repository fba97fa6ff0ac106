"""What the README shows runs as it stands."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import jax.numpy as jnp
import pytest

from sdjax.core.types import Law
from sdjax.targets.decoder import Tap
from sdjax.trees.tree import Tree
from tests.tiny import decode, plain

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_example_drafter_is_complete_and_lossless():
    (source,) = re.findall(r"```python\n(@dataclass.*?)```", README, re.S)
    names = {"dataclass": dataclass, "ClassVar": ClassVar, "Tap": Tap, "Law": Law, "Tree": Tree, "jnp": jnp}
    exec(source, names)
    made = decode(names["Repeat"].tiny(None), 0.0)
    assert made.tokens == plain(0.0)
    assert max(steps.accepted.max() for steps in made.steps) == 2


@pytest.mark.model
def test_the_example_program_answers(capsys):
    (source,) = re.findall(r"```python\n(import sdjax.*?)```", README, re.S)
    exec(source, {})
    assert "cache" in capsys.readouterr().out.lower()


def test_every_target_of_make_exists():
    named = set(re.findall(r"make ([a-z-]+)", README))
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert named and all(re.search(rf"^{target}:", makefile, re.M) for target in named)


def test_every_path_exists():
    for path in re.findall(r"`((?:sdjax|tests|configs|experiments)/[\w/]*(?:\.py)?)`", README):
        assert (ROOT / path).exists(), path
