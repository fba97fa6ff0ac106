"""Each notebook is what its source makes, holds figures and stays small, needs the installed package alone, and runs."""

import ast
import os
import re

import nbformat
import pytest

from experiments.notebooks import FOLDER, built, notebook_of, run, sources

LARGEST = 300_000  # bytes, outputs included
INSTALLED = {"sdjax", "jax", "numpy", "matplotlib", "flax"}

notebooks = pytest.mark.parametrize("source", sources(), ids=lambda source: source.stem)


def read(source):
    return nbformat.read(built(source), as_version=4)


def content(notebook):
    return [(cell.cell_type, cell.source) for cell in notebook.cells], notebook.metadata.kernelspec


def test_none_is_without_its_source():
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == {path.stem for path in sources()} != set()


@notebooks
def test_it_is_what_its_source_makes(source):
    assert content(read(source)) == content(notebook_of(source)), "run: make notebooks"


@notebooks
def test_it_shows_figures_and_no_complaints(source):
    outputs = [output for cell in read(source).cells for output in cell.get("outputs", [])]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert all(output.output_type in ("stream", "display_data") and output.get("name") != "stderr" for output in outputs)
    assert os.path.getsize(built(source)) < LARGEST


@notebooks
def test_its_badge_opens_itself(source):
    links = re.findall(r"colab\.research\.google\.com/github/([\w/.-]+)", read(source).cells[0].source)
    assert links == [f"OWNER/sdjax/blob/main/notebooks/{source.stem}.ipynb"]


@notebooks
def test_it_needs_the_installed_package_alone(source):
    """Whoever installed sdjax has no experiments, configs or tests."""
    nodes = list(ast.walk(ast.parse(source.read_text(encoding="utf-8"))))
    named = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    named |= {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    foreign = {name.split(".")[0] for name in named} - INSTALLED
    assert foreign <= {"dataclasses", "itertools", "pathlib", "subprocess", "sys", "typing"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Shared, so that the target is trained once."""
    return tmp_path_factory.mktemp("notebooks")


@pytest.mark.notebook
@notebooks
def test_it_runs(source, folder):
    run(notebook_of(source), folder)
