"""TRL's own trainer and the subclass, on the chain model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import trl
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

from mugrpo.trl import GRPOConfig, GRPOTrainer
from tests.runs import MODEL

PROMPTS = [{"prompt": f"{a}+{b}=", "a": a} for a in range(1, 5) for b in range(1, 5)]
TINY = {
    **{"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "num_generations": 4},
    **{"max_completion_length": 4, "bf16": False, "use_cpu": True, "report_to": "none"},
    **{"learning_rate": 1e-3, "disable_tqdm": True, "logging_steps": 1, "save_strategy": "no"},
    **{"seed": 3, "temperature": 1.2},
}


def digits(completion_ids, **columns):
    """Something that varies within a group, and that training changes."""
    return [float(sum(ids) % 7) for ids in completion_ids]


def trained(folder: Path, kind: Any, args: Any, resume: Any = None, **named: Any) -> Any:
    torch.manual_seed(0)
    trainer = kind(
        model=AutoModelForCausalLM.from_pretrained(MODEL, dtype="float32"),
        reward_funcs=digits,
        args=args,
        train_dataset=Dataset.from_list(PROMPTS),
        processing_class=AutoTokenizer.from_pretrained(MODEL),
        **named,
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def assert_same(a: Any, b: Any) -> None:
    ours, theirs = a.model.state_dict(), b.model.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_without_new_options_it_is_trl_bit_for_bit(tmp_path: Path):
    options = {"output_dir": str(tmp_path), "max_steps": 5, **TINY}
    mine = trained(tmp_path, GRPOTrainer, GRPOConfig(**options))
    theirs = trained(tmp_path, trl.GRPOTrainer, trl.GRPOConfig(**options))
    assert_same(mine, theirs)
    timed = ("step_time", "train_runtime", "train_samples_per_second", "train_steps_per_second")
    for ours, other in zip(mine.state.log_history, theirs.state.log_history, strict=True):
        assert {k: v for k, v in ours.items() if k not in timed} == {
            k: v for k, v in other.items() if k not in timed
        }


def test_stages_with_trls_loss_are_trl_with_that_steps_per_generation(tmp_path: Path):
    options = {"output_dir": str(tmp_path), "max_steps": 12, **TINY}
    mine = trained(tmp_path, GRPOTrainer, GRPOConfig(stages=3, **options))
    theirs = trained(tmp_path, trl.GRPOTrainer, trl.GRPOConfig(steps_per_generation=8, **options))
    assert mine.args.steps_per_generation == 8
    assert_same(mine, theirs)


@pytest.mark.parametrize("method", ["tapered-grpo", "mu-grpo", "off-policy-grpo"])
def test_runs(tmp_path: Path, method: str):
    options = {"output_dir": str(tmp_path), "max_steps": 12, **TINY}
    mine = trained(tmp_path, GRPOTrainer, GRPOConfig(method=method, stages=3, growth=2, **options))
    for line in mine.state.log_history:
        print(line)
