"""What the syntax tree of a script for TRL says of its run. The script is never run.

What cannot be read becomes a comment.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from mugrpo.disk.errors import UsageError
from mugrpo.trl.names import Script, name_of

LORA = {  # peft's names -> options
    "r": "rank",
    "lora_alpha": "alpha",
    "target_modules": "targets",
    "lora_dropout": "dropout",
}
REWARDS_FILE = "rewards.py"
_TRAINER = (  # the order of GRPOTrainer's arguments
    *("model", "reward_funcs", "args", "train_dataset", "eval_dataset", "processing_class"),
    *("reward_processing_classes", "callbacks", "optimizers", "quantization_config", "peft_config"),
)
_READ = ("model", "args", "reward_funcs", "train_dataset", "eval_dataset", "peft_config")
_DATA = {"path": "data", "name": "subset", "split": "split", "revision": "revision"}
_FILES = ("json", "csv", "parquet")  # what load_dataset calls files of these forms


@dataclass
class Found:
    """What a script or a YAML says."""

    fields: dict[str, Any] = field(default_factory=dict)  # of GRPOConfig
    model: str | None = None
    lora: dict[str, Any] = field(default_factory=dict)
    task: dict[str, Any] = field(default_factory=dict)  # without its rewards
    rewards: list[str | None] = field(default_factory=list)  # None: not carried over
    chat: bool | None = None  # None if it cannot be known
    comments: list[str] = field(default_factory=list)

    def skip(self, text: str) -> None:
        """Say that something is not carried over."""
        self.comments.append(f"not carried over: {text}")


def of_script(tree: ast.Module, name: str) -> Found:
    """Return what a script says. Raises UsageError if it makes no GRPOTrainer."""
    script, found = Script(tree), Found()
    texts = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    found.chat = True if "role" in texts else None
    trainers = script.calls_of("GRPOTrainer")
    if not trainers:
        raise UsageError(f"{name} makes no GRPOTrainer; name the script that does, or a YAML")
    if len(trainers) > 1:
        found.comments.append(f"the script makes {len(trainers)} GRPOTrainers; this is the last")
    given = script.arguments(trainers[-1], _TRAINER, found.skip)
    given = {key: node for key, node in given.items() if ast.unparse(node) != "None"}
    _read_config(given, trainers[-1], script, found)
    _read_model(given, script, found)
    _read_adapter(given, script, found)
    _read_data(given, script, found)
    _read_rewards(given, script, found, name)
    for key, value in given.items():
        if key not in _READ:
            found.skip(f"{key} = {ast.unparse(value)}")
    for call in script.calls:
        if name_of(call.func) == "add_callback":
            found.skip(ast.unparse(call))
    return found


def _read_config(
    given: dict[str, ast.expr], trainer: ast.Call, script: Script, found: Found
) -> None:
    """Read the GRPOConfig that the trainer gets, or the only one that the script makes."""
    node = given.get("args", ast.Constant(None))
    config, made = script.resolved(node), script.calls_of("GRPOConfig")
    if config not in made and not isinstance(config, ast.Constant):  # which is TRL's defaults
        if len(made) != 1:
            count = "are not in the script" if not made else f"are in {len(made)} places"
            found.comments.append(f"the fields of GRPOConfig {count}; add yours")
        else:
            found.skip(
                f"args={ast.unparse(node)}; the fields are those of the script's only GRPOConfig"
            )
            config = made[0]
    if isinstance(config, ast.Call) and config in made:
        fields = script.arguments(config, ("output_dir",), found.skip)
        _read_into(found.fields, fields, script, found, "GRPOConfig")
    owners = set() if isinstance(node, ast.Constant) else {ast.unparse(node)}
    for name, values in script.bound.items():
        owners |= {name} if config in values else set()
        owners |= {f"{name}.args"} if trainer in values else set()
    _read_changes(
        lambda part: ast.unparse(part) in owners or script.resolved(part) is config, script, found
    )


def _read_changes(is_config: Callable[[ast.expr], bool], script: Script, found: Found) -> None:
    """Read the fields that are set outside GRPOConfig(...), and say what else may change some."""
    for owner, name, value, surely in script.set:
        if not is_config(owner):
            continue
        if value is not None and surely:
            _read_into(found.fields, {name: value}, script, found, "GRPOConfig")
            continue
        found.fields.pop(name, None)
        how = "changed" if value is None else "set in some cases"
        text = "" if value is None else f" = {ast.unparse(value)}"
        found.skip(f"{ast.unparse(owner)}.{name}{text}, which is {how}")
    for call in script.calls:
        parts = [*call.args, *(one.value for one in call.keywords)]
        parts += [call.func.value] if isinstance(call.func, ast.Attribute) else []
        if not script.is_call(call, "GRPOTrainer") and any(map(is_config, parts)):
            found.skip(f"{ast.unparse(call)}, if it changes fields")


def _read_into(
    into: dict[str, Any],
    arguments: dict[str, ast.expr],
    script: Script,
    found: Found,
    owner: str,
) -> None:
    """Put the arguments that are literals `into` a table, and comment on the others."""
    for name, node in arguments.items():
        try:
            into[name] = script.value(node)
        except ValueError:
            into.pop(name, None)  # an earlier value, which this one replaces
            found.skip(f"{owner}({name}={ast.unparse(node)})")


def _read_model(given: dict[str, ast.expr], script: Script, found: Found) -> None:
    model = given.get("model", ast.Constant(None))
    made = script.resolved(model)
    if isinstance(made, ast.Call) and name_of(made.func) == "from_pretrained":
        first = "pretrained_model_name_or_path"
        how = script.arguments(made, (first,), found.skip)
        model = how.pop(first, model)
        for name, value in how.items():
            found.skip(f"from_pretrained({name}={ast.unparse(value)})")
    try:
        found.model = script.value(model)
    except ValueError:
        found.skip(f"model={ast.unparse(model)}")


def _read_adapter(given: dict[str, ast.expr], script: Script, found: Found) -> None:
    node = given.get("peft_config", ast.Constant(None))
    made = script.resolved(node)
    if isinstance(made, ast.Call) and script.is_call(made, "LoraConfig"):
        options: dict[str, Any] = {"r": 8, "lora_alpha": 8}  # peft's defaults
        arguments = script.arguments(made, (), found.skip)
        _read_into(options, arguments, script, found, "LoraConfig")
        for name, value in options.items():
            if name in LORA and not (name == "lora_dropout" and value):
                found.lora[LORA[name]] = sorted(value) if isinstance(value, set) else value
            elif (name, value) != ("task_type", "CAUSAL_LM"):
                found.skip(f"LoraConfig({name}={value!r})")
    elif not isinstance(made, ast.Constant):
        found.skip(f"peft_config={ast.unparse(node)}")


def _read_data(given: dict[str, ast.expr], script: Script, found: Found) -> None:
    node = given.get("train_dataset", ast.Constant(None))
    train, more = script.resolved(node), {}
    if isinstance(train, ast.Subscript):  # load_dataset(...)["train"]
        more, train = {"split": train.slice}, script.resolved(train.value)
    if isinstance(train, ast.Call) and script.is_call(train, "load_dataset"):
        names = script.arguments(train, ("path", "name"), found.skip) | more
        path = names.get("path")
        if isinstance(path, ast.Constant) and path.value in _FILES and "data_files" in names:
            names["path"] = names.pop("data_files")
            split = ast.unparse(script.resolved(names.pop("split", ast.Constant("train"))))
            if split != "'train'":  # a file is one split
                found.skip(f"load_dataset(split={split})")
        known = {_DATA[name]: value for name, value in names.items() if name in _DATA}
        _read_into(found.task, known, script, found, "load_dataset")
        for name in [name for name, value in found.task.items() if not isinstance(value, str)]:
            if (value := found.task.pop(name)) is not None:
                found.skip(f"load_dataset({name}={value!r})")
        for name in names.keys() - _DATA.keys():
            found.skip(f"load_dataset({name}={ast.unparse(names[name])})")
    else:
        found.skip(f"train_dataset={ast.unparse(node if more else train)}")
    held_out = given.get("eval_dataset")
    if held_out is not None:
        found.skip(
            f"eval_dataset={ast.unparse(held_out)}; name it in task.eval_data, or hold out "
            "task.eval_share"
        )


def _read_rewards(given: dict[str, ast.expr], script: Script, found: Found, name: str) -> None:
    node = script.resolved(given.get("reward_funcs", ast.List([])))
    for one in node.elts if isinstance(node, ast.List | ast.Tuple) else [node]:
        source = ast.unparse(one.value if isinstance(one, ast.Attribute) else one)
        place = script.imported.get(source) if isinstance(one, ast.Name) else None
        if isinstance(one, ast.Attribute) and source in script.modules:
            place = f"{script.modules[source]}:{one.attr}"
        if place is not None and len(script.bound[source]) == 1:
            found.rewards.append(place)
        elif isinstance(one, ast.Name) and script.is_defined(one.id):
            found.rewards.append(f"{REWARDS_FILE}:{one.id}")
            found.comments.append(
                f"task.rewards: move {one.id} from {name} to {REWARDS_FILE}; importing the script "
                "would run it"
            )
        else:
            found.rewards.append(None)
            found.skip(f"the reward {ast.unparse(one)}")
