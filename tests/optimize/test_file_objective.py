"""The example in docs/objectives.md, run as it is printed there."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mugrpo.config.load import build_config
from mugrpo.optimize.loss import UpdateLoss
from tests.blocks import blocks
from tests.updates import hand_batch


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    [text] = [block.text for block in blocks("docs/objectives.md") if block.file == "mine.py"]
    file = tmp_path / "mine.py"
    file.write_text(text)
    return file


def loss_of(file: Path, **options: float) -> UpdateLoss:
    objective = {"name": "file", "path": str(file), "options": options}
    return UpdateLoss(build_config({"preset": "grpo", "objective": objective}, "test"))


def test_the_printed_objective_drops_far_tokens(mine):
    """Ratios 1.5 and 8 with A = 2; |log 8| = 2.08 is beyond 2: losses -3 and 0."""
    behavior = torch.tensor([[-3.0, -3.0]], dtype=torch.float64)
    logprobs = behavior + torch.tensor([[1.5, 8.0]], dtype=torch.float64).log()
    batch = hand_batch(behavior, torch.tensor([2.0]), torch.ones(1, 2, dtype=torch.bool))
    loss, metrics = loss_of(mine, far=2.0)(batch, logprobs, {})
    assert loss.tolist() == [[pytest.approx(-3.0), 0.0]]
    assert metrics["far_fraction"].tolist() == [[False, True]]
