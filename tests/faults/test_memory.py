"""Runs whose memory runs out in generation or in training."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from mugrpo.engines.continuous import ContinuousEngine
from mugrpo.engines.hf import HFEngine
from mugrpo.optimize import gradient
from tests.cases import some
from tests.faults.harm import CUDA, fail_at, resume_words, stopped
from tests.runs import (
    CONFIG,
    Command,
    State,
    checkpoints,
    read_metrics,
    shards,
    state,
    write_config,
)


def updates(run_dir: Path) -> dict[int, dict[str, Any]]:
    return {line["update"]: line for line in read_metrics(run_dir) if line["kind"] == "update"}


def test_a_run_goes_on_in_smaller_micro_batches_and_says_so(
    run_dir: Path, command: Command, monkeypatch: pytest.MonkeyPatch, reference: Path
):
    """Memory runs out in the fifth update. The sixth has the lower budget from the start."""
    before = shards(run_dir)
    fail_at(monkeypatch, gradient, "batch_logprobs", 1, error=CUDA)
    ended = command("train", run_dir)
    assert ended.status == 0 and ended.err == ""
    assert ended.out.count("memory ran out in a micro-batch of ") == 1
    budgets = {update: line.get("micro_batch_tokens") for update, line in updates(run_dir).items()}
    lowered = budgets[5]
    assert f"lowering micro_batch_tokens from 4096 to {lowered} and computing it again" in ended.out
    assert budgets == {1: None, 2: None, 3: None, 4: None, 5: lowered, 6: lowered}
    assert (
        f"memory      2 updates with micro_batch_tokens lowered, down to {lowered}\n" in ended.out
    )
    assert before.items() < shards(run_dir).items()
    name = "checkpoints/update-000006/model.safetensors"
    ours, theirs = (load_file(folder / name) for folder in (run_dir, reference))
    for key, tensor in ours.items():  # up to rounding
        torch.testing.assert_close(tensor, theirs[key], rtol=1e-3, atol=1e-5, msg=key)


TRIAL = (1, State((0, 0), (0, 0), (), ""))
FIRST_SHARD = (4, State((0, 0), (0, 0), (), "evaluation 0"))
SECOND_SHARD = (5, State((1, 0), (0, 0), (), "evaluation 0"))
HF, CONTINUOUS = (HFEngine, "hf"), (ContinuousEngine, "continuous")


@pytest.mark.parametrize(
    ("engine", "name", "nth", "left"),
    some(1, [(*CONTINUOUS, *FIRST_SHARD), (*HF, *TRIAL), (*HF, *SECOND_SHARD)]),
)
def test_generation_that_runs_out_of_memory_names_the_engines_option_and_keeps_shards(
    tmp_path, command, monkeypatch, engine, name, nth, left
):
    """The error comes after the first completions of the engine's `nth` call."""
    text = CONFIG.replace('name = "hf"', f'name = "{name}"')
    run_dir, generate, calls = tmp_path / "run", engine.generate, [0]

    def failing(*args: Any, **options: Any) -> Any:
        calls[0] += 1
        for decoded in generate(*args, **options):
            yield decoded
            if calls[0] == nth:
                raise CUDA

    with monkeypatch.context() as patch:
        patch.setattr(engine, "generate", failing)
        ended = command("train", write_config(tmp_path, text), "--run-dir", run_dir)
    stopped(ended, "memory ran out in generation; lower --engine.slots (now 4, with --force)")
    assert state(run_dir) == left
    kept = shards(run_dir)
    lower = ("--engine.slots", 2, "--force", "--schedule.stages", 1)
    assert command(*resume_words(ended), *lower).status == 0
    assert kept.items() <= shards(run_dir).items() and checkpoints(run_dir) == [2, 3]
