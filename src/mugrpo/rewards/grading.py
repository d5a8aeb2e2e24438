"""Scoring answers by the rewards of a run, in worker processes."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict
from itertools import groupby, islice
from pathlib import Path
from typing import Any, Self

from mugrpo.config.base import BoxReader, RewardOption, WorkerOptions
from mugrpo.config.rewards import FunctionOptions, MathOptions, RegexOptions, deciding
from mugrpo.disk.errors import UsageError
from mugrpo.disk.records import Answer, Score, Status
from mugrpo.processes.messages import to_json
from mugrpo.rewards.functions import place_of
from mugrpo.rewards.pool import Pool


class Grader:
    """A judge that scores answers by `rewards`, in worker processes started at the first answer.

    The reward of an answer is the weighted sum of the rewards that are numbers. Its status is that
    of the first verifier. The part "answer" of a score is the answer that this verifier read, and
    "answer/NAME" the one that the verifier NAME read, if there are several. A verifier after the
    first with weight 0 has the value None if it cannot read the reference.

    If no reward is a verifier, the status is RIGHT for a reward of at least `right_at`, otherwise
    WRONG. It is SKIPPED if no reward is a number. Raises UsageError if `rewards` is empty or one of
    them is not available: its file does not exist, or math-verify is not installed.
    """

    def __init__(
        self,
        rewards: tuple[RewardOption, ...],
        workers: WorkerOptions,
        *,
        right_at: float = 1.0,
    ) -> None:
        if not rewards:
            raise UsageError("no reward is named; name at least one, such as rewards = ['math']")
        for reward in rewards:
            _require_available(reward)
        self._rewards, self._workers = rewards, workers
        self._weights = {reward.label: reward.weight for reward in rewards}
        self._with_prompts = any(isinstance(reward, FunctionOptions) for reward in rewards)
        self._right_at = right_at
        self._pool = Pool([reward.revealed("python") for reward in rewards], workers)

    def start(self, log: Path | None = None) -> list[str]:
        """Load the rewards now rather than at the first answer, to learn early if that fails.

        What they print goes to `log`, up to a limit, or to stderr. Return sentences for the user.
        """
        if log is not None:
            log.parent.mkdir(parents=True, exist_ok=True)
        self._pool.log = log
        self._pool.start()
        return self._pool.said

    def unreadable(self, references: Iterable[str]) -> dict[str, str]:
        """Return the references that no response matches, each with the reason.

        For `math` and `plain`, these are not equal to themselves. For `regex`, the pattern finds
        something else in them. Rewards on which neither status nor reward depends do not count.
        """
        distinct, reasons = list(dict.fromkeys(references)), dict[str, str]()
        for kind in (BoxReader, RegexOptions):
            asked = [r for r in deciding(self._rewards) if isinstance(r, kind)]
            if not asked:
                continue
            options = [r.model_copy(update={"weight": 1.0}).revealed("python") for r in asked]
            calls = ([to_json({"text": asked[0].written(r), "answer": r})] for r in distinct)
            with closing(Pool(options, self._workers)) as pool:
                for reference, [outcome] in zip(distinct, pool.run(calls), strict=True):
                    if reason := _unmatched(outcome, asked[0]):
                        reasons.setdefault(reference, reason)
        return reasons

    def scores(self, answers: Iterable[Answer]) -> Iterator[Score]:
        """Yield the score of each answer, in order. Answers are consumed as workers become free.

        Raises UsageError if a reward cannot be loaded or a column cannot be sent to a function,
        BrokenReward if a function does not return a number or None for each completion.
        """
        for outcomes in self._pool.run(self._calls(answers)):
            yield from map(self._score, outcomes)

    def close(self) -> None:
        """End all workers. A later call of `scores` starts new ones."""
        self._pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _calls(self, answers: Iterable[Answer]) -> Iterator[list[str]]:
        size = self._workers.batch_size
        for _, same in groupby(answers, key=lambda answer: answer.state):
            while batch := [self._item(answer) for answer in islice(same, size)]:
                yield batch

    def _item(self, answer: Answer) -> str:
        problem = answer.problem
        item: dict[str, Any] = {"text": answer.text, "answer": problem.answer}
        item["environment"] = answer.environment_reward
        if self._with_prompts:
            item |= {"id": problem.id, "prompt": problem.prompt, "columns": dict(problem.columns)}
            item["ids"] = [int(token) for token in answer.ids]
            item["messages"] = answer.messages
            item["state"] = answer.state and asdict(answer.state)
        try:
            return to_json(item)
        except (TypeError, ValueError):
            raise UsageError(_unsendable(problem.id, problem.columns)) from None

    def _score(self, outcome: Mapping[str, Any]) -> Score:
        if "failure" in outcome:
            parts = {"reason": outcome["failure"]}
            if outcome["unfinished"]:
                return Score(Status.UNFINISHED, 0.0, parts)
            return Score(Status.ERROR, None, parts)
        values: dict[str, float | None] = outcome["values"]
        parts = {**values, **outcome["answers"]}
        parts |= {f"extra/{column}": value for column, value in outcome["extra"].items()}
        logged = {f"rewards/{name}/mean": [v] for name, v in values.items() if v is not None}
        logged |= {f"logged/{name}": values for name, values in outcome.get("metrics", {}).items()}
        terms = [self._weights[name] * value for name, value in values.items() if value is not None]
        if not terms:
            reason = {"reason": "no reward is a number"}
            return Score(Status.SKIPPED, None, parts | reason, logged)
        reward = sum(terms)
        right = Status.RIGHT if reward >= self._right_at else Status.WRONG
        return Score(Status(outcome.get("status", right)), reward, parts, logged)


def _require_available(reward: RewardOption) -> None:
    """Raise UsageError if `reward` is known to be unavailable before anything is loaded."""
    if isinstance(reward, FunctionOptions):
        place, _, in_file = place_of(reward.function)
        if in_file and not Path(place).is_file():
            raise UsageError(
                f"the reward {reward.function}: there is no file {Path(place).absolute()}"
            )
    elif isinstance(reward, MathOptions) and importlib.util.find_spec("math_verify") is None:
        raise UsageError("the reward math needs math-verify: pip install 'mugrpo[math]'")


def _unmatched(outcome: Mapping[str, Any], reward: RewardOption) -> str | None:
    """Return why no response matches a reference that was judged as a response, or None."""
    if isinstance(reward, RegexOptions) and "failure" not in outcome:
        if outcome["status"] != Status.WRONG:  # it is "12", and the pattern wants "= 12"
            return None
        return f"the pattern of regex finds {outcome['answers']['answer']!r} in it"
    if all(outcome.get("values", {"none": 0.0}).values()):
        return None
    return str(outcome.get("failure", "it is not equal to itself"))


def _unsendable(problem: str, columns: Mapping[str, Any]) -> str:
    """Return the error message for a problem with a column that has no JSON form."""
    for name, value in columns.items():
        try:
            to_json(value)
        except (TypeError, ValueError) as error:
            return (
                f"column {name} of problem {problem!r} cannot be sent to a reward function: "
                f"{error}; leave the column out, or store it as text"
            )
    return f"problem {problem!r} cannot be sent to a reward function"
