"""Changes between a start and a resume of a run with dynamic sampling."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from mugrpo.disk.records import Score, Status
from mugrpo.tasks.chain import Chain
from tests.faults.harm import contents
from tests.runs import Command, killed, train
from tests.stages.test_planning import assert_good, planned, sampled, table

pytestmark = pytest.mark.long

pytest_plugins = ["tests.run_fixtures"]

# See tests.stages.test_planning: the first stage needs 6 groups and samples 12 to get them.
DYNAMIC = ("--sampling.name", "dynamic", "--optimizer.lr", "3e-4")


@pytest.fixture(scope="module")
def fifth_dynamic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with dynamic sampling that was killed in its fifth update. Tests copy it."""
    run_dir = tmp_path_factory.mktemp("dynamic") / "run"
    killed(run_dir, "gradient", 5, *DYNAMIC)
    return run_dir


def dull(monkeypatch: pytest.MonkeyPatch, *problems: str) -> None:
    """Install a judge: every second response is right, and all responses to `problems`."""

    def score(_: Chain, answers: Any) -> Any:
        for number, answer in enumerate(answers):
            right = number % 2 == 0 or answer.problem.id in problems
            yield Score(Status.RIGHT, 1.0) if right else Score(Status.WRONG, 0.0)

    monkeypatch.setattr(Chain, "score", score)


# ---- regressions ----


def test_a_run_that_stopped_with_too_few_groups_goes_on_with_a_higher_limit(
    tmp_path: Path, command: Command
):
    """The limit is 1.5 x 6 groups, so the fifth shard has one group instead of two."""
    run_dir = tmp_path / "run"
    assert train(run_dir, *DYNAMIC, "--sampling.max_oversampling", "1.5").status == 3
    assert sampled(run_dir, 0) == [8, 8, 8, 8, 4]
    ended = command("train", run_dir, "--sampling.max_oversampling", "3", "--force")
    assert ended.status == 0, ended.err
    assert_good(planned(run_dir, 0), 3)


def test_a_stage_of_several_rounds_goes_on_with_another_judges_scores(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
):
    """Shards hold up to 10 groups: first 6, then as many as the scores of those call for."""
    run_dir = tmp_path / "run"
    killed(run_dir, "plan without manifest", 1, *DYNAMIC, "--rollouts.shard_rollouts", "40")
    assert sampled(run_dir, 0)[:1] == [24] and len(sampled(run_dir, 0)) > 1
    dull(monkeypatch, table(run_dir, 0, "rollouts")[0]["problem_id"])  # 5 of the 6 vary
    assert command("score", run_dir, "--stage", 0, "--again").status == 0
    ended = command("train", run_dir)
    assert ended.status == 0, ended.err
    assert_good(planned(run_dir, 0), 3)


def test_groups_are_chosen_again_if_the_stage_has_no_update_yet(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
):
    run_dir = tmp_path / "run"
    killed(run_dir, "gradient", 1, *DYNAMIC)
    ((problem, _, _), _), *_ = planned(run_dir, 0)
    dull(monkeypatch, problem)
    assert command("score", run_dir, "--stage", 0, "--again").status == 0
    assert command("train", run_dir).status == 0
    assert_good(planned(run_dir, 0), 3)


@pytest.mark.long
def test_a_past_stage_that_another_judge_scores_is_not_sampled_again(
    fifth_dynamic: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
):
    run_dir = Path(shutil.copytree(fifth_dynamic, tmp_path / "run"))
    problems = {row["problem_id"] for n in range(6) for row in table(run_dir, 0, "rollouts", n)}
    with monkeypatch.context() as patch:
        dull(patch, *problems)  # none varies
        assert command("score", run_dir, "--stage", 0, "--again").status == 0
    rollouts = contents(run_dir / "stages/000/rollouts")
    assert command("train", run_dir).status == 0
    assert contents(run_dir / "stages/000/rollouts") == rollouts


@pytest.mark.long
def test_rounds_and_plan_of_another_policys_rollouts_are_not_used(tmp_path: Path, command: Command):
    """The second stage is copied from a run whose first stage ended after 4 updates, not after 2.

    If it begins after 2, all of its own 8 groups vary.
    """
    run_dir, other = tmp_path / "run", tmp_path / "other"
    options = (*DYNAMIC, "--schedule.batches_per_stage", "4", "--checkpoint.every", "0")
    until = ("--stage_until.name", "tv_token", "--stage_until.limit", "0.002")
    killed(other, "gradient", 5, *options, "--optimizer.lr", "1e-3")
    assert len(sampled(other, 1)) > 4  # not all of its 8 groups varied
    killed(run_dir, "gradient", 2, *options, *until, "--checkpoint.stage_end", "false")
    shutil.copytree(other / "stages/001", run_dir / "stages/001")
    ended = command("train", run_dir)
    assert ended.status == 0, ended.err
    assert_good(planned(run_dir, 1), 4)
    assert sampled(run_dir, 1) == [8] * 4
    assert table(run_dir, 1, "plan") != table(other, 1, "plan")
