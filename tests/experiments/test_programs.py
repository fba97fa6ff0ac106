"""Every program says its usage as it is called, and does nothing else where it is asked for it."""

import runpy
import sys

import pytest

from experiments.launch import ROOT
from sdjax.drafters.published.registry import LAYOUTS

PROGRAMS = {path.stem for path in (ROOT / "experiments").glob("*.py") if '__name__ == "__main__"' in path.read_text()}
OF_A_CONFIG = {"decode", "rollout", "sweep", "train"}
WITHOUT_ARGUMENTS = {"bench_decode", "bench_pack", "notebooks"}
ELSEWHERE = {"bench_torch"}  # in an environment with PyTorch


def left_with(name, monkeypatch, *words):
    """The exit code of a program; what would take long fails instead."""
    monkeypatch.setattr(sys, "argv", [f"experiments/{name}.py", *words])
    monkeypatch.delitem(sys.modules, f"experiments.{name}", raising=False)  # runpy warns of what is there already
    monkeypatch.setattr("sdjax.load", lambda *_: pytest.fail(f"{name} began"))
    monkeypatch.setattr("nbformat.write", lambda *_: pytest.fail(f"{name} began"))
    monkeypatch.setattr("nbclient.NotebookClient.execute", lambda *_, **__: pytest.fail(f"{name} began"))
    with pytest.raises(SystemExit) as left:
        runpy.run_module(f"experiments.{name}", run_name="__main__", alter_sys=True)
    return left.value.code


@pytest.mark.parametrize("name", sorted(PROGRAMS - OF_A_CONFIG - ELSEWHERE - {"aot_page"}))
def test_help_is_all_that_happens(name, monkeypatch, capsys):
    """`experiments.notebooks --help` ran the notebooks and wrote them anew."""
    assert left_with(name, monkeypatch, "--help") == 0
    assert capsys.readouterr().out.startswith(f"usage: python -m experiments.{name} [-h]")


@pytest.mark.parametrize("name", ["export", "import_drafter"])
def test_layouts_are_listed(name, monkeypatch, capsys):
    left_with(name, monkeypatch, "--help")
    said = capsys.readouterr().out.partition("--layout STR")[2]
    assert all(layout in said for layout in LAYOUTS)


@pytest.mark.parametrize("name", sorted(WITHOUT_ARGUMENTS))
def test_programs_without_arguments_refuse_them(name, monkeypatch, capsys):
    assert left_with(name, monkeypatch, "all") == 2
    assert f"python -m experiments.{name}: error: unrecognized arguments: all" in capsys.readouterr().err


def test_the_page_of_scale_names_the_program_that_writes_it(monkeypatch):
    assert "python -m experiments.aot --only page" in left_with("aot_page", monkeypatch, "--help")


def test_a_lack_of_pytorch_says_where_there_is_some(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert "make bench-torch" in left_with("bench_torch", monkeypatch, "--help")
