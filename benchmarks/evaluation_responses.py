r"""The responses of an evaluation for another program's graders, and its own responses for ours.

    evaluation_responses.py RESULTS/gsm8k/update-000000 build/peer/gsm8k

writes responses.jsonl for `evaluation_peer.py`. It also writes problems.jsonl and task.yaml, with
which lm-eval asks the same problems with the same prompts and settings:

    lm_eval_env/bin/lm_eval --model hf --model_args pretrained=MODEL,dtype=float32 --device cpu \
        --include_path build/peer/gsm8k --tasks peer_gsm8k --apply_chat_template --log_samples \
        --output_path build/peer/gsm8k --batch_size 16

MODEL is a model directory; `--apply_chat_template` is for suites that ask in the form of a chat.
After that,

    evaluation_responses.py RESULTS/gsm8k/update-000000 build/peer/gsm8k \
        --samples build/peer/gsm8k/MODEL/samples_peer_gsm8k_TIME.jsonl

has the suite's own graders judge its responses. It writes them to generated.jsonl, and a result to
lm-eval/gsm8k/update-000000/result.json, which `mugrpo benchmark compare` compares with ours.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mugrpo.config.rewards import FunctionOptions
from mugrpo.config.run import ModelOptions
from mugrpo.disk.errors import UsageError
from mugrpo.disk.records import Answer, FinishReason, Problem
from mugrpo.disk.shards import ShardSet, read_rollouts, score_from_row
from mugrpo.extensions.evals.options import load_suites
from mugrpo.extensions.evals.stand_in import with_data
from mugrpo.model.loading import load_tokenizer
from mugrpo.rollouts.intervals import interval
from mugrpo.rollouts.score import response_text
from mugrpo.tasks.dataset import Dataset
from mugrpo.tasks.rows import is_local

Row = dict[str, Any]

_WORD_PROBLEMS = ("gsm8k", "svamp")  # judged as GSM8K; other suites as MATH


@dataclass(frozen=True)
class Evaluation:
    """What `mugrpo benchmark` left in `folder`, with the task that asked and judged."""

    folder: Path
    result: dict[str, Any]
    task: Dataset
    problems: Mapping[str, Problem]
    graders: Sequence[str]  # the first decides
    tokenizer: Any

    @property
    def kind(self) -> str:
        return "gsm8k" if self.result["suite"] in _WORD_PROBLEMS else "math"


def opened(folder: Path, suite_name: str | None) -> Evaluation:
    """Return the evaluation in `folder`. `suite_name` is the suite's file if it is not packaged.

    Raises UsageError if there is no result, or if a prompt has several turns.
    """
    try:
        result = json.loads((folder / "result.json").read_text())
    except (OSError, ValueError) as error:
        raise UsageError(f"{folder} has no result that can be read ({error})") from None
    (suite,) = load_suites(suite_name or result["suite"])
    if is_local(result["data"]):
        suite = with_data(suite, result["data"])
    task = Dataset(suite.options.task)
    problems = {problem.id: problem for problem in task.every_problem()}
    rewards = suite.options.task.rewards
    graders = [reward.label for reward in rewards if not isinstance(reward, FunctionOptions)]
    tokenizer = load_tokenizer(ModelOptions(path=result["model"]))
    return Evaluation(folder, result, task, problems, graders, tokenizer)


def judged(evaluation: Evaluation, name: str, text: str, parts: Mapping[str, Any]) -> Row:
    """Return the line of a response `name`, PROBLEM_ID/SAMPLE, whose score has `parts`."""
    verdicts = {}
    for number, grader in enumerate(evaluation.graders):
        answer = parts.get(f"answer/{grader}" if number else "answer")
        value = parts.get(grader)
        verdicts[grader] = {"right": None if value is None else value == 1.0, "answer": answer}
    reference = evaluation.problems[name.rpartition("/")[0]].answer
    return {
        "response": name,
        "kind": evaluation.kind,
        "reference": reference,
        "text": text,
        "verdicts": verdicts,
    }


def stored(evaluation: Evaluation) -> Iterator[Row]:
    """Yield a line for each stored response."""
    rollouts = ShardSet(evaluation.folder / "rollouts", "rollouts")
    scores = ShardSet(evaluation.folder / "scores", "scores")
    for shard in rollouts.numbers():
        rows = scores.open(shard).read().to_pylist()
        for rollout, row in zip(read_rollouts(rollouts, shard), rows, strict=True):
            text = response_text(rollout, evaluation.tokenizer)
            name = f"{rollout.problem_id}/{rollout.sample}"
            yield judged(evaluation, name, text, score_from_row(row).parts)


def asked(evaluation: Evaluation) -> dict[str, str]:
    """Return problem id -> the prompt as the model got it, of each problem that was asked."""
    rollouts = ShardSet(evaluation.folder / "rollouts", "rollouts")
    prompts: dict[str, str] = {}
    for shard in rollouts.numbers():
        for rollout in read_rollouts(rollouts, shard):
            if rollout.problem_id not in prompts:
                prompts[rollout.problem_id] = evaluation.tokenizer.decode(rollout.prompt_ids)
    return prompts


def lm_eval_task(evaluation: Evaluation, problems: Path) -> dict[str, Any]:
    """Return lm-eval's task on the file `problems`, with the settings of the evaluation.

    top_k is 0 because transformers would sample from the 50 most likely tokens otherwise. `until`
    is the end-of-sequence token because lm-eval would stop at an empty line otherwise.
    """
    result = evaluation.result
    return {
        "task": f"peer_{result['suite']}",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(problems.absolute())}},
        "test_split": "test",
        "output_type": "generate_until",
        "doc_to_text": "prompt",
        "doc_to_target": "answer",
        "num_fewshot": 0,
        "repeats": result["samples"],
        "generation_kwargs": {
            "do_sample": True,
            "temperature": result["temperature"],
            "top_p": result["top_p"],
            "top_k": 0,
            "max_gen_toks": result["max_new_tokens"],
            "until": [evaluation.tokenizer.eos_token],
        },
        "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
    }


def generated(evaluation: Evaluation, samples: Path) -> list[Row]:
    """Return a line for each response in lm-eval's log `samples`, judged by the suite's graders.

    Raises UsageError if lm-eval asked a problem in other words than the evaluation.
    """
    prompts = asked(evaluation)
    answers, names = [], []
    for line in samples.read_text().split("\n"):
        if not line:
            continue
        sample = json.loads(line)
        problem = evaluation.problems[sample["doc"]["id"]]
        theirs = sample["arguments"]["gen_args_0"]["arg_0"]
        if theirs != (ours := prompts[problem.id]):
            raise UsageError(
                f"lm-eval's prompt of problem {problem.id} is {theirs!r}, not {ours!r}; call it "
                "with --apply_chat_template if the suite asks in the form of a chat"
            )
        texts = [text for request in sample["resps"] for text in request]
        names += [f"{problem.id}/{number}" for number in range(len(texts))]
        answers += [Answer(problem, text, (), FinishReason.STOP) for text in texts]
    scores = evaluation.task.score(answers)
    return [
        judged(evaluation, name, answer.text, score.parts)
        for name, answer, score in zip(names, answers, scores, strict=True)
    ]


def result_of(evaluation: Evaluation, rows: Sequence[Row]) -> dict[str, Any]:
    """Return what of a result.json is known of the responses `rows`, by the first grader."""
    grader = evaluation.graders[0]
    counts: dict[str, dict[str, Any]] = {}
    for row in rows:
        name, right = row["response"].rpartition("/")[0], row["verdicts"][grader]["right"]
        count = counts.setdefault(name, {"id": name, "right": 0, "judged": 0, "samples": 0})
        count["right"] += right is True
        count["judged"] += right is not None
        count["samples"] += 1
    shares = [count["right"] / count["judged"] for count in counts.values() if count["judged"]]
    samples = max(count["samples"] for count in counts.values())
    low, high = map(float, interval(shares, samples))
    kept = ("suite", "title", "update", "model", "temperature", "top_p", "max_new_tokens")
    return {
        **{name: evaluation.result[name] for name in kept},
        "samples": samples,
        "problems": len(counts),
        "responses": len(rows),
        "measures": {f"avg@{samples}": [sum(shares) / len(shares), low, high]},
        "per_problem": list(counts.values()),
    }


def _write(path: Path, rows: Sequence[Row]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _average(result: Mapping[str, Any]) -> str:
    name = f"avg@{result['samples']}"
    value, low, high = result["measures"][name]
    return f"{name} = {value:.4f} [{low:.4f}, {high:.4f}]"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("results", type=Path, help="a suite's results, such as gsm8k/update-000000")
    parser.add_argument("out", type=Path, help="the folder to write to")
    parser.add_argument("--suite", help="the suite's file, if it is one of your own")
    parser.add_argument("--samples", type=Path, help="lm-eval's log of responses to the same task")
    given = parser.parse_args(arguments)
    evaluation = opened(given.results, given.suite)
    given.out.mkdir(parents=True, exist_ok=True)
    result = evaluation.result
    if given.samples is None:
        rows = list(stored(evaluation))
        _write(given.out / "responses.jsonl", rows)
        problems = given.out / "problems.jsonl"
        ids = list(asked(evaluation))
        for problem in map(evaluation.problems.__getitem__, ids):
            if not isinstance(problem.prompt, str):
                raise UsageError(f"problem {problem.id} has several turns; lm-eval's task has one")
        texts = ((evaluation.problems[id_].prompt, evaluation.problems[id_].answer) for id_ in ids)
        lines = zip(ids, texts, strict=True)
        _write(problems, [{"id": i, "prompt": p, "answer": a} for i, (p, a) in lines])
        task = lm_eval_task(evaluation, problems)
        (given.out / "task.yaml").write_text(json.dumps(task, indent=1))  # which is YAML, too
        print(f"{len(rows)} responses to {len(ids)} problems; {_average(result)}")
    else:
        rows = generated(evaluation, given.samples)
        evaluation.task.close()
        _write(given.out / "generated.jsonl", rows)
        theirs = result_of(evaluation, rows)
        place = given.out / "lm-eval" / result["suite"] / given.results.name
        place.mkdir(parents=True, exist_ok=True)
        (place / "result.json").write_text(json.dumps(theirs, indent=1))
        print(f"ours: {_average(result)}; lm-eval's: {_average(theirs)}")


if __name__ == "__main__":
    main()
