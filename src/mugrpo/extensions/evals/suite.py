"""A benchmark suite on one policy: sampled, scored and measured. Its rollouts are shards.

FOLDER/suite.json           what decides the numbers: suite, model, engine, seed
       rollouts/, scores/   as in a stage: after a kill, only the missing shards are made
       result.json          the measures with their intervals, and the counts of each problem
"""

import math
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from mugrpo.config.load import build_config, changes
from mugrpo.config.run import RunConfig
from mugrpo.config.tasks import DatasetOptions
from mugrpo.disk.errors import RunStopped, UsageError
from mugrpo.disk.publishing import SUMS, publish_json, read_checked, sha256_of, with_checksum
from mugrpo.disk.records import FinishReason, Problem, Score, Status
from mugrpo.disk.run_dir import RunDir
from mugrpo.disk.shards import ShardSet, score_from_row
from mugrpo.extensions.evals.measures import ProblemResult, measured
from mugrpo.extensions.evals.options import Suite
from mugrpo.hosts.host import Refreshed
from mugrpo.model.hardware import precision_of
from mugrpo.model.loading import load_tokenizer, load_vocabulary, model_sizes
from mugrpo.model.pretrained import model_fingerprint
from mugrpo.processes.lifetime import StopFlag
from mugrpo.rollouts.prompts import PromptEncoder
from mugrpo.rollouts.schedule import Draw
from mugrpo.rollouts.score import scored
from mugrpo.run.opening import OpenRun, prompt_encoder
from mugrpo.run.progress import Progress
from mugrpo.run.provenance import judge_fingerprint, problems_sha256
from mugrpo.stages.evaluate import sample_and_score
from mugrpo.tasks.cells import has
from mugrpo.tasks.dataset import Dataset
from mugrpo.tasks.rows import is_local, read_rows


def with_data(suite: Suite, file: str) -> Suite:
    """Return `suite` with the problems in the local `file` instead of its own data set.

    Each column is the suite's own if the file has it. Otherwise the prompt is in `problem`,
    `prompt` or `question`, the answer in `answer`, and the id in `id`; without that, the id is a
    hash. Raises UsageError if the file does not exist, cannot be read, is empty or lacks a column.
    """
    if not is_local(file):
        raise UsageError(f"there is no data file {file} to stand in for the suite {suite.name}")
    task = suite.options.task
    columns = read_rows(file)[0][1]

    def column(what: str, own: str | None, *usual: str) -> str | None:
        """Return the suite's own column if the file has it, or the first of the usual ones."""
        if found := next((name for name in (own, *usual) if name and has(columns, name)), None):
            return found
        if what and own:
            raise UsageError(
                f"{file} has the columns {', '.join(map(repr, columns))}; the suite {suite.name} "
                f"needs {what} in {' or '.join(map(repr, dict.fromkeys((own, *usual))))}"
            )
        return None

    changed = {
        "data": file,
        "split": None,
        "subset": None,
        "revision": None,
        "prompt_column": column("prompts", task.prompt_column, "problem", "prompt", "question"),
        "answer_column": task.answer_column and column("answers", task.answer_column, "answer"),
        "id_column": column("", task.id_column, "id"),
    }
    return suite.over({"task": {**task.model_dump(), **changed}})


def suite_config(config: RunConfig, suite: Suite) -> RunConfig:
    """Return `config` with the suite's problems, prompts, sampling and judge in place of its own.

    Model, engine and seed stay. A truncated response is judged like any other. Responses have one
    turn and no tools. Raises UsageError if an option of the suite does not go with the model or the
    engine.
    """
    options, raw = suite.options, config.model_dump(mode="json")
    prompt = options.prompt.model_dump(mode="json")
    if prompt["form"] == raw["prompt"]["form"] == "chat":  # the model's, unless the suite has one
        prompt["chat_template"] = prompt["chat_template"] or raw["prompt"]["chat_template"]
    sampled = {"temperature": options.temperature, "max_new_tokens": options.max_new_tokens}
    raw |= {
        "task": options.task.model_dump(mode="json"),
        "prompt": prompt,
        "rewards": {"truncated": "scored", "failure_limit": 1.0},
        "rollouts": raw["rollouts"] | sampled,
        "environment": {},
    }
    return build_config(raw, f"the suite {suite.name}")


@contextmanager
def suite_run(
    folder: RunDir, config: RunConfig, suite: Suite, progress: Progress, stop: StopFlag
) -> Iterator[OpenRun]:
    """Yield a run of the suite under `config`, from `suite_config`. It trains nothing.

    If the longest prompt leaves fewer tokens of the model's context than the suite allows, the
    responses are limited to those. Raises UsageError if the problems or their references cannot be
    read, or as `prompt_encoder` does.
    """
    assert isinstance(config.task, DatasetOptions)
    task = Dataset(config.task, config.workers)
    try:
        problems = task.every_problem(suite.options.problems)
        config = _with_room(config, problems, progress)
        prompts = prompt_encoder(config)
        problems = prompts.fitting(problems)
        for sentence in task.prepare(folder.log("rewards"), problems):
            progress.say(sentence)
        vocabulary = load_vocabulary(config.model, prompts.tokenizer)
        judge = judge_fingerprint(config, problems)
        yield OpenRun(
            folder, config, task, (), problems, prompts, vocabulary, judge, progress, stop
        )
    finally:
        task.close()


def _with_room(config: RunConfig, problems: Sequence[Problem], progress: Progress) -> RunConfig:
    """Return `config` with responses limited to the room in the model's context.

    A prompt that takes more than half of the context is overlong if it leaves less than the suite
    allows.
    """
    vocab_size, context, _ = model_sizes(config.model)
    context = min(filter(None, [context, config.engine.max_model_len]), default=None)
    if context is None:
        return config
    longest = context - min(config.rollouts.max_new_tokens, context // 2)
    encode = PromptEncoder(load_tokenizer(config.model), vocab_size, config.prompt, longest)
    room = context - max(len(encode(problem)) for problem in encode.fitting(problems))
    if room >= config.rollouts.max_new_tokens:
        return config
    progress.say(
        f"responses have at most {room} tokens, not {config.rollouts.max_new_tokens}: the longest "
        f"prompt leaves no more of the model's context of {context}"
    )
    rollouts = config.rollouts.model_copy(update={"max_new_tokens": room})
    return config.model_copy(update={"rollouts": rollouts})


def measure_suite(
    run: OpenRun,
    suite: Suite,
    refreshed: Callable[[], Refreshed],
    update: int,
    folder: Path,
    *,
    replace: bool = False,
) -> dict[str, Any]:
    """Do what of the suite is not published in `folder`, and return what its result.json holds.

    `run` comes from `suite_run`. `refreshed` returns engines with the policy after `update`
    updates; it is called only if rollouts are missing. If `folder` has other weights or the suite
    under other options, it is replaced if `replace` is true. Otherwise that raises UsageError.
    """
    _begin_folder(folder, _identity(run, suite, update), replace)
    rollouts = ShardSet(folder / "rollouts", "rollouts")
    scores = ShardSet(folder / "scores", "scores")
    for shards in (rollouts, scores):
        for shard in shards.numbers():
            if fault := shards.fault(shard):
                run.progress.say(f"{shards.path(shard)} {fault}; it is made again")
                shards.forget(shard)
    began, path = time.monotonic(), folder / "result.json"
    size, options = suite.options.samples, run.config.rollouts
    draws: list[Draw] = [(problem, 0) for problem in run.eval_problems]
    groups = math.ceil(options.shard_rollouts / size)
    parts = [draws[start : start + groups] for start in range(0, len(draws), groups)]
    every = range(len(parts))
    if not all(scored(rollouts, scores, shard, run.judge) for shard in every):
        path.unlink(missing_ok=True)  # it tells of other scores
    sample_and_score(
        run,
        folder,
        dict(enumerate(parts)),
        refreshed,
        title=f"{suite.name}  update {update}",
        stage=f"suite {suite.name}",
        size=size,
        update=update,
        temperature=options.temperature,
        top_p=suite.options.top_p,
    )
    if (result := _stored(path)) is None:
        seconds = time.monotonic() - began
        rollouts, scores = (ShardSet(s.folder, s.kind) for s in (rollouts, scores))  # with the new
        result = result_of(run, suite, update, rollouts, scores, seconds)
        publish_json(path, with_checksum(result))
    return result


def _stored(path: Path) -> dict[str, Any] | None:
    """Return a stored result, or None if there is none that can be read."""
    try:
        return read_checked(path) if path.exists() else None
    except RunStopped:
        return None


_fingerprint = cache(model_fingerprint)  # of the initial model: a second per half gigabyte


def _weights(run: OpenRun, update: int) -> str | None:
    """Return what tells the policy after `update` from others; None if only memory has it."""
    if update == 0:
        return _fingerprint(run.config.model)
    if run.folder.pending and run.folder.pending.update == update:
        run.folder.settle()
    seal = run.folder.checkpoint(update) / SUMS
    return sha256_of(seal) if seal.is_file() else None


def _identity(run: OpenRun, suite: Suite, update: int) -> dict[str, Any]:
    """Return what decides the rollouts. What only judges them is under the scores' fingerprint."""
    config = run.config
    return {
        "suite": suite.name,
        "update": update,
        "weights": _weights(run, update),
        "precision": precision_of(config.model),
        "engine": config.engine.name,
        "seed": config.seed,
        "samples": suite.options.samples,
        "temperature": config.rollouts.temperature,
        "top_p": suite.options.top_p,
        "max_new_tokens": config.rollouts.max_new_tokens,
        "shard_rollouts": config.rollouts.shard_rollouts,
        "prompt": config.prompt.model_dump(mode="json"),
        "problems": problems_sha256(run.eval_problems, ()),
    }


def _begin_folder(folder: Path, identity: dict[str, Any], replace: bool) -> None:
    """Store what decides the rollouts. If the folder has others, replace it or raise UsageError."""
    file, stored = folder / "suite.json", _stored(folder / "suite.json")
    same = stored == identity and identity["weights"] is not None
    if replace and folder.exists() and not same:
        shutil.rmtree(folder)
    elif stored is not None and not same:
        differing = [f"{name} = {old}, not {new}" for name, old, new in changes(stored, identity)]
        raise UsageError(
            f"{folder} has this suite with {'; '.join(differing)}; name another folder with --out, "
            "or remove that one"
        )
    if not file.exists():
        publish_json(file, with_checksum(identity))


_Response = tuple[str, str, int, Score]  # problem, finish reason, tokens, score


def result_of(
    run: OpenRun, suite: Suite, update: int, rollouts: ShardSet, scores: ShardSet, seconds: float
) -> dict[str, Any]:
    """Return the content of result.json. Sampling and scoring took `seconds`."""
    config, task = run.config, run.config.task
    assert isinstance(task, DatasetOptions)
    statuses: Counter[str] = Counter()
    results = []
    everything = _responses(rollouts, scores)
    for id_, group in groupby(everything, key=lambda response: response[0]):
        run.stop.check()
        responses = list(group)
        results.append(_problem_result(id_, responses))
        statuses.update(score.status.value for *_, score in responses)
    measures = measured(results)
    return {
        "suite": suite.name,
        "title": suite.options.title,
        "update": update,
        "model": config.model.path,
        "data": task.data,
        "subset": task.subset,
        "split": task.split,
        "revision": task.revision,
        "engine": config.engine.name,
        "precision": precision_of(config.model),
        "samples": suite.options.samples,
        "temperature": config.rollouts.temperature,
        "top_p": suite.options.top_p,
        "max_new_tokens": config.rollouts.max_new_tokens,
        "seed": config.seed,
        "problems": len(results),
        "responses": sum(statuses.values()),
        "seconds": seconds,
        "measures": {name: [m.value, m.low, m.high] for name, m in measures.items()},
        "statuses": dict(statuses),
        "per_problem": [asdict(result) for result in results],
        "conventions": suite.options.conventions,
        "mugrpo": version("mugrpo"),
        "ended": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _responses(rollouts: ShardSet, scores: ShardSet) -> Iterator[_Response]:
    """Yield every response with its score; those to a problem are adjacent."""
    columns = ["problem_id", "finish_reason", "response_ids"]
    for shard in rollouts.numbers():
        table = rollouts.open(shard).read(columns)
        lengths = pc.list_value_length(table["response_ids"]).to_pylist()
        parts = [*(table[name].to_pylist() for name in columns[:2]), lengths]
        rows = map(score_from_row, scores.open(shard).read().to_pylist())
        yield from zip(*parts, rows, strict=True)


def _problem_result(id_: str, responses: Sequence[_Response]) -> ProblemResult:
    statuses = [score.status for *_, score in responses]
    return ProblemResult(
        id=id_,
        right=statuses.count(Status.RIGHT),
        judged=sum(status.rewarded for status in statuses),
        samples=len(responses),
        truncated=sum(reason == FinishReason.LENGTH for _, reason, *_ in responses),
        no_answer=statuses.count(Status.NO_ANSWER),
        tokens=sum(tokens for _, _, tokens, _ in responses),
    )
