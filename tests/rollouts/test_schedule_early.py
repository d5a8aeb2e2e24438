"""The arithmetic of stages that end early: the updates of a run are fixed, its stages are not."""

from __future__ import annotations

from itertools import islice

from hypothesis import given, settings
from hypothesis import strategies as st

from mugrpo.config.stages import ScheduleOptions
from mugrpo.rollouts.schedule import Schedule
from tests.cases import table


def schedule(**options: float) -> Schedule:
    """2 stages of 16 batches of 2 problems out of 40, unless `options` say otherwise."""
    given: dict[str, float] = {
        "stages": 2,
        "batches_per_stage": 16,
        "problems_per_update": 2,
        **options,
    }
    return Schedule(ScheduleOptions(**given), problems=40, seed=0)


def test_a_first_stage_that_ends_after_8_of_16_updates_makes_three_stages_of_32_updates():
    plan = schedule().ending_at(8)
    assert plan.starts == (0, 8)
    assert plan.stages == 3
    assert [plan.first_update(stage) for stage in range(5)] == [0, 8, 24, 32, 32]
    assert [plan.planned_updates(stage) for stage in range(3)] == [8 + 8, 16, 8]
    assert [plan.batches(stage) for stage in range(3)] == [16, 16, 8]
    updates = range(plan.options.total_updates)
    assert [plan.stage_of(u) for u in updates] == [0] * 8 + [1] * 16 + [2] * 8
    assert [plan.staleness(u) for u in updates] == [*range(8), *range(16), *range(8)]
    assert [plan.batch_of(u) for u in updates] == [plan.staleness(u) for u in updates]
    assert plan.stage_of(32) == plan.stage_of(99) == 3


def test_later_stages_may_end_early_too_and_the_last_is_what_is_left():
    plan = schedule().ending_at(8).ending_at(11).ending_at(26)
    assert plan.starts == (0, 8, 11, 26)
    assert [plan.first_update(stage) for stage in range(5)] == [0, 8, 11, 26, 32]
    assert plan.stages == 4
    assert plan.batches(3) == 6


def test_a_stage_that_ends_early_after_whole_ones_keeps_their_starts():
    plan = schedule(stages=4, batches_per_stage=8).ending_at(19)
    assert plan.starts == (0, 8, 16, 19)
    assert [plan.first_update(stage) for stage in range(6)] == [0, 8, 16, 19, 27, 32]
    assert (plan.stages, plan.batches(4)) == (5, 5)


@table("ends", [(), (8,), (16,), (8, 11, 26), (3, 19)])
def test_equal_stages_are_computed_as_stages_that_hardly_grow_are_counted(ends):
    equal, growing = schedule(), schedule(growth=1 + 1e-9)
    for end in ends:
        equal, growing = equal.ending_at(end), growing.ending_at(end)
    assert equal.starts == growing.starts and equal.stages == growing.stages
    for update in range(34):
        assert equal.stage_of(update) == growing.stage_of(update)
    for stage in range(8):
        assert equal.first_update(stage) == growing.first_update(stage)
        assert list(equal.groups(stage)) == list(growing.groups(stage))


@table("update", [16, 32])
def test_a_stages_last_planned_update_is_no_early_end(update: int):
    plan = schedule()
    assert plan.ending_at(update) is plan


def test_a_last_stage_that_the_runs_end_cuts_short_ends_there_whatever_comes_later():
    plan = schedule().ending_at(8)
    assert plan.ending_at(24) is plan
    assert plan.ending_at(32).starts == (0, 8, 24, 32) and plan.ending_at(32).stages == 3
    assert plan.ending_at(31).starts == (0, 8, 24, 31)


def test_passes_over_a_batch_that_a_stages_end_cuts_short():
    """2 x 3 batches x 2 passes; after 3 updates the second batch has had one of its passes."""
    plan = schedule(batches_per_stage=3, passes_per_batch=2).ending_at(3)
    assert [plan.first_update(stage) for stage in range(4)] == [0, 3, 9, 12]
    assert [plan.batch_of(u) for u in range(12)] == [0, 0, 1, 0, 0, 1, 1, 2, 2, 0, 0, 1]
    assert (plan.planned_updates(2), plan.batches(2)) == (3, 2)  # its last batch is used once
    assert len(list(plan.groups(2))) == 2 * 2


def test_a_stage_has_the_same_groups_whatever_ended_before_it():
    whole, early = schedule(), schedule().ending_at(8)
    assert list(early.groups(1)) == list(whole.groups(1))
    assert list(early.groups(2)) == list(islice(whole.stream(2), 8 * 2))


def test_the_stream_goes_on_where_the_groups_of_the_stage_end():
    plan = schedule()
    both = list(plan.groups(0)) + list(plan.groups(1))
    assert list(islice(plan.stream(0), 64)) == both
    far = list(islice(plan.stream(1), 400))
    assert len(set(far)) == 400  # no group is drawn twice, in any number of epochs


@settings(derandomize=True, deadline=None)
@given(st.lists(st.integers(1, 24), max_size=12), st.integers(1, 5), st.integers(1, 3))
def test_however_stages_end_every_update_is_made_once_in_order(lengths, batches, passes):
    """Each stage ends after the drawn number of updates, or as planned where that is fewer."""
    plan = schedule(stages=4, batches_per_stage=batches, passes_per_batch=passes)
    total = plan.options.total_updates
    update = 0
    for length in lengths:
        if update < total:
            planned = plan.planned_updates(plan.stage_of(update))
            update += min(length, planned)
            plan = plan.ending_at(update)
    stages = range(plan.stages)
    assert plan.first_update(plan.stages) == total > plan.first_update(plan.stages - 1)
    updates = [u for s in stages for u in range(plan.first_update(s), plan.first_update(s + 1))]
    assert updates == list(range(total))
    for u in updates:
        stage = plan.stage_of(u)
        assert plan.first_update(stage) + plan.staleness(u) == u
        assert plan.batch_of(u) < plan.batches(stage) <= batches
