"""Shards of responses, and a task with given verdicts to score them."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from mugrpo.config.rewards import RewardOptions
from mugrpo.disk.records import FinishReason, Problem, Response, Rollout, Score, Status
from mugrpo.disk.shards import RowReader, ShardSet, score_from_row, write_rollouts
from mugrpo.engines.base import Completion
from mugrpo.rollouts.score import Scorer
from tests.builders import chain_tokenizer, rollout

PROBLEMS = [Problem(f"p{n}", "3+2=", "5") for n in range(10)]
RIGHT, WRONG = Score(Status.RIGHT, 1.0), Score(Status.WRONG, 0.0)
SKIPPED = Score(Status.SKIPPED, None, {"reason": "no reward is a number"})
CUT = Score(Status.TRUNCATED, 0.0)
SLOW = Score(Status.UNFINISHED, 0.0, {"reason": "too slow"})


def failure(reason: str) -> Score:
    return Score(Status.ERROR, None, {"reason": reason})


class Fixed:
    """A task with given verdicts, which records what it is asked."""

    def __init__(self, *verdicts: Score, ahead: bool = False) -> None:
        self.verdicts = iter(verdicts)
        self.ahead = ahead
        self.asked: list[Response] = []
        self.undecided: tuple[str, ...] = ()
        self.groups = False

    def takes_groups(self, problem: Problem) -> bool:
        return self.groups

    def decides(self, problem: Problem) -> bool:
        return problem.id not in self.undecided

    def score(self, answers: Iterable[Response]) -> Iterator[Score]:
        for answer in list(answers) if self.ahead else answers:
            self.asked.append(answer)
            yield next(self.verdicts)


class Folder:
    """Shards of rollouts and scores, and a scorer between them."""

    def __init__(self, root: Path) -> None:
        self.rollouts = ShardSet(root / "rollouts", "rollouts")
        self.scores = ShardSet(root / "scores", "scores")

    def write(self, *responses: Rollout, shard: int = 0, **notes: Any) -> None:
        write_rollouts(self.rollouts, shard, responses, **notes)

    def score(self, task: Fixed, shard: int = 0, **options: Any) -> list[Score]:
        named = {name: options.pop(name) for name in ("judge", "check") if name in options}
        rewards = RewardOptions(**options)
        scorer = Scorer(task, PROBLEMS, chain_tokenizer(), rewards, max_new_tokens=10, **named)  # type: ignore[arg-type]
        scorer.make_shard(self.rollouts, self.scores, shard)
        rows = RowReader(self.scores).rows(
            (shard, n) for n in range(self.scores.entry(shard)["rows"])
        )
        return [score_from_row(row) for row in rows]


def response(problem: int, sample: int, text: str = "5", *, cut: bool = False) -> Rollout:
    """Return a response of the characters of `text`, and an end-of-sequence token unless `cut`."""
    ids = chain_tokenizer()(text)["input_ids"] + ([] if cut else [1])
    reason = FinishReason.LENGTH if cut else FinishReason.STOP
    logprobs = np.zeros(len(ids), np.float32)
    completion = Completion(np.array(ids, np.int32), logprobs, reason)
    return rollout(f"p{problem}", sample, np.array([5, 12, 4, 14], np.int32), completion)


def groups(*sizes: int) -> list[Rollout]:
    """Return groups of these sizes, for the problems p0, p1, ..."""
    return [response(p, sample) for p, size in enumerate(sizes) for sample in range(size)]
