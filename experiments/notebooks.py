"""Makes notebooks/*.ipynb of the sources beside them, and runs them, so that whoever reads them unrun sees their figures.

python -m experiments.notebooks
"""

import os
import tempfile
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

from experiments.launch import ROOT, takes_no_arguments

FOLDER = ROOT / "notebooks"
LONGEST = 900  # seconds of one cell, on a busy machine


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for source in sources():
            print(f"{source.relative_to(ROOT)} → {built(source).name}", flush=True)
            write(built(source), run(notebook_of(source), Path(folder)))


def sources() -> list[Path]:
    return sorted(FOLDER.glob("*.py"))


def built(source: Path) -> Path:
    """Where the notebook of a source is."""
    return source.with_suffix(".ipynb")


def notebook_of(source: Path) -> NotebookNode:
    """The notebook without outputs; its cells are named by their places, so that a change stays small."""
    notebook = jupytext.read(source)
    for place, cell in enumerate(notebook.cells):
        cell.id = f"cell-{place}"
    del notebook.metadata["jupytext"]
    return notebook


def run(notebook: NotebookNode, folder: Path) -> NotebookNode:
    """The notebook with its outputs, run in `folder`; CellExecutionError where a cell fails."""
    env = os.environ | {"PYTHONPATH": str(ROOT), "MPLBACKEND": "module://matplotlib_inline.backend_inline"}
    client = NotebookClient(notebook, timeout=LONGEST, record_timing=False, resources={"metadata": {"path": str(folder)}})
    return client.execute(env=env)


def write(path: Path, notebook: NotebookNode) -> None:
    hidden = path.with_name(f".{path.name}.part")
    nbformat.write(notebook, hidden)
    hidden.replace(path)


if __name__ == "__main__":
    takes_no_arguments("notebooks", __doc__)
    main()
