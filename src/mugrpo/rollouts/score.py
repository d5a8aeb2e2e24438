"""Score shards of rollouts. The rollouts stay as they are, so scoring can be repeated."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from itertools import compress, groupby
from typing import Any

from mugrpo.config.rewards import RewardOptions
from mugrpo.disk.errors import RunStopped, UsageError
from mugrpo.disk.publishing import failpoint
from mugrpo.disk.records import (
    FinishReason,
    Problem,
    Response,
    Rollout,
    Score,
    Status,
    TrainerState,
    text_of,
)
from mugrpo.disk.shards import ShardSet, read_rollouts, write_scores
from mugrpo.tasks.base import Task

_NONE = "every reward function returned None"


@dataclass
class Scorer:
    """A scorer of rollouts of `problems`, with `task` as the judge.

    `options` says how truncated responses and failures count. `max_new_tokens` is the length at
    which the penalty on long responses reaches -1. `judge` is the fingerprint of everything
    that decides the scores, see `scored`. `state` is what reward functions get as `trainer_state`,
    with each rollout's own policy step. `check` is called between rollouts and may raise to stop.
    """

    task: Task
    problems: Sequence[Problem]
    tokenizer: Any
    options: RewardOptions
    _: KW_ONLY
    max_new_tokens: int
    judge: str = ""
    state: TrainerState | None = None
    check: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self._by_id = {problem.id: problem for problem in self.problems}
        self._sources = sorted({p.source for p in self.problems if p.source is not None})

    def make_shard(
        self,
        rollouts: ShardSet,
        scores: ShardSet,
        shard: int,
        wanted: Callable[[int], bool] = lambda _: True,
        **notes: Any,
    ) -> None:
        """Score one shard and publish the scores, with counts and `notes` in their entry.

        Drop them if the shard is not `wanted` any more. Raises UsageError if a rollout's problem is
        unknown, and RunStopped as soon as more responses have failed than `failure_limit` allows.
        In both cases nothing is published.
        """
        began = time.monotonic()
        responses = list(read_rollouts(rollouts, shard))
        for rollout in responses:
            if rollout.problem_id not in self._by_id:
                raise UsageError(
                    f"{rollouts.path(shard)} answers problem {rollout.problem_id!r}, which the "
                    "task does not have; use the task that the rollouts were made for"
                )
        verdicts: list[Score] = []
        reasons: Counter[str] = Counter()
        for rollout, score in zip(responses, self._scores(responses), strict=True):
            self.check()
            score = _with_logged(self._penalized(score, rollout), rollout)
            verdicts.append(self._with_source(score, rollout))
            if score.status.failed:
                reasons[f"{score.status.value}: {score.parts.get('reason', _NONE)}"] += 1
                self._stop_at_limit(reasons, len(responses))
        asked = {r.problem_id: self._by_id[r.problem_id] for r in responses}
        undecided = [id_ for id_, problem in asked.items() if not self.task.decides(problem)]
        if not wanted(shard):
            return
        publish_scores(
            scores,
            rollouts,
            shard,
            responses,
            verdicts,
            self.options,
            undecided=undecided,
            judge=self.judge,
            seconds=time.monotonic() - began,
            **notes,
        )

    def _scores(self, rollouts: Sequence[Rollout]) -> Iterator[Score]:
        """Yield a score for every rollout, in order. The task judges only those that need it.

        Truncated ones that are not judged still reach what compares the responses of a group.
        """
        everything = self.options.truncated == "scored"
        whole = [everything or r.finish_reason is FinishReason.STOP for r in rollouts]
        failures = list(map(_environment_failure, rollouts))
        judged = [
            not failure and (ended or self.task.takes_groups(self._by_id[r.problem_id]))
            for r, ended, failure in zip(rollouts, whole, failures, strict=True)
        ]
        verdicts = self.task.score(self._response(r) for r in compress(rollouts, judged))
        for failure, ended, is_judged in zip(failures, whole, judged, strict=True):
            score = next(verdicts) if is_judged else None
            if failure:
                yield failure
            elif score is not None and ended:
                yield score
            else:  # of its call's metrics, a score may be the only one that has them
                logged = score.logged.items() if score is not None else ()
                kept = {name: some for name, some in logged if name.startswith("logged/")}
                yield Score(Status.TRUNCATED, 0.0, logged=kept)

    def _penalized(self, score: Score, rollout: Rollout) -> Score:
        """Return the score of a rollout, less the penalty on its length."""
        buffer = self.options.overlong_buffer * self.max_new_tokens
        if not buffer or score.reward is None:
            return score
        length = len(rollout.response_ids)
        penalty = overlong_penalty(length, self.max_new_tokens, buffer)
        parts = {**score.parts, "overlong": penalty} if penalty else score.parts
        return replace(score, reward=score.reward + penalty, parts=parts)

    def _with_source(self, score: Score, rollout: Rollout) -> Score:
        """Return `score` with what is logged of the sources of a mixture: share and reward."""
        own = self._by_id[rollout.problem_id].source
        if own is None:
            return score
        logged = {f"share/{source}": [float(source == own)] for source in self._sources}
        logged |= {f"reward/{own}": [score.reward]} if score.reward is not None else {}
        return replace(score, logged={**score.logged, **logged})

    def _response(self, rollout: Rollout) -> Response:
        failpoint("scoring")
        text = response_text(rollout, self.tokenizer)
        problem, outcome = self._by_id[rollout.problem_id], rollout.environment
        state = self.state and replace(self.state, global_step=rollout.policy_step)
        return Response(
            problem,
            text,
            rollout.response_ids.tolist(),
            rollout.finish_reason,
            state,
            outcome.reward if outcome else None,
            outcome.messages if outcome else None,
            rollout.group,
        )

    def _stop_at_limit(self, reasons: Counter[str], rows: int) -> None:
        failed = sum(reasons.values())
        if failed > self.options.failure_limit * rows + 1e-9:
            reason, count = reasons.most_common(1)[0]
            raise RunStopped(
                f"{failed} of a shard's {rows} responses could not be judged, more than "
                f"rewards.failure_limit = {self.options.failure_limit:g} allows; {count} of them: "
                f"{reason}. Fix the reward, or raise --rewards.failure_limit; a stage's "
                "rollouts are kept (add --force if a reward's file or options change)"
            )


def _environment_failure(rollout: Rollout) -> Score | None:
    """Return the score of a rollout whose environment has failed, or None."""
    outcome = rollout.environment
    if outcome is None or not outcome.failure:
        return None
    parts = {"reason": f"the environment: {outcome.failure}"}
    if outcome.unfinished:
        return Score(Status.UNFINISHED, 0.0, parts)
    return Score(Status.ERROR, None, parts)


def _with_logged(score: Score, rollout: Rollout) -> Score:
    """Return `score` with what the rollout's environment has logged."""
    said = rollout.environment.logged if rollout.environment else {}
    logged = {f"logged/{name}": [value] for name, value in said.items()}
    return replace(score, logged={**score.logged, **logged}) if logged else score


def publish_scores(
    scores: ShardSet,
    rollouts: ShardSet,
    shard: int,
    responses: Sequence[Rollout],
    verdicts: Sequence[Score],
    options: RewardOptions,
    *,
    undecided: Sequence[str] = (),
    **notes: Any,
) -> None:
    """Publish the verdicts on `responses`, the rollouts of `shard`, with counts and `notes`.

    `undecided` are the problems for which no reward says what is right.
    """
    groups = groupby(zip(responses, verdicts, strict=True), key=lambda pair: pair[0].group)
    of_problem = {key: [s for _, s in group if options.counts(s.status)] for key, group in groups}
    counted = list(of_problem.values())
    decided = [group for key, group in of_problem.items() if key.problem_id not in undecided]
    rewards = [score.reward for score in verdicts if score.reward is not None]
    write_scores(
        scores,
        shard,
        verdicts,
        rollouts_sha256=rollouts.entry(shard)["sha256"],
        statuses=dict(Counter(score.status.value for score in verdicts)),
        reward_sum=sum(rewards),
        rewarded=len(rewards),
        groups=len(counted),
        zero_variance_groups=sum(len({s.reward for s in group}) <= 1 for group in counted),
        groups_right=groups_right(decided),
        undecided=list(undecided),
        truncated=sum(r.finish_reason is FinishReason.LENGTH for r in responses),
        **logged_sums(verdicts),
        **notes,
    )


def response_text(rollout: Rollout, tokenizer: Any) -> str:
    """Return a response as text, without the id that only ends it.

    Of a response with turns, return the last one.
    """
    stopped = rollout.finish_reason is FinishReason.STOP
    begin = 0 if rollout.turns is None else int(rollout.turns[-1])
    return text_of(rollout.response_ids[begin : -1 if stopped else None], tokenizer)


def overlong_penalty(length: int, longest: int, buffer: float) -> float:
    """Return min(0, -(length - (longest - buffer)) / buffer), all in tokens; -1 beyond `longest`.

    This is the soft overlong punishment of DAPO (arXiv 2503.14476).
    """
    return max(-1.0, min(0.0, -(length - (longest - buffer)) / buffer))


def groups_right(groups: Sequence[Sequence[Score]]) -> dict[str, int]:
    """Count the groups by their share of right responses, such as "0.250": 1 of 4, or 2 of 8.

    `groups` holds only the responses that count. A group without any is left out, as is one with
    responses that have no verdict.
    """
    judged = [group for group in groups if all(s.status is not Status.GRADED for s in group)]
    right = [(sum(s.status is Status.RIGHT for s in group), len(group)) for group in judged]
    return dict(sorted(Counter(f"{k / n:.3f}" for k, n in right if n).items()))


def logged_sums(scores: Sequence[Score]) -> dict[str, dict[str, float]]:
    """Return the sums and the counts of the logged values of each metric, as an entry has them.

    Return {} if nothing is logged.
    """
    sums: dict[str, float] = {}
    counts: dict[str, float] = {}
    for name, values in (item for score in scores for item in score.logged.items()):
        sums[name] = sums.get(name, 0.0) + sum(values)
        counts[name] = counts.get(name, 0) + len(values)
    return {"logged_sums": sums, "logged_counts": counts} if counts else {}


def scored(rollouts: ShardSet, scores: ShardSet, shard: int, judge: str | None = None) -> bool:
    """Return whether `scores` has the scores of exactly the rollouts that `shard` holds now.

    If `judge` is given, the scores must be that judge's, or name no judge.
    """
    if shard not in rollouts or shard not in scores:
        return False
    for fresh in (False, True):  # another process may have scored it again
        entry = scores.entry(shard, fresh=fresh)
        of_these = entry.get("rollouts_sha256") == rollouts.entry(shard, fresh=fresh)["sha256"]
        if of_these and judge in (None, entry.get("judge", judge)):
            return True
    return False
