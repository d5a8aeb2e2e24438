"""The arithmetic of stages, batches, passes, sources and random numbers."""

from collections import Counter
from fractions import Fraction
from itertools import count, islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from mugrpo.config.training import ScheduleOptions
from mugrpo.rollouts.schedule import Schedule, Source, interleaved, rollout_seed
from tests.cases import table


def schedule(*, problems: int, seed: int = 0, **options: Any) -> Schedule:
    return schedule_on(problems, ScheduleOptions(**options), seed)


def schedule_on(problems: int, options: ScheduleOptions, *rest: Any) -> Schedule:
    """Return a schedule on problems that are their own numbers."""
    return Schedule(options, range(problems), *rest)  # type: ignore[arg-type]


def run_groups(plan: Schedule) -> list[tuple[int, int]]:
    """The groups of all stages in order."""
    return [group for stage in range(plan.options.stages) for group in plan.groups(stage)]


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
    sizes = {"problems_per_update": 16, "group_size": 8}
    options = ScheduleOptions(stages=4, batches_per_stage=batches, passes_per_batch=passes, **sizes)
    assert (options.updates_per_stage, options.total_updates) == (mu, 4 * mu)
    assert options.rollouts_per_update == 128


@table("problems", [4, 7, 8, 11, 100])
def test_every_group_key_is_unique_in_the_run_and_each_problem_in_an_update(problems):
    """24 updates of 4 groups are several epochs, and one stage needs more problems than 8."""
    plan = schedule(problems=problems, stages=3, batches_per_stage=8, problems_per_update=4)
    groups = run_groups(plan)
    assert len(set(groups)) == len(groups) == 96
    assert {problem for problem, _ in groups} <= set(range(problems))
    for start in range(0, 96, 4):
        assert len({problem for problem, _ in groups[start : start + 4]}) == 4


def test_an_epoch_visits_every_problem_once_and_each_epoch_in_another_order():
    plan = schedule(problems=12, stages=2, batches_per_stage=9, problems_per_update=4)
    groups = run_groups(plan)  # 72 groups: 6 epochs of 12, which end within stages
    epochs = [groups[start : start + 12] for start in range(0, 72, 12)]
    for number, epoch in enumerate(epochs):
        assert sorted(epoch) == [(problem, number) for problem in range(12)]
    orders = [tuple(problem for problem, _ in epoch) for epoch in epochs]
    assert len(set(orders)) == 6


def test_a_rollouts_seed_is_golden_and_differs_in_every_component():
    # printf '7\0003\000chain-12\0000\0005' | b2sum -l 64   ->   5d2ffcf0ce49445d, little-endian
    base = (7, "3", "chain-12", 0, 5)
    assert rollout_seed(*base) == 0x5D4449CEF0FC2F5D
    others = [(8,), (7, "4"), (7, "evaluation"), (7, "3", "chain-13"), (7, "3", "chain-12", 1)]
    keys = [base, *(other + base[len(other) :] for other in others), (*base[:4], 6)]
    assert len({rollout_seed(*key) for key in keys}) == 7


def test_stages_that_double_and_staleness_by_hand():
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
    # Two batches, three passes each: mu = 6, the passes make the behavior policy staler too.
    plan = ScheduleOptions(stages=2, batches_per_stage=2, passes_per_batch=3)
    updates = range(plan.total_updates)
    assert [plan.staleness(u) for u in updates] == [0, 1, 2, 3, 4, 5] * 2
    assert [plan.batch_of(u) for u in updates] == [0, 0, 0, 1, 1, 1] * 2
    assert [plan.stage_of(u) for u in updates] == [0] * 6 + [1] * 6
    assert [plan.first_update(stage) for stage in range(3)] == [0, 6, 12]


def test_passes_rounding_and_bounds_of_a_growing_schedule():
    """4 x 1.5^s is 4, 6, 9, 13.5 (rounded to even: 14); two passes make twice the updates."""
    options = ScheduleOptions(stages=4, batches_per_stage=4, growth=1.5, passes_per_batch=2)
    assert [options.batches(stage) for stage in range(4)] == [4, 6, 9, 14]
    assert options.total_updates == 2 * (4 + 6 + 9 + 14) and options.updates_per_stage == 8
    assert options.batches(9) == 14
    shrinking = ScheduleOptions(stages=3, batches_per_stage=4, growth=0.25)
    assert [shrinking.batches(stage) for stage in range(3)] == [4, 1, 1]
    assert ScheduleOptions(stages=10, growth=2.0).updates(9) == 512 * 64
    with pytest.raises(ValidationError, match="it has 67,108,800 updates, more than 1,000,000"):
        ScheduleOptions(stages=20, growth=2.0)


def mixed(sources: tuple[Source, ...], **options: Any) -> Schedule:
    chosen = ScheduleOptions(**{"problems_per_update": 4, "batches_per_stage": 3, **options})
    return schedule_on(sum(s.problems for s in sources), chosen, 5, sources)


def source_of(index: int, sources: tuple[Source, ...]) -> int:
    for number, source in enumerate(sources):
        if index < source.problems:
            return number
        index -= source.problems
    raise AssertionError


def test_weights_two_and_one_by_hand():
    """k = 2, so every prefix is within 1 - 1/2 of 2n/3 and n/3: 0 1 0, then the same again. After
    one draw (2/3, 1/3) only index 0 is within 1/2; after two (4/3, 2/3) each has had one."""
    assert list(islice(interleaved((2, 1)), 9)) == [0, 1, 0] * 3
    assert list(islice(interleaved((1, 0, 1)), 4)) == [0, 2, 0, 2]
    assert list(islice(interleaved((0, 7.5)), 3)) == [1, 1, 1]


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 40), min_size=2, max_size=7).filter(any), st.integers(1, 200))
def test_every_prefix_has_each_share_within_tijdemans_bound(weights, length):
    drawn, total = Counter[int](), sum(weights)
    k = sum(weight > 0 for weight in weights)
    bound = Fraction(0) if k == 1 else 1 - Fraction(1, 2 * k - 2)
    for n, index in enumerate(islice(interleaved(weights), length), start=1):
        drawn[index] += 1
        for i, weight in enumerate(weights):
            assert abs(drawn[i] - Fraction(n * weight, total)) <= bound


@table(("problems", "growth"), [(22, 1), (24, 1), (22, 2)])
def test_without_sources_the_groups_are_those_of_the_closed_form(problems, growth):
    """Epoch b // B and place b % B of batch b, with B full batches in an epoch."""
    options = ScheduleOptions(stages=4, batches_per_stage=3, growth=growth, problems_per_update=4)
    lone = schedule_on(problems, options, 5)
    as_source = mixed((Source(problems, "a"),), stages=4, growth=growth)
    begins = 0
    for stage in range(4):
        expected = []
        for batch in islice(count(begins), options.batches(stage) + 4):
            epoch, place = divmod(batch, problems // 4)
            order = np.random.default_rng((5, epoch)).permutation(problems)
            expected += [(int(index), epoch) for index in order[place * 4 :][:4]]
        assert list(islice(lone.stream(stage), len(expected))) == expected
        assert list(islice(as_source.stream(stage), len(expected))) == expected
        begins += options.batches(stage)


def test_shares_by_stage_epochs_by_source_and_no_repeat_within_an_update():
    """12 groups a stage with weights 3 : 1, then 1 : 1, then 0 : 1, which stays."""
    sources = (Source(7, "a", (3.0, 1.0, 0.0)), Source(12, "b", (1.0,)))
    plan = mixed(sources, stages=4)
    shares = []
    first_epochs: list[list[int]] = [[], []]
    for stage in range(4):
        groups = list(plan.groups(stage))
        shares.append(Counter(source_of(index, sources) for index, _ in groups))
        for start in range(0, 12, 4):
            update = [index for index, _ in groups[start : start + 4]]
            assert len(set(update)) == 4
        for index, epoch in groups:
            if epoch == 0:
                first_epochs[source_of(index, sources)].append(index)
    assert [(c[0], c[1]) for c in shares] == [(9, 3), (6, 6), (0, 12), (0, 12)]
    assert len(first_epochs[0]) == len(set(first_epochs[0])) == 6  # two updates of three
    assert len(first_epochs[1]) == len(set(first_epochs[1])) == 9  # 3 x 1 + 3 x 2, but not + 4
