"""Every field of TRL 1.16's GRPOConfig: its default there, and what it does here.

docs/trl.md has this table, and a test compares it with the installed TRL.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["taken", "no effect", "refused"]


@dataclass(frozen=True)
class TRLField:
    """A field of TRL's GRPOConfig.

    If it is set away from its default, a field that is "taken" becomes options of the run, one of
    "no effect" is warned of (no number of the training depends on it), and one that is "refused"
    raises UsageError. `text` says which options, or why.
    """

    name: str
    default: Any
    kind: Kind
    text: str
    type: str  # an annotation, as parsers of dataclasses read it


_TYPES = {  # of fields whose default does not tell
    **dict.fromkeys(("logging_steps", "save_steps", "warmup_steps"), "float"),
    **dict.fromkeys(("eval_steps", "epsilon_high", "delta", "off_policy_mask_threshold"), "float"),
    **dict.fromkeys(("vllm_importance_sampling_clip_max", "min_p"), "float"),
    **dict.fromkeys(("vllm_importance_sampling_clip_min", "vllm_importance_sampling_cap"), "float"),
    **dict.fromkeys(("steps_per_generation", "generation_batch_size", "data_seed"), "int"),
    **dict.fromkeys(("num_generations_eval", "save_total_limit", "vllm_max_model_length"), "int"),
    **{"max_tool_calling_iterations": "int", "bf16": "bool", "model_init_kwargs": "dict"},
    "reward_weights": "list[float]",
    "include_for_metrics": "list[str]",
}

_TAKEN: dict[str, tuple[Any, str]] = {
    "output_dir": (None, "where the final model goes, with the run in its folder `run`"),
    "per_device_train_batch_size": (8, "the batch arithmetic above; memory is bounded by tokens"),
    "gradient_accumulation_steps": (1, "the batch arithmetic above"),
    "steps_per_generation": (None, "the batch arithmetic above"),
    "generation_batch_size": (None, "the batch arithmetic above"),
    "num_generations": (8, "`schedule.group_size`"),
    "num_iterations": (1, "`schedule.passes_per_batch`"),
    "max_steps": (-1, "the updates of the run"),
    "num_train_epochs": (3.0, "the updates of the run, if max_steps is not set"),
    "learning_rate": (1e-6, "`optimizer.lr`"),
    "lr_scheduler_type": ("linear", "`optimizer.lr_schedule`: linear, cosine, constant"),
    "warmup_steps": (0, "`optimizer.warmup_updates`; below 1, a share of the updates"),
    "optim": ("adamw_torch_fused", "AdamW of torch, fused or not; others are refused"),
    "weight_decay": (0.0, "`optimizer.weight_decay`"),
    "adam_beta1": (0.9, "`optimizer.betas`"),
    "adam_beta2": (0.999, "`optimizer.betas`"),
    "adam_epsilon": (1e-8, "`optimizer.eps`"),
    "max_grad_norm": (1.0, "`optimizer.max_grad_norm`"),
    "bf16": (None, "`model.precision`; if unset, bf16 on a GPU and fp32 on a CPU"),
    "use_cpu": (False, '`model.device = "cpu"`'),
    "logging_strategy": ("steps", '"steps", or "no" for no calls of on_log'),
    "logging_steps": (10, "how often on_log is called; metrics.jsonl has every update"),
    "report_to": ("none", "`sinks`: tensorboard, trackio, wandb; others are refused"),
    "project": ("huggingface", "the project in trackio and wandb"),
    "eval_strategy": ("no", '`evaluation.every`: "no", "steps" or "epoch"'),
    "eval_steps": (None, "`evaluation.every`; logging_steps if unset"),
    "num_generations_eval": (None, "`evaluation.samples`; num_generations if unset"),
    "save_strategy": ("steps", '`checkpoint.every`: "no", "steps" or "epoch"'),
    "save_steps": (500, "`checkpoint.every`"),
    "save_total_limit": (None, "`checkpoint.keep`"),
    "model_init_kwargs": (None, "dtype, attention and device have no effect; others are refused"),
    "seed": (42, "`seed`: every sampled token, and the order of problems"),
    "max_completion_length": (512, "`rollouts.max_new_tokens`"),
    "max_tool_calling_iterations": (None, "`environment.max_turns`, which is one more"),
    "temperature": (1.0, "`rollouts.temperature`, and that of evaluations"),
    "use_vllm": (False, '`engine.name = "vllm"`, or "vllm_server"'),
    "vllm_mode": ("colocate", '"colocate": a process of its own on the same GPUs; "server"'),
    "vllm_enable_sleep_mode": (False, '`engine.rest`: "sleep", or "stay"'),
    "vllm_server_base_url": (None, "`engine.urls`"),
    "vllm_server_host": ("0.0.0.0", "`engine.urls`"),
    "vllm_server_port": (8000, "`engine.urls`"),
    "vllm_gpu_memory_utilization": (0.3, "`engine.gpu_memory_utilization`"),
    "vllm_max_model_length": (None, "`engine.arguments.max_model_len`"),
    "vllm_tensor_parallel_size": (1, "`engine.tensor_parallel`"),
    "beta": (0.0, "`reference.coefficient`"),
    "epsilon": (0.2, "`objective.ratio_clip`: 1 - epsilon"),
    "epsilon_high": (None, "`objective.ratio_clip`: 1 + epsilon_high"),
    "delta": (None, "`objective.dual_clip`; refused below 1 + epsilon_high"),
    "vespo_k_pos": (2.0, "`objective.positive`, with loss_type vespo"),
    "vespo_lambda_pos": (3.0, "`objective.positive`, with loss_type vespo"),
    "vespo_k_neg": (3.0, "`objective.negative`, with loss_type vespo"),
    "vespo_lambda_neg": (2.0, "`objective.negative`, with loss_type vespo"),
    "importance_sampling_level": ("token", "`objective.level`"),
    "reward_weights": (None, "`weight` of each reward"),
    "scale_rewards": ("group", '`advantage.std`; "batch" is refused: groups stand alone here'),
    "loss_type": (
        "dapo",
        "`reduction` and `objective`: grpo, dapo, bnpo, dr_grpo, cispo, vespo; others are refused",
    ),
    "mask_truncated_completions": (False, '`rewards.truncated`: "masked", or "scored"'),
    "vllm_importance_sampling_correction": (True, "`correction`, with use_vllm"),
    "vllm_importance_sampling_mode": ("sequence_mask", "`correction`, with use_vllm"),
    "vllm_importance_sampling_clip_max": (3.0, "`correction`, with use_vllm"),
    "vllm_importance_sampling_clip_min": (None, "`correction`, with use_vllm"),
    "vllm_importance_sampling_cap": (None, "the old name of vllm_importance_sampling_clip_max"),
    "off_policy_mask_threshold": (None, "`sequence_mask.delta`"),
    "use_bias_correction_kl": (True, "`reference.corrected`"),
}

# What each of these says holds for all of its fields.
_OTHERS: list[tuple[Kind, str, dict[str, Any]]] = [
    (
        "no effect",
        "micro-batches bound the memory (`optimizer.micro_batch_tokens`); "
        '`options={"model.gradient_checkpointing": True}` turns it on',
        {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": None},
    ),
    (
        "no effect",
        "memory and speed are decided by `optimizer`, `engine` and `distributed`",
        {
            **{"activation_checkpointing": None, "activation_checkpointing_kwargs": None},
            **{"tf32": None, "torch_compile": False, "torch_compile_backend": None},
            **{"torch_compile_mode": None, "use_liger_kernel": False, "liger_kernel_config": None},
            **{"use_cache": False, "torch_empty_cache_steps": None, "pad_to_multiple_of": "auto"},
            **{"average_tokens_across_devices": True, "cache_implementation": None},
            **{"ds3_gather_for_generation": True, "use_transformers_continuous_batching": False},
            **{"transformers_continuous_batching_config": None, "use_transformers_paged": False},
            **{"vllm_server_timeout": 240.0, "vllm_group_port": 51216, "vllm_model_impl": "vllm"},
            **{"per_device_eval_batch_size": 8, "eval_accumulation_steps": None},
        },
    ),
    (
        "no effect",
        "processes are started by `distributed`, not by accelerate",
        {
            **{"accelerator_config": None, "ddp_find_unused_parameters": None},
            **{"ddp_bucket_cap_mb": None, "ddp_broadcast_buffers": None, "ddp_static_graph": None},
            **{"ddp_backend": None, "ddp_timeout": 1800, "local_rank": -1},
        },
    ),
    (
        "no effect",
        "prompts are read once, when the run is opened",
        {
            **{"dataloader_num_workers": 0, "dataloader_pin_memory": True},
            **{"dataloader_persistent_workers": False, "dataloader_prefetch_factor": None},
            **{"dataloader_multiprocessing_context": None, "dataloader_in_order": True},
            **{"dataloader_drop_last": False, "length_column_name": "length"},
            **{"label_names": None, "ignore_data_skip": False},
        },
    ),
    (
        "no effect",
        "metrics.jsonl and the run's report tell what happens, whatever is logged elsewhere",
        {
            **{"logging_first_step": False, "log_on_each_node": True, "log_level": "passive"},
            **{"logging_nan_inf_filter": True, "include_num_input_tokens_seen": "no"},
            **{"log_level_replica": "warning", "disable_tqdm": None, "run_name": None},
            **{"log_completions": False, "log_multimodal": True, "num_completions_to_print": None},
            **{"log_unique_prompts": False, "skip_memory_metrics": True, "debug": ""},
            **dict.fromkeys(("trackio_space_id", "trackio_bucket_id", "trackio_static_space_id")),
        },
    ),
    (
        "no effect",
        "an evaluation samples, judges and counts; the first comes before the first update",
        {
            **{"eval_on_start": False, "prediction_loss_only": False, "do_eval": False},
            **{"eval_do_concat_batches": True, "eval_use_gather_object": False},
            **{"include_for_metrics": [], "batch_eval_metrics": False, "bf16_full_eval": False},
            **{"fp16_full_eval": False, "do_train": False, "do_predict": False},
        },
    ),
    (
        "no effect",
        "a checkpoint always holds all that an exact resume needs",
        {
            **{"save_only_model": False, "save_on_each_node": False},
            **{"enable_jit_checkpoint": False, "restore_callback_states_from_checkpoint": False},
        },
    ),
    ("no effect", "a run in output_dir is always resumed", {"resume_from_checkpoint": None}),
    ("no effect", "a model has no dropout here, in any case", {"disable_dropout": False}),
    ("no effect", "the same seed gives the same bits, in any case", {"full_determinism": False}),
    (
        "refused",
        "a logprob is log_softmax(logits / temperature) of the whole vocabulary, and ratios are "
        "wrong for tokens that were drawn from another distribution",
        {
            **{"top_p": 1.0, "top_k": 0, "min_p": None, "repetition_penalty": 1.0},
            **{"generation_kwargs": None, "vllm_structured_outputs_regex": None},
        },
    ),
    (
        "refused",
        "the template gets only the conversation; write what it needs into the template",
        {"chat_template_kwargs": None},
    ),
    (
        "refused",
        "no objective of this name is built in; docs/objectives.md says how to add your own",
        {"sapo_temperature_neg": 1.05, "sapo_temperature_pos": 1.0},
    ),
    (
        "refused",
        'rewards are summed before they are normalized ("sum_then_normalize")',
        {"multi_objective_aggregation": "sum_then_normalize"},
    ),
    (
        "refused",
        'the reference is the initial model, or with `options={"reference.period": N}` the '
        "policy of every N-th stage",
        {"sync_ref_model": False, "ref_model_mixup_alpha": 0.6, "ref_model_sync_steps": 512},
    ),
    (
        "refused",
        "no part of the loss reads the entropy; docs/objectives.md says how to add your own",
        {
            **{"top_entropy_quantile": 1.0, "entropy_coef": 0.0, "use_adaptive_entropy": False},
            **{"entropy_coef_min": 0.0, "entropy_coef_max": 1.0, "entropy_coef_delta": 0.005},
            **{"entropy_target": 0.2},
        },
    ),
    (
        "refused",
        "the model is loaded in fp32 as its directory says; save it as you want it",
        {"cast_lm_head_to_fp32": False, "router_aux_loss_coef": None},
    ),
    ("refused", "a model's own code is never run", {"trust_remote_code": False}),
    (
        "refused",
        "only AdamW's own options are known, with one learning rate for all weights",
        {
            **{"optim_args": None, "optim_target_modules": None, "lr_scheduler_kwargs": None},
            **{"label_smoothing_factor": 0.0, "neftune_noise_alpha": None},
        },
    ),
    ("refused", "precision is bf16 or fp32", {"fp16": False}),
    (
        "refused",
        "a batch holds whole groups, so it cannot be halved; micro-batches are, if memory runs out",
        {"auto_find_batch_size": False},
    ),
    (
        "refused",
        "epochs are permutations of all problems that `seed` decides",
        {"shuffle_dataset": True, "data_seed": None, "train_sampling_strategy": "random"},
    ),
    ("refused", "rewards get the columns that they name", {"remove_unused_columns": False}),
    (
        "refused",
        'the model is split over ranks by `options={"distributed.processes": N}` (FSDP2)',
        {"fsdp": None, "fsdp_config": None, "deepspeed": None, "parallelism_config": None},
    ),
    (
        "refused",
        "the last checkpoint is the result; metrics.jsonl says which one was best",
        {
            **{"load_best_model_at_end": False, "metric_for_best_model": None},
            **{"greater_is_better": None, "eval_delay": 0},
        },
    ),
    (
        "refused",
        "nothing is uploaded; output_dir is a model directory that `hf upload` takes",
        {
            **{"push_to_hub": False, "hub_token": None, "hub_private_repo": None},
            **{"hub_model_id": None, "hub_strategy": "every_save", "hub_always_push": False},
            **{"hub_revision": None, "log_completions_hub_repo": None},
        },
    ),
]


def _fields() -> Iterator[TRLField]:
    for name, (default, text) in _TAKEN.items():
        yield TRLField(name, default, "taken", text, _type(name, default))
    for kind, text, defaults in _OTHERS:
        for name, default in defaults.items():
            yield TRLField(name, default, kind, text, _type(name, default))


def _type(name: str, default: Any) -> str:
    known = _TYPES.get(name, "str" if default is None else type(default).__name__)
    return f"{known} | None" if default is None else known


FIELDS = {field.name: field for field in _fields()}


def table() -> str:
    """Return the table of all fields in docs/trl.md."""
    rows = ["| field | default in TRL | here | |", "| --- | --- | --- | --- |"]
    rows += [f"| `{f.name}` | `{f.default!r}` | {f.kind} | {f.text} |" for f in FIELDS.values()]
    return "\n".join(rows)
