"""What is refused before a run begins, and with an existing run: one table each."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from mugrpo.model import policy
from tests.cases import table
from tests.faults.case import GOOD, Case, chain, chains, lines
from tests.faults.harm import accepted, contents, edited, refused
from tests.runs import MODEL, Command, write_config

CONVERSATIONS = lines(
    [{**row, "prompt": [{"role": "user", "content": row["prompt"]}]} for row in chains()]
)


def renamed(prompt: str, answer: str) -> bytes:
    return lines([{prompt: row["prompt"], answer: row["answer"]} for row in chains()])


def with_prompt(prompt: Any) -> bytes:
    return GOOD + lines([{"prompt": prompt, "answer": "2"}])


# 65 terms are 130 + 6 x 63 = 508 tokens. The context of 512 less 8 for a response is 504.
TOO_LONG = GOOD + lines([chain(*[1] * 65)])

# The content of the data file, its name, options, and words of the sentence.
DATA: list[tuple[bytes, str, str, str]] = [
    (renamed("question", "answer"), "p.jsonl", "", "has no column 'prompt'"),
    (b"\n\n", "p.jsonl", "", "has no rows"),
    (lines(chains()[:1]), "p.jsonl", "", "all are held out; use more, or lower task.eval_share"),
    (GOOD, "p.jsonl", "--task.eval_share 0.0 --evaluation.every 3", "no problem is held out"),
    (with_prompt(None), "p.jsonl", "", "line 28: the prompt is null"),
    (with_prompt(7), "p.jsonl", "", "line 28: the prompt is 7"),
    (with_prompt(""), "p.jsonl", "", "line 28: the prompt is empty"),
    (with_prompt("1+\ud83d="), "p.jsonl", "", "half a surrogate pair"),
    ("\ufeffprompt,answer\n".encode("utf-16-le"), "p.csv", "", "UTF-8"),
    (GOOD, "p.jsonl", "--task.data absent.jsonl", "absent.jsonl"),
    (GOOD, "p.jsonl", "--task.eval_data absent.jsonl", "absent.jsonl"),
    (with_prompt("1+1=")[:-4] + b'few"}\n', "p.jsonl", "--task.rewards numeric", "cannot compare"),
    (TOO_LONG, "p.jsonl", "--task.eval_share 0.0", "longer than the 504 tokens"),
    (CONVERSATIONS, "p.jsonl", "--prompt.form plain --prompt.chat_template none", "chat"),
    (GOOD, "p.jsonl", "--prompt.chat_template absent.jinja", "absent.jinja"),
    (GOOD, "p.jsonl", "--model.path absent", "there is no model directory absent"),
    (
        GOOD,
        "p.jsonl",
        "--model.path chian",
        "directory chian; did you mean chain? Or name one",
    ),
    (GOOD, "p.jsonl", "--run-dir /proc/nowhere/run", "name another --run-dir"),
]


@table(("content", "name", "options", "words"), DATA)
def test_what_cannot_work_is_refused_before_a_model_is_loaded_or_a_file_written(
    tmp_path, command, monkeypatch, content, name, options, words
):
    monkeypatch.setattr(policy, "load_model", lambda *_: pytest.fail("a model is loaded"))
    case = Case(tmp_path, command, [])
    case.data(content, name)
    case.refused(*options.split(), name=name, parts=(words,))


# The body of a reward function, options, and words of the sentence.
PARTS = [
    ("raise ValueError('out of order')", "", "judge: ValueError: out of order"),
    ("return [columns['level'][0]]", "", "KeyError: 'level'"),
    ("return [float('nan')]", "", "`judge` returned nan as reward 0 of 1"),
    ("return []", "", "`judge` returned [], not a list of"),
    ("return [1.0]", "--sinks.wandb p", "pip install 'mugrpo[wandb]'"),
    ("return [1.0]", "--lora.rank 4", "pip install 'mugrpo[lora]'"),
    ("return [1.0]", "--engine.name vllm --engine.python /no/such", "cannot be run (No such file"),
    ("return [1.0]", f"--engine.name vllm --engine.python {sys.executable}", "has no vLLM"),
    ("return [1.0]", "--objective.name file --objective.path absent.py", "there is no file"),
    (
        "return [1.0]",
        f"--advantage.name file --advantage.path {policy.__file__}",
        "it must define advantages",
    ),
]


@table(("body", "options", "words"), PARTS, first=2)
def test_a_part_that_cannot_work_is_refused_before_the_first_rollout(
    tmp_path, command, monkeypatch, body, options, words
):
    for package in ("wandb", "peft"):
        monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setattr(policy, "load_model", lambda *_: pytest.fail("a model is loaded"))
    case = Case(tmp_path, command, [])
    case.data()
    file = tmp_path / "mine.py"
    file.write_text(f"def judge(completions, answer, **columns):\n    {body}\n")
    given = ("--preset", "grpo", "--task.rewards", f"{file}:judge", *options.split())
    refused(case.train(*given), words)


# What a command is asked of a run that was killed in its fifth update.
RUN = [
    ("--optimizer.lr 2e-3", "optimizer.lr: 0.001 -> 0.002"),
    ("--preset cispo --force", "was started with preset mu-grpo"),
    ("--task.terms 7", "the problems changed"),
    ("--rollouts.shard_rollouts 24 --force", "rollouts.shard_rollouts: 8 -> 24"),
    ("--schedule.stages 1 --force", "schedule.stages"),
    ("--run-dir other", "--run-dir"),
]


def test_a_change_of_a_run_is_refused_and_nothing_is_touched(run_dir: Path, command: Command):
    before = contents(run_dir)
    for options, words in RUN:
        refused(command("train", run_dir, *options.split()), words)
        assert contents(run_dir) == before


def test_a_config_json_that_is_none_is_refused(run_dir: Path, command: Command):
    config = run_dir / "config.json"
    stored = json.loads(config.read_text())
    older = {"config": stored["config"], "format": stored["format"]}
    for values, words in (
        ({"seed": 0}, "run format None"),
        ({**stored, "format": stored["format"] + 1}, "run format"),
        (older, "approve it with --trust"),
    ):
        config.write_text(json.dumps(values))
        accepted(run_dir)
        refused(command("train", run_dir), words)


LONG_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0] * 16,
    "long_factor": [4.0] * 16,
    "original_max_position_embeddings": 52,  # 48 of them are the response's
}


def test_a_folder_or_file_that_is_no_run_is_refused_and_left(tmp_path: Path, command: Command):
    config, file = write_config(tmp_path / "config"), tmp_path / "file"
    file.write_text("text")
    folder = tmp_path / "thesis"
    folder.mkdir()
    refused(command("train", folder), f"{folder} is an empty directory", "config file")
    (folder / "chapter").write_text("draft")
    (folder / "chapter.tmp.1").write_text("draft")
    for words in (["train", config, "--run-dir", folder], ["train", folder]):
        refused(command(*words), f"{folder} is not a run", "but holds chapter", "--run-dir")
    refused(command("repair", folder), f"{folder} is not a run")
    for words in (["train", config, "--run-dir", file], ["repair", file]):
        refused(command(*words), f"{file} is not a ")
    names = sorted(path.name for path in folder.iterdir())
    assert (file.read_text(), names) == ("text", ["chapter", "chapter.tmp.1"])


@table(
    ("file", "change", "words"),
    [
        ("config.json", None, "cannot be loaded ("),
        ("config.json", {"model_type": "nonesuch"}, "cannot be loaded ("),
        ("config.json", {"hidden_act": "nonesuch"}, "cannot be loaded (there is no 'nonesuch')"),
        ("config.json", {"hidden_act": 3}, "cannot be loaded (Validation error for field 'hidden"),
        ("config.json", {"attn_implementation": "their/kernel"}, "a kernel of the hub, their/kern"),
        ("config.json", {"experts_implementation": "a/b"}, "remove experts_implementation from"),
        ("config.json", {"rope_parameters": LONG_ROPE}, "of the model's context, as its rotation"),
        ("config.json", {"model_type": "t5"}, "which transformers has no causal language model of"),
        ("config.json", {"model_type": "llava"}, "it reads images or sound, and is of the type"),
        ("config.json", {"rope_parameters": {"rope_type": "nonesuch"}}, "there is no 'nonesuch'"),
        ("config.json", {"num_hidden_layers": 0}, "has 0 layers; fix its config.json"),
        ("model.safetensors", None, "cannot be loaded ("),
        ("tokenizer_config.json", {"eos_token": None}, "name one with --model.eos_token"),
    ],
)
def test_a_model_that_cannot_be_used_is_refused(tmp_path, command, file, change, words):
    model = Path(shutil.copytree(MODEL, tmp_path / "model"))
    (model / file).unlink() if change is None else edited(model / file, **change)
    case = Case(tmp_path, command, [])
    case.data()
    refused(case.train("--model.path", model), words)
