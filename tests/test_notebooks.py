"""Every notebook runs from top to bottom and draws something."""

from pathlib import Path

import nbclient
import nbformat
import pytest

from tests.sizes import first_and_others

FOLDER = Path(__file__).parent.parent / "notebooks"


@pytest.mark.parametrize("path", first_and_others(sorted(FOLDER.glob("*.ipynb"))), ids=lambda path: path.stem)
def test_notebook_runs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    client = nbclient.NotebookClient(
        notebook, timeout=None, kernel_name="python3", resources={"metadata": {"path": str(FOLDER)}}
    )
    client.execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert any("image/png" in output.get("data", {}) for output in outputs), "no picture"
    assert any("<table>" in "".join(output.get("data", {}).get("text/html", "")) for output in outputs), "no pretty result"
