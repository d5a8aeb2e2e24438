"""What others may see of a config: all but private options and folders, and it loads again."""

from __future__ import annotations

import re
import tomllib
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import AfterValidator

from mugrpo.config.describe import as_toml
from mugrpo.config.load import build_config, load_config
from mugrpo.config.options import Options, absolute, choices
from mugrpo.config.preset import PRESETS
from mugrpo.config.rewards import Reward
from mugrpo.config.run import RunConfig
from mugrpo.config.toml import published
from tests.cases import table
from tests.runs import ROOT

FILES = sorted((ROOT / "configs").rglob("*.toml"))
SECRETIVE = re.compile(
    r"token|secret|password|key|header|url|address|host|python|arguments|project"
)
HARMLESS_NAMES = {
    "eos_token",
    "max_new_tokens",
    "micro_batch_tokens",
    "logprob_chunk_tokens",
    "prefill_tokens",
    "block_tokens",
}


def every_group(options: type[Options] = RunConfig) -> Iterator[type[Options]]:
    """Yield every class of options of a run."""
    yield options
    for field in options.model_fields.values():
        annotation = field.annotation
        if isinstance(annotation, type) and issubclass(annotation, Options):
            yield from every_group(annotation)
        for chosen in choices(annotation).values():
            yield from every_group(chosen)
    if options is RunConfig:
        yield from choices(Reward).values()


FIELDS = {
    (group.__name__, name): field
    for group in every_group()
    for name, field in group.model_fields.items()
}


def mark(field: Any) -> Any:
    extra = field.json_schema_extra
    return extra.get("published") if isinstance(extra, dict) else None


def metadata(annotation: Any) -> Iterator[Any]:
    yield from getattr(annotation, "__metadata__", ())
    for argument in typing.get_args(annotation):
        yield from metadata(argument)


def test_every_path_and_everything_that_may_hold_a_secret_is_marked():
    """A new option that is called like one must be marked, or named here."""
    validator = AfterValidator(absolute)
    for (group, name), field in FIELDS.items():
        if validator in [*field.metadata, *metadata(field.annotation)]:
            assert mark(field), f"{group}.{name} is a path"
        if SECRETIVE.search(name) and name not in HARMLESS_NAMES:
            assert mark(field) == "nothing", f"{group}.{name}"
    assert {name for (_, name), field in FIELDS.items() if mark(field) == "nothing"} == {
        "address",
        "arguments",
        "hand_over",
        "kwargs",
        "python",
        "trackio",
        "url",
        "urls",
        "wandb",
    }


@table("file", FILES)
def test_what_is_published_of_a_config_file_gives_its_config(file: Path):
    """Apart from private options and folders."""
    config = load_config(file).model_dump(mode="json")
    config["engine"] |= (
        {"python": None, "arguments": {}} if config["engine"]["name"] == "vllm" else {}
    )
    data = config["task"].get("data")
    config["task"] |= {"data": Path(data).name} if data and data.startswith("/") else {}
    plain = build_config(config, "the file")
    assert build_config(tomllib.loads(published(load_config(file))), "what is published") == plain


@table("preset", PRESETS)
def test_of_a_preset_only_its_name_is_published_beside_model_and_task(preset: str):
    config = build_config({"preset": preset}, preset)
    expected = {"preset": preset, "model": {"path": "chain"}, "task": {"name": "chain"}}
    assert tomllib.loads(published(config)) == expected


def test_private_options_and_folders_stay_here():
    raw = {
        "model": {"path": "/home/alice/models/Base-1B"},
        "task": {
            "name": "dataset",
            "data": "/home/alice/client/rows.jsonl",
            "eval_data": "C:\\Users\\alice\\held.csv",
            "rewards": ["numeric", {"function": "/home/alice/rewards.py:short", "weight": 0.5}],
        },
        "prompt": {"form": "chat", "chat_template": "/home/alice/short.jinja"},
        "objective": {"name": "file", "path": "/home/alice/own.py", "options": {"low": 0.5}},
        "engine": {
            "name": "vllm_server",
            "urls": ["http://10.0.0.7:8000"],
            "hand_over": ["load", "--key", "sesame"],
        },
        "backend": {"name": "ray", "address": "ray://10.0.0.8:10001"},
        "sinks": {"wandb": "client-project", "trackio": "trackio-project"},
        "optimizer": {"max_grad_norm": 0.5},
    }
    text = published(build_config(raw, "a test"))
    for secret in ("alice", "Users", "client", "10.0.0", "sesame", "project"):
        assert secret not in text
    head, _, _ = text.partition("\n\n")
    left = ("engine.urls", "engine.hand_over", "backend.address", "sinks.trackio", "sinks.wandb")
    for line in (*(f"# left out: {name}" for name in left), "# without its folder: task.data"):
        assert line in head.splitlines()
    seen = tomllib.loads(text)
    assert seen["model"] == {"path": "Base-1B"}
    assert (seen["task"]["data"], seen["task"]["eval_data"]) == ("rows.jsonl", "held.csv")
    assert seen["task"]["rewards"][1] == {
        "name": "function",
        "function": "rewards.py:short",
        "weight": 0.5,
    }
    assert seen["prompt"]["chat_template"] == "short.jinja"
    assert seen["objective"] == {"name": "file", "path": "own.py", "options": {"low": 0.5}}
    assert seen["engine"] == {"name": "vllm_server"} and seen["backend"] == {"name": "ray"}


def test_suites_are_published_without_folders_and_without_what_is_unset():
    use = {"name": "/home/alice/mine.toml", "data": "/home/alice/rows.jsonl", "every": 4}
    text = published(build_config({"evaluation": {"suites": [use, {"name": "gsm8k"}]}}, "a test"))
    assert "alice" not in text
    mine, packaged = tomllib.loads(text)["evaluation"]["suites"]
    assert (mine["name"], mine["data"], mine["every"]) == ("mine.toml", "rows.jsonl", 4)
    assert packaged == {"name": "gsm8k", "every": 0, "top_p": 1.0} and "samples" not in mine


def test_an_option_that_is_unset_is_a_comment():
    config = build_config({"preset": "dr-grpo", "task": {"name": "dataset", "data": "a/b"}}, "")
    task = config.task.model_dump() | {"eval_problems": None}
    config = build_config(config.model_dump() | {"task": task}, "")
    assert published(config).startswith("# unset: --task.eval_problems none\n")


@table("text", ["\U0001f600 plain", 'a "b"\n\t\\', "\x7f and \x01", "é"])
def test_any_text_is_valid_toml(text: str):
    assert tomllib.loads(f"value = {as_toml(text)}") == {"value": text}
