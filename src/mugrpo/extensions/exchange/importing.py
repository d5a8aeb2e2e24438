"""`mugrpo import`: a new run whose first stage has the rollouts that another program has saved.

The run is like any other. Its task is a data set: RUN/problems.jsonl has the problems of the
rollouts, RUN/held_out.jsonl the held-out problems of the config's own data.
"""

import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mugrpo.config.load import apply_overrides, build_config, read_toml
from mugrpo.config.run import RunConfig
from mugrpo.config.tasks import DatasetOptions
from mugrpo.disk.errors import UsageError
from mugrpo.disk.publishing import publish_folder
from mugrpo.disk.records import (
    FinishReason,
    Problem,
    Rollout,
    Score,
    Status,
    outcome_from_text,
)
from mugrpo.disk.run_dir import RunDir
from mugrpo.extensions.exchange.rows import Row, format_of, read
from mugrpo.extensions.exchange.writing import (
    HELD_OUT,
    PROBLEMS,
    Group,
    Imported,
    Raw,
    Source,
    begin,
    run_options,
    with_data,
    write_problems,
    write_stage,
)
from mugrpo.model.loading import load_vocabulary
from mugrpo.model.policy import load_policy
from mugrpo.model.vocabulary import Vocabulary
from mugrpo.processes.messages import first_line
from mugrpo.rollouts.prompts import PromptEncoder
from mugrpo.rollouts.schedule import Schedule
from mugrpo.run.deciding import decided
from mugrpo.run.opening import prompt_encoder
from mugrpo.run.provenance import provenance_of
from mugrpo.run.stage import Stage
from mugrpo.tasks.cells import prompt_of
from mugrpo.tasks.dataset import Dataset, canonical

Say = Callable[[str], None]


def import_rollouts(
    target: Path,
    source: Source,
    *,
    run_dir: Path | None = None,
    overrides: Sequence[str] = (),
    say: Say = print,
    check: Callable[[], None] = lambda: None,
) -> Path:
    """Create a run of the config file `target` with the rollouts of `source`. Return its folder.

    The group size and the number of batches are those of the rollouts. If the config names data,
    each prompt must be one of its problems. `check` is called between shards and may raise to stop.
    Raises UsageError if the run exists, if the config's task is no data set, or if a row or group
    cannot be used. Nothing is written then.
    """
    folder = run_dir or Path("runs") / target.stem
    if folder.exists():
        raise UsageError(f"{folder} exists already; name a new directory with --run-dir")
    raw = apply_overrides(read_toml(target), overrides)
    task = raw.get("task", {})
    named = "data" in task
    config = build_config({**raw, "task": {"data": source.names[0], **task}}, str(target))
    if not isinstance(config.task, DatasetOptions):
        raise UsageError(f"{target}: rollouts from elsewhere need task.name = 'dataset'")
    own = Dataset(config.task, config.workers) if named else None
    train, held_out = (own.train_problems(), own.eval_problems()) if own else ((), ())
    encode = prompt_encoder(config)
    vocabulary = load_vocabulary(config.model, encode.tokenizer)
    importer = _Importer(config, source, encode, vocabulary, [*train, *held_out])
    rollouts = list(importer.rollouts())
    if source.policy is None:
        _require_logprobs(rollouts)
    groups = _grouped(rollouts, source.group_size, say)
    asked = {canonical(group[0].problem.prompt) for group in groups}
    held_out = [problem for problem in held_out if canonical(problem.prompt) not in asked]
    problems = {PROBLEMS: [group[0].problem for group in groups], HELD_OUT: held_out}
    options = run_options(raw, config, groups, named=named, evaluated=bool(held_out))
    final = decided(build_config(with_data(options, folder.absolute(), problems), str(target)), say)
    for sentence in _notices(groups, final, encode):
        say(sentence)
    policy = None  # it computes the behavior logprobs, unless they are given
    if source.policy is not None:
        model = {**config.model.model_dump(), "path": source.policy}
        policy = load_policy(config.model.model_validate(model))
    with publish_folder(folder, replace=False) as unfinished:
        draft = build_config(with_data(options, unfinished, problems), str(target))
        for name, some in problems.items():
            write_problems(unfinished / name, some, options["task"])
        assert isinstance(draft.task, DatasetOptions)
        data = Dataset(draft.task, draft.workers)  # as the run will read it
        sides = (encode.fitting(side) for side in (data.train_problems(), data.eval_problems()))
        provenance = provenance_of(final, *sides)
        schedule = Schedule(final.schedule, problems[PROBLEMS], final.seed)
        stage = Stage(0, schedule, RunDir(unfinished), final, judge="")
        write_stage(stage, groups, source, policy, check)
        say(begin(stage, provenance))
    return folder


class _Importer:
    """Makes rollouts of the rows of `source` for a run with `config`.

    `known` are the problems of the config's own data. If there are any, every prompt must be one of
    them, and gets its reference answer.
    """

    def __init__(
        self,
        config: RunConfig,
        source: Source,
        encode: PromptEncoder,
        vocabulary: Vocabulary,
        known: Sequence[Problem],
    ) -> None:
        self._config, self._source, self._vocabulary = config, source, vocabulary
        self._encode = encode
        without = ("logprobs",) if source.policy is not None else ()
        self._form = format_of(source.form, source.columns, without=without)
        self._prompts: dict[int, NDArray[np.int32]] = {}  # by the id() of the problem
        self._known = defaultdict[bytes, list[Problem]](list)
        for problem in encode.fitting(known) if known else ():
            for key in self._keys(problem):
                self._known[key].append(problem)

    def rollouts(self) -> Iterator[Imported]:
        """Yield the rollout of each row. Raises UsageError for the first that cannot be used."""
        own: dict[bytes, Problem] = {}  # the same object for all rows with it
        for row in read(self._source.names, self._form, self._source.columns):
            problem = self._problem(row)
            problem = own.setdefault(canonical([problem.id, problem.prompt]), problem)
            limit = self._encode.limit
            if limit is not None and len(self._prompt(problem, row)) > limit:
                raise UsageError(
                    f"{row.where}: its prompt leaves no room for rollouts.max_new_tokens; lower it"
                )
            yield Imported(problem, row, self._rollout(problem, row), self._score(row))

    def _keys(self, problem: Problem) -> set[bytes]:
        """Return the key of a known problem: its prompt, or the prompt that the model gets."""
        texts: list[Any] = [problem.prompt, self._encode.text(problem)]
        texts.append(self._encode.tokenizer.decode(self._encode(problem), skip_special_tokens=True))
        if self._encode.options.form == "chat":  # text is a turn of the user
            texts.append([{"role": "user", "content": problem.prompt}])
        return set(map(canonical, texts))

    def _problem(self, row: Row) -> Problem:
        """Return the problem that a row answers: a known one, or one that the row itself names."""
        decode = self._encode.tokenizer.decode
        if row.prompt is not None:
            texts = [prompt_of(row.prompt, row.where)]
        else:
            self._in_vocabulary(row.prompt_ids or (), row)
            texts = [decode(row.prompt_ids), decode(row.prompt_ids, skip_special_tokens=True)]
        if self._known:
            found = next(filter(None, (self._known.get(canonical(text)) for text in texts)), [])
            if len(found) > 1:
                found = [one for one in found if one.id == row.problem_id] or [
                    one for one in found if one.reference == row.answer
                ]
            if len(found) != 1:
                raise UsageError(
                    f"{row.where}: its prompt, and problem_id or answer, are those of "
                    f"{len(found)} problems in task.data"
                )
            return found[0]
        if (self._form.written or row.prompt is None) and self._encode.options.form == "chat":
            raise UsageError(
                f"{row.where}: its prompt is the text that a chat template wrote, perhaps without "
                "its special tokens; name the problems themselves with task.data"
            )
        prompt = texts[0] if isinstance(texts[0], str) else tuple(texts[0])
        digest = hashlib.sha256(canonical([texts[0], row.answer])).hexdigest()
        return Problem(row.problem_id or digest[:16], prompt, row.answer)

    def _rollout(self, problem: Problem, row: Row) -> Rollout:
        options = self._config.rollouts
        temperature = options.temperature if row.temperature is None else row.temperature
        if not math.isclose(temperature, options.temperature, rel_tol=1e-6):  # it may be a float32
            raise UsageError(
                f"{row.where} was sampled at temperature {temperature:g}, not at "
                f"{options.temperature:g}; set --rollouts.temperature"
            )
        ids, finish_reason = self._response(row)
        if len(ids) > options.max_new_tokens:
            raise UsageError(
                f"{row.where}: its response has {len(ids)} tokens, more than "
                f"rollouts.max_new_tokens = {options.max_new_tokens}; raise that"
            )
        rollout = Rollout(
            problem_id=problem.id,
            occurrence=0,
            sample=0,
            seed=row.seed,
            prompt_ids=self._prompt(problem, row),
            response_ids=ids,
            behavior_logprobs=self._logprobs(row, len(ids)),
            finish_reason=finish_reason,
            temperature=options.temperature,
            policy_step=row.policy_step,
            **_turns(row),
        )
        if rollout.fault and self._source.policy is None:
            raise UsageError(f"{row.where}: {rollout.fault}")
        return rollout

    def _prompt(self, problem: Problem, row: Row) -> NDArray[np.int32]:
        if row.prompt_ids is not None:
            found = self._in_vocabulary(row.prompt_ids, row)
            if found[0] == self._pad and self._encode(problem)[0] != self._pad:
                raise _padded(row, "prompt")
            return found
        if id(problem) not in self._prompts:
            self._prompts[id(problem)] = self._encode(problem)
        return self._prompts[id(problem)]

    def _response(self, row: Row) -> tuple[NDArray[np.int32], FinishReason]:
        """Return a response's ids, and whether its last id ends it.

        Ids that the tokenizer makes get an end only if the row says that the response had ended:
        one that was cut would learn to end there.
        """
        given = row.response_ids
        ids = list(given) if given is not None else self._encode.ids_of(row.response or "")
        if (
            given is None
            and row.finish_reason == "stop"
            and not (ids and ids[-1] in self._vocabulary.stop_ids)
        ):
            ids.append(self._encode.tokenizer.eos_token_id)
        found = self._in_vocabulary(ids, row)
        self._require_unpadded(found, row)
        stops = np.isin(found, self._vocabulary.stop_ids)
        if row.loss_mask is None and stops[:-1].any():
            raise UsageError(
                f"{row.where}: its response goes on after the end-of-sequence token "
                f"{found[stops.argmax()]}; leave out what follows, such as padding"
            )
        if row.loss_mask is not None and row.finish_reason in set(FinishReason):
            return found, FinishReason(row.finish_reason)  # a whole turn may have been the last
        return found, FinishReason.STOP if stops[-1] else FinishReason.LENGTH

    @property
    def _pad(self) -> int | None:
        """Return the padding token's id, None if it also ends responses."""
        pad: int | None = self._encode.tokenizer.pad_token_id
        return None if pad in self._vocabulary.stop_ids else pad

    def _require_unpadded(self, ids: NDArray[np.int32], row: Row) -> None:
        """Raise UsageError if a response begins or ends with padding.

        That has a logprob of 0. Without logprobs it is two such tokens: a model may sample one.
        """
        logprobs = [0.0] * len(ids) if row.logprobs is None else row.logprobs
        pads = (ids == self._pad) & (np.array(logprobs) == 0)
        least = 2 if row.logprobs is None else 1
        if pads[:least].all() or pads[-least:].all():
            raise _padded(row, "response")

    def _in_vocabulary(self, ids: Sequence[int], row: Row) -> NDArray[np.int32]:
        if not ids or max(ids) >= self._vocabulary.size:
            raise UsageError(
                f"{row.where} has the token id {max(ids, default=None)}, but the model has the ids "
                f"0 to {self._vocabulary.size - 1}; name the model that the rollouts were sampled "
                "with as model.path"
            )
        return np.array(ids, np.int32)

    def _logprobs(self, row: Row, length: int) -> NDArray[np.float32]:
        if self._source.policy is not None:
            return np.zeros(length, np.float32)
        if row.logprobs is None:
            raise UsageError(
                f"{row.where} has no logprobs: the model that sampled it computes those of all "
                f"rows with --policy PATH (if that is model.path: {self._config.model.path})"
            )
        return np.array(row.logprobs, np.float32)

    def _score(self, row: Row) -> Score:
        status = Status.SKIPPED if row.reward is None else Status.GRADED
        try:
            return Score(row.status or status, row.reward, row.parts)
        except ValueError as error:
            raise UsageError(f"{row.where}: {error}") from None


def _padded(row: Row, what: str) -> UsageError:
    return UsageError(f"{row.where}: its {what} has padding tokens; leave them out")


def _require_logprobs(imported: Sequence[Imported]) -> None:
    """Raise UsageError if most responses have logprobs of 0 alone: a program did not keep them."""
    sampled = [one.rollout.behavior_logprobs[one.rollout.sampled] for one in imported]
    zero = [not logprobs.any() for logprobs in sampled]
    if sum(zero) > len(zero) / 2:
        raise UsageError(
            f"{imported[zero.index(True)].row.where}: its logprobs are all 0, and so are those of "
            f"{sum(zero)} of {len(zero)} rows, as if every token had been certain; the program did "
            "not keep them. The model that sampled computes them with --policy PATH"
        )


def _turns(row: Row) -> Raw:
    """Return the fields of a rollout with turns, which begin wherever sampled ids begin."""
    if row.loss_mask is None:
        return {}
    mask = np.array(row.loss_mask, np.bool_)
    begins = np.flatnonzero(mask & ~np.append(False, mask[:-1]))
    turns = begins if row.turns is None else np.array(row.turns)
    try:
        outcome = outcome_from_text(row.environment)
    except ValueError as error:
        raise UsageError(f"{row.where}: {first_line(error)}") from None
    return {"loss_mask": mask, "turns": turns.astype(np.int32), "environment": outcome}


def _grouped(imported: Sequence[Imported], size: int | None, say: Say) -> list[Group]:
    """Return groups of one size, in the order of their first rows, with their samples numbered.

    Rows with the same problem, and the same draw if the file tells draws apart, are a group. With a
    `size`, they are cut into groups of it, and the rest is left out, as a group is that repeats
    another: TRL logs the last batch at every step. A problem with several groups becomes several
    problems with ids of their own. Raises UsageError for groups of unequal or too small size.
    """
    by_draw = defaultdict[Any, Group](list)
    for one in imported:
        by_draw[id(one.problem), one.row.group].append(one)
    contents = {
        (id(group[0].problem), *map(_content, group)): group for group in reversed(by_draw.values())
    }
    groups = list(reversed(contents.values()))
    if size is not None:
        groups = [g[n : n + size] for g in groups for n in range(0, len(g) - size + 1, size)]
    if left_out := len(imported) - sum(map(len, groups)):
        say(f"{left_out} rows are left out: their groups repeat others, or they do not fill one")
    sizes = Counter(map(len, groups))
    if len(sizes) != 1 or min(sizes) < 2:
        counts = ", ".join(f"{count} of {size}" for size, count in sorted(sizes.items()))
        raise UsageError(
            f"the rollouts are groups of unequal or too small size ({counts or 'none is left'}); a "
            "group is two or more responses to one prompt; cut them into groups of N, and leave "
            "out the rest, with --group-size N"
        )
    times = Counter[str]()
    numbered = []
    for group in groups:
        problem = group[0].problem
        if times[problem.id]:
            problem = replace(problem, id=f"{problem.id}#{times[problem.id]}")
        times[group[0].problem.id] += 1
        rollouts = (replace(one.rollout, problem_id=problem.id) for one in group)
        numbered.append(
            [
                replace(one, problem=problem, rollout=replace(rollout, sample=sample))
                for sample, (one, rollout) in enumerate(zip(group, rollouts, strict=True))
            ]
        )
    return numbered


def _content(one: Imported) -> tuple[Any, ...]:
    rollout = one.rollout
    arrays = (rollout.response_ids, rollout.behavior_logprobs)
    return (*(array.tobytes() for array in arrays), rollout.seed, one.row.reward)


def _notices(groups: Sequence[Group], config: RunConfig, encode: PromptEncoder) -> Iterator[str]:
    """Yield sentences on what was inferred for a run with `config`, and on what disagrees."""
    batches, per_update = config.schedule.batches_per_stage, config.schedule.problems_per_update
    yield f"{len(groups)} groups of {len(groups[0])} rollouts, for {batches} batches"
    if rest := len(groups) - batches * per_update:
        yield f"{rest} of the groups do not fill a batch, and are left out"
    if not config.evaluation.every:
        yield "nothing is evaluated: no problem of task.data is held out, or evaluation.every is 0"
    everyone = [one for group in groups for one in group]
    if made := sum(one.row.response_ids is None for one in everyone):
        yield (
            f"warning: the ids of {made} responses are made by the tokenizer, and may differ from "
            "those that were sampled"
        )
    texts = [one for one in everyone if one.row.response_ids is None]
    if unknown := sum(one.row.finish_reason is None for one in texts):
        yield (
            f"warning: whether {unknown} responses had ended is not known, so none of them gets an "
            "end-of-sequence token, and all count as cut; if the file knows it, name the column "
            "with --columns finish_reason=COLUMN"
        )
    other = [
        g[0] for g in groups if not np.array_equal(g[0].rollout.prompt_ids, encode(g[0].problem))
    ]
    if other:
        yield (
            f"warning: the prompts of {len(other)} groups have other ids than the run gives these "
            f"problems in later stages (the first: {other[0].row.where}); check prompt.form, "
            "prompt.chat_template and model.path"
        )
