"""What the fields of a GRPOConfig are in a config of this project."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from mugrpo.config.load import lay_over
from mugrpo.disk.errors import UsageError
from mugrpo.trl.config import plain
from mugrpo.trl.fields import FIELDS
from mugrpo.trl.schedule import generation_of, schedule_options, updates_of

_REDUCTIONS = {
    "grpo": "sequence_mean",
    "dapo": "token_mean",
    "bnpo": "token_mean",
    "dr_grpo": "constant",
    "cispo": "token_mean",
    "vespo": "token_mean",
}
_LOSS = (  # what `method` replaces
    *("loss_type", "scale_rewards", "importance_sampling_level", "epsilon", "epsilon_high"),
    *("delta", "vespo_k_pos", "vespo_lambda_pos", "vespo_k_neg", "vespo_lambda_neg"),
)
_CHOSEN_HERE = ("attn_implementation", "device_map", "dtype", "torch_dtype", "use_cache")
_MODES = ("token_mask", "token_truncate", "sequence_mask", "sequence_truncate")
_SCALES = {True: "group", False: "none", "True": "group", "False": "none"}


def run_options(args: Any, rows: int | None, *, evaluates: bool, gpu: bool) -> dict[str, Any]:
    """Return the options of a run with `args` on `rows` prompts, as nested tables without the task.

    The user's own `options` are not laid over them yet: see `with_own`.

    `evaluates` says whether there is an eval_dataset, `gpu` whether there is a GPU. Raises
    UsageError for values that cannot be carried over, and as `schedule` does.
    """
    one = generation_of(args)
    _require_known_model(args)
    updates, epoch = updates_of(args, one, rows)
    longest = args.max_completion_length
    if longest is None:
        raise UsageError("max_completion_length must be a number: every response has a limit here")
    raw = {
        "preset": args.method or "grpo",
        "seed": args.seed,
        "model": _model(args, gpu),
        "schedule": schedule_options(args, one, updates),
        "rollouts": {
            "temperature": args.temperature,
            "max_new_tokens": longest,
            "shard_rollouts": max(2048, one.rollouts),  # so that a call judges a whole generation
        },
        "rewards": {"truncated": "masked" if args.mask_truncated_completions else "scored"},
        "optimizer": _optimizer(args, updates),
        "checkpoint": {
            "every": _every(args, "save", updates, epoch),
            "keep": args.save_total_limit or 0,
        },
        "evaluation": _evaluation(args, updates, epoch, evaluates),
        "sinks": _sinks(args),
        **_loss(args),
        **_penalties(args),
        **_engine(args),
    }
    return {name: table for name, table in raw.items() if table != {}}


def with_own(raw: dict[str, Any], args: Any) -> dict[str, Any]:
    """Return `raw` with the user's own options laid over it, which are by dotted names."""
    return lay_over(raw, list((args.options or {}).items()))


def differences(args: Any) -> Iterator[str]:
    """Yield a sentence for each field that is carried over, but not exactly as TRL takes it."""
    micro_batches = args.gradient_accumulation_steps
    if args.loss_type == "bnpo" and args.method is None and micro_batches > 1:
        yield "loss_type = 'bnpo': the tokens of an update divide its loss, not of a micro-batch"
    if plain(args.eval_strategy) == "no" and args.eval_steps is not None:
        yield f"eval_steps = {args.eval_steps} has no effect, as in TRL: eval_strategy is 'no'"
    sequence = args.importance_sampling_level == "sequence"
    if sequence and args.beta and args.use_bias_correction_kl:
        yield (
            "beta: the KL term of a token is corrected by the ratio of that token; TRL takes the "
            "ratio of the response"
        )
    if args.warmup_steps and plain(args.lr_scheduler_type) != "constant":
        yield "warmup_steps: the first rate is not 0, but that which TRL has one update later"
    for name, value in (args.model_init_kwargs or {}).items():
        if value is not None and name in _CHOSEN_HERE:
            yield (
                f"model_init_kwargs: {name} = {value!r} has no effect; weights are in fp32, and "
                "device and attention are chosen here"
            )


def _model(args: Any, gpu: bool) -> dict[str, Any]:
    use_bf16 = (gpu and not args.use_cpu) if args.bf16 is None else args.bf16
    device = {"device": "cpu"} if args.use_cpu else {}
    return {"precision": "bf16" if use_bf16 else "fp32", **device}


def _require_known_model(args: Any) -> None:
    """Raise UsageError if model_init_kwargs ask for another model than the path alone does."""
    for name, value in (args.model_init_kwargs or {}).items():
        usual = value is None or value is False or (name, value) == ("revision", "main")
        if not usual and name not in _CHOSEN_HERE:
            raise UsageError(
                f"model_init_kwargs: {name} = {value!r} is not known here; save the model as you "
                "want it, and name that directory"
            )


def _optimizer(args: Any, updates: int) -> dict[str, Any]:
    if plain(args.optim) not in ("adamw_torch", "adamw_torch_fused"):
        raise UsageError(f"optim = {plain(args.optim)!r}: only AdamW is here ('adamw_torch')")
    if not args.max_grad_norm:
        raise UsageError("max_grad_norm = 0: gradients are always clipped; set a large norm")
    kind = plain(args.lr_scheduler_type)
    shape = kind.removesuffix("_with_warmup")
    if shape not in ("linear", "cosine", "constant") or kind == "cosine_with_warmup":
        raise UsageError(
            f"lr_scheduler_type = {kind!r}: choose linear, cosine, constant or constant_with_warmup"
        )
    steps = args.warmup_steps
    warmup = 0 if kind == "constant" else int(steps) if steps >= 1 else math.ceil(updates * steps)
    return {
        "lr": args.learning_rate,
        "lr_schedule": shape,
        "warmup_updates": warmup,
        "betas": [args.adam_beta1, args.adam_beta2],
        "eps": args.adam_epsilon,
        "weight_decay": args.weight_decay,
        "max_grad_norm": args.max_grad_norm,
    }


def _every(args: Any, what: str, updates: int, epoch: int) -> int:
    """Return after how many updates to save or eval: 0 for never."""
    strategy = plain(getattr(args, f"{what}_strategy"))
    if strategy not in ("no", "steps", "epoch"):
        raise UsageError(f"{what}_strategy = {strategy!r}: choose no, steps or epoch")
    steps = getattr(args, f"{what}_steps") or args.logging_steps
    share = math.ceil(steps * updates) if steps < 1 else int(steps)
    return {"no": 0, "steps": share, "epoch": epoch}[strategy]


def _evaluation(args: Any, updates: int, epoch: int, evaluates: bool) -> dict[str, Any]:
    every = _every(args, "eval", updates, epoch)
    if every and not evaluates:
        raise UsageError(f"eval_strategy = {plain(args.eval_strategy)!r} needs an eval_dataset")
    samples = args.num_generations_eval or args.num_generations
    return {"every": every, "samples": samples, "temperature": args.temperature}


def _sinks(args: Any) -> dict[str, Any]:
    asked = args.report_to
    names = [asked] if isinstance(asked, str) else list(asked or ())
    sinks = {"tensorboard": True, "trackio": args.project, "wandb": args.project}
    for name in names:
        if name not in (*sinks, "none"):
            raise UsageError(f"report_to = {name!r}: choose none, {', '.join(sinks)}")
    return {name: sinks[name] for name in names if name != "none"}


def _loss(args: Any) -> dict[str, Any]:
    """Return advantage, objective and reduction, or nothing if `method` brings them."""
    if args.method is not None:
        given = [name for name in _LOSS if getattr(args, name) != FIELDS[name].default]
        if given:
            raise UsageError(f"method = {args.method!r} brings its own loss; leave out {given[0]}")
        return {}
    scale = _SCALES.get(args.scale_rewards, args.scale_rewards)
    if scale not in ("group", "none"):
        raise UsageError(
            f"scale_rewards = {scale!r}: choose group or none; the advantages of a group do not "
            "depend on other groups here"
        )
    if args.loss_type not in _REDUCTIONS:
        raise UsageError(
            f"loss_type = {args.loss_type!r}: choose {', '.join(_REDUCTIONS)}, or write an "
            "objective of your own (docs/objectives.md)"
        )
    std = {"group": "unbiased", "none": "none"}[scale]
    return {
        # TRL has the KL term's gradient in groups of equal rewards, too
        "advantage": {"name": "group", "std": std, "zero_variance_mask": False},
        "objective": _objective(args),
        "reduction": _REDUCTIONS[args.loss_type],
    }


def _objective(args: Any) -> dict[str, Any]:
    high = args.epsilon if args.epsilon_high is None else args.epsilon_high
    if args.loss_type in ("cispo", "vespo") and args.importance_sampling_level != "token":
        raise UsageError(f"loss_type = {args.loss_type!r} needs importance_sampling_level 'token'")
    if args.loss_type == "cispo":
        return {"name": "cispo", "ratio_clip": [0.0, high]}
    if args.loss_type == "vespo":
        positive = [args.vespo_k_pos, args.vespo_lambda_pos]
        return {
            "name": "vespo",
            "positive": positive,
            "negative": [args.vespo_k_neg, args.vespo_lambda_neg],
        }
    dual = {}
    if args.delta is not None:
        if args.delta < 1 + high:
            raise UsageError(f"delta = {args.delta} must be at least 1 + epsilon_high = {1 + high}")
        dual = {"dual_clip": args.delta}
    level = args.importance_sampling_level
    return {"name": "grpo", "ratio_clip": [1 - args.epsilon, 1 + high], "level": level, **dual}


def _penalties(args: Any) -> dict[str, Any]:
    """Return the KL term and the mask of responses, if there are any."""
    raw: dict[str, Any] = {}
    if args.beta:
        corrected = args.use_bias_correction_kl
        raw["reference"] = {"name": "kl", "coefficient": args.beta, "corrected": corrected}
    if args.off_policy_mask_threshold is not None:
        raw["sequence_mask"] = {"name": "off_policy", "delta": args.off_policy_mask_threshold}
    return raw


def _engine(args: Any) -> dict[str, Any]:
    """Return engine and correction of a run with vLLM, or nothing for the default engine."""
    if not args.use_vllm:
        return {}
    if args.vllm_mode not in ("colocate", "server"):
        raise UsageError(f"vllm_mode = {args.vllm_mode!r}: choose colocate or server")
    if args.vllm_mode == "server":
        host = f"http://{args.vllm_server_host}:{args.vllm_server_port}"
        engine: dict[str, Any] = {
            "name": "vllm_server",
            "urls": [args.vllm_server_base_url or host],
        }
    else:
        length = args.vllm_max_model_length
        engine = {
            "name": "vllm",
            "gpu_memory_utilization": args.vllm_gpu_memory_utilization,
            "tensor_parallel": args.vllm_tensor_parallel_size,
            "rest": "sleep" if args.vllm_enable_sleep_mode else "stay",
            "arguments": {} if length is None else {"max_model_len": length},
        }
    return {"engine": engine, **_correction(args)}


def _correction(args: Any) -> dict[str, Any]:
    if not args.vllm_importance_sampling_correction:
        return {}
    mode = args.vllm_importance_sampling_mode
    if mode not in _MODES:
        raise UsageError(f"vllm_importance_sampling_mode = {mode!r}: choose {', '.join(_MODES)}")
    level, kind = mode.split("_")
    low = args.vllm_importance_sampling_clip_min
    high = args.vllm_importance_sampling_cap or args.vllm_importance_sampling_clip_max
    if kind == "mask":
        interval = [low or 0.0, 1e9 if high is None else high]
        return {"correction": {"name": "masked", "interval": interval, "level": level}}
    if low is not None or high is None:
        raise UsageError(
            f"vllm_importance_sampling_mode = '{level}_truncate' needs "
            "vllm_importance_sampling_clip_max alone"
        )
    return {"correction": {"name": "truncated", "cap": high, "level": level}}
