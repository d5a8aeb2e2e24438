"""The examples in docs/objectives.md, run as they are printed there."""

import re
from pathlib import Path

import pytest
import torch

from mugrpo.config.load import build_config
from mugrpo.config.objectives import FileAdvantage
from mugrpo.disk.errors import UsageError
from mugrpo.optimize.experience import advantage_of
from mugrpo.optimize.loss import UpdateLoss
from tests.blocks import blocks
from tests.updates import hand_batch


def printed(folder: Path, name: str) -> Path:
    [text] = [block.text for block in blocks("docs/objectives.md") if block.file == name]
    (folder / name).write_text(text)
    return folder / name


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    return printed(tmp_path, "mine.py")


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


def test_the_printed_advantages_are_centered_and_scaled(tmp_path: Path):
    """Rewards 1, 0 and one without a verdict: 2 (1 - 1/2), 2 (0 - 1/2), 0."""
    options = FileAdvantage(path=str(printed(tmp_path, "centered.py")), options={"scale": 2.0})
    rewards, valid = torch.tensor([[1.0, 0.0, 9.0]]), torch.tensor([[True, True, False]])
    found = advantage_of(options)(rewards, valid, **options.knobs)
    assert found.tolist() == [[1.0, -1.0, 0.0]]


ADVANTAGES = "def advantages(rewards, valid):"
LOSS = "METRICS = ('share',)\ndef loss(logprobs, behavior_logprobs, advantages, mask):"


@pytest.mark.parametrize(
    ("head", "body", "words"),
    [
        (ADVANTAGES, "return rewards[0]", "returned [3] for [1, 3]"),
        (ADVANTAGES, "return rewards / 0", "not finite"),
        (ADVANTAGES, "return rewards.no_such", "AttributeError"),
        ("", "", "it must define advantages"),
        (LOSS, "return -(logprobs * advantages[:, None]).sum(), {}", "returned [] for [3, 2]"),
        (LOSS, "return -logprobs * advantages, {'share': mask}", "size of tensor"),
        (LOSS, "return -logprobs.detach(), {'share': mask}", "does not depend on logprobs"),
        (LOSS, "return (logprobs - logprobs) / 0, {'share': mask}", "is not finite"),
        (LOSS, "return abs(logprobs - behavior_logprobs).sqrt(), {'share': mask}", "not finite"),
        (LOSS, "return -logprobs", "ValueError"),
        (LOSS, "return -logprobs, {}", "no metric 'share'"),
        (LOSS, "return -logprobs * far, {}", "NameError"),
    ],
)
def test_what_cannot_be_used_is_refused(tmp_path: Path, head: str, body: str, words: str):
    file = tmp_path / "own.py"
    file.write_text(f"{head}\n    {body}\n")
    with pytest.raises(UsageError, match=re.escape(words)):
        if head == LOSS:
            loss_of(file)
        else:
            advantages = advantage_of(FileAdvantage(path=str(file)))
            advantages(torch.ones(1, 3), torch.ones(1, 3, dtype=torch.bool))
