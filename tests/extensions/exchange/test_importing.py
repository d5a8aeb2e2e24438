"""Runs with rollouts from elsewhere: what they hold, what is refused, and what they are trained to.

Each format has a file that its program's own code has written, or with the fields of its writer:

    TRL 1.16  trl/trainer/grpo_trainer.py, GRPOTrainer.log
    verl      b178a3c, verl/trainer/ppo/ray_trainer.py, RayPPOTrainer._dump_generations
    open-instruct  00feb3a, open_instruct/rl_utils.py, RolloutRecord
"""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import transformers

from mugrpo.cli import main
from mugrpo.disk.records import FinishReason, Status
from mugrpo.extensions.exchange.command import FORMATS
from mugrpo.extensions.exchange.rows import FIELDS
from tests.blocks import blocks, commands
from tests.extensions.exchange.imports import (
    CONFIG,
    EOS,
    GIVEN,
    RESPONSES,
    TOKENIZER,
    Row,
    by_text,
    chat,
    checked,
    given_rows,
    ids_of,
    imported,
    lines,
    logprobs_of,
    notes,
    table,
)
from tests.faults.harm import refused
from tests.runs import MODEL, ROOT, final_weights, read_metrics

pytestmark = pytest.mark.usefixtures("no_report")


# ---- a plain table ----


def test_ids_logprobs_and_rewards_of_a_table_are_used_as_given(take: Any, tmp_path: Path):
    checked(take(table(**GIVEN)))
    found = {key: notes(tmp_path / "run")[key] for key in ("format", "ids", "logprobs")}
    assert found == {"format": "table", "ids": "given", "logprobs": "given"}
    for row, rollout, score in given_rows(tmp_path / "run", **GIVEN):
        assert rollout.finish_reason is FinishReason.STOP
        assert score.reward == row["reward"]
        assert score.status is Status.GRADED  # nothing says that a reward of 1 is right


@pytest.mark.parametrize(
    ("word", "status", "reward"),
    [
        ("completed", Status.GRADED, 1.0),
        ("truncated", Status.TRUNCATED, 1.0),
        ("aborted", Status.ERROR, None),
        ("correct", Status.RIGHT, 1.0),
        ("right", Status.RIGHT, 1.0),
    ],
)
def test_statuses_of_others_are_mapped(take, tmp_path, word, status, reward):
    rows = table(**GIVEN)
    checked(take([rows[0] | {"status": word}, *rows[1:]]))
    run = given_rows(tmp_path / "run", **GIVEN)
    (found,) = [score for row, _, score in run if row["response"] == rows[0]["response"]]
    assert (found.status, found.reward) == (status, reward)


def test_a_column_can_be_left_out(take: Any, tmp_path: Path):
    checked(take([row | {"status": "?"} for row in table(**GIVEN)], "--columns", "status="))
    statuses = {score.status for _, _, score in given_rows(tmp_path / "run", **GIVEN)}
    assert statuses == {Status.GRADED}


def test_no_end_is_invented(take: Any, tmp_path: Path):
    """Texts of five tokens: with an end where the row says so, as they are where it does not."""
    reasons = ({"type": "stop"}, "length", None, "eos")
    ended = checked(take(table(finish_reason=reasons), "--policy", "chain"))
    assert "warning: whether 1 responses had ended is not known" in ended.out
    found = {text: r for (_, text), (r, _) in by_text(tmp_path / "run", TOKENIZER).items()}
    texts = [row["response"] for row in table()]
    given = [found[text].response_ids.tolist() for text in texts]
    assert given == [ids_of(text) + [EOS] * (n in (0, 3)) for n, text in enumerate(texts)]
    stop, cut = FinishReason.STOP, FinishReason.LENGTH
    assert [found[text].finish_reason for text in texts] == [stop, cut, cut, stop]


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_files_of_each_kind_give_the_same_run(take: Any, tmp_path: Path, kind: str):
    rows = table(**GIVEN)
    file = tmp_path / f"rows.{kind}"
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), file)
    else:
        for row in rows:
            row |= {name: json.dumps(row[name]) for name in GIVEN}
        pyarrow.csv.write_csv(pa.Table.from_pylist(rows), file)
    checked(take(file))
    rollouts = [rollout for rollout, _ in imported(tmp_path / "run").values()]
    found = sorted(r.behavior_logprobs.tolist() for r in rollouts)
    assert found == sorted(np.float32(values).tolist() for values in GIVEN["logprobs"])


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


def test_columns_of_other_programs_are_known(take: Any, tmp_path: Path):
    theirs = {
        **{"prompt": "question", "response": "completion", "reward": "score", "answer": "gts"},
        **{"response_ids": "completion_ids", "logprobs": "completion_logprobs"},
    }
    checked(take([{theirs.get(k, k): v for k, v in r.items()} for r in table(**GIVEN)]))
    assert [notes(tmp_path / "run")[key] for key in ("ids", "logprobs")] == ["given", "given"]
    rewards = sorted(score.reward for _, score in imported(tmp_path / "run").values())
    assert rewards == [0.0, 0.0, 1.0, 1.0]


def test_a_named_policy_computes_the_logprobs_and_the_manifest_says_so(take: Any, tmp_path: Path):
    """At the temperature of the config, also in place of logprobs that the file has."""
    config = CONFIG.replace("[rollouts]", "[rollouts]\ntemperature = 1.3")
    checked(take(table(**GIVEN), "--policy", MODEL, config=config))
    assert notes(tmp_path / "run")["logprobs"] == f"computed by {MODEL}"
    assert len(notes(tmp_path / "run")["logprobs_model_sha256"]) == 64
    for (prompt, _), (rollout, _) in by_text(tmp_path / "run", TOKENIZER).items():
        expected = logprobs_of(prompt, rollout.response_ids.tolist(), 1.3)
        np.testing.assert_allclose(rollout.behavior_logprobs, expected, atol=1e-5)


@pytest.mark.long
def test_an_imported_run_is_scored_again_compared_and_trained_on(take, tmp_path, command):
    """The logprobs are those of the model, so that every ratio of the first update is 1."""
    run_dir = tmp_path / "run"
    rows = [row | {"reward": 1 - row["reward"]} for row in table()]  # the wrong way round
    rows = [row | {"finish_reason": "stop"} for row in rows]
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


def test_problems_of_the_configs_own_data_give_answers_and_are_held_out(take, tmp_path, command):
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
    assert "after update 0 (1 held-out problems)" in checked(command("evaluate", run_dir)).out


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
        **{"model": SimpleNamespace(training=True), "_metrics": {"train": {}}},
        **{"log_completions": True, "log_unique_prompts": False},
        "accelerator": SimpleNamespace(is_main_process=True),
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
    refused(ended, "no column 'reward'", "'right'", "--columns reward=")
    checked(take(folder, *options, "--columns", "reward=right,answer=solution"))
    found = by_text(tmp_path / "run", TOKENIZER)
    given = {key: score.reward for key, (_, score) in found.items()}
    assert given == {(row["prompt"], row["response"]): row["reward"] for row in table()}
    assert notes(tmp_path / "run")["format"] == "trl"


def test_conversations_of_trl(take, tmp_path, command, monkeypatch):
    """They have no answers: those of data are used, or a function scores them.

    An export has conversations, too.
    """
    logs = trl_logs() | {"extra": {}}
    logs["prompt"] = [[{"role": "user", "content": text}] for text in logs["prompt"]]
    logs["completion"] = [[{"role": "assistant", "content": text}] for text in logs["completion"]]
    folder = written_by_trl(tmp_path, monkeypatch, 1, **logs)
    options = ("--format", "trl", "--policy", "chain", "--columns", "reward=right")
    config = CONFIG.replace("[task]", f"{chat(tmp_path, '')}\n[task]")
    refused(take(folder, *options, config=config), "has no reference answer")
    data = [{"prompt": p, "answer": texts[0][-1]} for p, texts in RESPONSES.items()]
    (tmp_path / "problems.jsonl").write_text(lines(data))
    known = ("--task.data", tmp_path / "problems.jsonl", "--task.eval_share", 0.0)
    checked(take(folder, *options, *known, config=config))
    (tmp_path / "run").rename(tmp_path / "found")
    (tmp_path / "rewards.py").write_text("def right(completions, **_):\n    return [1.0]\n")
    own = 'rewards = { name = "regex", pattern = "=([0-9])$" }'
    config = config.replace(own, f'rewards = ["{tmp_path / "rewards.py"}:right"]')
    checked(take(folder, *options, config=config))
    found = set(by_text(tmp_path / "run", TOKENIZER))
    assert found == {(prompt, text) for prompt, texts in RESPONSES.items() for text in texts}
    checked(command("export", tmp_path / "run", tmp_path / "set"))
    [file] = (tmp_path / "set" / "data").iterdir()
    given = set(pq.read_table(file)["prompt"].to_pylist())
    assert given == {json.dumps([{"role": "user", "content": prompt}]) for prompt in RESPONSES}


def test_a_batch_that_trl_logs_at_two_steps_is_one(take, tmp_path, monkeypatch):
    """TRL logs the last batch at every step, even if several steps train on it."""
    for step in (1, 2):
        folder = written_by_trl(tmp_path, monkeypatch, step, **trl_logs())
    options = ("--format", "trl", "--policy", "chain", "--columns", "reward=right,answer=solution")
    ended = checked(take(folder, *options))
    assert len(imported(tmp_path / "run")) == 4 and "4 rows are left out" in ended.out


# ---- verl ----


def verl_rows(prompts: dict[str, str] | None = None) -> list[Row]:
    """Return the lines of 7.jsonl: `input` is what the chat template wrote, decoded."""
    theirs = {"response": "output", "answer": "gts", "reward": "score"}
    return [
        {
            "input": (prompts or {}).get(row["prompt"], row["prompt"]),
            **{other: row[ours] for ours, other in theirs.items()},
            **{"step": 7, "acc": bool(row["reward"]), "request_id": str(number)},
        }
        for number, row in enumerate(table())
    ]


def test_rollouts_of_verl(take: Any, tmp_path: Path):
    folder = tmp_path / "dump"
    folder.mkdir()
    (folder / "7.jsonl").write_text(lines(verl_rows()))
    checked(take(folder, "--format", "verl", "--policy", "chain"))
    found = by_text(tmp_path / "run", TOKENIZER)
    given = {key: score.reward for key, (_, score) in found.items()}
    assert given == {(row["prompt"], row["response"]): row["reward"] for row in table()}


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


def test_rollouts_of_open_instruct(take: Any, tmp_path: Path):
    """Ids and logprobs without text, and a right response counts as 10."""
    known = {"step": 3, "finish_reason": "stop", "ground_truth": [1, 2]}
    rows = []
    for number, row in enumerate(table(**GIVEN)):
        ids = {"prompt_tokens": ids_of(row["prompt"]), "response_tokens": row["response_ids"]}
        group = {"sample_idx": number, "prompt_idx": number // 2}
        rewards = {"reward": 10 * row["reward"], "logprobs": row["logprobs"]}
        rows.append({**known, **group, **ids, **rewards})
    folder = tmp_path / "rollouts"
    folder.mkdir()
    (folder / "mine_rollouts_000000.jsonl").write_text(lines(rows))
    (folder / "mine_metadata.jsonl").write_text('{"run_name": "mine"}\n')
    data = [{"prompt": p, "answer": texts[0][-1]} for p, texts in RESPONSES.items()]
    (tmp_path / "problems.jsonl").write_text(lines(data))
    task = f'[task]\ndata = "{tmp_path / "problems.jsonl"}"\neval_share = 0.0'
    options = ("--format", "open-instruct", "--columns", "reward=0.1*reward")
    checked(take(folder, *options, config=CONFIG.replace("[task]", task)))
    for row, rollout, score in given_rows(tmp_path / "run", **GIVEN):
        assert rollout.finish_reason is FinishReason.STOP
        assert score.reward == row["reward"]


# ---- the page ----


def test_the_commands_of_the_page_work(tmp_path, command, monkeypatch):
    *files, example = blocks("src/mugrpo/extensions/exchange/README.md")
    monkeypatch.chdir(tmp_path)
    assert [block.file for block in files] == ["rollouts.jsonl", "theirs.toml"]
    for block in files:
        Path(block.file).write_text(block.text)
    for _, *words in commands(example.text):
        checked(command(*words))
    rewards = [score.reward for _, score in imported(tmp_path / "runs/theirs").values()]
    assert sorted(rewards) == [0, 0, 1, 1]
    assert final_weights(tmp_path / "runs/theirs", 2)
    assert len(pq.read_table(tmp_path / "exported" / "data")) == 4


def test_the_page_names_every_format_field_and_option(capsys: pytest.CaptureFixture[str]):
    page = (ROOT / "src/mugrpo/extensions/exchange/README.md").read_text()
    for word in (*FORMATS, *FIELDS):
        assert f"`{word}`" in page
    with pytest.raises(SystemExit):
        main(["import", "--help"])
    own = capsys.readouterr().out.partition("options of a run")[0]
    options = set(re.findall(r"^  (--[a-z-]+)", own, re.MULTILINE))
    assert {"--policy", "--columns"} < options
    assert [o for o in options - {"--run-dir"} if o not in page] == []
