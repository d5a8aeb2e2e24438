"""From the rows of other programs' files to groups of rollouts and scores that a run can hold."""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from mugrpo.config.run import RunConfig
from mugrpo.config.tasks import DatasetOptions
from mugrpo.disk.errors import UsageError
from mugrpo.disk.records import FinishReason, Problem, Rollout, Score, Status
from mugrpo.extensions.exchange.foreign import FORMATS, Cells, Row, rows_of, turns_of
from mugrpo.extensions.exchange.grouping import Group, Imported, grouped, meant
from mugrpo.model.loading import Vocabulary
from mugrpo.rollouts.prompts import PromptEncoder
from mugrpo.tasks.cells import prompt_of
from mugrpo.tasks.dataset import canonical
from mugrpo.tasks.rows import read_rows

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True)
class Source:
    """What to import, and how to read it."""

    names: Sequence[str]  # files and folders, or data sets on the hub
    form: str = "table"  # a name in FORMATS
    columns: Mapping[str, str] = field(default_factory=dict)  # field -> column, before the form's
    policy: str | None = None  # the model that computes the behavior logprobs; None: they are given
    group_size: int | None = None  # cut each prompt's responses into groups of this size
    duplicates: str = "refuse"  # or "drop", "keep"
    bad: str = "refuse"  # rows that cannot be used; or "drop"


class Importer:
    """Makes groups of the rows of `source` for a run with `config`.

    `known` are the problems of the config's own data. If there are any, every prompt must be one of
    them, and gets its reference answer.
    """

    def __init__(
        self,
        config: RunConfig,
        source: Source,
        encode: PromptEncoder,
        vocabulary: Vocabulary,
        known: Sequence[Problem] = (),
    ) -> None:
        self.dropped: list[str] = []  # sentences about rows that were left out
        self._config, self._source = config, source
        self._form = form = FORMATS[source.form]
        if source.policy is not None:
            columns = {name: c for name, c in form.columns.items() if name != "logprobs"}
            self._form = replace(form, columns=columns)
        self._encode, self._vocabulary = encode, vocabulary
        self._own: dict[tuple[str, bytes], Problem] = {}  # problems that the rows name
        self._prompt_ids: dict[int, NDArray[np.int32]] = {}  # by the id() of the problem
        self._known = encode.fitting(known) if known else []

    def groups(self) -> list[Group]:
        """Return the groups, each of the same size.

        Raises UsageError, naming the place, for the first row or group that cannot be used.
        """
        pairs = [pair for pairs in self._usable(self._entries(), self._pairs) for pair in pairs]
        problems = list({id(problem): problem for problem, _ in pairs}.values())
        fitting = set(map(id, self._encode.fitting(problems) if problems else ()))
        long = [row for problem, row in pairs if id(problem) not in fitting]
        self.dropped += [f"{row.place}: its prompt is too long" for row in long]
        rows = (pair for pair in pairs if id(pair[0]) in fitting)
        imported = list(self._usable(rows, self._imported))
        groups, left_out = grouped(imported, self._source.duplicates, self._source.group_size)
        self.dropped += left_out
        if not groups:
            raise UsageError(
                f"{', '.join(self._source.names)}: no rollout is left"
                + (f"; the first that was left out: {self.dropped[0]}" if self.dropped else "")
            )
        return groups

    def _usable(self, items: Iterable[T], make: Callable[[T], U]) -> Iterator[U]:
        """Yield what `make` returns for each item, without the bad ones if those are dropped."""
        for item in items:
            try:
                made = make(item)
            except UsageError as error:
                if self._source.bad != "drop":
                    raise UsageError(
                        f"{error}. Fix the file, or leave such rows out with --bad drop"
                    ) from None
                self.dropped.append(str(error))
            else:
                yield made

    def _entries(self) -> Iterator[tuple[str, Cells]]:
        for name in self._source.names:
            if not Path(name).is_dir():
                yield from read_rows(name)
                continue
            files = [path for path in Path(name).rglob(self._form.files) if _is_data(path)]
            if not files:
                raise UsageError(
                    f"{name} has no file {self._form.files} of the format {self._source.form}; "
                    "name the files, or another --format"
                )
            for file in sorted(files):
                yield from read_rows(str(file))

    def _pairs(self, entry: tuple[str, Cells]) -> list[tuple[Problem, Row]]:
        rows = rows_of(self._form, *entry, self._source.columns)
        return [(self._problem(row), row) for row in rows]

    def _problem(self, row: Row) -> Problem:
        """Return the problem that a row answers: a known one, or one that the row itself names."""
        decode = self._encode.tokenizer.decode
        if row.prompt is not None:
            texts = [prompt_of(row.prompt, row.place)]
        else:
            self._in_vocabulary(row.prompt_ids or (), row)
            texts = [decode(row.prompt_ids), decode(row.prompt_ids, skip_special_tokens=True)]
        if self._known:
            for key in map(canonical, texts):
                if found := self._by_prompt.get(key) or self._by_text.get(key):
                    return meant(found, row)
            raise UsageError(f"{row.place}: its prompt is none of those in task.data")
        written = self._form.written or row.prompt is None
        if written and self._encode.options.form == "chat":
            raise UsageError(
                f"{row.place}: its prompt is the text that a chat template wrote; name the "
                "problems themselves with task.data, or use --prompt.form plain"
            )
        prompt, answer = texts[0], row.answer or ""
        identity = row.problem_id or hashlib.sha256(canonical([prompt, answer])).hexdigest()[:16]
        problem = Problem(identity, prompt if isinstance(prompt, str) else tuple(prompt), answer)
        own = self._own.setdefault((identity, canonical(prompt)), problem)
        if own.answer != answer:
            raise UsageError(
                f"{row.place} has the answer {answer!r:.40}, but earlier rows with its problem_id "
                f"and prompt have {own.answer!r:.40}"
            )
        return own

    @cached_property
    def _by_prompt(self) -> dict[bytes, list[Problem]]:
        """The known problems by their prompts; in the chat form, text is a turn of the user."""
        keys = defaultdict[bytes, list[Problem]](list)
        for problem in self._known:
            keys[canonical(problem.prompt)].append(problem)
            if self._encode.options.form == "chat":
                turns = [{"role": "user", "content": problem.prompt}]
                keys[canonical(turns)].append(problem)
        return dict(keys)

    @cached_property
    def _by_text(self) -> dict[bytes, list[Problem]]:
        """The known problems by what the model gets, with and without special tokens."""
        decode, keys = self._encode.tokenizer.decode, defaultdict[bytes, list[Problem]](list)
        for problem in self._known:
            ids = self._encode(problem)
            for text in {self._encode.text(problem), decode(ids, skip_special_tokens=True)}:
                keys[canonical(text)].append(problem)
        return dict(keys)

    def _imported(self, pair: tuple[Problem, Row]) -> Imported:
        problem, row = pair
        temperature = self._config.rollouts.temperature
        sampled_at = temperature if row.temperature is None else row.temperature
        if not math.isclose(sampled_at, temperature, rel_tol=1e-6):  # a file may have float32
            raise UsageError(
                f"{row.place} was sampled at temperature {row.temperature:g}, not at "
                f"rollouts.temperature = {temperature:g}; set --rollouts.temperature"
            )
        prompt_ids = self._prompt(problem, row)
        response_ids, finish_reason = self._response(row)
        longest = self._config.rollouts.max_new_tokens
        if len(response_ids) > longest:
            raise UsageError(
                f"{row.place}: its response has {len(response_ids)} tokens, more than "
                f"rollouts.max_new_tokens = {longest}; raise that"
            )
        turns = turns_of(row)
        rollout = Rollout(
            problem_id=problem.id,
            occurrence=0,
            sample=0,
            seed=row.seed or 0,
            prompt_ids=prompt_ids,
            response_ids=response_ids,
            behavior_logprobs=self._logprobs(row, len(response_ids)),
            finish_reason=finish_reason,
            temperature=temperature,
            policy_step=row.policy_step or 0,
            **turns,
        )
        if turns and self._source.policy is None and rollout.fault:
            raise UsageError(f"{row.place}: {rollout.fault}")
        return Imported(problem, row, rollout, self._score(row))

    def _prompt(self, problem: Problem, row: Row) -> NDArray[np.int32]:
        if row.prompt_ids is None:
            if id(problem) not in self._prompt_ids:
                self._prompt_ids[id(problem)] = self._encode(problem)
            return self._prompt_ids[id(problem)]
        limit = self._encode.limit
        if limit is not None and len(row.prompt_ids) > limit:
            raise UsageError(
                f"{row.place}: its prompt has {len(row.prompt_ids)} tokens, more than the {limit} "
                "that rollouts.max_new_tokens leaves of the model's context; lower that"
            )
        return self._in_vocabulary(row.prompt_ids, row)

    def _response(self, row: Row) -> tuple[NDArray[np.int32], FinishReason]:
        """Return a response's ids, and whether its last id ends it."""
        ids = self._in_vocabulary(row.response_ids or self._made(row), row)
        stops = np.isin(ids, self._vocabulary.stop_ids)
        if row.loss_mask is None and stops[:-1].any():
            raise UsageError(
                f"{row.place}: its response goes on after the end-of-sequence token "
                f"{ids[stops.argmax()]}; leave out what follows, such as padding"
            )
        if row.loss_mask is not None and row.finish_reason in set(FinishReason):
            return ids, FinishReason(row.finish_reason)  # a whole turn may have been the last
        return ids, FinishReason.STOP if stops[-1] else FinishReason.LENGTH

    def _made(self, row: Row) -> list[int]:
        """Return the ids that the tokenizer makes of a response.

        They get an end unless they have one, the row says that the response was cut, or it does not
        say and they are as many as a response may have.
        """
        if row.finish_reason not in (None, *FinishReason):
            raise UsageError(
                f"{row.place}: its finish_reason {row.finish_reason!r} is neither stop nor length, "
                "so whether the response ended is not known"
            )
        ids = self._encode.ids_of(row.response or "")
        full = len(ids) >= self._config.rollouts.max_new_tokens
        ended = row.finish_reason == "stop" if row.finish_reason else not full
        if ended and not (ids and ids[-1] in self._vocabulary.stop_ids):
            ids.append(self._encode.tokenizer.eos_token_id)
        return ids

    def _in_vocabulary(self, ids: Sequence[int], row: Row) -> NDArray[np.int32]:
        if not ids or min(ids) < 0 or max(ids) >= self._vocabulary.size:
            raise UsageError(
                f"{row.place} has the token ids {min(ids, default=0)} to {max(ids, default=0)}, "
                f"but the model has the ids 0 to {self._vocabulary.size - 1}; name the model that "
                "the rollouts were sampled with as model.path"
            )
        return np.array(ids, np.int32)

    def _logprobs(self, row: Row, length: int) -> NDArray[np.float32]:
        if self._source.policy is not None:
            return np.zeros(length, np.float32)
        if row.logprobs is None or row.response_ids is None:
            what = "logprobs" if row.logprobs is None else "token ids to its logprobs"
            raise UsageError(
                f"{row.place} has no {what}; name the model that sampled it, which computes them, "
                "with --policy PATH"
            )
        return np.array(row.logprobs, np.float32)

    def _score(self, row: Row) -> Score:
        assert isinstance(self._config.task, DatasetOptions)
        if row.status is not None:
            status = Status(row.status)
        elif row.reward is None:
            status = Status.SKIPPED
        else:
            right = row.reward >= 1.0
            status = Status.RIGHT if right else Status.WRONG
        try:
            return Score(status, row.reward, row.parts or {})
        except ValueError as error:
            raise UsageError(f"{row.place}: {error}") from None


def _is_data(path: Path) -> bool:
    return path.is_file() and path.suffix.lower() in (".jsonl", ".parquet", ".csv")
