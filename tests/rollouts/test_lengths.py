"""The longest responses start first, as predicted from earlier stages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from mugrpo.disk.records import FinishReason, Problem
from mugrpo.disk.shards import ShardSet, read_rollouts, write_rollouts
from mugrpo.engines.base import Completion, Decoded, Request
from mugrpo.pipeline import weights_of
from mugrpo.rollouts.sampler import ExpectedLengths, Sampler
from mugrpo.run.opening import open_run
from mugrpo.run.progress import Progress
from mugrpo.stages.sampling import Sampling
from tests.builders import rollout

pytest_plugins = ["tests.run_fixtures"]


def completion(length: int) -> Completion:
    return Completion(np.ones(length, np.int32), np.zeros(length, np.float32), FinishReason.STOP)


def shard_of(folder: Path, lengths: Sequence[tuple[str, int, int]], shard: int = 0) -> ShardSet:
    """Return shards of rollouts, each with its problem and its tokens of prompt and response."""
    shards = ShardSet(folder, "rollouts")
    rows = [
        rollout(problem, sample, np.ones(prompt, np.int32), completion(response))
        for sample, (problem, prompt, response) in enumerate(lengths)
    ]
    write_rollouts(shards, shard, rows)
    return shards


class Recorder:
    """An engine whose n-th answer is the last digits of the request's seed, n times."""

    streams, exact = False, True

    def __init__(self) -> None:
        self.prompts: list[int] = []

    def generate(
        self,
        requests: Sequence[Request],
        *,
        temperature: float,
        max_new_tokens: int,
        top_p: float = 1.0,
    ) -> Iterator[Decoded]:
        for place, request in enumerate(requests):
            self.prompts.append(int(request.prompt_ids[0]))
            ids = np.array([request.seed % 1000] * (place + 1), np.int32)
            answer = Completion(ids, np.zeros(len(ids), np.float32), FinishReason.STOP)
            yield Decoded([(place, answer)], 1)


def sampler(engine: Recorder, expected: ExpectedLengths | None) -> Sampler:
    return Sampler(
        engine,
        lambda problem: np.array([int(problem.id)] * int(problem.id), np.int32),
        seed=0,
        stage="1",
        group_size=2,
        temperature=1.0,
        max_new_tokens=9,
        policy_step=0,
        expected=expected,
    )


def test_a_problem_has_its_mean_and_a_new_one_lies_on_the_line_through_all(tmp_path):
    """Prompts of 1, 1, 3 tokens with responses of 2, 4, 8: means 3 and 8, a line of slope 2.5."""
    expected = ExpectedLengths()
    assert expected.of("a", 7) == 0
    expected.learn(shard_of(tmp_path, [("a", 1, 2), ("a", 1, 4), ("b", 3, 8)]))
    assert expected.of("a", 7) == 3
    assert expected.of("b", 7) == 8
    assert expected.of("c", 5) == pytest.approx(13)
    assert expected.of("c", 1) == pytest.approx(3)


def test_if_all_prompts_have_one_length_a_new_one_has_the_mean(tmp_path):
    expected = ExpectedLengths()
    expected.learn(shard_of(tmp_path, [("a", 4, 2), ("b", 4, 5)]))
    assert expected.of("c", 4) == expected.of("c", 9) == 3.5


def test_a_damaged_shard_is_skipped(tmp_path):
    shard_of(tmp_path, [("a", 1, 2)])
    shards = shard_of(tmp_path, [("b", 1, 6)], shard=1)
    shards.path(1).write_bytes(shards.path(1).read_bytes()[:-1])
    expected = ExpectedLengths()
    expected.learn(shards)
    assert expected.of("a", 1) == expected.of("b", 1) == 2


def test_longest_first_and_every_rollout_in_its_place(tmp_path):
    """Problems 1, 2, 3 have known lengths 5, 9, 7; problem 4 is on their line: 7 + 2 x 1."""
    expected = ExpectedLengths()
    expected.learn(shard_of(tmp_path, [("1", 1, 5), ("2", 2, 9), ("3", 3, 7)]))
    assert expected.of("4", 4) == pytest.approx(9)
    problems = [(Problem(str(i), "", ""), 0) for i in (1, 2, 3, 4)]
    ordered, plain = Recorder(), Recorder()
    rows = sampler(ordered, expected).sample(problems, lambda _: None)
    assert ordered.prompts == [2, 2, 4, 4, 3, 3, 1, 1]
    assert [r.problem_id for r in rows] == ["1", "1", "2", "2", "3", "3", "4", "4"]
    assert [len(r.response_ids) for r in rows] == [7, 8, 1, 2, 5, 6, 3, 4]
    in_order = sampler(plain, None).sample(problems, lambda _: None)
    assert plain.prompts == [1, 1, 2, 2, 3, 3, 4, 4]
    assert [r.seed for r in rows] == [r.seed for r in in_order]
    assert [r.response_ids[0] for r in rows] == [r.seed % 1000 for r in rows]


def test_a_stage_learns_from_the_stages_before_it(reference: Path):
    with open_run(reference, progress=Progress()) as run:
        shards = ShardSet(run.folder.shards(0, "rollouts"), "rollouts")
        lengths: dict[str, list[int]] = {}
        for shard in shards.numbers():
            for one in read_rollouts(shards, shard):
                lengths.setdefault(one.problem_id, []).append(len(one.response_ids))
        sampling = Sampling(run, weights_of(run))
        for stage in (1, 0, 1):
            expected = sampling.expected_lengths(stage)
            for problem, known in lengths.items():
                assert expected.of(problem, 1) == (pytest.approx(np.mean(known)) if stage else 0)
