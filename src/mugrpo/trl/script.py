"""`mugrpo from-trl`: a config from a script for TRL, which is read and never run, or from its YAML.

Everything that could not be carried over is in a comment of the printed config.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import yaml

from mugrpo.config.load import build_config
from mugrpo.config.toml import as_document
from mugrpo.disk.errors import UsageError
from mugrpo.trl.config import GRPOConfig, changed, nearest
from mugrpo.trl.fields import FIELDS
from mugrpo.trl.options import differences, run_options, with_own
from mugrpo.trl.schedule import generation_of
from mugrpo.trl.syntax import LORA, REWARDS_FILE, Found, of_script

_OWN = ("method", "stages", "options")
_IN_TRL = ("accuracy_reward", "reasoning_accuracy_reward", "think_format_reward")
_YAML_LORA = {**LORA, "lora_r": "rank", "lora_target_modules": "targets"}
_DATA = {
    "dataset_name": "data",
    "dataset_config": "subset",
    "dataset_train_split": "split",
    "dataset_test_split": "eval_split",
}
_ROWS_FILE = "problems.jsonl"


def from_trl(file: Path) -> str:
    """Return the config, as TOML, of the runs of a script (.py) or of a YAML of `trl grpo`.

    Raises UsageError if the file cannot be read, or if no config can have its batch arithmetic.
    """
    try:
        text = file.read_bytes()  # which says its encoding
        if file.suffix in (".yaml", ".yml"):
            return _document(_of_yaml(yaml.safe_load(text)))
        return _document(of_script(ast.parse(text), file.name))
    except (OSError, SyntaxError, TypeError, ValueError, RecursionError, yaml.YAMLError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"{file} cannot be read ({str(error).splitlines()[0]})") from None


def _document(found: Found) -> str:
    comments = found.comments
    _check_fields(found)
    raw = _carried(found.fields, comments, evaluates="eval_split" in found.task)
    if not raw["evaluation"]["every"]:
        found.task.pop("eval_split", None)
    if found.chat is None:
        comments.append('prompt.form: set "chat" if the prompts are conversations')
    if found.lora:
        raw["lora"] = _lora(found.lora, comments)
    raw["prompt"] = {"form": "chat" if found.chat else "plain"}
    raw["model"] = {"path": found.model or "chain", **raw["model"]}
    if found.model is None:
        comments.append("model.path: name the model; it could not be read")
    if "data" not in found.task:
        found.task["data"] = _ROWS_FILE
        comments.append(f"task.data: write the rows, with their prompts, to {_ROWS_FILE}")
    weights = found.fields.get("reward_weights") or [1.0] * len(found.rewards)
    if len(weights) != len(found.rewards):
        found.skip(f"reward_weights = {weights}: the rewards that could be read are not as many")
        weights = [1.0] * len(found.rewards)
    rewards = [
        {"function": function, "weight": float(weight)}
        for function, weight in zip(found.rewards, weights, strict=True)
        if function is not None
    ]
    if not rewards:
        rewards.append({"function": f"{REWARDS_FILE}:reward"})
        comments.append("task.rewards: name the reward functions; none could be carried over")
    comments.append("without reference answers in the data, add: --task.answer_column none")
    raw["task"] = {"name": "dataset", **found.task, "eval_share": 0.0, "rewards": rewards}
    raw = with_own(raw, GRPOConfig(options=found.fields.get("options")))
    build_config(raw, "the printed config")
    return as_document(raw, comments)


def _check_fields(found: Found) -> None:
    """Make comments of the fields that TRL does not have, and of None where it takes none."""
    for name, value in [*found.fields.items()]:
        if name not in (*FIELDS, *_OWN):
            del found.fields[name]
            found.comments.append(f"{name} = {value!r}: TRL 1.16 has no such field{nearest(name)}")
        elif value is None and name in FIELDS and "None" not in FIELDS[name].type:
            del found.fields[name]
            found.skip(f"{name} = None")
        else:
            found.fields[name] = _typed(name, value)


def _lora(lora: dict[str, Any], comments: list[str]) -> dict[str, Any]:
    """Return `[lora]`, with what peft would choose in a comment."""
    targets = lora.get("targets")
    if isinstance(targets, str) and targets != "all-linear":
        comments.append(f"not carried over: target_modules = {targets!r}: name layers in a list")
    elif targets is None:
        comments.append("lora.targets: all linear layers; peft would choose some by the model")
    else:
        return lora
    return {name: value for name, value in lora.items() if name != "targets"}


def _carried(fields: dict[str, Any], comments: list[str], *, evaluates: bool) -> dict[str, Any]:
    """Return the options of `fields`. What cannot be carried over becomes a comment."""
    everything = GRPOConfig()
    for name, value in fields.items():
        setattr(everything, name, value)
    comments += [f"not carried over: {sentence}" for sentence in changed(everything, "refused")]
    comments += [f"no effect: {sentence}" for sentence in changed(everything, "no effect")]
    kept = {name: value for name, value in fields.items() if not _is_refused(name)}
    while True:
        args = GRPOConfig(**kept)
        counted = args.max_steps > 0
        if not counted:
            args.max_steps = generation_of(args).updates
        try:
            raw = run_options(args, None, evaluates=evaluates, gpu=True)
            break
        except UsageError as error:
            name = str(error).split(" ")[0]
            if name not in kept:
                raise
            comments.append(f"not carried over: {error}")
            del kept[name]
    comments += differences(args)
    if not counted:
        one = generation_of(args)
        comments.append(
            f"schedule.stages: set it to num_train_epochs = {args.num_train_epochs:g} x (prompts / "
            f"{one.prompts}, rounded down)"
        )
    return raw


def _is_refused(name: str) -> bool:
    return name in FIELDS and FIELDS[name].kind == "refused"


def _of_yaml(read: Any) -> Found:
    if not isinstance(read, dict):
        raise UsageError("the YAML is not a table of options of `trl grpo`")
    found = Found(model=read.pop("model_name_or_path", None))
    functions = read.pop("reward_funcs", None) or []
    for function in [functions] if isinstance(functions, str) else functions:
        _add_reward(found, str(function))
    found.task = {_DATA[name]: read.pop(name) for name in [*read] if name in _DATA}
    lora = {_YAML_LORA[name]: read.pop(name) for name in [*read] if name in _YAML_LORA}
    if read.pop("use_peft", False):
        found.lora = {"rank": 16, "dropout": 0.05, **lora}  # the defaults of `trl grpo`
        if dropout := found.lora.pop("dropout"):
            found.skip(f"lora_dropout = {dropout}: it must be 0 here")
        if read.get("load_in_4bit") and read.get("bnb_4bit_quant_type", "nf4") == "nf4":
            found.lora["quantization"] = "nf4"
            read = {
                n: v for n, v in read.items() if n not in ("load_in_4bit", "bnb_4bit_quant_type")
            }
    for name, value in read.items():
        if name in FIELDS or name in _OWN:
            found.fields[name] = value
        else:
            found.skip(f"{name} = {value!r}{nearest(name)}")
    return found


def _typed(name: str, value: Any) -> Any:
    """Return the value of a field: YAML takes 1e-6 for a text, and TRL for a number."""
    kind = FIELDS[name].type.partition(" ")[0] if name in FIELDS else ""
    return float(value) if kind == "float" and isinstance(value, str) else value


def _add_reward(found: Found, name: str) -> None:
    if name in _IN_TRL:
        found.rewards.append(f"trl.rewards:{name}")
    elif "." in name:
        found.rewards.append(":".join(name.rsplit(".", 1)))
    else:
        found.rewards.append(None)
        found.skip(f"the reward {name}")
