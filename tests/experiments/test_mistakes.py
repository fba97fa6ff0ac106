"""What a wrong command is told: a sentence and exit code 2, before anything is loaded, compiled or written."""

from pathlib import Path

import pytest

from experiments import acceptance, aot, costs, law
from experiments.aot_config import Given
from tests.experiments.tiny_model import config, model


@pytest.mark.parametrize(
    "given, said",
    [
        (
            Given(config="configs/decode/spec_bench.py"),
            "DecodeConfig, and python -m experiments.aot takes another kind",
        ),
        (Given(only="attention", topology="v5e:2x2"), "--only attention is of no case; leave out --config, --topology"),
        (Given(only="page", case="plain"), "--only page is of no case"),
        (Given(topology="v5e:3x3"), "configs/aot has nothing for --topology v5e:3x3; its topologies are v5e:2x4, "),
        (Given(only="curves", case="plain"), "configs/aot has nothing for --case plain --only curves"),
        (Given(config="configs/aot/llama31_8b.py", case="plane"), r"has no case for --case plane; there are plain \(v5e:2x4\)"),
    ],
)
def test_what_cannot_be_compiled_is_refused(given, said, monkeypatch):
    """`--only attention --topology v5e:2x2` measured nothing and ended well."""
    monkeypatch.setattr(aot.subprocess, "run", lambda *_, **__: pytest.fail("attention was compiled"))
    monkeypatch.setattr(aot, "page", lambda *_: pytest.fail("the page was written"))
    with pytest.raises(ValueError, match=said):
        aot.main(given)


@pytest.mark.parametrize("schedule", [None, "prefix"])
def test_tables_that_are_not_there(schedule):
    with pytest.raises(ValueError, match=r"--tables: there is no file nosuch.json; .* is an example"):
        law.main(law.Question("token", "1x1", tables=Path("nosuch.json"), schedule=schedule))
    assert Path(law.FIXTURE).is_file()


def test_a_method_that_drafts_nothing_has_no_draft_step(tmp_path, monkeypatch):
    monkeypatch.setattr(costs, "read_config", lambda *_: (config(tmp_path), ""))
    monkeypatch.setattr("sdjax.load", lambda *_: model())
    with pytest.raises(ValueError, match="--method: 'plain' drafts nothing"):
        costs.main(costs.Measurement("tiny.py", "plain", tmp_path / "costs.json"))


@pytest.mark.parametrize("program", [acceptance, costs])
def test_another_programs_config_is_refused(program, tmp_path):
    asked = program.Measurement("configs/rollout/smollm2_own.py", "plain", tmp_path / "out.json")
    with pytest.raises(ValueError, match="holds a RolloutConfig"):
        program.main(asked)
