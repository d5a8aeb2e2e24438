"""Runs with rollouts from elsewhere: what they hold, what is refused, and what they are trained to.

Each format has a file that its program's own code has written, or with the fields of its writer:

    TRL 1.16       trl/trainer/grpo_trainer.py, GRPOTrainer.log
    verl           b178a3c, verl/trainer/ppo/ray_trainer.py, RayPPOTrainer._dump_generations
    open-instruct  e6c3044, open_instruct/rl_utils.py, RolloutRecord and _save_rollouts
    prime-rl       559b447, src/prime_rl/monitors/file.py, FileMonitor.log_episodes, and of
                   verifiers a60a606, verifiers/v1: episode.py, trace.py, graph.py
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import torch
import transformers

import mugrpo
from mugrpo.cli import main
from mugrpo.disk.records import FinishReason, Status
from mugrpo.disk.run_dir import RunDir
from mugrpo.model.loading import load_tokenizer
from mugrpo.tools import importing
from mugrpo.tools.foreign import FIELDS, FORMATS
from tests.faults.harm import contents, refused
from tests.runs import MODEL, ROOT, Command, Ended, final_weights, read_metrics
from tests.runs import mugrpo as mugrpo_process
from tests.tools.imports import (
    CONFIG,
    EOS,
    RESPONSES,
    Row,
    by_text,
    config_in,
    imported,
    lines,
    notes,
    table,
)

pytest_plugins = ["tests.run_fixtures"]
pytestmark = pytest.mark.usefixtures("no_report")

TOKENIZER = load_tokenizer(mugrpo.load_config().model)
CHARACTERS = {character: TOKENIZER(character)["input_ids"][0] for character in "0123456789+-="}


def ids_of(text: str) -> list[int]:
    return [CHARACTERS[character] for character in text]


def logprobs_of(prompt: str, response: list[int], temperature: float = 1.0) -> np.ndarray:
    """Return the embedded model's logprobs of a response, by a plain forward pass."""
    model = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    ids = torch.tensor([[*ids_of(prompt), *response]])
    with torch.no_grad():
        logits = model(input_ids=ids).logits[0, len(prompt) - 1 : -1] / temperature
    return logits.log_softmax(-1).gather(-1, ids[0, len(prompt) :, None])[:, 0].numpy()


@pytest.fixture
def take(tmp_path: Path, command: Command) -> Any:
    """Return a function that imports rows, or files that are there, into tmp_path/run."""

    def take(
        source: list[Row] | Path, *options: object, config: str = CONFIG, name: str = "r.jsonl"
    ) -> Ended:
        if isinstance(source, list):
            (tmp_path / name).write_text(lines(source))
            source = tmp_path / name
        words = (config_in(tmp_path, config), source, *options, "--run-dir", tmp_path / "run")
        return command("import", *words)

    return take


def chat(folder: Path, special: str) -> str:
    """Return the part of a config for a chat template that puts a text around the user's turn."""
    (folder / "chat.jinja").write_text(f"{special}{{{{ messages[0]['content'] }}}}{special}")
    return f'[prompt]\nform = "chat"\nchat_template = "{folder / "chat.jinja"}"\n'


def checked(ended: Ended) -> Ended:
    assert (ended.status, ended.err) == (0, ""), ended
    return ended


# ---- a plain table ----

GIVEN = {
    "response_ids": [[*ids_of(text), EOS] for texts in RESPONSES.values() for text in texts],
    "logprobs": [[-0.1 * n - 0.01 * t for t in range(6)] for n in range(4)],
}


def test_ids_logprobs_and_rewards_of_a_table_are_used_as_given(take: Any, tmp_path: Path):
    checked(take(table(**GIVEN)))
    assert {key: notes(tmp_path / "run")[key] for key in ("format", "ids", "logprobs")} == {
        "format": "table",
        "ids": "given",
        "logprobs": "given",
    }
    found = by_text(tmp_path / "run", TOKENIZER)
    assert len(found) == 4
    for row in table(**GIVEN):
        rollout, score = found[row["prompt"], row["response"]]
        assert rollout.prompt_ids.tolist() == ids_of(row["prompt"])
        assert rollout.response_ids.tolist() == row["response_ids"]
        assert rollout.behavior_logprobs.tolist() == np.float32(row["logprobs"]).tolist()
        assert rollout.finish_reason is FinishReason.STOP
        assert score.reward == row["reward"]
        assert score.status is (Status.RIGHT if row["reward"] else Status.WRONG)


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "csv"])
def test_files_of_each_kind_give_the_same_run(take: Any, tmp_path: Path, kind: str):
    rows = table(**GIVEN)
    if kind == "csv":
        rows = [
            {k: json.dumps(v) if isinstance(v, list) else v for k, v in r.items()} for r in rows
        ]
    file = tmp_path / f"rows.{kind}"
    if kind == "jsonl":
        file.write_text(lines(rows))
    elif kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), file)
    else:
        pyarrow.csv.write_csv(pa.Table.from_pylist(rows), file)
    checked(take(file))
    rollouts = [rollout for rollout, _ in imported(tmp_path / "run").values()]
    assert sorted(r.behavior_logprobs.tolist() for r in rollouts) == sorted(
        np.float32(values).tolist() for values in GIVEN["logprobs"]
    )


def test_other_columns_can_be_named_and_rewards_summed_with_weights(take: Any, tmp_path: Path):
    rows = [
        {"question": r["prompt"], "output": r["response"], "right": r["reward"], "short": 1.0}
        for r in table()
    ]
    rows = [row | {"gold": RESPONSES[row["question"]][0][-1]} for row in rows]
    columns = "prompt=question,response=output,reward=right+0.5*short,answer=gold"
    checked(take(rows, "--columns", columns, "--policy", "chain"))
    rewards = sorted(score.reward for _, score in imported(tmp_path / "run").values())
    assert rewards == [0.5, 0.5, 1.5, 1.5]


def test_made_ids_end_unless_they_are_as_many_as_a_response_may_have(take: Any, tmp_path: Path):
    ended = checked(take(table(), "--policy", "chain", "--rollouts.max_new_tokens", 6))
    assert "the ids of 4 responses are made by the tokenizer, and may differ" in ended.out
    assert notes(tmp_path / "run")["ids"] == "made by the tokenizer for 4 rollouts"
    for (_, text), (rollout, _) in by_text(tmp_path / "run", TOKENIZER).items():
        assert rollout.response_ids.tolist() == [*ids_of(text), EOS]


def test_a_finish_reason_says_whether_made_ids_ended(take: Any, tmp_path: Path):
    reasons = ["stop", "length", "stop", "length"]
    checked(take(table(finish_reason=reasons), "--policy", "chain"))
    found = by_text(tmp_path / "run", TOKENIZER)
    assert found["3+2=", "3+2=5"][0].response_ids.tolist() == [*ids_of("3+2=5"), EOS]
    cut = found["3+2=", "3+2=6"][0]
    assert cut.response_ids.tolist() == ids_of("3+2=6")
    assert cut.finish_reason is FinishReason.LENGTH


def test_a_named_policy_computes_the_logprobs_and_the_manifest_says_so(take: Any, tmp_path: Path):
    """At the temperature of the config, also in place of logprobs that the file has."""
    config = CONFIG.replace("[rollouts]", "[rollouts]\ntemperature = 1.3")
    checked(take(table(**GIVEN), "--policy", MODEL, config=config))
    assert notes(tmp_path / "run")["logprobs"] == f"computed by {MODEL}"
    assert len(notes(tmp_path / "run")["logprobs_model_sha256"]) == 64
    for (prompt, _), (rollout, _) in by_text(tmp_path / "run", TOKENIZER).items():
        expected = logprobs_of(prompt, rollout.response_ids.tolist(), 1.3)
        np.testing.assert_allclose(rollout.behavior_logprobs, expected, atol=1e-5)


def test_an_imported_run_is_scored_again_compared_and_trained_on(
    take: Any, tmp_path: Path, command: Command
):
    """The logprobs are those of the model, so that every ratio of the first update is 1."""
    run_dir = tmp_path / "run"
    rows = [row | {"reward": 1 - row["reward"]} for row in table()]  # the wrong way round
    options = ("--policy", "chain", "--optimizer.lr", "1e-3", "--evaluation.every", 1)
    assert "nothing is evaluated: no problem" in checked(take(rows, *options)).out
    before = {key: rollout.response_ids.tolist() for key, (rollout, _) in imported(run_dir).items()}
    checked(command("score", run_dir, "--stage", 0, "--again"))
    for (_, text), (_, score) in by_text(run_dir, TOKENIZER).items():
        right = text in [texts[0] for texts in RESPONSES.values()]
        assert score.reward == float(right)
    checked(command("bakeoff", run_dir, "--objectives", "mu-grpo,grpo"))
    checked(command("optimize", run_dir))
    assert final_weights(run_dir, 2) == final_weights(run_dir / "bakeoff/stage-000/mu-grpo", 2)
    first = next(line for line in read_metrics(run_dir) if line["kind"] == "update")
    for sign in ("negative", "positive"):
        assert first[f"ratio/{sign}/max"] == pytest.approx(1, abs=1e-4)
    after = {key: rollout.response_ids.tolist() for key, (rollout, _) in imported(run_dir).items()}
    assert after == before


def test_problems_of_the_configs_own_data_give_answers_and_are_held_out(
    take: Any, tmp_path: Path, command: Command
):
    """Rollouts without answers answer one of the problems to train on, and one held out."""
    own = {"data": {"2-1=": "1", "4+4=": "8"}, "eval_data": {"1+1=": "2", "3+2=": "5"}}
    options: list[object] = ["--policy", "chain"]
    for name, problems in own.items():
        rows = [{"prompt": prompt, "answer": answer} for prompt, answer in problems.items()]
        (tmp_path / f"{name}.jsonl").write_text(lines(rows))
        options += [f"--task.{name}", tmp_path / f"{name}.jsonl"]
    rows = [{k: v for k, v in row.items() if k != "answer"} for row in table()]
    checked(take(rows, *options))
    run_dir, answers = tmp_path / "run", {}
    for name in ("problems", "held_out"):
        stored = map(json.loads, (run_dir / f"{name}.jsonl").open())
        answers[name] = {row["prompt"]: row["answer"] for row in stored}
    assert answers == {"problems": {"3+2=": "5", "2-1=": "1"}, "held_out": {"1+1=": "2"}}
    checked(command("score", run_dir, "--stage", 0, "--again"))
    assert "problems: 1\n" in checked(command("evaluate", run_dir)).out


def test_prompts_that_are_only_ids_are_found_among_the_configs_problems(take: Any, tmp_path: Path):
    data = [{"prompt": p, "answer": texts[0][-1]} for p, texts in RESPONSES.items()]
    (tmp_path / "problems.jsonl").write_text(lines(data))
    rows = [
        {"prompt_ids": [EOS, *ids_of("1=" + row["prompt"]), EOS, *ids_of("1=")], **row}
        for row in table(**GIVEN)
    ]
    rows = [{k: v for k, v in row.items() if k not in ("prompt", "answer")} for row in rows]
    known = ("--task.data", tmp_path / "problems.jsonl", "--task.eval_share", 0.0)
    checked(take(rows, *known, config=CONFIG + chat(tmp_path, "<eos>1=")))
    stored = map(json.loads, (tmp_path / "run" / "problems.jsonl").open())
    assert {row["prompt"]: row["answer"] for row in stored} == {"3+2=": "5", "2-1=": "1"}


def test_a_data_set_on_the_hub_is_a_table_unless_it_needs_code(
    take: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: table(**GIVEN))
    checked(take(Path("someone/rollouts")))
    assert len(imported(tmp_path / "run")) == 4
    (tmp_path / "run").rename(tmp_path / "loaded")

    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("Dataset scripts are no longer supported, but found rollouts.py")

    monkeypatch.setattr(datasets, "load_dataset", refuse)
    parts = ("someone/rollouts is a data set with code of its own", "save its rows as a JSONL or")
    refused(take(Path("someone/rollouts")), *parts)
    assert not (tmp_path / "run").exists()


# ---- TRL ----


def written_by_trl(folder: Path, monkeypatch: pytest.MonkeyPatch, step: int, **logs: Any) -> Path:
    """Have TRL's own code write a file of completions, without training a model."""
    from trl import GRPOTrainer
    from trl.trainer import grpo_trainer

    monkeypatch.setattr(grpo_trainer, "is_rich_available", lambda: False)
    monkeypatch.setattr(transformers.Trainer, "log", lambda *_: None)
    trainer = object.__new__(GRPOTrainer)
    (folder / "completions").mkdir(exist_ok=True)
    trainer.__dict__ |= {
        "model": SimpleNamespace(training=True),
        "_metrics": {"train": {}},
        "accelerator": SimpleNamespace(is_main_process=True),
        "log_completions": True,
        "log_unique_prompts": False,
        "args": SimpleNamespace(report_to=[], output_dir=str(folder)),
        "state": SimpleNamespace(global_step=step),
        "_logs": {"extra": {}, "images": [], **logs},
    }
    trainer.log({})
    return folder / "completions"


def trl_logs(**rewards: list[float]) -> dict[str, Any]:
    rows = table()
    return {
        "prompt": [row["prompt"] for row in rows],
        "completion": [row["response"] for row in rows],
        "rewards": rewards or {"right": [row["reward"] for row in rows]},
        "advantages": [0.7, -0.7, 0.7, -0.7],
        "extra": {"solution": [row["answer"] for row in rows]},
    }


def test_completions_of_trl(take: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """`solution` is an extra column, which a reward function has logged."""
    folder = written_by_trl(tmp_path, monkeypatch, 3, **trl_logs())
    assert [file.name for file in folder.iterdir()] == ["completions_00003.parquet"]
    options = ("--format", "trl", "--policy", "chain")
    ended = take(folder, *options)
    refused(ended, "has 2 columns that may be rewards (right, solution)", "--columns reward=")
    checked(take(folder, *options, "--columns", "reward=right,answer=solution"))
    found = by_text(tmp_path / "run", TOKENIZER)
    assert {key: score.reward for key, (_, score) in found.items()} == {
        (row["prompt"], row["response"]): row["reward"] for row in table()
    }
    assert notes(tmp_path / "run")["format"] == "trl"


def test_a_reward_function_of_trl_may_give_no_reward(
    take: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    nan = float("nan")
    logs = trl_logs(right=[1.0, nan, 1.0, 0.0], short=[0.5, nan, nan, 0.5])
    folder = written_by_trl(tmp_path, monkeypatch, 1, **logs)
    columns = "reward=right+2*short,answer=solution"
    checked(take(folder, "--format", "trl", "--policy", "chain", "--columns", columns))
    scores = {key[1]: score for key, (_, score) in by_text(tmp_path / "run", TOKENIZER).items()}
    assert {text: score.reward for text, score in scores.items()} == {
        "3+2=5": 2.0,
        "3+2=6": None,
        "2-1=1": 1.0,
        "2-1=0": 1.0,
    }
    assert scores["3+2=6"].status is Status.SKIPPED


def test_conversations_of_trl(
    take: Any, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
):
    """They have no answers: those of data are used, or a function scores them.

    An export has conversations, too.
    """
    logs = trl_logs() | {"extra": {}}
    logs["prompt"] = [[{"role": "user", "content": text}] for text in logs["prompt"]]
    logs["completion"] = [[{"role": "assistant", "content": text}] for text in logs["completion"]]
    folder = written_by_trl(tmp_path, monkeypatch, 1, **logs)
    options = ("--format", "trl", "--policy", "chain")
    config = CONFIG.replace("[task]", f"{chat(tmp_path, '')}\n[task]")
    refused(take(folder, *options, config=config), "has no reference answer")
    data = [{"prompt": p, "answer": texts[0][-1]} for p, texts in RESPONSES.items()]
    (tmp_path / "problems.jsonl").write_text(lines(data))
    known = ("--task.data", tmp_path / "problems.jsonl", "--task.eval_share", 0.0)
    checked(take(folder, *options, *known, config=config))
    (tmp_path / "run").rename(tmp_path / "found")
    (tmp_path / "rewards.py").write_text("def right(completions, **_):\n    return [1.0]\n")
    own = config[config.index("rewards = ") : config.index("\nworkers")]
    config = config.replace(own, f'rewards = ["{tmp_path / "rewards.py"}:right"]')
    checked(take(folder, *options, config=config))
    assert set(by_text(tmp_path / "run", TOKENIZER)) == {
        (prompt, text) for prompt, texts in RESPONSES.items() for text in texts
    }
    checked(command("export", tmp_path / "run", tmp_path / "set"))
    [file] = (tmp_path / "set" / "data").iterdir()
    prompts = pq.read_table(file)["prompt"].to_pylist()
    assert {json.dumps(prompt) for prompt in prompts} == {
        json.dumps([{"role": "user", "content": prompt}]) for prompt in RESPONSES
    }


def test_a_batch_that_trl_logs_at_two_steps_is_one(
    take: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """TRL logs the last batch at every step, even if several steps train on it."""
    for step in (1, 2):
        folder = written_by_trl(tmp_path, monkeypatch, step, **trl_logs())
    options = ("--format", "trl", "--policy", "chain", "--columns", "reward=right,answer=solution")
    refused(take(folder, *options), "4 rows repeat others", "00002.parquet, row 1)", "keep")
    ended = checked(take(folder, *options, "--duplicates", "drop"))
    assert len(imported(tmp_path / "run")) == 4 and "4 rows are left out" in ended.out


def test_equal_batches_that_are_kept_are_groups_of_their_own(
    take: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for step in (1, 2):
        folder = written_by_trl(tmp_path, monkeypatch, step, **trl_logs())
    columns = ("--columns", "reward=right,answer=solution", "--duplicates", "keep")
    checked(take(folder, "--format", "trl", "--policy", "chain", *columns))
    ids = {problem for problem, _ in imported(tmp_path / "run")}
    assert len(imported(tmp_path / "run")) == 8
    assert sorted(identity.partition("#")[2] for identity in ids) == ["", "", "1", "1"]


# ---- verl ----


def verl_rows(prompts: dict[str, str] | None = None) -> list[Row]:
    """Return the lines of 7.jsonl: `input` is what the chat template wrote, decoded."""
    return [
        {
            "input": (prompts or {}).get(row["prompt"], row["prompt"]),
            "output": row["response"],
            "gts": row["answer"],
            "score": row["reward"],
            "step": 7,
            "acc": bool(row["reward"]),
            "request_id": str(number),
        }
        for number, row in enumerate(table())
    ]


def test_rollouts_of_verl(take: Any, tmp_path: Path):
    folder = tmp_path / "dump"
    folder.mkdir()
    (folder / "7.jsonl").write_text(lines(verl_rows()))
    checked(take(folder, "--format", "verl", "--policy", "chain"))
    found = by_text(tmp_path / "run", TOKENIZER)
    assert {key: score.reward for key, (_, score) in found.items()} == {
        (row["prompt"], row["response"]): row["reward"] for row in table()
    }


def test_prompts_of_verl_are_found_among_the_configs_problems(take: Any, tmp_path: Path):
    """The dump lacks the template's special tokens; a run's prompt has them."""
    data = [{"prompt": p, "answer": texts[0][-1]} for p, texts in RESPONSES.items()]
    (tmp_path / "problems.jsonl").write_text(lines(data))
    config = CONFIG + chat(tmp_path, "<eos>1=")
    rows = verl_rows({prompt: f"1={prompt}1=" for prompt in RESPONSES})
    options = ("--format", "verl", "--policy", "chain")
    refused(take(rows, *options, config=config), "is the text that a chat template wrote")
    own = config.replace(
        "[task]", f'[task]\ndata = "{tmp_path / "problems.jsonl"}"\neval_share = 0.0'
    )
    checked(take(rows, *options, config=own))
    prompts = {tuple(r.prompt_ids.tolist()) for r, _ in imported(tmp_path / "run").values()}
    around = (EOS, *ids_of("1="))
    assert prompts == {(*around, *ids_of(prompt), *around) for prompt in RESPONSES}


# ---- open-instruct ----


def open_instruct_rows() -> list[Row]:
    return [
        {
            "step": 1,
            "sample_idx": number,
            "prompt_idx": number // 2,
            "prompt_tokens": ids_of(row["prompt"]),
            "response_tokens": row["response_ids"],
            "reward": 10 * row["reward"],
            "advantage": 1.0 - 2 * (number % 2),
            "finish_reason": "stop",
            "dataset": "chain",
            "ground_truth": [row["answer"]],
            "request_info": {"num_calls": 0, "tool_calleds": False, "tool_outputs": ""},
            "logprobs": row["logprobs"],
        }
        for number, row in enumerate(table(**GIVEN))
    ]


def test_rollouts_of_open_instruct(take: Any, tmp_path: Path):
    """The file of metadata beside them is not read."""
    folder = tmp_path / "rollouts"
    folder.mkdir()
    (folder / "mine_rollouts_000000.jsonl").write_text(lines(open_instruct_rows()))
    (folder / "mine_metadata.jsonl").write_text(lines([{"run_name": "mine"}]))
    checked(take(folder, "--format", "open-instruct"))
    found = by_text(tmp_path / "run", TOKENIZER)
    for row in table(**GIVEN):
        rollout, score = found[row["prompt"], row["response"]]
        assert rollout.behavior_logprobs.tolist() == np.float32(row["logprobs"]).tolist()
        assert rollout.response_ids.tolist() == row["response_ids"]
        assert score.reward == 10 * row["reward"]
    answers = [json.loads(text)["answer"] for text in (tmp_path / "run/problems.jsonl").open()]
    assert answers == ["5", "1"]


def test_responses_of_open_instruct_with_tools_are_refused(take: Any):
    rows = open_instruct_rows()
    rows[2]["request_info"]["tool_calleds"] = True
    refused(take(rows, "--format", "open-instruct"), "line 3 called a tool")


def test_logprobs_that_are_not_numbers_are_refused_or_computed(take: Any):
    """open-instruct gives a response without tokens the end's token, with the logprob NaN."""
    rows = open_instruct_rows()
    rows[1] |= {"response_tokens": [EOS], "logprobs": [float("nan")]}
    refused(take(rows, "--format", "open-instruct"), "line 2: it has the logprob nan")
    checked(take(rows, "--format", "open-instruct", "--policy", "chain"))


def test_a_response_that_stopped_without_its_token_is_told_of(take: Any):
    rows = open_instruct_rows()
    rows[0]["response_tokens"], rows[0]["logprobs"] = ids_of("3+2=5"), [-0.1] * 5
    ended = checked(take(rows, "--format", "open-instruct"))
    assert "warning: 1 responses are said to have ended, or are shorter" in ended.out


# ---- prime-rl ----


def prime_rl_episode(number: int, row: Row) -> Row:
    """Return an episode as Episode.to_record gives it, without what is None."""
    user = {"role": "user", "content": row["prompt"]}
    nodes = [
        {
            "message": user,
            "sampled": False,
            "timestamp": 1.0,
            "token_ids": ids_of(row["prompt"][:-1]),
            "mask": [False] * (len(row["prompt"]) - 1),
            "is_content": [],
            "logprobs": [],
        },
        {  # the generation prompt comes first, and is not sampled
            "parent": 0,
            "message": {"role": "assistant", "content": row["response"]},
            "sampled": True,
            "timestamp": 2.0,
            "token_ids": [*ids_of(row["prompt"][-1]), *row["response_ids"]],
            "mask": [False] + [True] * len(row["response_ids"]),
            "is_content": [],
            "logprobs": row["logprobs"],
            "advantages": [0.5] * len(row["response_ids"]),
        },
    ]
    data = {"idx": number // 2, "prompt": row["prompt"], "answer": row["answer"]}
    task = {"type": "ChainTask", "data": data, "key": str(number // 2), "hash": "0"}
    trace = {
        "version": 1,
        "id": f"trace{number}",
        "verifiers": {"version": "0.3.1"},
        "task": task,
        "agent": {"config": {}, "name": "agent", "trainable": True},
        "tools": [],
        "nodes": nodes,
        "calls": [
            {
                "node": 1,
                "model": "chain",
                "sampling": {"temperature": 1.0},
                "finish_reason": "stop",
                "time": {"start": 1.0, "end": 2.0},
            }
        ],
        "rewards": {
            "right": {"score": row["reward"], "weight": 2.0},
            "short": {"score": 1.0, "weight": 0.5},
        },
        "metrics": {},
        "info": {},
        "is_completed": True,
        "ok": True,
        "errors": [],
    }
    judge = trace | {"id": f"judge{number}", "agent": {"config": {}, "trainable": False}}
    work = {"type": "train", "step": 4, "policy": {"start": 3, "end": 3}}
    return {
        "id": f"episode{number}",
        "env": {"id": "chain"},
        "task": task,
        "group": {"id": f"group{number // 2}"},
        "run": {"type": "train", "id": "run", "work": work},
        "ok": True,
        "errors": [],
        "traces": [judge, trace],
    }


def prime_rl_rows() -> list[Row]:
    return [prime_rl_episode(number, row) for number, row in enumerate(table(**GIVEN))]


def test_rollouts_of_prime_rl(take: Any, tmp_path: Path):
    """Of a run's folder only those that were trained on are read."""
    folder = tmp_path / "rollouts" / "step_4" / "train"
    for subset, rows in {"effective": prime_rl_rows(), "all": [{"traces": "broken"}]}.items():
        (folder / subset).mkdir(parents=True)
        (folder / subset / "traces.jsonl").write_text(lines(rows))
    config = CONFIG + chat(tmp_path, "")
    ended = take(tmp_path / "rollouts", "--format", "prime-rl")
    refused(ended, "is a conversation; use --prompt.form chat")
    checked(take(tmp_path / "rollouts", "--format", "prime-rl", config=config))
    found = by_text(tmp_path / "run", TOKENIZER)
    assert len(found) == 4
    for row in table(**GIVEN):
        rollout, score = found[row["prompt"], row["response"]]
        assert rollout.prompt_ids.tolist() == ids_of(row["prompt"])
        assert rollout.response_ids.tolist() == row["response_ids"]
        assert rollout.behavior_logprobs.tolist() == np.float32(row["logprobs"]).tolist()
        assert score.reward == 2 * row["reward"] + 0.5


def test_traces_of_prime_rl_with_several_turns_are_refused(take: Any):
    rows = prime_rl_rows()
    nodes = rows[1]["traces"][1]["nodes"]
    nodes += [nodes[0] | {"parent": 1}, nodes[1] | {"parent": 2}]
    refused(take(rows, "--format", "prime-rl"), "line 2", "several turns cannot be trained on")


# ---- bad input ----


def changed(number: int, **values: Any) -> list[Row]:
    rows = table(**GIVEN)
    rows[number] |= values
    return [{k: v for k, v in row.items() if v is not None} for row in rows]


@pytest.mark.parametrize(
    ("rows", "parts"),
    [
        (
            [{"prompt": "3+2=", "response": "5"}],
            ("line 1 has no column 'reward'", "it has 'prompt', 'response'", "--columns reward="),
        ),
        (changed(1, prompt=None), ("line 2: it has neither a prompt nor prompt_ids",)),
        (
            changed(1, response_ids=[5, 16], logprobs=[-1, -1]),
            ("line 2", "ids 5 to 16", "0 to 15", "model.path"),
        ),
        (changed(1, response_ids=[-1, 5], logprobs=[-1, -1]), ("line 2", "ids -1 to 5")),
        (changed(1, logprobs=[-0.1]), ("line 2", "6 response ids with 1 logprobs", "--policy")),
        (changed(1, logprobs=[-0.1] * 5 + [0.5]), ("line 2", "logprob 0.5", "not above 0")),
        (changed(1, logprobs=[float("-inf")] * 6), ("line 2", "logprob -inf", "finite")),
        (changed(1, logprobs=None), ("line 2 has no logprobs", "--policy PATH")),
        (changed(1, reward=float("nan")), ("line 2", "reward", "nan", "finite number")),
        (changed(1, reward=float("inf")), ("line 2", "reward", "inf", "finite number")),
        (changed(1, reward=True), ("line 2", "reward", "True", "finite number")),
        (changed(1, reward="high"), ("line 2", "high")),
        (changed(1, response="", response_ids=None), ("line 2", "its response is empty")),
        (changed(1, response_ids=[]), ("line 2", "not empty")),
        (changed(1, response="3+2=\ud83d"), ("line 2", "surrogates not allowed")),
        (changed(1, prompt="\ud83d"), ("line 2", "half a surrogate pair")),
        (changed(1, logprobs=[-1e39] * 6), ("line 2", "logprob -1e+39", "finite")),
        (changed(1, seed=-1), ("line 2", "seed", "-1")),
        (changed(1, parts="[]"), ("line 2", "no JSON object")),
        (changed(1, status="skipped"), ("line 2", "status 'skipped' has reward 0.0")),
        (changed(1, status="fine"), ("line 2", "'fine' is not a valid Status")),
        (changed(1, reward=10**400), ("line 2", "too large")),
        (changed(1, seed=float("inf")), ("line 2", "infinity")),
        (changed(1, seed=2.7), ("line 2", "seed", "2.7", "whole number")),
        (changed(1, problem_id=" "), ("line 2", "its problem_id is blank")),
        (changed(1, problem_id="\ud83d"), ("line 2", "surrogates not allowed")),
        (changed(1, answer=float("nan")), ("line 2", "its answer is nan", "finite number")),
        (changed(1, prompt=None, prompt_ids=[-5, 3]), ("line 2", "ids -5 to 3")),
        (
            changed(1, response_ids=[5, EOS, EOS], logprobs=[-1, -1, -1]),
            ("line 2: its response goes on after the end-of-sequence token 1", "padding"),
        ),
        (changed(1, temperature=0.7), ("line 2 was sampled at temperature 0.7", "--rollouts.temp")),
        (changed(1, response_ids=[5] * 9, logprobs=[-1] * 9), ("line 2", "9 tokens", "= 8; raise")),
    ],
)
def test_a_row_that_cannot_be_used_is_named_and_can_be_left_out(
    take: Any, tmp_path: Path, rows: list[Row], parts: tuple[str, ...]
):
    """Without it one group is left, of the other prompt: the row's group is cut away."""
    refused(take(rows), *parts, "--bad drop")
    assert not (tmp_path / "run").exists()
    ended = take(rows, "--bad", "drop", "--group-size", 2)
    if len(rows) == 1:
        refused(ended, "no rollout is left", *parts[:1])
        return
    checked(ended)
    assert len(imported(tmp_path / "run")) == 2 and "2 rows are left out" in ended.out


def test_groups_of_unequal_size_are_refused_or_cut(take: Any, tmp_path: Path):
    rows = [*table(**GIVEN), table(**GIVEN)[0] | {"response": "5", "logprobs": [-0.5] * 6}]
    refused(take(rows), "groups of unequal", "1 of 2, 1 of 3", "--group-size N")
    ended = checked(take(rows, "--group-size", 2))
    assert len(imported(tmp_path / "run")) == 4
    assert "1 rows are left out; the first" in ended.out and "line 5 is left over" in ended.out


def test_groups_of_less_than_two_are_refused(take: Any):
    refused(take(table(**GIVEN), "--group-size", 0), "--group-size 0: a group is two or more")
    refused(take([table(**GIVEN)[0]]), "1 of 1", "two or more responses")


def test_rows_that_are_there_twice_are_refused_dropped_or_kept(take: Any, tmp_path: Path):
    rows = [*table(**GIVEN), *table(**GIVEN)]
    refused(take(rows), "4 rows repeat others", "line 5)", "--duplicates drop", "--duplicates keep")
    checked(take(rows, "--duplicates", "keep"))
    assert len(imported(tmp_path / "run")) == 8
    (tmp_path / "run").rename(tmp_path / "kept")
    checked(take(rows, "--duplicates", "drop"))
    assert len(imported(tmp_path / "run")) == 4


def test_equal_responses_of_numbered_samples_are_different_samples(take: Any, tmp_path: Path):
    rows = [table(**GIVEN)[0] | {"sample": number} for number in range(4)]
    checked(take(rows))
    assert len(imported(tmp_path / "run")) == 4
    (tmp_path / "run").rename(tmp_path / "numbered")
    refused(take([*rows, rows[0]]), "1 rows repeat others", "line 5)")


def test_rollouts_without_answers_need_a_reward_that_needs_none(take: Any):
    rows = [{k: v for k, v in row.items() if k != "answer"} for row in table(**GIVEN)]
    parts = ("line 1 has no reference answer, and the reward regex needs one", "task.data")
    refused(take(rows), *parts, "--columns answer=COLUMN")
    refused(take([*rows[:2], *table(**GIVEN)[2:]]), *parts)


def test_prompts_that_the_configs_data_lacks_are_refused(take: Any, tmp_path: Path):
    (tmp_path / "problems.jsonl").write_text(lines([{"prompt": "3+2=", "answer": "5"}]))
    data = f'[task]\neval_share = 0.0\ndata = "{tmp_path / "problems.jsonl"}"'
    ended = take(table(**GIVEN), config=CONFIG.replace("[task]", data))
    refused(ended, "line 3: its prompt is none of those in task.data", "--bad drop")


def test_too_few_groups_for_an_update_are_refused(take: Any):
    ended = take(table(**GIVEN), "--schedule.problems_per_update", 3)
    refused(ended, "have 2 groups", "schedule.problems_per_update = 3; lower that")


def test_an_embedded_task_is_refused(take: Any):
    ended = take(table(**GIVEN), config="seed = 1")
    refused(ended, "need task.name = 'dataset', with task.rewards")


def test_a_run_that_exists_is_left_as_it_is(take: Any, tmp_path: Path):
    checked(take(table(**GIVEN)))
    before = contents(tmp_path / "run")
    refused(take(table()), f"{tmp_path / 'run'} exists already", "--run-dir")
    assert contents(tmp_path / "run") == before


def test_a_folder_without_files_of_the_format_is_refused(take: Any, tmp_path: Path):
    (tmp_path / "empty").mkdir()
    ended = take(tmp_path / "empty", "--format", "open-instruct")
    refused(ended, "has no file *_rollouts_*.jsonl of the format open-instruct")


def test_a_policy_with_fewer_ids_is_refused(take: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(importing, "load_policy", lambda _: SimpleNamespace(vocab_size=7))
    refused(take(table(), "--policy", "other"), "--policy other has 7 token ids", "the id 14")


def test_text_that_ends_with_the_end_token_gets_no_second_one(take: Any, tmp_path: Path):
    rows = table(finish_reason=["stop"] * 4)
    rows = [row | {"response": row["response"] + "<eos>"} for row in rows]
    checked(take(rows, "--policy", "chain"))
    for (_, text), (rollout, _) in by_text(tmp_path / "run", TOKENIZER).items():
        assert rollout.response_ids.tolist() == [*ids_of(text), EOS]
        assert rollout.finish_reason is FinishReason.STOP


def test_an_unknown_finish_reason_is_refused_if_the_ids_are_made(take: Any, tmp_path: Path):
    """Given ids tell by themselves whether they have ended."""
    reasons = ["stop", "eos_token", "length", "stop"]
    ended = take(table(finish_reason=reasons), "--policy", "chain")
    refused(ended, "line 2: its finish_reason 'eos_token' is neither stop nor length", "--bad drop")
    checked(take(table(finish_reason=reasons, **GIVEN)))
    assert len(imported(tmp_path / "run")) == 4


def test_a_response_shorter_than_the_longest_without_an_end_is_told_of(take: Any):
    rows = table(**GIVEN)
    rows[0] |= {"response_ids": ids_of("3+2=5"), "logprobs": [-0.1] * 5}
    assert "warning: 1 responses are said to have ended, or are shorter" in checked(take(rows)).out


def test_a_response_as_long_as_may_be_or_cut_needs_no_end(take: Any):
    rows = table(**GIVEN)
    rows[0] |= {"response_ids": ids_of("3+2=5"), "logprobs": [-0.1] * 5, "finish_reason": "length"}
    rows[1] |= {"response_ids": ids_of("3+2=6++3"), "logprobs": [-0.1] * 8, "response": "3+2=6++3"}
    assert "warning" not in checked(take(rows)).out


def test_ids_that_stand_for_another_text_are_told_of(take: Any):
    """Special tokens do not make a text another one."""
    rows = table(**GIVEN)
    rows[0]["response"] += "<eos>"
    rows[2]["response"] = "2-1=2"
    ended = checked(take(rows))
    assert "the ids of 1 responses stand for another text" in ended.out and "line 3)" in ended.out


def test_prompt_ids_that_the_run_would_not_make_are_told_of(take: Any):
    own = [ids_of(row["prompt"]) for row in table()]
    other = [[EOS, *ids] if number > 1 else ids for number, ids in enumerate(own)]
    ended = checked(take(table(prompt_ids=other, **GIVEN)))
    assert "the prompts of 1 groups have other ids than the run gives" in ended.out
    assert "line 3)" in ended.out


def test_prompt_ids_that_the_run_would_make_are_not_told_of(take: Any):
    own = [ids_of(row["prompt"]) for row in table()]
    assert "warning" not in checked(take(table(prompt_ids=own, **GIVEN))).out


def test_groups_that_do_not_fill_a_batch_are_told_of(take: Any, tmp_path: Path):
    rows = [*table(**GIVEN), *(row | {"prompt": "1+1="} for row in table(**GIVEN)[:2])]
    ended = checked(take(rows, "--schedule.problems_per_update", 2))
    assert "3 groups of 2 rollouts, for 1 batches\n1 of the groups do not fill a batch" in ended.out
    assert len(imported(tmp_path / "run")) == 4


def test_a_temperature_in_single_precision_is_that_of_the_config(take: Any, tmp_path: Path):
    values = pa.array([0.7] * 4, pa.float32())
    file = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_pylist(table(**GIVEN)).append_column("temperature", values), file)
    checked(take(file, "--rollouts.temperature", 0.7))
    assert {r.temperature for r, _ in imported(tmp_path / "run").values()} == {0.7}


def test_empty_cells_of_csv_are_missing(take: Any, tmp_path: Path):
    header = "prompt,response,reward,answer,finish_reason,temperature,seed,status\n"
    rows = '"3+2=","3+2=5",1,5,,,,\n"3+2=","3+2=6",,5,,1.0,7,skipped\n'
    (tmp_path / "rows.csv").write_text(header + rows)
    checked(take(tmp_path / "rows.csv", "--policy", "chain"))
    found = {rollout.seed: score for rollout, score in imported(tmp_path / "run").values()}
    assert (found[0].reward, found[0].status) == (1.0, Status.RIGHT)
    assert (found[7].reward, found[7].status) == (None, Status.SKIPPED)


def test_parts_may_be_an_object(take: Any, tmp_path: Path):
    checked(take(table(parts=[{"judge": n} for n in range(4)], **GIVEN)))
    parts = [score.parts for _, score in imported(tmp_path / "run").values()]
    assert sorted(part["judge"] for part in parts) == [0, 1, 2, 3]


def test_a_prompt_of_several_problems_is_told_apart_by_id_or_answer(take: Any, tmp_path: Path):
    data = [("a", "3+2=", "5"), ("b", "3+2=", "6"), ("c", "2-1=", "1")]
    data_rows = [dict(zip(("id", "prompt", "answer"), one, strict=True)) for one in data]
    (tmp_path / "problems.jsonl").write_text(lines(data_rows))
    options: list[object] = ["--task.data", tmp_path / "problems.jsonl", "--task.eval_share", 0.0]
    options += ["--task.id_column", "id"]
    rows = [{k: v for k, v in row.items() if k != "answer"} for row in table(**GIVEN)]
    ended = take(rows, *options)
    refused(ended, "line 1: its prompt is that of 2 problems in task.data", "problem_id nor its")
    for known in ({"problem_id": "b"}, {"answer": "6"}):
        checked(take([row | known for row in rows[:2]], *options))
        assert {r.problem_id for r, _ in imported(tmp_path / "run").values()} == {"b"}
        (tmp_path / "run").rename(tmp_path / f"by_{next(iter(known))}")


def test_a_held_out_problem_with_the_prompt_of_a_rollout_is_not_evaluated_on(
    take: Any, tmp_path: Path
):
    data = [{"prompt": "3+2=", "answer": "5"}, {"prompt": "3+2=", "answer": "6"}]
    for name, some in {"own": [{"prompt": "1+1=", "answer": "2"}], "held": data}.items():
        (tmp_path / f"{name}.jsonl").write_text(lines(some))
    files = ("--task.data", tmp_path / "own.jsonl", "--task.eval_data", tmp_path / "held.jsonl")
    ended = checked(take(table(**GIVEN)[:2], *files))
    assert "nothing is evaluated" in ended.out
    assert not (tmp_path / "run" / "held_out.jsonl").exists()


def test_two_answers_to_one_problem_are_refused(take: Any):
    rows = [row | {"problem_id": row["prompt"]} for row in table(**GIVEN)]
    rows[1]["answer"] = "6"
    refused(take(rows), "line 2 has the answer '6', but earlier rows", "problem_id", "'5'")


def test_two_responses_of_one_sample_are_refused(take: Any):
    """As if the files of two runs were one."""
    rows = [row | {"sample": number % 2} for number, row in enumerate(table(**GIVEN))]
    rows += [row | {"reward": 0.5} for row in rows]
    for what in ("refuse", "drop", "keep"):
        ended = take(rows, "--duplicates", what)
        refused(ended, "line 5 and", "line 1 are both sample 0 of one group", "one run at a time")


@pytest.mark.parametrize(
    "option", ["eval_data", "system_prompt", "prompt_template", "answer_pattern", "split"]
)
def test_options_for_data_that_is_not_named_are_refused(take: Any, option: str):
    """They would do nothing: the prompts of the rollouts are taken as they are."""
    ended = take(table(**GIVEN), f"--task.{option}", "({prompt})")
    refused(ended, f"task.{option} is for problems of your own", "name them with task.data")


def test_an_answer_that_the_reward_numeric_cannot_use_is_named_by_its_row(take: Any):
    config = CONFIG.replace('{ name = "regex", pattern = "=([0-9])$" }', '{ name = "numeric" }')
    ended = take(table(**GIVEN) + [table(**GIVEN)[0] | {"answer": "x"}] * 2, config=config)
    refused(ended, "rows repeat others")
    rows = [*table(**GIVEN)[:2], *(row | {"answer": "x"} for row in table(**GIVEN)[2:])]
    refused(take(rows, config=config), "line 3 has the reference answer 'x'", "reward numeric")


def test_a_policy_with_fewer_ids_than_a_prompt_is_refused(
    take: Any, monkeypatch: pytest.MonkeyPatch
):
    """The prompts have the id of "=", 14; the responses do not."""
    monkeypatch.setattr(importing, "load_policy", lambda _: SimpleNamespace(vocab_size=9))
    rows = [row | {"response": row["response"][-1]} for row in table()[:2]]
    refused(take(rows, "--policy", "other"), "--policy other has 9 token ids", "the id 14")


def test_a_run_that_appears_meanwhile_is_left_as_it_is(
    take: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Logprobs may take hours, in which another command can begin a run of this name."""
    original = importing.write_rollouts

    def write(*arguments: Any, **options: Any) -> None:
        (tmp_path / "run").mkdir(exist_ok=True)
        (tmp_path / "run" / "config.json").write_text("another run's")
        original(*arguments, **options)

    monkeypatch.setattr(importing, "write_rollouts", write)
    refused(take(table(**GIVEN)), f"{tmp_path / 'run'} exists already; name a new folder")
    assert contents(tmp_path / "run") == {Path("config.json"): b"another run's"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.jsonl", "run", "theirs.toml"]


@pytest.mark.parametrize(
    ("columns", "part"),
    [
        ("reward=reward,reward=answer", "names a field twice"),
        ("reward=half*reward", "a weight must be a number"),
    ],
)
def test_columns_that_have_two_meanings_or_none_are_refused(take: Any, columns: str, part: str):
    refused(take(table(**GIVEN), "--columns", columns), f"--columns {columns}", part)


def test_a_config_from_elsewhere_that_names_code_needs_trust(take: Any, tmp_path: Path):
    """The config lies in another run; its code is neither run nor remembered as approved."""
    (tmp_path / "config.json").write_text('{"provenance": {}}')
    (tmp_path / "rewards.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    own = '{ name = "regex", pattern = "=([0-9])$" }'
    config = CONFIG.replace(own, f'["{tmp_path / "rewards.py"}:right"]')
    for _ in range(2):
        ended = take(table(**GIVEN), config=config)
        refused(ended, f"lies in the run {tmp_path} and names code", "approve them with --trust")
    checked(take(table(**GIVEN), "--trust", config=config))
    assert not (tmp_path / "ran").exists()


def test_an_unknown_field_of_columns_is_refused(take: Any):
    ended = take(table(), "--columns", "question=prompt")
    refused(ended, "'question' is not one of the fields, which are prompt, response", "FIELD=COL")


def test_an_import_that_fails_midway_leaves_nothing(
    take: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    original, calls = importing.write_rollouts, []

    def fail(*arguments: Any, **options: Any) -> None:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        original(*arguments, **options)

    monkeypatch.setattr(importing, "write_rollouts", fail)
    with pytest.raises(KeyboardInterrupt):
        take(table(**GIVEN), "--rollouts.shard_rollouts", 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.jsonl", "theirs.toml"]


@pytest.mark.parametrize("place", ["half a rollout shard", "half a score shard"])
def test_an_import_that_is_killed_leaves_no_run_and_can_be_repeated(
    take: Any, tmp_path: Path, place: str
):
    (tmp_path / "r.jsonl").write_text(lines(table(**GIVEN)))
    words = ("import", config_in(tmp_path), tmp_path / "r.jsonl", "--run-dir", tmp_path / "run")
    assert mugrpo_process(*words, at=place).status == -signal.SIGKILL
    assert not (tmp_path / "run").exists()
    checked(take(tmp_path / "r.jsonl"))


def test_an_imported_run_has_every_file_in_its_journal(take: Any, tmp_path: Path):
    checked(take(table(**GIVEN)))
    recorded = RunDir(tmp_path / "run").journal.entries()
    assert set(recorded) == {
        "config.json",
        "metrics.jsonl",
        "stages/000/rollouts/manifest.json",
        "stages/000/scores/manifest.json",
    }


def test_an_imported_run_is_pushed_and_pulled_with_its_problems(
    take: Any, tmp_path: Path, command: Command
):
    """Their new place is named once, as the config has the old one."""
    checked(take(table(**GIVEN)))
    checked(command("push", tmp_path / "run", tmp_path / "store"))
    checked(command("pull", tmp_path / "store", tmp_path / "pulled"))
    shutil.rmtree(tmp_path / "run")
    refused(command("optimize", tmp_path / "pulled"), "there is no data file")
    data = ("--task.data", tmp_path / "pulled" / "problems.jsonl", "--force")
    checked(command("optimize", tmp_path / "pulled", "--until", 1, *data))
    checked(command("optimize", tmp_path / "pulled"))
    assert final_weights(tmp_path / "pulled", 2)


# ---- docs/exchange.md ----


def test_the_commands_of_the_page_work(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
):
    page = (ROOT / "docs" / "exchange.md").read_text()
    example = page.partition("## An example")[2].partition("\n## ")[0]
    blocks = re.findall(r"^(?:`(\S+)`|The commands).*\n\n((?: {4}.*\n)+)", example, re.MULTILINE)
    assert [name for name, _ in blocks] == ["rollouts.jsonl", "theirs.toml", ""]
    texts = {name: textwrap.dedent(block) for name, block in blocks}
    monkeypatch.chdir(tmp_path)
    for name in ("rollouts.jsonl", "theirs.toml"):
        Path(name).write_text(texts[name])
    for line in texts[""].splitlines():
        checked(command(*shlex.split(line)[1:]))
    rewards = [score.reward for _, score in imported(tmp_path / "runs/theirs").values()]
    assert sorted(rewards) == [0, 0, 1, 1]
    assert final_weights(tmp_path / "runs/theirs", 2)
    assert len(pq.read_table(tmp_path / "exported" / "data")) == 4


def test_the_page_names_every_format_field_and_option(capsys: pytest.CaptureFixture[str]):
    page = (ROOT / "docs" / "exchange.md").read_text()
    for word in (*FORMATS, *FIELDS):
        assert f"`{word}`" in page
    with pytest.raises(SystemExit):
        main(["import", "--help"])
    own = capsys.readouterr().out.partition("options of a run")[0]
    options = set(re.findall(r"^  (--[a-z-]+)", own, re.MULTILINE))
    assert {"--policy", "--columns"} < options
    assert [o for o in options - {"--run-dir", "--trust"} if o not in page] == []
