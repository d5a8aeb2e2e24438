"""The notebooks are committed without outputs, and run from the first cell to the last."""

from __future__ import annotations

import ast
import os
from pathlib import Path
from typing import Any
from unittest import mock

import nbformat
import pytest
from IPython.core.inputtransformer2 import TransformerManager
from nbclient import NotebookClient

from tests.runs import ENVIRONMENT, ROOT, read_metrics

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
each = pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)


def code_of(file: Path) -> list[Any]:
    return [cell for cell in nbformat.read(file, 4).cells if cell.cell_type == "code"]


@each
def test_it_is_valid_and_has_no_outputs(file: Path):
    nbformat.validate(nbformat.read(file, 4))
    for cell in code_of(file):
        assert (cell.outputs, cell.execution_count) == ([], None)


@each
def test_its_code_parses_and_the_first_cell_installs(file: Path):
    plain = [TransformerManager().transform_cell(cell.source) for cell in code_of(file)]
    for text in plain:
        ast.parse(text)  # a magic is a call now
    assert 'find_spec("mugrpo") is None' in plain[0] and "run_line_magic('pip'" in plain[0]
    assert "import mugrpo" not in plain[0]


def executed(name: str, folder: Path) -> list[str]:
    """Run a notebook in `folder`, with its assertions, and return what each code cell printed."""
    book = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", 4)
    with mock.patch.dict(os.environ, ENVIRONMENT):
        NotebookClient(book, timeout=1800, resources={"metadata": {"path": str(folder)}}).execute()
    return [
        "".join(output.text for output in cell.outputs if output.output_type == "stream")
        for cell in book.cells
        if cell.cell_type == "code"
    ]


def evaluations(run_dir: Path) -> list[dict[str, Any]]:
    return [line for line in read_metrics(run_dir) if line["kind"] == "evaluation"]


@pytest.mark.long
def test_the_first_run_prints_the_metrics_and_samples_of_its_run(tmp_path: Path):
    printed = executed("first_run", tmp_path)
    lines = evaluations(tmp_path / "runs" / "first")
    table = next(text for text in printed if text.startswith("update  0  accuracy"))
    assert [line.split()[3] for line in table.splitlines()] == [
        f"{line['accuracy']:.3f}" for line in lines
    ]
    assert lines[-1]["accuracy"] > lines[0]["accuracy"] + 0.1
    assert printed[-1] == "runs/first/report.html\n"
    assert (tmp_path / printed[-1].strip()).stat().st_size > 100_000


@pytest.mark.long
def test_the_function_of_a_notebook_is_the_reward_of_its_run(tmp_path: Path):
    executed("own_reward", tmp_path)
    lines = evaluations(tmp_path / "runs" / "own_reward")
    assert [line["update"] for line in lines] == [0, 10, 20, 30]
    for line in lines:  # no other reward has a part in it
        assert line["reward"] == pytest.approx(line["rewards/in_place/mean"])
    assert lines[-1]["reward"] > lines[0]["reward"] + 0.05


@pytest.mark.long
def test_two_methods_train_on_the_same_files(tmp_path: Path):
    executed("two_methods", tmp_path)
    run = tmp_path / "runs" / "rollouts"
    shards = Path("stages", "000", "rollouts")
    for method in ("grpo", "mu-grpo"):
        arm = run / "bakeoff" / "stage-000" / method
        for file in (run / shards).glob("*.parquet"):
            assert file.samefile(arm / shards / file.name)
        accuracy = evaluations(arm)[-1]["accuracy"]
        row = f"\n| {method} | "
        assert f" {accuracy:.3f} (" in (arm.parent / "table.md").read_text().split(row)[1]
