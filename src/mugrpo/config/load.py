"""Make one resolved RunConfig from a TOML file and dotted overrides, or say what is wrong.

Overrides use TOML's values (`--objective.ratio_clip [0,5]`). Text that is not a TOML value is a
string, and `none` unsets an option. Overrides replace the file's raw values before anything is
derived. An override of a group's `name` starts that group from the defaults of that name. Of an
option that does not exist, the error says which one was probably meant.
"""

from __future__ import annotations

import copy
import re
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from mugrpo.config.describe import as_toml, describe
from mugrpo.config.options import Options, choices
from mugrpo.config.rewards import Reward
from mugrpo.config.run import RunConfig
from mugrpo.config.tasks import Source
from mugrpo.disk.errors import UsageError

Group = TypeVar("Group", bound=Options)

_IN_LISTS = [
    (name,) for name in [*choices(Reward), *choices(Source)]
]  # tables of a list that are chosen by name


def load_config(file: Path | str | None = None, overrides: Sequence[str] = ()) -> RunConfig:
    """Return the config of `file` (None: all defaults) under the command line's `overrides`.

    Raises UsageError, which names the faults, for unreadable TOML, unknown options, wrong types
    and values out of bounds.
    """
    raw = apply_overrides(read_toml(Path(file)) if file else {}, overrides)
    return build_config(raw, str(file) if file else "on the command line", overrides)


def apply_overrides(raw: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Return `raw` with the command line's overrides laid over it."""
    return lay_over(raw, list(parse_overrides(overrides)))


def lay_over(raw: dict[str, Any], pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return `raw` with (dotted name, value) pairs laid over it, names of groups first."""
    raw = copy.deepcopy(raw)
    for name, value in sorted(pairs, key=lambda pair: not pair[0].endswith(".name")):
        _set(raw, name, value)
    return raw


def build_config(raw: dict[str, Any], source: str, overrides: Sequence[str] = ()) -> RunConfig:
    """Return the config of raw nested values. Raises UsageError with `source` and the faults.

    Faults of what `overrides` have set already are blamed on the command line.
    """
    return validated(RunConfig, raw, source, [name for name, _ in parse_overrides(overrides)])


def validated(
    group: type[Group], raw: dict[str, Any], source: str, typed: Sequence[str] = ()
) -> Group:
    """Return the options of `group` with raw nested values. Raises UsageError as build_config.

    `typed` are the options that the command line has set.
    """
    try:
        return group.model_validate(raw)
    except ValidationError as error:
        faults: dict[str, list[str]] = {}
        for fault in error.errors():
            name = _dotted(fault["loc"], group)
            place = "on the command line" if _is_typed(name, typed) else source
            faults.setdefault(place, []).append(_sentence(fault, group))
        places = (f"{place}: {'; '.join(sentences)}" for place, sentences in faults.items())
        raise UsageError("; ".join(places)) from None


def _is_typed(name: str, typed: Iterable[str]) -> bool:
    """Return whether the option or table `name` was set by name, in part, or by its choice."""
    names = (one.removesuffix("name").removesuffix(".") for one in typed)
    return any(f"{name}.".startswith(f"{one}.") or one.startswith(f"{name}.") for one in names)


def as_override(name: str, value: Any) -> str:
    """Return the command line's word for an option: `--name=value` with TOML's value."""
    return f"--{name}={as_toml(value)}"


def parse_overrides(arguments: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Yield (dotted name, value) for each `--a.b value` or `--a.b=value`.

    Raises UsageError if a word is not an option, or an option has no value.
    """
    rest = list(arguments)
    while rest:
        flag = rest.pop(0)
        if not flag.startswith("--"):
            raise UsageError(
                f"{flag!r} is not an option: overrides are written --group.option value"
            )
        name, equals, text = flag[2:].partition("=")
        if not equals:
            if not rest or rest[0].startswith("--"):
                raise UsageError(f"--{name} has no value: write --{name} value")
            text = rest.pop(0)
        yield name.replace("-", "_"), _value(text)


def changes(old: dict[str, Any], new: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """Return (dotted name, old, new) for each difference between two resolved configs.

    A value that is missing is None.
    """
    flat_old, flat_new = dict(leaves(old)), dict(leaves(new))
    names = sorted(flat_old.keys() | flat_new.keys())
    pairs = [(name, flat_old.get(name), flat_new.get(name)) for name in names]
    return [(name, a, b) for name, a, b in pairs if a != b]


def with_newer_options(stored: dict[str, Any]) -> dict[str, Any]:
    """Return a stored config with today's options.

    An option that it lacks was added later, and has the value of its preset. If one of its options
    no longer exists, it stays as it is.
    """
    with suppress(UsageError):
        stored = build_config(stored, "a stored config").model_dump(mode="json")
    return stored


def on_resume(name: str) -> str:
    """Return whether a changed option is "harmless", "forced" or "fixed" when a run is resumed."""
    return {option.name: option.on_resume for option in describe()}.get(name, "forced")


def read_toml(file: Path) -> dict[str, Any]:
    """Return the raw values of `file`. Raises UsageError if it cannot be read."""
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except UsageError:
        raise
    except FileNotFoundError:
        raise UsageError(f"{file}: there is no such config file or run directory") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{file}: byte {error.start} is not UTF-8; save it as UTF-8") from None
    except (ValueError, OSError, RecursionError) as error:  # a whole number may be too long
        raise UsageError(f"{file}: {error}") from None


def leaves(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted name, value) for every value in nested tables."""
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _value(text: str) -> Any:
    """Return the value that an override's text stands for."""
    if text == "none":
        return None
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _set(raw: dict[str, Any], name: str, value: Any) -> None:
    """Set the option `name` in `raw`. Another name for a group clears the group."""
    *path, leaf = name.split(".")
    table = raw
    for group in path:
        table = table.setdefault(group, {})
        if not isinstance(table, dict):
            raise UsageError(f"--{name}: {group} is an option, not a group of options")
    chooses = leaf == "name" and ".".join(path) in RunConfig.choices()
    if chooses and RunConfig.over_preset(raw)[path[0]]["name"] != value:
        table.clear()
    table[leaf] = value


def _sentence(error: Any, root: type[Options]) -> str:
    """Return a sentence that explains one of pydantic's errors on the options of `root`."""
    name, value = _dotted(error["loc"], root), error["input"]
    if error["type"] == "extra_forbidden":
        inner = [f"{name}.{leaf}" for leaf, _ in leaves(value)] if isinstance(value, dict) else []
        return unknown(name, inner, root)
    if error["type"] == "missing":
        return f"{name} must be given"
    if error["type"] == "union_tag_invalid":
        known = ", ".join(sorted(root.choices()[name]))
        return f"{name}.name: no such name {value['name']!r}: choose among {known}"
    message = str(error["msg"]).removeprefix("Value error, ")
    if not name:  # the error is about the config as a whole
        return message
    if error["type"] in ("model_type", "model_attributes_type"):
        message = "It should be a table of options"
    return f"{name} = {value!r}: {message[0].lower()}{message[1:]}"


def _dotted(location: Sequence[str | int], root: type[Options]) -> str:
    """Return an error's location, dotted, without the chosen name after a group or list index."""
    chosen = {1} if location and location[0] in root.choices() else set()
    listed = {place + 1 for place, part in enumerate(location) if isinstance(part, int)}
    chosen |= {place for place in listed if location[place : place + 1] in _IN_LISTS}
    return ".".join(str(part) for place, part in enumerate(location) if place not in chosen)


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
    "lora.rank": "lora.r lora_r lora_rank use_peft",
    "lora.alpha": "lora_alpha",
    "lora.targets": "lora_target_modules target_modules",
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
    "sequence_mask.delta": "off_policy_mask_threshold",
    "correction.name": "vllm_importance_sampling_correction vllm_importance_sampling_mode",
    "correction.cap": "vllm_importance_sampling_clip_max vllm_importance_sampling_cap",
    "correction.interval": "vllm_importance_sampling_clip_min",
    "reference.coefficient": "beta kl_loss_coef use_kl_loss kl_coef",
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
    "checkpoint.every": "save_steps save_freq save_strategy ckpt.interval",
    "checkpoint.keep": "save_total_limit",
    "evaluation.every": "eval_steps test_freq eval_strategy",
    "evaluation.samples": "num_generations_eval",
}
# What is used in place of options that are gone.
_REMOVED = {
    "task.workers": "use the table [workers]",
    "task.seed": "leave it out",
    "task.max_digit": "it is 3",
    "task.shortest": "it is 8",
    "task.longest": "it is 16",
    "task.dataset": "use task.data",
    "task.answer_pattern": "store the answer alone; what follows the last #### is taken",
    "task.duplicates": "rows that repeat a problem are always dropped",
    "task.right_at": "it is 1; scale the reward, or its weight",
    "task.rewards[].strict": "math is always strict",
    "task.rewards[].ignore_case": "use a function of your own",
    "task.rewards[].patience": "it is 4 times the reward's timeout",
    "task.rewards[].memory_mb": "it is 512",
    "task.rewards[].sandbox": "a url chooses SandboxFusion, otherwise it is bubblewrap",
    "task.rewards[].wasm": "use bubblewrap, or a SandboxFusion server (url)",
    "rewards.unfinished": "unfinished responses always get 0",
    "workers.patience": "it is 12 times workers.timeout",
    "environment.timeout": "use workers.timeout",
    "environment.workers": "use workers.count",
    "environment.memory_mb": "use workers.memory_mb",
    "difficulty": "filter the data by solve rate, or use sampling.name = 'dynamic'",
    "replay": "use schedule.passes_per_batch to train on a stage's rollouts again",
    "machine": "use `mugrpo plan --machine NAME`",
    "lora.quantization": "train an adapter in bf16",
    "lora.dropout": "the policy that is trained must be the one that was sampled from",
    "model.compile": "leave it out",
    "engine.quantization": "use engine.tensor_parallel or more engines",
    "engine.hand_over": "a server loads the weights while it runs (docs/engines.md)",
    "engine.batch_size": "use engine.slots",
    "engine.max_num_seqs": "use engine.slots",
    "engine.concurrency": "use engine.slots",
    "engine.enforce_eager": "use engine.arguments = { enforce_eager = true }",
    "engine.threads": "set OMP_NUM_THREADS",
    "engine.canary_warning": "the canary warns at half of its tolerance",
    "engine.canary_responses": "the canary compares four responses of each engine",
    "engine.canary_tolerance": "the canary accepts 0.001 in fp32, and a mean of 0.1 in bf16",
    "engine.restarts": "an engine is restarted twice per refresh",
    "engine.silence": "an engine that sends nothing for 600 s is restarted",
    "backend.engine_cpus": "an engine's actor reserves one CPU",
    "backend.rank_cpus": "an update process reserves one CPU",
    "backend.restarts": "the update processes are restarted twice",
    "backend.gpus": "engines and ranks reserve GPUs if the cluster has some",
    "model.device": "the model runs on a GPU if there is one; CUDA_VISIBLE_DEVICES= hides them",
    "engine.prefill_tokens": "it is 2,048",
    "optimizer.logprob_chunk_tokens": "it is 1,024",
    "optimizer.nonfinite_limit": "it is 3",
    "optimizer.halve_on_out_of_memory": "micro-batches are always halved",
    "distributed.replicas": "leave it out",
    "distributed.machines": "use the backend ray, whose ranks may be on several machines",
    "distributed.address": "use the backend ray, whose ranks may be on several machines",
    "distributed.rest": "ranks sleep while engines generate on their GPUs",
    "stage_until": "plan more or shorter stages (schedule.growth)",
    "schedule.pass_order": "the passes over a batch come before the next batch",
    "sampling.when_short": "raise sampling.max_oversampling",
    "checkpoint.stage_end": "checkpoint.every = 0 saves at each stage's end, N every N updates",
    "checkpoint.best": "choose among the checkpoints by the suite's results",
    "checkpoint.beside_training": "checkpoints are always written beside training",
    "advantage.eps": "it is 1e-4",
    "advantage.eps_inside": "eps is always added to the standard deviation",
    "objective.block_tokens": "choose another objective.taper",
    "objective.positives": "tokens with a positive advantage have a constant weight",
    "objective.largest_ratio": "tokens with a positive advantage have a constant weight",
    "objective.positive": "VESPO has the shape of its paper",
    "objective.negative": "VESPO has the shape of its paper",
    "objective.stop_gradient": "write an objective file (docs/objectives.md)",
    "reference.corrected": "the KL estimate is always corrected by the importance ratio",
    "step": "write lr_schedule and lr as you want them",
    "optimizer.final_lr_share": "the rate falls to 0, or is constant",
    "optimizer.share_prompts": "prompts are shared if the model can do so and it is cheaper",
    "distributed.reshard_after_forward": "weights are always freed",
    "evaluation.suites.samples": "use a suite file of your own (docs/evaluation.md)",
    "evaluation.suites.max_new_tokens": "use a suite file of your own (docs/evaluation.md)",
    "evaluation.suites.temperature": "suites are sampled at rollouts.temperature",
    "evaluation.suites.top_p": "suites are sampled from all tokens",
    "samples.count": "it is 4",
}
ELSEWHERE = {name: ours for ours, names in _ELSEWHERE.items() for name in names.split()}


def unknown(name: str, inner: Sequence[str], root: type[Options]) -> str:
    """Return a sentence that says there is no option `name`, with a hint at the right one.

    `inner` are the dotted names of the options in it if it is a table.
    """
    listed = re.sub(r"\.\d+", "[]", re.sub(r"^task\.sources\.\d+", "task", name))
    for removed, instead in _REMOVED.items():
        if f"{listed}.".startswith(f"{removed}."):
            return f"{name} no longer exists; {instead}"
    group, _, leaf = name.rpartition(".")
    in_group = root.choices().get(group, {})
    owners = [repr(n) for n, options in in_group.items() if leaf in options.model_fields]
    if owners:
        return f"{name} is an option if {group}.name = {' or '.join(owners)}"
    known = list(dict.fromkeys(option.name for option in describe(root)))
    meant = {one: _meant(one, known, root) for one in inner or [name]}
    hints = [
        f"there is no option {one}; did you mean {ours}?" for one, ours in meant.items() if ours
    ]
    if hints:
        return "; ".join(hints)
    hint = f"choose among {', '.join(known)}"
    if group and (beside := _beside(group, known)):
        hint = f"{group} has {', '.join(beside)}"
    elif root is RunConfig:
        hint = "`mugrpo train --help all` lists all options"
    return f"there is no option {name}; {hint}"


def _meant(name: str, known: Sequence[str], root: type[Options]) -> str | None:
    """Return the option that `name` was probably meant for, or None.

    A slip within the section comes first, then the longest end of `name` that is another program's
    option, then the same name in another section, and at last what looks similar.
    """
    section, _, leaf = name.rpartition(".")
    parts = name.split(".")
    ends = (".".join(parts[first:]) for first in range(len(parts)))
    elsewhere = (ELSEWHERE[end] for end in ends if end in ELSEWHERE and root is RunConfig)
    beside = _beside(section, known)
    same = [option for option in known if option.rpartition(".")[2] == leaf]
    found = [
        *(beside[one] for one in get_close_matches(leaf, beside, 1, 0.85)),
        *elsewhere,
        *(same if len(same) == 1 else ()),
        *(beside[one] for one in get_close_matches(leaf, beside, 1, 0.7)),
        *get_close_matches(name, [one for one in known if one not in beside.values()], 1, 0.75),
    ]
    return next(iter(found), None)


def _beside(section: str, known: Sequence[str]) -> dict[str, str]:
    """Return the options of a section by their names in it."""
    return {name.rpartition(".")[2]: name for name in known if name.rpartition(".")[0] == section}
