"""The notebooks run from the first cell to the last as they are kept, with parameters that make them short."""

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed: it comes with the extra `dev`")
nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed: it comes with the extra `dev`")

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "bench" / "notebooks").glob("*.ipynb"))
CELL_TIMEOUT = 240  # seconds
TINY = {
    "NOTEBOOK_IN_MEMORY": "1",
    "NOTEBOOK_TRANSACTIONS": "30",
    "NOTEBOOK_SAMPLES": "1",
    "NOTEBOOK_TRIPS": "0 5",
    "NOTEBOOK_WORKERS": "1",
    "NOTEBOOK_THREADS": "2",
    "NOTEBOOK_BATCHES": "16 0",
}


def _executed(path: Path, monkeypatch: pytest.MonkeyPatch, directory: Path) -> Any:
    """The notebook after a run in a kernel of its own, which finds the packages of this repository."""
    if find_spec("ipykernel") is None:
        pytest.skip("ipykernel is not installed: it comes with the extra `dev`")
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    for name, value in {
        **TINY,
        "NOTEBOOK_DIR": str(directory),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }.items():
        monkeypatch.setenv(name, value)
    notebook = nbformat.read(path, as_version=4)
    client = nbclient.NotebookClient(
        notebook, timeout=CELL_TIMEOUT, kernel_name="python3", resources={"metadata": {"path": str(directory)}}
    )
    return client.execute()


def _outputs(notebook: Any) -> list[Any]:
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


def _html(notebook: Any) -> str:
    return "".join(o.data.get("text/html", "") for o in _outputs(notebook) if o.output_type == "execute_result")


def _has_picture(notebook: Any) -> bool:
    return any("image/png" in o.get("data", {}) for o in _outputs(notebook))


def test_every_notebook_is_kept_without_outputs() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["round-trip", "sweep", "tour"]
    for path in NOTEBOOKS:
        cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
        assert all(not cell.outputs and cell.execution_count is None for cell in cells), path.name


@pytest.mark.cluster
def test_the_tour_shows_a_valid_block_and_names_the_double_spend(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    html = _html(_executed(ROOT / "bench/notebooks/tour.ipynb", monkeypatch, tmp_path))
    assert ">valid<" in html and "bad-txns-inputs-missingorspent" in html


@pytest.mark.cluster
@pytest.mark.parametrize("name", ["round-trip", "sweep"])
def test_an_experiment_ends_with_a_plot(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert _has_picture(_executed(ROOT / f"bench/notebooks/{name}.ipynb", monkeypatch, tmp_path))
