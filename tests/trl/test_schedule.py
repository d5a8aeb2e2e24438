"""TRL's batch arithmetic, by hand, by a loop like TRL's, and by TRL's own code."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

from mugrpo.config.load import build_config
from mugrpo.config.stages import ScheduleOptions
from mugrpo.disk.errors import UsageError
from mugrpo.rollouts.schedule import Schedule
from mugrpo.trl import GRPOConfig
from mugrpo.trl.options import run_options
from mugrpo.trl.schedule import generation_of, schedule_options, updates_of

SIZES = (
    "per_device_train_batch_size gradient_accumulation_steps steps_per_generation num_iterations"
)


def sized(*sizes: int | None, **more: Any) -> Any:
    return GRPOConfig(**dict(zip(SIZES.split(), sizes, strict=True)), **more)


def schedule(args: Any, rows: int | None = None) -> dict[str, Any]:
    one = generation_of(args)
    return schedule_options(args, one, updates_of(args, one, rows)[0])


def test_by_hand():
    # 8 x 4 = 32 rollouts of 4 prompts; 2 batches of 16; 3 passes: 6 updates to a generation
    args = sized(8, 2, 4, 3, num_generations=8, max_steps=30)
    assert schedule(args) == {
        "stages": 5,
        "batches_per_stage": 2,
        "problems_per_update": 2,
        "group_size": 8,
        "passes_per_batch": 3,
        "pass_order": "stage",
    }
    # two processes: 64 rollouts of 8 prompts, 2 batches of 32
    args.options = {"distributed.processes": 2}
    assert schedule(args)["problems_per_update"] == 4
    # TRL's defaults: 8 rollouts of one prompt, one update, then a refresh
    assert schedule(GRPOConfig(max_steps=7))["stages"] == 7
    # gradients accumulated over two generations of 4 rollouts each: the policy is the same
    args = sized(4, 2, 1, 1, num_generations=4, max_steps=5)
    found = schedule(args)
    assert (found["stages"], found["batches_per_stage"], found["problems_per_update"]) == (5, 1, 2)


def test_epochs_by_hand():
    # 10 prompts, 4 to a generation: 2 generations an epoch, and 2 prompts are left out
    args = sized(8, 2, 4, 1, num_generations=8, num_train_epochs=3)
    assert updates_of(args, generation_of(args), 10) == (12, 4)
    assert schedule(args, 10)["stages"] == 6
    with pytest.raises(UsageError, match="the data set has 3 prompts, but a generation takes 4"):
        schedule(args, 3)
    with pytest.raises(UsageError, match="set max_steps"):
        schedule(args)


def trl_loop(sizes: tuple[int, ...], updates: int) -> tuple[list[int], list[set[int]]]:
    """Return the updates made before each refresh, and the slices of the buffer of each update.

    This is TRL's `_prepare_inputs` over micro-batches.
    """
    _, accumulated, steps, iterations = sizes
    refreshes, slices, micro = [], [set[int]()], 0
    while len(slices) <= updates:
        if micro % (steps * iterations) == 0:
            refreshes.append(len(slices) - 1)
        slices[-1].add(micro % steps)
        micro += 1
        if micro % accumulated == 0:
            slices.append(set())
    return refreshes, slices[:-1]


@pytest.mark.parametrize("sizes", list(itertools.product([4], [1, 2, 4], [1, 2, 4, 8], [1, 2, 3])))
def test_refreshes_and_batches_are_those_of_a_loop_like_trls(sizes: tuple[int, ...]):
    args = sized(*sizes, num_generations=4, max_steps=48)
    _, accumulated, steps, iterations = sizes
    if steps % accumulated and iterations > 1:
        with pytest.raises(UsageError, match="would mix parts of generations"):
            schedule(args)
        return
    found = Schedule(ScheduleOptions(**schedule(args)), 64, seed=0)
    refreshes, slices = trl_loop(sizes, 48)
    assert [found.first_update(stage) for stage in range(found.stages)] == sorted(set(refreshes))
    for update, trained_on in enumerate(slices):
        first = found.batch_of(update) * accumulated
        assert trained_on == {micro % steps for micro in range(first, first + accumulated)}


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(8, 2, 4, 3), (4, 4, None, 1), (2, 8, 16, 2), (8, 1, None, 2)])
@pytest.mark.parametrize("rows", [16, 37])
def test_trls_own_config_and_sampler_give_the_same_numbers(sizes: Any, rows: int):
    from trl import GRPOConfig as TRLConfig
    from trl.trainer.utils import RepeatSampler

    given = dict(zip(SIZES.split(), sizes, strict=True))
    trl = TRLConfig("nowhere", **given, num_generations=4, bf16=False, use_cpu=True)
    ours = generation_of(sized(*sizes, num_generations=4))
    assert ours.rollouts == trl.generation_batch_size
    assert ours.prompts == trl.generation_batch_size // 4
    repeats = trl.num_iterations * trl.steps_per_generation
    sampler = RepeatSampler(range(rows), 4, ours.prompts, repeats)
    micro_batches = len(sampler) // (trl.per_device_train_batch_size * trl.steps_per_generation)
    expected = math.ceil(3 * math.ceil(micro_batches / trl.gradient_accumulation_steps))
    assert updates_of(sized(*sizes, num_generations=4), ours, rows)[0] == expected


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {"num_generations": 3},
            "a generation of 8 rollouts .* no multiple of num_generations = 3",
        ),
        ({"num_generations": 1}, "a group needs at least 2"),
        (
            {"per_device_train_batch_size": 2, "steps_per_generation": 4},
            "an update of 2 rollouts .*; gradient_accumulation_steps = 4 would do",
        ),
        ({"generation_batch_size": 12}, "must be a multiple of .* = 8"),
        ({"generation_batch_size": 16, "steps_per_generation": 2}, "not both"),
    ],
)
def test_arithmetic_that_does_not_work_is_refused(fields: dict[str, Any], words: str):
    with pytest.raises(UsageError, match=words):
        generation_of(GRPOConfig(**fields))


def test_a_run_must_end_with_a_generation():
    args = sized(8, 1, 4, 1, max_steps=10)
    with pytest.raises(UsageError, match=r"10 updates end within a .*; set max_steps = 8 or 12$"):
        schedule(args)


def test_few_large_stages():
    few = schedule(sized(8, 1, 1, 1, max_steps=240, stages=4))
    assert (few["stages"], few["batches_per_stage"], few["growth"]) == (4, 60, 1.0)
    # tapered GRPO doubles: 16 + 32 + 64 + 128 = 240
    args = sized(8, 1, 1, 1, max_steps=240, method="tapered-grpo")
    config = build_config(run_options(args, None, evaluates=False, gpu=False), "test")
    assert [config.schedule.batches(stage) for stage in range(4)] == [16, 32, 64, 128]
    assert config.objective.name == "topr" and config.schedule.total_updates == 240
    with pytest.raises(UsageError, match=r"4 such stages; set max_steps = 240 or 255$"):
        schedule(sized(8, 1, 1, 1, max_steps=250, method="tapered-grpo"))
    with pytest.raises(UsageError, match="brings its own loss; leave out epsilon"):
        args = sized(8, 1, 1, 1, max_steps=240, method="tapered-grpo", epsilon=0.1)
        run_options(args, None, evaluates=False, gpu=False)
