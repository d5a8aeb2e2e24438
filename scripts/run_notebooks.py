"""Run the notebooks and keep their outputs: `make notebooks` (minutes)."""

import tempfile
from pathlib import Path
from typing import Any

import nbclient
import nbformat

FOLDER = Path(__file__).parents[1] / "notebooks"


def plain(outputs: list[Any]) -> list[Any]:
    """Return a cell's outputs with the lines that a run prints as one text."""
    kept: list[Any] = []
    for output in outputs:
        if output.output_type == "display_data":  # rich shows each line by itself
            output = nbformat.v4.new_output(
                "stream", name="stdout", text=output.data["text/plain"].rstrip() + "\n"
            )
        if output.output_type == "stream":
            if output.name == "stderr" or not output.text.strip():
                continue
            if kept and kept[-1].output_type == "stream":
                kept[-1].text += output.text
                continue
        kept.append(output)
    return kept


def main() -> None:
    for file in sorted(FOLDER.glob("*.ipynb")):
        book = nbformat.read(file, 4)
        with tempfile.TemporaryDirectory() as folder:
            place = {"metadata": {"path": folder}}
            nbclient.NotebookClient(book, timeout=1800, resources=place).execute()
        for cell in book.cells:
            cell.metadata.pop("execution", None)  # the times of this run
            if cell.cell_type == "code":
                cell.outputs = plain(cell.outputs)
        nbformat.write(book, file)
        print(file)


if __name__ == "__main__":
    main()
