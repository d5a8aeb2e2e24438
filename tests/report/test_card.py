"""The model card of a run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from mugrpo.cli import main
from mugrpo.disk.errors import UsageError
from mugrpo.report.card import write_card
from tests.runs import read_metrics

pytest_plugins = ["tests.run_fixtures"]


def test_a_card_has_the_runs_numbers_and_a_header_that_the_hub_reads(
    reference: Path, tmp_path: Path
):
    assert main(["card", str(reference), "--out", str(tmp_path / "card.md")]) == 0
    _, header, text = (tmp_path / "card.md").read_text().split("---\n", 2)
    assert yaml.safe_load(header)["library_name"] == "transformers"
    evaluations = [line for line in read_metrics(reference) if line["kind"] == "evaluation"]
    for line in (evaluations[0], evaluations[-1]):
        assert f"{line['accuracy']:.3f} ({line['accuracy_low']:.3f} to " in text
    assert re.search(r"\| method \| \S+ \|", text) and "pipeline(" in text


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path):
    with pytest.raises(UsageError, match="is not a run"):
        write_card(tmp_path, None)
