"""The arithmetic of stages, batches, passes and random numbers."""

from typing import Any

import pytest
from pydantic import ValidationError

from mugrpo.config.training import ScheduleOptions
from mugrpo.rollouts.schedule import Schedule, rollout_seed
from tests.cases import table


def schedule(*, problems: int, seed: int = 0, **options: Any) -> Schedule:
    return Schedule(ScheduleOptions(**options), problems, seed)


def run_groups(plan: Schedule) -> list[tuple[int, int]]:
    """The groups of all stages in order."""
    return [group for stage in range(plan.options.stages) for group in plan.groups(stage)]


def updates_of(plan: Schedule) -> list[list[tuple[int, int]]]:
    """The groups of each batch of the run."""
    groups, size = run_groups(plan), plan.options.problems_per_update
    return [groups[start : start + size] for start in range(0, len(groups), size)]


@table(
    ("batches", "passes", "mu"),
    [
        (1, 1, 1),  # strictly on-policy GRPO
        (4, 1, 4),  # standard GRPO of the Mu-GRPO paper
        (1, 10, 10),  # sample reuse, v = 1, i = 10
        (10, 1, 10),  # off-policy GRPO, v = 10, i = 1
        (1024, 1, 1024),  # Mu-GRPO
    ],
)
def test_updates_per_refresh_of_the_published_schedules(batches, passes, mu):
    options = ScheduleOptions(stages=4, batches_per_stage=batches, passes_per_batch=passes)
    assert options.updates_per_stage == mu
    assert options.total_updates == 4 * mu


def test_the_defining_schedule_has_4096_updates_in_four_stages():
    options = ScheduleOptions(
        stages=4, batches_per_stage=1024, problems_per_update=16, group_size=8
    )
    assert options.total_updates == 4096
    assert options.rollouts_per_update == 128


def test_staleness_counts_updates_since_the_refresh():
    """Two batches, three passes each: mu = 6, the passes make the behavior policy staler too."""
    plan = ScheduleOptions(stages=2, batches_per_stage=2, passes_per_batch=3)
    updates = range(plan.total_updates)
    assert [plan.staleness(u) for u in updates] == [0, 1, 2, 3, 4, 5] * 2
    assert [plan.batch_of(u) for u in updates] == [0, 0, 0, 1, 1, 1] * 2
    assert [plan.stage_of(u) for u in updates] == [0] * 6 + [1] * 6
    assert [plan.first_update(stage) for stage in range(3)] == [0, 6, 12]


@table("problems", [4, 7, 8, 11])
def test_no_problem_twice_within_an_update(problems):
    """20 updates of 4 groups are several epochs of each data set."""
    plan = schedule(problems=problems, stages=2, batches_per_stage=10, problems_per_update=4)
    updates = updates_of(plan)
    assert len(updates) == 20
    for groups in updates:
        assert len({problem for problem, _ in groups}) == 4


@table("problems", [4, 7, 8, 100])
def test_every_group_key_is_unique_in_the_run(problems):
    """With 4, 7 and 8 problems, one stage needs more problems than there are."""
    plan = schedule(problems=problems, stages=3, batches_per_stage=6, problems_per_update=4)
    groups = run_groups(plan)
    assert len(set(groups)) == len(groups) == 72
    assert {problem for problem, _ in groups} <= set(range(problems))


def test_an_epoch_visits_every_problem_once_and_each_epoch_in_another_order():
    plan = schedule(problems=12, stages=2, batches_per_stage=9, problems_per_update=4)
    groups = run_groups(plan)  # 72 groups: 6 epochs of 12, which end within stages
    epochs = [groups[start : start + 12] for start in range(0, 72, 12)]
    for number, epoch in enumerate(epochs):
        assert sorted(epoch) == [(problem, number) for problem in range(12)]
    orders = [tuple(problem for problem, _ in epoch) for epoch in epochs]
    assert len(set(orders)) == 6


def test_the_order_of_groups_does_not_depend_on_the_cut_into_stages():
    few = schedule(problems=10, stages=2, batches_per_stage=6, problems_per_update=4)
    many = schedule(problems=10, stages=12, batches_per_stage=1, problems_per_update=4)
    assert run_groups(few) == run_groups(many)


def test_rollout_seed_golden():
    # printf '7\0003\000chain-12\0000\0005' | b2sum -l 64   ->   5d2ffcf0ce49445d, little-endian
    assert rollout_seed(7, "3", "chain-12", 0, 5) == 0x5D4449CEF0FC2F5D


def test_rollout_seed_differs_in_every_component():
    base = (7, "3", "chain-12", 0, 5)
    others = [
        (8, "3", "chain-12", 0, 5),
        (7, "4", "chain-12", 0, 5),
        (7, "evaluation", "chain-12", 0, 5),
        (7, "3", "chain-13", 0, 5),
        (7, "3", "chain-12", 1, 5),
        (7, "3", "chain-12", 0, 6),
    ]
    assert len({rollout_seed(*key) for key in [base, *others]}) == 7


def test_stages_that_double_by_hand():
    """3, 6 and 12 batches; no group is drawn twice, and none is left out."""
    plan = schedule(problems=12, stages=3, batches_per_stage=3, growth=2.0, problems_per_update=4)
    options = plan.options
    assert options.total_updates == 21
    assert [options.batches(stage) for stage in range(3)] == [3, 6, 12]
    assert [options.first_update(stage) for stage in range(4)] == [0, 3, 9, 21]
    assert [options.stage_of(update) for update in (0, 2, 3, 8, 9, 20, 21)] == [0, 0, 1, 1, 2, 2, 3]
    assert [options.staleness(update) for update in (2, 3, 8, 9, 20)] == [2, 0, 5, 0, 11]
    equal = schedule(problems=12, stages=7, batches_per_stage=3, problems_per_update=4)
    assert run_groups(plan) == run_groups(equal)


def test_passes_and_rounding_of_a_growing_schedule():
    """4 x 1.5^s is 4, 6, 9, 13.5 (rounded to even: 14); two passes make twice the updates."""
    options = ScheduleOptions(stages=4, batches_per_stage=4, growth=1.5, passes_per_batch=2)
    assert [options.batches(stage) for stage in range(4)] == [4, 6, 9, 14]
    assert options.total_updates == 2 * (4 + 6 + 9 + 14) and options.updates_per_stage == 8
    assert options.batches(9) == 14
    shrinking = ScheduleOptions(stages=3, batches_per_stage=4, growth=0.25)
    assert [shrinking.batches(stage) for stage in range(3)] == [4, 1, 1]


def test_growth_without_bounds_is_refused():
    assert ScheduleOptions(stages=10, growth=2.0).updates(9) == 512 * 64
    with pytest.raises(ValidationError, match="it has 67,108,800 updates, more than 1,000,000"):
        ScheduleOptions(stages=20, growth=2.0)
