"""What the syntax tree of a script for TRL says of its run. The script is never run."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from mugrpo.disk.errors import UsageError

LORA = {  # peft's names -> options
    "r": "rank",
    "lora_alpha": "alpha",
    "target_modules": "targets",
    "lora_dropout": "dropout",
}
REWARDS_FILE = "rewards.py"


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


class _Script:
    """What a script's syntax tree says of names."""

    def __init__(self, tree: ast.Module) -> None:
        self.assigned: dict[str, list[ast.expr]] = {}
        self.imported: dict[str, str] = {}  # name -> "module:function"
        self.calls: dict[str, ast.Call] = {}  # the last one of each function
        self.set: list[tuple[str, str, ast.expr]] = []  # object, attribute, value
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and isinstance(target := node.targets[0], ast.Name):
                self.assigned.setdefault(target.id, []).append(node.value)
            elif isinstance(node, ast.Assign) and isinstance(target, ast.Attribute):
                if isinstance(target.value, ast.Name):
                    self.set.append((target.value.id, target.attr, node.value))
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for one in node.names:
                    self.imported[one.asname or one.name] = f"{node.module}:{one.name}"
            elif isinstance(node, ast.Call):
                self.calls[_name(node.func)] = node

    def resolved(self, node: ast.expr) -> ast.expr:
        """Return what a name is assigned, if that is once, and any other expression as it is."""
        values = self.assigned.get(node.id, []) if isinstance(node, ast.Name) else []
        return values[0] if len(values) == 1 else node

    def value(self, node: ast.expr) -> Any:
        """Return the value of a literal. Raises ValueError for any other expression."""
        return ast.literal_eval(self.resolved(node))


def of_script(tree: ast.Module, name: str) -> Found:
    """Return what a script says. Raises UsageError if it makes no GRPOTrainer."""
    script, found = _Script(tree), Found()
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    found.chat = "role" in texts
    trainer = script.calls.get("GRPOTrainer")
    if trainer is None:
        raise UsageError(f"{name} makes no GRPOTrainer; name the script that does, or a YAML")
    config = script.calls.get("GRPOConfig")
    if config is None:
        found.comments.append("the fields of GRPOConfig are not in the script; add yours")
    else:
        keywords = list(_keywords(config))
        if config.args:
            keywords.append(("output_dir", config.args[0]))
        made = [key for key, values in script.assigned.items() if config in values]
        keywords += [(field, value) for owner, field, value in script.set if owner in made]
        _read_into(found.fields, keywords, script, found, "GRPOConfig")
    given = dict(_keywords(trainer))
    given |= dict(zip(("model", "reward_funcs"), trainer.args, strict=False))
    _read_model(given, script, found)
    _read_data(given, script, found)
    _read_rewards(given, script, found, name)
    known = ("model", "args", "reward_funcs", "train_dataset", "eval_dataset", "peft_config")
    found.comments += [
        f"not carried over: {key} = {ast.unparse(value)}"
        for key, value in given.items()
        if key not in known
    ]
    return found


def _read_into(
    into: dict[str, Any],
    keywords: list[tuple[str, ast.expr]],
    script: _Script,
    found: Found,
    owner: str,
) -> None:
    """Put the keywords that are literals `into` a table, and comment on the others."""
    for name, node in keywords:
        try:
            into[name] = script.value(node)
        except ValueError:
            found.comments.append(f"not carried over: {owner}({name}={ast.unparse(node)})")


def _read_model(given: dict[str, ast.expr], script: _Script, found: Found) -> None:
    model = given.get("model", ast.Constant(None))
    made = script.resolved(model)
    if isinstance(made, ast.Call) and _name(made.func) == "from_pretrained" and made.args:
        model = made.args[0]
    try:
        found.model = script.value(model)
    except ValueError:
        found.comments.append(f"not carried over: model={ast.unparse(model)}")
    made = script.resolved(given.get("peft_config", ast.Constant(None)))
    if isinstance(made, ast.Call) and _name(made.func) == "LoraConfig":
        options: dict[str, Any] = {"r": 8}  # peft's default
        _read_into(options, list(_keywords(made)), script, found, "LoraConfig")
        for name, value in options.items():
            if name in LORA and not (name == "lora_dropout" and value):
                found.lora[LORA[name]] = value
            elif name != "task_type":
                found.comments.append(f"not carried over: LoraConfig({name}={value!r})")
    elif not isinstance(made, ast.Constant):
        found.comments.append(f"not carried over: peft_config={ast.unparse(made)}")


def _read_data(given: dict[str, ast.expr], script: _Script, found: Found) -> None:
    train = script.resolved(given.get("train_dataset", ast.Constant(None)))
    if isinstance(train, ast.Call) and _name(train.func) == "load_dataset":
        names = dict(zip(("data", "subset"), train.args, strict=False))
        names |= {key: node for key, node in _keywords(train) if key == "split"}
        _read_into(found.task, list(names.items()), script, found, "load_dataset")
    else:
        found.comments.append(f"not carried over: train_dataset={ast.unparse(train)}")
    held_out = given.get("eval_dataset")
    if held_out is not None:
        found.comments.append(
            f"not carried over: eval_dataset={ast.unparse(held_out)}; name it in task.eval_data, "
            "or hold out task.eval_share"
        )


def _read_rewards(given: dict[str, ast.expr], script: _Script, found: Found, name: str) -> None:
    node = script.resolved(given.get("reward_funcs", ast.List([])))
    for one in node.elts if isinstance(node, ast.List | ast.Tuple) else [node]:
        if isinstance(one, ast.Name) and one.id in script.imported:
            found.rewards.append(script.imported[one.id])
        elif isinstance(one, ast.Name):
            found.rewards.append(f"{REWARDS_FILE}:{one.id}")
            found.comments.append(
                f"task.rewards: move {one.id} from {name} to {REWARDS_FILE}; importing the script "
                "would run it"
            )
        else:
            found.rewards.append(None)
            found.comments.append(f"not carried over: the reward {ast.unparse(one)}")


def _keywords(call: ast.Call) -> Iterator[tuple[str, ast.expr]]:
    for one in call.keywords:
        yield (one.arg or "**", one.value)


def _name(node: ast.expr) -> str:
    """Return the last part of a dotted name."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
