"""TRL's own trainer and the subclass, on the chain model, with rewards that differ in a group."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, HfArgumentParser, TrainerCallback
from trl import GRPOConfig as TRLConfig
from trl import GRPOTrainer as TRLTrainer

from mugrpo.config.run import PRESETS, ModelOptions
from mugrpo.disk.records import FinishReason
from mugrpo.engines.base import Completion
from mugrpo.extensions.trl import GRPOConfig, GRPOTrainer, _planned
from mugrpo.model.policy import load_policy
from mugrpo.optimize.experience import Experience
from mugrpo.optimize.trainer import Trainer
from tests.builders import rollout, verdict
from tests.cases import some, table
from tests.extensions.test_token_weights import REFUSED
from tests.runs import MODEL, ROOT
from tests.updates import config_of

PROMPTS = [{"prompt": f"{a}+{b}="} for a in range(1, 5) for b in range(1, 5)]
TINY = {
    **{"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "num_generations": 4},
    **{"max_completion_length": 6, "bf16": False, "use_cpu": True, "report_to": "none"},
    **{"learning_rate": 1e-3, "disable_tqdm": True, "logging_steps": 1, "save_strategy": "no"},
    **{"seed": 3, "temperature": 1.0},
}
TIMES = ("step_time", "train_runtime", "train_samples_per_second", "train_steps_per_second")


def hashed(completion_ids, **columns):
    return [float(sum(place * i for place, i in enumerate(ids, 1)) % 7) for ids in completion_ids]


def trainer_of(args: Any, kind: Any = GRPOTrainer, **named: Any) -> Any:
    torch.manual_seed(0)
    return kind(
        model=AutoModelForCausalLM.from_pretrained(MODEL, dtype="float32"),
        reward_funcs=hashed,
        args=args,
        train_dataset=Dataset.from_list(PROMPTS),
        processing_class=AutoTokenizer.from_pretrained(MODEL),
        **named,
    )


def trained(args: Any, kind: Any = GRPOTrainer, resume: str | None = None, **named: Any) -> Any:
    trainer = trainer_of(args, kind, **named)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def assert_same_bits(a: Any, b: Any) -> None:
    """Check the weights, and whatever was logged but times."""
    ours, theirs = a.model.state_dict(), b.model.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    logs = zip(a.state.log_history, b.state.log_history, strict=True)
    for lines in logs:
        mine, other = ({k: v for k, v in line.items() if k not in TIMES} for line in lines)
        assert mine == other


@pytest.mark.parametrize(
    "further",
    [{"num_iterations": 2}, pytest.param({"beta": 0.1, "epsilon": 0.1}, marks=pytest.mark.long)],
)
def test_without_new_options_it_is_trl_bit_for_bit(tmp_path: Path, further: dict[str, Any]):
    options = {"output_dir": str(tmp_path), "max_steps": 5, **TINY, **further}
    theirs = trained(TRLConfig(**options), TRLTrainer)
    assert_same_bits(trained(GRPOConfig(**options)), theirs)
    assert_same_bits(trained(TRLConfig(**options)), theirs)  # with TRL's own config, too


@pytest.mark.long
def test_stages_of_trls_loss_are_trl_with_that_steps_per_generation(tmp_path: Path):
    options = {"output_dir": str(tmp_path), "max_steps": 12, **TINY}
    theirs = trained(TRLConfig(steps_per_generation=8, **options), TRLTrainer)
    mine = trained(GRPOConfig(stages=3, **options))
    assert mine.args.steps_per_generation == 8
    for line in theirs.state.log_history:
        line.pop("epoch")  # TRL's leaves out what does not fill a generation batch
    for line in mine.state.log_history:
        line.pop("epoch")
    assert_same_bits(mine, theirs)


@table(
    ("options", "rows", "lengths", "steps"),
    [
        ({"stages": 4, "max_steps": 96}, 1000, [24, 24, 24, 24], 24),
        ({"stages": 4, "max_steps": 98}, 1000, [25, 25, 25, 23], 25),
        ({"stages": 4, "max_steps": 30, "growth": 2}, 1000, [2, 4, 8, 16], 2),
        ({"stages": 3, "max_steps": 8}, 1000, [3, 3, 2], 3),
        # a stage of 24 updates takes 192 prompts: three parts of 64
        ({"stages": 4, "max_steps": 96}, 70, [24, 24, 24, 24], 8),
        ({"stages": 2, "max_steps": 96, "steps_per_generation": 20}, 1000, [48, 48], 16),
        # two epochs of 80 prompts, in updates of 8: 20 updates
        ({"stages": 2, "num_train_epochs": 2}, 80, [10, 10], 10),
        ({"stages": 2, "num_train_epochs": 2, "num_iterations": 2}, 80, [20, 20], 10),
        ({"method": "tapered-grpo", "stages": 2, "max_steps": 9}, 100, [3, 6], 3),  # grows twofold
        ({"method": "mu-grpo", "steps_per_generation": 5}, 100, [5], 5),  # for ever
    ],
)
def test_the_arithmetic_of_stages(options, rows, lengths, steps, capsys):
    """Updates of 8 prompts x 8 responses; a step is an update here."""
    batch = {"per_device_train_batch_size": 64, "num_generations": 8, "use_cpu": True}
    args = GRPOConfig(output_dir="unused", bf16=False, **batch, **options)
    sizes = _planned(args, range(rows))
    assert args.steps_per_generation == steps
    assert args.generation_batch_size == 64 * steps
    unit = steps * args.num_iterations
    assert [min(size * unit, args.max_steps) for size in sizes][:-1] == lengths[:-1]
    if options.get("stages"):
        total = args.max_steps
        assert total == sum(lengths) and (sum(sizes) - 1) * unit < total <= sum(sizes) * unit
        stages = ", ".join(map(str, lengths))
        assert (
            f"{total} updates in stages of {stages}; args.steps_per_generation = {steps}"
            in capsys.readouterr().out
        )


@table(
    ("options", "says"),
    [
        ({"method": "m2po"}, "use `mugrpo train`"),
        ({"method": "mu-grpo", "loss_type": "cispo"}, "decides loss_type"),
        ({"method": "mu-grpo", "delta": 6.0, "scale_rewards": "none"}, "scale_rewards and delta"),
        ({"stages": -1}, "above 0"),
    ],
)
def test_what_cannot_be_is_refused(options: dict, says: str):
    with pytest.raises(ValueError, match=says):
        GRPOConfig(output_dir="unused", use_cpu=True, bf16=False, **options)


def test_options_of_trl_are_the_methods_unless_they_are_set():
    words = ["--output_dir=unused", "--use_cpu", "--bf16=false", "--method=off-policy-grpo"]
    (args,) = HfArgumentParser(GRPOConfig).parse_args_into_dataclasses([*words, "--epsilon=0.1"])
    assert (args.loss_type, args.beta, args.use_bias_correction_kl) == ("grpo", 0.1, True)
    assert args.method_options["objective"]["ratio_clip"] == (0.9, 1.1)
    relaxed = GRPOConfig(output_dir="unused", use_cpu=True, bf16=False, method="mu-grpo")
    assert (relaxed.epsilon, relaxed.epsilon_high, relaxed.loss_type) == (1.0, 4.0, "dapo")


METHODS: dict[str, dict[str, Any]] = {
    **{"grpo": {}, "tapered-grpo": {}},
    "mu-grpo": {"veto": {"threshold": 0.8}},
    "off-policy-grpo": {"advantage": {"zero_variance_mask": False}},  # TRL's KL counts all groups
    "topr": {"advantage": {"baseline": 3.0}},
    "reinforce": {},  # an objective; the others are presets
}
METHODS |= {name: METHODS.get(name, {}) for name in PRESETS if name not in REFUSED}


@pytest.mark.parametrize("method", some(2, METHODS))
def test_two_updates_are_those_of_our_own_trainer(tmp_path: Path, method: str):
    """The second update is stale. AdamW's eps is 1; with its default it follows rounding errors."""
    batch = {"per_device_train_batch_size": 16, "gradient_accumulation_steps": 1}
    args = {**TINY, **batch, "adam_epsilon": 1.0, "max_grad_norm": 1e9, "learning_rate": 0.2}
    args |= {"lr_scheduler_type": "constant", "weight_decay": 0.0, "max_steps": 2}
    args |= {"temperature": 1.5}
    few = {"stages": 1, "steps_per_generation": 1, "method": method, "growth": 1}
    few["method_options"] = METHODS[method]
    theirs = trained(GRPOConfig(output_dir=str(tmp_path), **few, **args))
    log = theirs.state.log_history
    assert abs(log[1]["ratio/negative/mean"] - 1) > 0.01 and log[1]["staleness"] == 1
    if method == "mu-grpo":
        assert 0 < log[1]["vetoed_fraction"] < 1
    if method == "tapered-grpo":
        assert 0 < log[1]["tapered_fraction"] < 1

    adamw = {"lr": 0.2, "eps": 1.0, "weight_decay": 0.0}
    sampling = {"max_new_tokens": 6, "temperature": 1.5}
    alone = {"preset": "grpo", "objective": {"name": method}, "veto": {"name": "off"}}
    preset = {"preset": method} if method in PRESETS else alone
    config = config_of(optimizer=adamw, rollouts=sampling, **preset, **METHODS[method])
    ours = Trainer(load_policy(ModelOptions(path=str(MODEL), precision="fp32")), config)
    for step in theirs._stage:
        experience = experience_of(step)
        if method == "off-policy-grpo":  # its KL has no gradient at first, when both are the same
            reference = [r.behavior_logprobs for r in experience.rollouts]
            experience = Experience(
                experience.rollouts, experience.scores, {"reference_logprobs": reference}
            )
        ours.step(experience)
    weights = dict(ours.policy.model.named_parameters())
    initial = AutoModelForCausalLM.from_pretrained(MODEL, dtype="float32").state_dict()
    for name, value in theirs.model.named_parameters():
        torch.testing.assert_close(weights[name].data, value.data, atol=1e-5, rtol=0)
    moved = max((initial[name] - value.data).abs().max() for name, value in weights.items())
    assert moved > 1e-3


def experience_of(step: dict[str, Any]) -> Experience:
    """Return a step of TRL's as rollouts of ours, group by group, scored by the same reward."""
    rollouts = []
    for b, mask in enumerate(step["completion_mask"].bool()):
        prompt = step["prompt_ids"][b][step["prompt_mask"][b].bool()].numpy().astype(np.int32)
        ids, logprobs = step["completion_ids"][b][mask], step["old_per_token_logps"][b][mask]
        said = Completion(ids.numpy().astype(np.int32), logprobs.numpy(), FinishReason.STOP)
        made = rollout(str(prompt.tolist()), b, prompt, said)
        rollouts.append(replace(made, temperature=1.5))
    rollouts.sort(key=lambda rollout: rollout.problem_id)
    rewards = hashed([r.response_ids.tolist() for r in rollouts])
    return Experience(rollouts, [verdict(reward) for reward in rewards])


class Killed(TrainerCallback):
    def __init__(self, after: int) -> None:
        self.after = after

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.after:
            raise KeyboardInterrupt


@pytest.mark.parametrize("after", some(1, [4, 1, 2, 6]))
def test_a_resumed_run_trains_on_the_same_rollouts(tmp_path: Path, after: int):
    """The stages have 2, 4 and 3 updates. The 16 prompts are used up and shuffled again."""
    options = {**TINY, "max_steps": 9, "method": "mu-grpo", "stages": 3, "growth": 2.0}
    whole = trained(GRPOConfig(output_dir=str(tmp_path / "whole"), **options))
    options |= {"save_strategy": "steps", "save_steps": after, "output_dir": str(tmp_path / "cut")}
    with pytest.raises(KeyboardInterrupt):
        trained(GRPOConfig(**options), callbacks=[Killed(after)])
    checkpoint = str(tmp_path / "cut" / f"checkpoint-{after}")
    resumed = trained(GRPOConfig(**options), resume=checkpoint)
    for run in (whole, resumed):
        run.state.log_history = [line for line in run.state.log_history if "loss" in line]
        for line in run.state.log_history:
            line.pop("num_tokens", None)  # TRL counts from the checkpoint on
    assert_same_bits(resumed, whole)
    (tmp_path / "cut" / f"checkpoint-{after}" / "rollouts-0.pt").unlink()
    with pytest.raises(ValueError, match="missing"):
        trained(GRPOConfig(**options), resume=checkpoint)


def test_a_stage_waits_in_host_memory_and_comes_back_a_step_at_a_time(tmp_path, monkeypatch):
    """16 bytes for a prompt's token, 20 for a completion's, and 13 for a response.

    1,024 steps of 64 responses to 512 tokens with 2,048 are so 3.2 GB, which TRL would keep on the
    GPU, and a step is 3.2 MB.
    """
    args = GRPOConfig(output_dir=str(tmp_path), max_steps=4, method="mu-grpo", stages=1, **TINY)
    trainer = trainer_of(args)
    trainer.model.train()
    first = trainer._prepare_inputs([])
    assert first.keys() == {
        *("prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "old_per_token_logps"),
        *("advantages", "counted", "num_items_in_batch"),
    }
    prompt, completion = first["prompt_ids"].shape[1], first["completion_ids"].shape[1]
    size = sum(value.nbytes for value in first.values()) - first["num_items_in_batch"].nbytes
    assert size == 4 * (16 * prompt + 20 * completion + 4 + 1)
    monkeypatch.setattr(type(trainer.accelerator), "device", torch.device("meta"))
    trainer._step = 1
    assert all(value.device.type == "meta" for value in trainer._prepare_inputs([]).values())
    held = [value for step in trainer._stage for value in step.values()]
    assert len(trainer._stage) == 8 and all(value.device.type == "cpu" for value in held)


def test_the_behavior_policy_is_the_engines_unless_trl_corrects_for_it(tmp_path: Path):
    """Logprobs have risen by log 2 since generation; the engine's own were lower by log 3."""
    args = GRPOConfig(output_dir=str(tmp_path), method="reinforce", max_steps=1, **TINY)
    trainer = trainer_of(args)
    now = torch.full((1, 3), -1.0)
    old, engine = now - np.log(2), now - np.log(3)
    engine[0, 2] = torch.nan  # vLLM had no logprob for it
    mask = torch.tensor([[1, 1, 1]])
    known = {"completion_mask": mask, "counted": mask[:, 0].bool(), "advantages": torch.ones(1)}
    vllm = {"old_per_token_logps": old, "sampling_per_token_logps": engine}
    correction = {"importance_sampling_ratio": torch.ones(1, 1)}
    for inputs, ratios in (
        (vllm | correction, [2, 2, 2]),
        (vllm, [3, 3, 1]),
        ({"old_per_token_logps": old}, [2, 2, 2]),
        ({}, [1, 1, 1]),
    ):
        inputs |= known
        trainer._weigh(inputs, now)
        assert (now - inputs["old_per_token_logps"]).exp()[0].tolist() == pytest.approx(ratios)
        # TRL's gradient is ratio x advantage, and REINFORCE's is 1
        assert inputs["advantages"][0].tolist() == pytest.approx([1 / ratio for ratio in ratios])


RANKED = """
import sys
from tests.extensions.trl.test_trl import TINY, TRLConfig, TRLTrainer, GRPOConfig, trained
import torch
options = {**TINY, "output_dir": sys.argv[1], "max_steps": 6, "num_generations": 8}
theirs = trained(TRLConfig(steps_per_generation=6, **options), TRLTrainer)
for ours in (
    trained(GRPOConfig(stages=2, **options)),
    trained(GRPOConfig(stages=2, method="grpo", epsilon=0.2, loss_type="dapo", **options)),
):
    worst = max(
        (a - b).abs().max().item()
        for a, b in zip(ours.model.parameters(), theirs.model.parameters(), strict=True)
    )
    if ours.args.process_index == 0:
        print("WORST", worst)
"""


@pytest.mark.long
def test_two_processes_that_share_groups_train_as_trl_does(tmp_path: Path):
    """Groups of 8 are spread over two processes of 4 responses a step."""
    script = tmp_path / "ranked.py"
    script.write_text(RANKED)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*command, str(script), str(tmp_path / "out")],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    worst = [float(line.split()[1]) for line in done.stdout.splitlines() if "WORST" in line]
    assert worst[0] == 0 and worst[1] < 1e-5, done.stderr[-2000:]
