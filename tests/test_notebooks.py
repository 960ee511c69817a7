"""Every notebook runs from top to bottom, draws something, is short, and says what its script says."""

from pathlib import Path

import jupytext
import nbclient
import nbformat
import pytest

from tests.helpers.sizes import first_and_others

FOLDER = Path(__file__).parent.parent / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
MOST_LINES = 60  # of code in a notebook


def test_every_notebook_has_its_script() -> None:
    assert NOTEBOOKS and [path.stem for path in NOTEBOOKS] == sorted(path.stem for path in FOLDER.glob("*.py"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_and_script_agree(path: Path) -> None:
    """`jupytext --to ipynb --update NOTEBOOK.py` brings a notebook up to its script."""
    pair = nbformat.read(path, as_version=4), jupytext.read(path.with_suffix(".py"))
    assert [(cell.cell_type, cell.source) for cell in pair[0].cells] == [
        (cell.cell_type, cell.source) for cell in pair[1].cells
    ]
    code = [cell for cell in pair[0].cells if cell.cell_type == "code"]
    assert sum(bool(line.strip()) for cell in code for line in cell.source.splitlines()) <= MOST_LINES
    assert all(cell.execution_count for cell in code), "not executed"
    assert not any(output.output_type == "error" for cell in code for output in cell.outputs)


@pytest.mark.parametrize("path", first_and_others(NOTEBOOKS, stride=2), ids=lambda path: path.stem)
def test_notebook_runs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    client = nbclient.NotebookClient(
        notebook, timeout=None, kernel_name="python3", resources={"metadata": {"path": str(FOLDER)}}
    )
    client.execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert any("image/png" in output.get("data", {}) for output in outputs), "no picture"
    assert any("<table" in "".join(output.get("data", {}).get("text/html", "")) for output in outputs), "no pretty result"
