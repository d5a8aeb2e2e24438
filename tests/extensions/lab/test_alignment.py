"""Cosines of stale gradients with on-policy ones, against a computation of our own."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoModelForCausalLM

from mugrpo.cli import main

CONFIG = """
preset = "grpo"
reduction = "token_mean"
task = { eval_problems = 4 }
schedule = { stages = 1, batches_per_stage = 4, problems_per_update = 4, group_size = 4 }
objective = { ratio_clip = [0.0, 1e9] }
optimizer = { lr = 1e-3 }
evaluation = { every = 0 }
checkpoint = { every = 2 }
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("alignment")
    (folder / "c.toml").write_text(CONFIG)
    assert main(["train", str(folder / "c.toml"), "--run-dir", str(folder / "run")]) == 0
    (folder / "plain.toml").write_text(
        'reduction = "token_mean"\n[objective]\nname = "reinforce"\n[veto]\nname = "off"\n'
    )
    methods = f"{folder / 'plain.toml'},grpo"
    assert main(["alignment", str(folder / "run"), "--objectives", methods]) == 0
    return folder / "run"


def table_of(folder: Path, shard: int) -> list[dict[str, Any]]:
    rollouts = pq.read_table(folder / f"rollouts/shard-{shard:05d}.parquet").to_pylist()
    scores = pq.read_table(folder / f"scores/shard-{shard:05d}.parquet").to_pylist()
    return [a | b for a, b in zip(rollouts, scores, strict=True)]


def gradient(
    run: Path,
    rows: list[dict[str, Any]],
    sign: int = 0,
    low_high: tuple[float, float] | None = None,
) -> torch.Tensor:
    """The gradient of the token mean of -A log pi, or of -min(r A, clip(r) A) with an interval."""
    model = AutoModelForCausalLM.from_pretrained(run / "checkpoints/update-000002")
    rewards = torch.tensor([row["reward"] for row in rows]).view(-1, 4).double()
    std = rewards.std(-1, keepdim=True)
    advantages = ((rewards - rewards.mean(-1, keepdim=True)) / (std + 1e-4)).flatten()
    total = torch.zeros((), dtype=torch.float64)
    for row, advantage in zip(rows, advantages.tolist(), strict=True):
        if sign * advantage < 0:
            continue
        ids = torch.tensor([row["prompt_ids"] + row["response_ids"]])
        start = len(row["prompt_ids"])
        logits = model(ids).logits[0, start - 1 : -1].double()
        chosen = logits.log_softmax(-1).gather(1, ids[0, start:, None])[:, 0]
        if low_high is None:
            terms = chosen * advantage
        else:
            ratio = (chosen - torch.tensor(row["behavior_logprobs"])).exp()
            terms = torch.minimum(ratio * advantage, ratio.clamp(*low_high) * advantage)
        total = total - terms.sum()
    total = total / sum(len(row["response_ids"]) for row in rows)
    parts = torch.autograd.grad(total, list(model.parameters()))
    return torch.cat([part.double().flatten() for part in parts])


@pytest.mark.long
def test_the_cosines_are_those_of_gradients_by_autograd(run: Path):
    """Of the four batches two are unused at update 2: 8 groups, rows 32 to 63 of the shard."""
    rows = json.loads((run / "alignment/stage-000/alignment.json").read_text())
    found = [(r["update"], r["staleness"], r["method"]) for r in rows]
    assert found == [(2, 2, "plain"), (2, 2, "grpo")]
    stale = table_of(run / "stages/000", 0)[32:]
    fresh = [table_of(run / "alignment/stage-000/update-000002", half) for half in (0, 1)]
    for half in fresh:
        assert [row["problem_id"] for row in half] == [row["problem_id"] for row in stale]
    assert [row["response_ids"] for row in fresh[0]] != [row["response_ids"] for row in fresh[1]]
    first, second = (gradient(run, half) for half in fresh)
    cosine = torch.nn.functional.cosine_similarity
    for row, interval in zip(rows, (None, (0.8, 1.2)), strict=True):
        for name, sign in (("cosine", 0), ("positive", 1), ("negative", -1)):
            expected = cosine(gradient(run, stale, sign, interval), first + second, 0).item()
            assert row[name] == pytest.approx(expected, abs=1e-4), name
        assert row["fresh"] == pytest.approx(cosine(first, second, 0).item(), abs=1e-4)


@pytest.mark.long
def test_a_stage_without_a_checkpoint_between_its_updates_is_refused(tmp_path: Path, capsys):
    (tmp_path / "c.toml").write_text(CONFIG.replace("every = 2", "every = 0"))
    run = str(tmp_path / "run")
    assert main(["generate", str(tmp_path / "c.toml"), "--run-dir", run, "--stage", "0"]) == 0
    assert main(["score", run, "--stage", "0"]) == 0
    assert main(["alignment", run, "--objectives", "grpo"]) == 2
    assert "no checkpoint lies within stage 0; train with" in capsys.readouterr().err
