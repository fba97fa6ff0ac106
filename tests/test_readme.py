"""What the README shows runs as it stands."""

import re
import shlex
from pathlib import Path

import pytest
import tyro

from experiments.config import DecodeConfig, parse
from experiments.law import Question
from experiments.rollout_config import RolloutConfig
from experiments.train_config import TrainConfig
from sdjax.core.types import Law
from sdjax.study.prompts import Prompts, load_prompts
from sdjax.verify.registry import RULES
from tests.tiny import decode, plain

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
KINDS = {"decode": DecodeConfig, "rollout": RolloutConfig, "train": TrainConfig}


def commands() -> list[tuple[str, list[str]]]:
    """(program, arguments) of every line of a block that runs one."""
    blocks = re.findall(r"^```\w*\n(.*?)^```$", README, re.S | re.M)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    words = [shlex.split(line, comments=True) for line in lines if line.startswith("python -m experiments.")]
    return [(program.removeprefix("experiments."), arguments) for _, _, program, *arguments in words]


def test_the_example_drafter_is_complete_and_lossless():
    (source,) = re.findall(r"```python\n(from dataclasses.*?)```", README, re.S)
    names = {}
    exec(source, names)
    made = decode(names["Repeat"].tiny(None), 0.0)
    assert made.tokens == plain(0.0)
    assert max(steps.accepted.max() for steps in made.steps) == 2


@pytest.mark.model
def test_the_example_program_answers(capsys):
    (source,) = re.findall(r"```python\n(import sdjax.*?)```", README, re.S)
    exec(source, {})
    assert "cache" in capsys.readouterr().out.lower()


def test_commands_are_found():
    assert {program for program, _ in commands()} == {*KINDS, "law"}


@pytest.mark.parametrize("program, arguments", commands(), ids=lambda part: part if isinstance(part, str) else " ".join(part))
def test_its_program_takes_every_command(program, arguments):
    """And finds the prompts that it names."""
    if "--help" in arguments:
        with pytest.raises(SystemExit) as left:
            parse(arguments, program, program, KINDS[program])
        assert left.value.code == 0
    elif program == "law":
        tyro.cli(Question, args=arguments, config=(tyro.conf.EnumChoicesFromValues,))
    else:
        config = parse(arguments, program, program, KINDS[program])
        assert not isinstance(getattr(config, "prompts", None), Prompts) or load_prompts(config.prompts)


def test_the_table_of_rules_is_that_of_the_registry():
    page = (ROOT / "sdjax" / "verify" / "README.md").read_text(encoding="utf-8")
    rows = [line.split(" | ") for line in page.partition("|---|")[2].partition("\n\n")[0].splitlines()[1:]]
    named = {name: laws for names, _, *laws in rows for name in re.findall("`(.+?)`", names)}
    takes = lambda rule, law: "–" if law not in rule.laws else "✓" if rule.lossless else "lossy"
    assert {name: laws[: len(Law)] for name, laws in named.items()} == {
        name: [takes(rule, law) for law in Law] for name, rule in RULES.items()
    }


def test_every_target_of_make_exists():
    named = set(re.findall(r"make ([a-z-]+)", README))
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert named and all(re.search(rf"^{target}:", makefile, re.M) for target in named)


def test_every_path_exists():
    for path in re.findall(r"`((?:sdjax|tests|configs|experiments)/[\w/]*(?:\.py)?)`", README):
        assert (ROOT / path).exists(), path
