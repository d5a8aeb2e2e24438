"""Responses on their way to another program's graders, and another program's to ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import evaluation_responses
from mugrpo.config.run import ModelOptions
from mugrpo.disk.errors import UsageError
from mugrpo.disk.records import FinishReason, Rollout, Score, Status
from mugrpo.disk.shards import ShardSet, write_rollouts, write_scores
from mugrpo.extensions.evals.comparing import compare, stored
from mugrpo.model.loading import load_tokenizer

PROMPTS = {"a": "1+1=", "b": "2+1="}  # with references 2 and 3
SUITE = """
title = "Sums"
samples = 2
max_new_tokens = 8

[task]
data = "{data}"
id_column = "id"
rewards = ["plain"]

[prompt]
form = "plain"
"""


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A folder of results: problem a is answered with 2 and 3, problem b with 2 and 3."""
    rows = [
        {"id": "a", "prompt": "1+1=", "answer": "2"},
        {"id": "b", "prompt": "2+1=", "answer": "3"},
    ]
    data = tmp_path / "sums.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "sums.toml").write_text(SUITE.format(data=data))
    folder = tmp_path / "results" / "sums" / "update-000000"
    tokenizer = load_tokenizer(ModelOptions(path="chain"))
    rollouts, scores = [], []
    for problem, prompt in PROMPTS.items():
        for sample, text in enumerate("23"):
            ids = [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]
            asked = tokenizer.encode(prompt, add_special_tokens=False)
            made = Rollout(
                problem, 0, sample, 0, asked, ids, [-1.0] * len(ids), FinishReason.STOP, 1.0, 0
            )
            rollouts.append(made)
            right = text == {"a": "2", "b": "3"}[problem]
            status = Status.RIGHT if right else Status.WRONG
            scores.append(Score(status, float(right), {"plain": float(right), "answer": text}))
    write_rollouts(ShardSet(folder / "rollouts", "rollouts"), 0, rollouts)
    write_scores(ShardSet(folder / "scores", "scores"), 0, scores)
    result = {
        "suite": "sums",
        "title": "Sums",
        "update": 0,
        "model": "chain",
        "data": str(data),
        "samples": 2,
        "temperature": 0.5,
        "top_p": 0.9,
        "max_new_tokens": 8,
        "measures": {"avg@2": [0.5, 0.1, 0.9]},
        "per_problem": [{"id": id_, "right": 1, "judged": 2, "samples": 2} for id_ in PROMPTS],
    }
    (folder / "result.json").write_text(json.dumps(result))
    return folder


def lines(file: Path) -> list[Any]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_responses_keep_their_verdicts_and_lm_eval_gets_the_settings(results, tmp_path):
    out, suite = tmp_path / "out", str(tmp_path / "sums.toml")
    evaluation_responses.main([str(results), str(out), "--suite", suite])
    rows = lines(out / "responses.jsonl")
    assert [row["response"] for row in rows] == ["a/0", "a/1", "b/0", "b/1"]
    assert [row["text"] for row in rows] == ["2", "3", "2", "3"]
    assert [row["reference"] for row in rows] == ["2", "2", "3", "3"]
    assert [row["verdicts"]["plain"]["right"] for row in rows] == [True, False, False, True]
    assert rows[1]["verdicts"] == {"plain": {"right": False, "answer": "3"}}
    assert lines(out / "problems.jsonl")[1] == {"id": "b", "prompt": "2+1=", "answer": "3"}
    task = json.loads((out / "task.yaml").read_text())
    sampling = task["generation_kwargs"]
    assert (sampling["temperature"], sampling["top_p"], sampling["max_gen_toks"]) == (0.5, 0.9, 8)
    assert sampling["top_k"] == 0 and sampling["do_sample"] and task["repeats"] == 2


def samples(prompts: dict[str, str]) -> str:
    """Return lm-eval's log of the responses 2 and 2 to a, and 3 and 4 to b."""
    found = {"a": ["2", "2"], "b": ["3", "4"]}
    rows = [
        {
            "doc": {"id": problem},
            "arguments": {"gen_args_0": {"arg_0": prompt}},
            "resps": [found[problem]],
        }
        for problem, prompt in prompts.items()
    ]
    return "".join(json.dumps(row) + "\n" for row in rows)


def test_lm_evals_responses_are_judged_and_compared_with_ours(results, tmp_path):
    """Ours is 1/2 on both problems, lm-eval's 1 and 1/2: the mean difference is 1/4."""
    log, out, suite = tmp_path / "log.jsonl", tmp_path / "out", str(tmp_path / "sums.toml")
    log.write_text(samples(PROMPTS))
    evaluation_responses.main([str(results), str(out), "--suite", suite, "--samples", str(log)])
    rights = [row["verdicts"]["plain"]["right"] for row in lines(out / "generated.jsonl")]
    assert rights == [True, True, True, False]
    ours, theirs = stored(str(tmp_path / "results")), stored(str(out / "lm-eval"))
    (one,) = compare(ours, theirs).benchmarks
    assert (one.first[0], one.second[0], one.difference.value) == (0.5, 0.75, 0.25)


def test_another_prompt_is_refused(results, tmp_path):
    log, suite = tmp_path / "log.jsonl", str(tmp_path / "sums.toml")
    log.write_text(samples({"a": "1 + 1 =", "b": "2+1="}))
    with pytest.raises(UsageError, match="lm-eval's prompt of problem a"):
        evaluation_responses.main(
            [str(results), str(tmp_path / "out"), "--suite", suite, "--samples", str(log)]
        )
