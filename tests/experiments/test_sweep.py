"""A sweep: one comparison a prompt set, one page made from their folders, resumed without decoding anything again."""

import io
import json
import subprocess
import sys
from dataclasses import replace

import jax
import pytest
from rich.console import Console

from experiments.config import config_files, load_file
from experiments.launch import ROOT
from experiments.sweep import sweep, write_page
from experiments.sweep_config import SweepConfig
from sdjax.core.spec import initialise
from sdjax.decode.state import Params
from sdjax.drafters.draft_model import DraftModel
from sdjax.drafters.ngram import NGram
from sdjax.drafters.no_draft import NoDraft
from sdjax.study.methods import Method, Sampling, arms, with_weights
from sdjax.study.page import table
from sdjax.study.prompts import Prompts, load_prompts
from sdjax.train.saved import save_drafter
from sdjax.verify.approximate import ApproximateGreedy
from tests.experiments.tiny_model import config, model
from tests.tiny import TARGET

DRAFTER = DraftModel.tiny(TARGET)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A saved drafter of the tiny model, with notes on its training."""
    folder = tmp_path_factory.mktemp("saved") / "drafter"
    params = Params(None, initialise(DRAFTER.specs(TARGET), jax.random.key(1)))
    notes = {"tokens": 1234, "flops": 5.6e7, "seconds": 90.0}
    save_drafter(folder, DRAFTER, params, TARGET, model().identity, "float32", notes=notes)
    return str(folder)


def chosen(folder, saved, **changes):
    return SweepConfig(
        name="sweep",
        runs=str(folder),
        methods={"plain": Method(NoDraft()), "trained": Method(weights=saved)},
        sets={"greetings": Prompts(text=("hello hello", "abc abc")), "questions": Prompts(text=("what is it?",))},
        rule=Sampling((0.0, 1.0)),
        decode=config(folder).decode,
        **changes,
    )


def run(folder, saved):
    settings = chosen(folder, saved)
    prompts = {name: load_prompts(of) for name, of in settings.sets.items()}
    printed = io.StringIO()
    assert sweep(settings, prompts, model(), Console(file=printed, width=200)) == 0
    return (folder / "sweep" / "results.md").read_text(), printed.getvalue()


def test_the_page_comes_from_the_folders_and_a_second_run_decodes_nothing(tmp_path, saved):
    page, _ = run(tmp_path, saved)
    again, printed = run(tmp_path, saved)
    assert printed.count("nothing was left to decode") == 2
    rows = lambda page: [line for line in page.splitlines() if line.startswith(("|", "#"))]
    assert rows(page) == rows(again)
    for heading in ("greetings, temperature 0 (2 prompts)", "questions, temperature 1 (1 prompts)"):
        assert f"## {heading}" in page
    assert "1,234" in page and "5.6e+07" in page
    joined = write_page(chosen(tmp_path, saved, beside=(str(tmp_path / "sweep"),)), model()).read_text()
    results = rows(page)[rows(page).index("## greetings, temperature 0 (2 prompts)") :]
    assert sorted(rows(joined)) == sorted(rows(page) + results)
    assert "| 2/2 |" in page.replace("  ", " ")
    about = json.loads((tmp_path / "sweep" / "methods.json").read_text())
    assert about["plain"]["parameters"] == 0 < about["trained"]["parameters"]


def test_a_saved_drafter_can_take_another_shape_but_not_other_weights(saved):
    longer = replace(DRAFTER, length=5)
    drafter, _ = with_weights("trained", Method(longer, weights=saved), model())
    assert drafter.depth == 5
    wider = DraftModel(TARGET, length=3)
    with pytest.raises(ValueError, match="DraftModel"):
        with_weights("trained", Method(wider, weights=saved), model())
    with pytest.raises(ValueError, match="neither a drafter nor"):
        with_weights("nothing", Method(), model())


def test_a_table_has_a_line_a_row():
    assert table([{"a": "1", "b": "2"}]) == "| a | b |\n| --- | --- |\n| 1 | 2 |"


@pytest.mark.parametrize("path", config_files("sweep"), ids=lambda path: path.stem)
def test_every_config_says_its_command(path):
    module = load_file(path)
    assert f"--config configs/sweep/{path.name}" in module.__doc__
    assert module.get_config().name == path.stem


def test_rules_for_temperature_0_take_no_part_elsewhere():
    methods = {"plain": Method(NoDraft()), "lossy": Method(NGram(2), ApproximateGreedy())}
    names = [[arm.name for arm in group] for group in arms(methods, Sampling((0.0, 1.0)), model(), 16)]
    assert names == [["plain", "lossy"], ["plain"]]


def test_a_shipped_config_is_taken_by_the_program():
    """Run as a program the launcher is another module than the one that configs import."""
    command = [sys.executable, "-m", "experiments.sweep", "--config", "configs/sweep/smollm2.py", "--help"]
    found = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert found.returncode == 0 and "--rule.temperature" in found.stdout, found.stderr
