"""Every field of TRL's GRPOConfig: that it is known, and what it becomes."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from typing import Any

import pytest

from mugrpo.config.load import build_config
from mugrpo.disk.errors import UsageError
from mugrpo.optimize.lr import learning_rate
from mugrpo.trl import GRPOConfig
from mugrpo.trl.config import changed
from mugrpo.trl.fields import FIELDS, table
from mugrpo.trl.options import differences, run_options, with_own
from tests.runs import ROOT
from tests.trl_losses import SEEDS, assert_same, ours, random_update, theirs


def options(gpu: bool = False, **fields: Any) -> dict[str, Any]:
    """Return the resolved config of a run with `fields`."""
    args = GRPOConfig(**{"max_steps": 8, **fields})
    raw = run_options(args, 64, evaluates=True, gpu=gpu)
    return build_config(with_own(raw, args), "test").model_dump()


@pytest.mark.slow
def test_the_table_has_the_fields_and_defaults_of_the_installed_trl():
    trl = pytest.importorskip("trl")
    theirs = {
        field.name: field.default_factory() if callable(field.default_factory) else field.default
        for field in dataclasses.fields(trl.GRPOConfig)
    }
    assert {name: field.default for name, field in FIELDS.items()} == theirs


def test_the_page_has_the_table():
    assert table() in (ROOT / "docs" / "trl.md").read_text()


def test_importing_it_does_not_import_trl():
    code = "import sys, mugrpo.trl; sys.exit('trl' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


OTHER = {bool: lambda v: not v, int: lambda v: v + 1, float: lambda v: v / 2 + 0.01}


@pytest.mark.parametrize("name", [n for n, field in FIELDS.items() if field.kind != "taken"])
def test_a_field_without_a_meaning_is_refused_or_warned_of(name: str):
    field = FIELDS[name]
    other = OTHER.get(type(field.default), lambda _: "another")(field.default)
    if field.kind == "refused":
        with pytest.raises(UsageError, match=name):
            GRPOConfig(**{name: other})
    else:
        [sentence] = changed(GRPOConfig(**{name: other}), "no effect")
        assert sentence == f"{name} = {other!r}: {field.text}"


# What each field must change in the resolved config, by a value away from TRL's default.
TAKEN = {
    "per_device_train_batch_size": (16, "schedule.problems_per_update", 2),
    "gradient_accumulation_steps": (2, "schedule.problems_per_update", 2),
    "steps_per_generation": (2, "schedule.batches_per_stage", 2),
    "generation_batch_size": (16, "schedule.batches_per_stage", 2),
    "num_generations": (4, "schedule.group_size", 4),
    "num_iterations": (2, "schedule.passes_per_batch", 2),
    "max_steps": (5, "schedule.stages", 5),
    "learning_rate": (1e-3, "optimizer.lr", 1e-3),
    "lr_scheduler_type": ("cosine", "optimizer.lr_schedule", "cosine"),
    "warmup_steps": (0.3, "optimizer.warmup_updates", 3),  # ceil(0.3 x 8)
    "weight_decay": (0.1, "optimizer.weight_decay", 0.1),
    "adam_beta1": (0.8, "optimizer.betas", (0.8, 0.999)),
    "adam_beta2": (0.9, "optimizer.betas", (0.9, 0.9)),
    "adam_epsilon": (1e-6, "optimizer.eps", 1e-6),
    "max_grad_norm": (0.5, "optimizer.max_grad_norm", 0.5),
    "bf16": (True, "model.precision", "bf16"),
    "use_cpu": (True, "model.device", "cpu"),
    "report_to": (["tensorboard"], "sinks.tensorboard", True),
    "eval_strategy": ("steps", "evaluation.every", 10),  # logging_steps
    "save_strategy": ("epoch", "checkpoint.every", 64),  # 64 prompts, one to an update
    "save_steps": (0.25, "checkpoint.every", 2),
    "save_total_limit": (3, "checkpoint.keep", 3),
    "seed": (7, "seed", 7),
    "max_completion_length": (99, "rollouts.max_new_tokens", 99),
    "temperature": (0.7, "rollouts.temperature", 0.7),
    "use_vllm": (True, "engine.gpu_memory_utilization", 0.3),
    "beta": (0.04, "reference.coefficient", 0.04),
    "epsilon": (0.1, "objective.ratio_clip", (0.9, 1.1)),
    "epsilon_high": (0.28, "objective.ratio_clip", (0.8, 1.28)),
    "delta": (4.0, "objective.dual_clip", 4.0),
    "importance_sampling_level": ("sequence", "objective.level", "sequence"),
    "scale_rewards": (False, "advantage.std", "none"),
    "loss_type": ("grpo", "reduction", "sequence_mean"),
    "mask_truncated_completions": (True, "rewards.truncated", "masked"),
    "off_policy_mask_threshold": (0.4, "sequence_mask.delta", 0.4),
}
WITH = {  # those that need others
    ("eval_steps", 3): ({"eval_strategy": "steps"}, "evaluation.every", 3),
    ("logging_steps", 4): ({"eval_strategy": "steps"}, "evaluation.every", 4),
    ("num_generations_eval", 5): ({"eval_strategy": "steps"}, "evaluation.samples", 5),
    ("num_train_epochs", 0.5): ({"max_steps": -1}, "schedule.stages", 32),
    ("project", "mine"): ({"report_to": "wandb"}, "sinks.wandb", "mine"),
    ("use_bias_correction_kl", False): ({"beta": 0.1}, "reference.corrected", False),
    ("vespo_k_pos", 1.5): ({"loss_type": "vespo"}, "objective.positive", (1.5, 3.0)),
    ("vespo_lambda_pos", 1.5): ({"loss_type": "vespo"}, "objective.positive", (2.0, 1.5)),
    ("vespo_k_neg", 1.5): ({"loss_type": "vespo"}, "objective.negative", (1.5, 2.0)),
    ("vespo_lambda_neg", 1.5): ({"loss_type": "vespo"}, "objective.negative", (3.0, 1.5)),
    ("vllm_mode", "server"): ({"use_vllm": True}, "engine.urls", ("http://0.0.0.0:8000",)),
    ("vllm_server_host", "h"): (
        {"use_vllm": True, "vllm_mode": "server"},
        "engine.urls",
        ("http://h:8000",),
    ),
    ("vllm_server_port", 1): (
        {"use_vllm": True, "vllm_mode": "server"},
        "engine.urls",
        ("http://0.0.0.0:1",),
    ),
    ("vllm_server_base_url", "http://x"): (
        {"use_vllm": True, "vllm_mode": "server"},
        "engine.urls",
        ("http://x",),
    ),
    ("vllm_enable_sleep_mode", True): ({"use_vllm": True}, "engine.rest", "sleep"),
    ("vllm_gpu_memory_utilization", 0.5): (
        {"use_vllm": True},
        "engine.gpu_memory_utilization",
        0.5,
    ),
    ("vllm_max_model_length", 900): (
        {"use_vllm": True},
        "engine.arguments",
        {"max_model_len": 900},
    ),
    ("vllm_tensor_parallel_size", 2): ({"use_vllm": True}, "engine.tensor_parallel", 2),
    ("vllm_importance_sampling_correction", False): ({"use_vllm": True}, "correction.name", "off"),
    ("vllm_importance_sampling_mode", "token_truncate"): (
        {"use_vllm": True},
        "correction",
        {"name": "truncated", "cap": 3.0, "level": "token"},
    ),
    ("vllm_importance_sampling_clip_max", 2.0): (
        {"use_vllm": True},
        "correction.interval",
        (0.0, 2.0),
    ),
    ("vllm_importance_sampling_clip_min", 0.5): (
        {"use_vllm": True},
        "correction.interval",
        (0.5, 3.0),
    ),
    ("vllm_importance_sampling_cap", 4.0): ({"use_vllm": True}, "correction.interval", (0.0, 4.0)),
}
CASES = [(name, value, {}, *found) for name, (value, *found) in TAKEN.items()]
CASES += [(name, value, *found) for (name, value), found in WITH.items()]
# Other tests have these.
ELSEWHERE = {"output_dir", "optim", "reward_weights", "logging_strategy", "model_init_kwargs"} | {
    "max_tool_calling_iterations"
}


@pytest.mark.parametrize(("name", "value", "fields", "option", "expected"), CASES)
def test_a_field_that_is_taken_becomes_an_option(
    name: str, value: Any, fields: dict[str, Any], option: str, expected: Any
):
    found: Any = options(**fields, **{name: value})
    before: Any = options(**fields)
    for part in option.split("."):
        found, before = found[part], before.get(part) if before else None
    assert found == expected
    assert found != before or name in ("use_vllm",)


def test_every_field_that_is_taken_is_tested():
    taken = {name for name, field in FIELDS.items() if field.kind == "taken"}
    assert {case[0] for case in CASES} | ELSEWHERE == taken


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"optim": "sgd"}, "only AdamW"),
        ({"lr_scheduler_type": "polynomial"}, "choose linear, cosine"),
        ({"max_grad_norm": 0.0}, "always clipped"),
        ({"report_to": "mlflow"}, "choose none, tensorboard"),
        ({"save_strategy": "best"}, "choose no, steps or epoch"),
        ({"scale_rewards": "batch"}, "do not depend on other groups"),
        ({"loss_type": "sapo"}, "write an objective of your own"),
        ({"delta": 1.1}, "at least 1 \\+ epsilon_high"),
        ({"loss_type": "cispo", "importance_sampling_level": "sequence"}, "level 'token'"),
        ({"model_init_kwargs": {"revision": "v2"}}, "revision = 'v2' is not known here"),
        ({"max_completion_length": None}, "must be a number"),
        ({"per_device_train_batch_size": 0}, "= 0 must be an integer of at least 1"),
        ({"gradient_accumulation_steps": 0}, "= 0 must be an integer of at least 1"),
        ({"steps_per_generation": 0}, "= 0 must be an integer of at least 1"),
        ({"generation_batch_size": 0}, "= 0 must be an integer of at least 1"),
        ({"num_iterations": 0}, "= 0 must be an integer of at least 1"),
        ({"options": ["optimizer.lr"]}, "must be a dict"),
        ({"model_init_kwargs": "{}"}, "must be a dict"),
        ({"use_vllm": True, "vllm_mode": "colocated"}, "choose colocate or server"),
        ({"use_vllm": True, "vllm_importance_sampling_mode": "mask"}, "choose token_mask, "),
        ({"use_vllm": True, "vllm_importance_sampling_mode": "token_truncate",
          "vllm_importance_sampling_clip_min": 0.1}, "clip_max alone"),
    ],
)  # fmt: skip
def test_values_that_cannot_be_carried_over_are_refused(fields: dict[str, Any], words: str):
    with pytest.raises(UsageError, match=words):
        options(**fields)


def test_an_evaluation_needs_data():
    args = GRPOConfig(max_steps=8, eval_strategy="steps")
    with pytest.raises(UsageError, match="needs an eval_dataset"):
        run_options(args, 64, evaluates=False, gpu=False)


def test_precision_follows_the_machine_if_it_is_not_set():
    assert options(gpu=True)["model"]["precision"] == "bf16"
    assert options(gpu=False)["model"]["precision"] == "fp32"
    assert options(gpu=True, use_cpu=True)["model"]["precision"] == "fp32"


def test_own_options_replace_all_others():
    found = options(options={"optimizer.lr": 0.5, "engine.name": "hf"})
    assert found["optimizer"]["lr"] == 0.5 and found["engine"]["name"] == "hf"
    # TRL counts processes; here they are an option: 8 x 2 rollouts, 2 prompts to an update
    found = options(options={"distributed.processes": 2})
    assert found["schedule"]["problems_per_update"] == 2


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"loss_type": "bnpo", "gradient_accumulation_steps": 2}, "not of a micro-batch"),
        ({"eval_steps": 3}, "eval_strategy is 'no'"),
        ({"beta": 0.1, "importance_sampling_level": "sequence"}, "ratio of the response"),
        ({"warmup_steps": 3}, "one update later"),
        ({"model_init_kwargs": {"dtype": "bfloat16", "revision": "main"}}, "weights are in fp32"),
    ],
)
def test_what_is_not_exactly_trls_is_said(fields: dict[str, Any], words: str):
    [sentence] = differences(GRPOConfig(**fields))
    assert words in sentence
    assert list(differences(GRPOConfig())) == []


# ---- the same numbers as TRL ----

LOSSES = [
    {"loss_type": "grpo"},
    {"loss_type": "dr_grpo"},
    {"loss_type": "bnpo"},
    {"loss_type": "dapo"},
    {"loss_type": "dapo", "epsilon": 0.1, "epsilon_high": 0.3},
    {"loss_type": "cispo", "epsilon_high": 5.0},
    {"loss_type": "vespo"},
    {"loss_type": "grpo", "beta": 0.1},
    {"loss_type": "dapo", "delta": 3.0},
    {"loss_type": "dapo", "off_policy_mask_threshold": 0.3},
]
PARTS = ("advantage", "objective", "reference", "sequence_mask")


@pytest.mark.slow
@pytest.mark.parametrize("fields", LOSSES)
def test_the_loss_of_a_batch_equals_trls(fields: dict[str, Any]):
    args = GRPOConfig(max_steps=8, **fields)
    raw = run_options(args, 64, evaluates=False, gpu=False)
    parts = {name: raw[name] for name in PARTS if name in raw}
    high = args.epsilon if args.epsilon_high is None else args.epsilon_high
    for seed in SEEDS:
        update = random_update(seed)
        assert_same(
            ours(update, reduction=raw["reduction"], **parts),
            theirs(
                update,
                loss_type=args.loss_type,
                interval=(1 - args.epsilon, high if args.loss_type == "cispo" else 1 + high),
                delta=args.delta,
                off_policy=args.off_policy_mask_threshold,
                beta=args.beta,
            ),
        )


@pytest.mark.parametrize("warmup", [0, 1, 3])
@pytest.mark.parametrize("kind", ["linear", "cosine", "constant", "constant_with_warmup"])
def test_the_learning_rate_equals_that_of_transformers_after_the_warmup(kind: str, warmup: int):
    torch = pytest.importorskip("torch")
    from transformers import get_scheduler

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
    expected = get_scheduler(kind, optimizer, num_warmup_steps=warmup, num_training_steps=8)
    found = options(lr_scheduler_type=kind, warmup_steps=warmup, learning_rate=0.5)["optimizer"]
    for update in range(8):
        rate = learning_rate(
            update,
            peak=found["lr"],
            schedule=found["lr_schedule"],
            warmup_updates=found["warmup_updates"],
            total_updates=8,
            final_share=0.0,
        )
        if update >= found["warmup_updates"]:
            assert rate == pytest.approx(expected.get_last_lr()[0], abs=1e-12)
        optimizer.step()
        expected.step()
