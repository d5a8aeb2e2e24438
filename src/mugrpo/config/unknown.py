"""What is said of an option that does not exist: which one was probably meant."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from mugrpo.config.describe import describe
from mugrpo.config.options import Options
from mugrpo.config.run import RunConfig

# The names of TRL, verl and prime-rl for options of ours. Only the end of a dotted name counts, as
# people write the names of one program into the sections of another.
_ELSEWHERE = {
    "schedule.group_size": "num_generations rollout.n rollouts_per_example",
    "schedule.problems_per_update": "per_device_train_batch_size generation_batch_size "
    "ppo_mini_batch_size batch_size",
    "schedule.batches_per_stage": "steps_per_generation train_batch_size",
    "schedule.passes_per_batch": "num_iterations ppo_epochs",
    "schedule.stages": "max_steps num_train_epochs total_epochs total_training_steps",
    "model.path": "model.name model_name_or_path model_name",
    "model.precision": "bf16 fp16 dtype torch_dtype",
    "model.device": "use_cpu",
    "lora.rank": "lora.r lora_r lora_rank use_peft",
    "lora.alpha": "lora_alpha",
    "lora.targets": "lora_target_modules target_modules",
    "lora.dropout": "lora_dropout",
    "lora.quantization": "load_in_4bit load_in_8bit",
    "task.data": "dataset_name train_files train_dataset",
    "task.eval_data": "val_files eval_dataset",
    "task.prompt_column": "prompt_key",
    "task.rewards": "reward_funcs reward_weights custom_reward_function.path",
    "prompt.overlong": "max_prompt_length filter_overlong_prompts",
    "environment.name": "env.id environment_factory",
    "environment.max_turns": "max_tool_calling_iterations",
    "rollouts.max_new_tokens": "max_completion_length max_response_length response_length "
    "max_tokens",
    "rollouts.temperature": "rollout.temperature sampling.temperature",
    "sampling.name": "filter_groups.enable filter_groups",
    "engine.name": "use_vllm vllm_mode rollout.name",
    "engine.rest": "vllm_enable_sleep_mode",
    "engine.urls": "vllm_server_base_url vllm_server_host vllm_server_port",
    "engine.gpu_memory_utilization": "vllm_gpu_memory_utilization",
    "engine.tensor_parallel": "vllm_tensor_parallel_size tensor_model_parallel_size "
    "tensor_parallel_size",
    "engine.arguments": "vllm_max_model_length max_model_len",
    "rewards.truncated": "mask_truncated_completions",
    "rewards.overlong_buffer": "overlong_buffer.len",
    "advantage.name": "adv_estimator",
    "advantage.std": "scale_rewards norm_adv_by_std_in_grpo",
    "objective.ratio_clip": "epsilon epsilon_high clip_ratio clip_ratio_low clip_ratio_high",
    "objective.dual_clip": "delta clip_ratio_c",
    "objective.level": "importance_sampling_level",
    "objective.positive": "vespo_k_pos vespo_lambda_pos",
    "objective.negative": "vespo_k_neg vespo_lambda_neg",
    "sequence_mask.delta": "off_policy_mask_threshold",
    "correction.name": "vllm_importance_sampling_correction vllm_importance_sampling_mode",
    "correction.cap": "vllm_importance_sampling_clip_max vllm_importance_sampling_cap",
    "correction.interval": "vllm_importance_sampling_clip_min",
    "reference.coefficient": "beta kl_loss_coef use_kl_loss kl_coef",
    "reference.corrected": "use_bias_correction_kl",
    "reduction": "loss_type loss_agg_mode",
    "optimizer.lr": "learning_rate optim.lr",
    "optimizer.lr_schedule": "lr_scheduler_type",
    "optimizer.warmup_updates": "warmup_steps warmup_ratio lr_warmup_steps",
    "optimizer.weight_decay": "optim.weight_decay",
    "optimizer.betas": "adam_beta1 adam_beta2",
    "optimizer.eps": "adam_epsilon",
    "optimizer.max_grad_norm": "grad_clip clip_grad",
    "optimizer.micro_batch_tokens": "gradient_accumulation_steps ppo_micro_batch_size_per_gpu "
    "ppo_max_token_len_per_gpu",
    "distributed.processes": "n_gpus_per_node",
    "distributed.machines": "nnodes",
    "checkpoint.every": "save_steps save_freq save_strategy ckpt.interval",
    "checkpoint.keep": "save_total_limit",
    "evaluation.every": "eval_steps test_freq eval_strategy",
    "evaluation.samples": "num_generations_eval",
}
# What is used in place of options that are gone.
_REMOVED = {
    "difficulty": "filter the data by solve rate, or use sampling.name = 'dynamic'",
    "replay": "use schedule.passes_per_batch to train on a stage's rollouts again",
    "machine": "use `mugrpo plan --machine NAME`",
}
ELSEWHERE = {name: ours for ours, names in _ELSEWHERE.items() for name in names.split()}


def unknown(name: str, inner: Sequence[str], root: type[Options]) -> str:
    """Return a sentence that says there is no option `name`, with a hint at the right one.

    `inner` are the dotted names of the options in it if it is a table.
    """
    for removed, instead in _REMOVED.items():
        if f"{name}.".startswith(f"{removed}."):
            return f"{name} no longer exists; {instead}"
    group, _, leaf = name.rpartition(".")
    in_group = root.choices().get(group, {})
    owners = [repr(n) for n, options in in_group.items() if leaf in options.model_fields]
    if owners:
        return f"{name} is an option if {group}.name = {' or '.join(owners)}"
    known = list(dict.fromkeys(option.name for option in describe(root)))
    near = _near(name, known, root)
    if root is RunConfig:  # in a table that does not exist, each option tells by itself
        meant = {
            one: _elsewhere(one) or (None if near else _near(one, known, root)) for one in inner
        }
        hints = [
            f"there is no option {o}; did you mean {ours}?" for o, ours in meant.items() if ours
        ]
        if hints:
            return "; ".join(hints)
    if near:
        hint = f"did you mean {near}?"
    elif group and (beside := _beside(group, known)):
        hint = f"{group} has {', '.join(beside)}"
    elif root is RunConfig:
        hint = "`mugrpo train --help all` lists all options"
    else:
        hint = f"choose among {', '.join(known)}"
    return f"there is no option {name}; {hint}"


def _elsewhere(name: str) -> str | None:
    """Return our option for the longest end of `name` that another program has, or None."""
    parts = name.split(".")
    ends = (".".join(parts[first:]) for first in range(len(parts)))
    return next((ELSEWHERE[end] for end in ends if end in ELSEWHERE), None)


def _near(name: str, known: list[str], root: type[Options]) -> str | None:
    """Return the option or group that `name` was probably meant for, or None.

    A slip within the section comes first, then the same meaning elsewhere, then the same name in
    another section, and at last what merely looks similar. The choice of each group is called
    `name`, which therefore says nothing.
    """
    section, _, leaf = name.rpartition(".")
    by_leaf: dict[str, list[str]] = {}
    for option in known:
        by_leaf.setdefault(option.rpartition(".")[2], []).append(option)
    beside = _beside(section, known)
    others = [option for option in known if option not in beside.values()]
    groups = {option.partition(".")[0] for option in known} - {name.partition(".")[0]}
    by_leaf.pop("name", None)
    same = by_leaf.get(leaf, [])
    found = [
        *(beside[one] for one in get_close_matches(leaf, beside, 1, 0.85)),
        *([_elsewhere(name)] if root is RunConfig else ()),
        *(same if len(same) == 1 else ()),
        *(beside[one] for one in get_close_matches(leaf, beside, 1, 0.7)),
        *get_close_matches(name, others, 1, 0.75) * (leaf != "name"),
        *get_close_matches(name.partition(".")[0], groups, 1, 0.7),
        *(by_leaf[one][0] for one in get_close_matches(leaf, by_leaf, 1, 0.7)),
    ]
    return next(filter(None, found), None)


def _beside(section: str, known: list[str]) -> dict[str, str]:
    """Return the options of a section by their names in it."""
    pairs = ((option.rpartition("."), option) for option in known)
    return {leaf: option for (of, _, leaf), option in pairs if of == section}
