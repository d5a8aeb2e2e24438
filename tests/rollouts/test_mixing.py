"""The order of groups from several sources: exact shares, and epochs of their own."""

from collections import Counter
from fractions import Fraction
from itertools import count, islice
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from mugrpo.config.training import ScheduleOptions
from mugrpo.rollouts.schedule import Schedule, Source, interleaved
from tests.cases import table


def mixed(sources: tuple[Source, ...], **options: Any) -> Schedule:
    chosen = ScheduleOptions(**{"problems_per_update": 4, "batches_per_stage": 3, **options})
    return Schedule(chosen, sum(s.problems for s in sources), 5, sources=sources)


def source_of(index: int, sources: tuple[Source, ...]) -> int:
    for number, source in enumerate(sources):
        if index < source.problems:
            return number
        index -= source.problems
    raise AssertionError


def test_weights_two_and_one_by_hand():
    """k = 2, so every prefix is within 1 - 1/2 of 2n/3 and n/3: 0 1 0, then the same again.

    After one draw (2/3, 1/3) only index 0 is within 1/2; after two (4/3, 2/3) each has had one.
    """
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
    lone = Schedule(options, problems, 5)
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
