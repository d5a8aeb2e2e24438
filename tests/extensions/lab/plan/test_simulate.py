"""The simulation by hand, and against one that goes step by step."""

from __future__ import annotations

import numpy as np
import pytest

from mugrpo.extensions.lab.plan.simulate import Occupancy, Requests, occupancy, preempted, starts

Step = tuple[int, int, int, int]  # active slots, keys read, prompt tokens and pairs computed


def requests(prompts: list[int], responses: list[int], fresh: list[bool] | None = None) -> Requests:
    fresh = fresh or [True] * len(prompts)
    return Requests(np.array(prompts), np.array(responses), np.array(fresh))


def by_step(occupied: Occupancy) -> list[Step]:
    """Return the steps that the intervals stand for, with the mean keys of their interval."""
    steps: list[Step] = []
    for steps_, active, keys, tokens, pairs in zip(
        occupied.steps,
        occupied.active,
        occupied.keys,
        occupied.prompt_tokens,
        occupied.prompt_pairs,
        strict=True,
    ):
        middle = (steps_ - 1) / 2
        for step in range(steps_):
            first = step == 0
            held = keys + active * (step - middle)
            steps.append((active, held, tokens if first else 0, pairs if first else 0))
    return steps


def one_by_one(requests: Requests, slots: int) -> list[Step]:
    """Go through the slots step by step, as an engine does."""
    waiting = list(range(len(requests)))
    running: dict[int, int] = {}  # request -> response tokens so far
    steps: list[Step] = []
    while waiting or running:
        tokens = pairs = 0
        while waiting and len(running) < slots:
            request = waiting.pop(0)
            running[request] = 1
            prompt = int(requests.prompts[request])
            if requests.fresh[request]:
                tokens, pairs = tokens + prompt, pairs + prompt * (prompt + 1) // 2
        active = keys = 0
        for request in list(running):
            if running[request] < requests.responses[request]:
                keys += int(requests.prompts[request]) + running[request]
                active, running[request] = active + 1, running[request] + 1
            if running[request] == requests.responses[request]:
                del running[request]
        steps.append((active, keys, tokens, pairs))
    return steps


def test_two_slots_and_five_requests_by_hand():
    """Responses of 3, 1, 2, 4 and 2 tokens take 2, 1, 1, 3 and 1 steps of a slot.

    Slot A: the first in steps 0 and 1, the fourth in 2, 3 and 4. Slot B: the second in step 0,
    which its first token ends, the third in step 1, the fifth in step 2.
    """
    asked = requests([10, 20, 30, 40, 50], [3, 1, 2, 4, 2], [True, True, True, True, False])
    occupied = occupancy(asked, 2)
    assert by_step(occupied) == [
        (1, 11, 30, 55 + 210),
        (2, 12 + 31, 30, 465),
        (2, 41 + 51, 40, 820),
        (1, 42, 0, 0),
        (1, 43, 0, 0),
    ]
    assert list(occupied.begun) == [2, 1, 2, 0]
    assert list(occupied.prompts) == [2, 1, 1, 0]
    assert list(occupied.steps) == [1, 1, 1, 2]
    # The last requests begin in step 2: nothing waits from there on.
    assert list(occupied.waiting) == [True, True, False, False]
    # The second ends with the first step, the first and the third with the next one.
    assert list(occupied.ended) == [1, 2, 1, 1]


@pytest.mark.parametrize("seed", range(60))
def test_intervals_are_the_steps_of_an_engine(seed: int):
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 30))
    asked = Requests(rng.integers(1, 9, count), rng.integers(1, 14, count), rng.random(count) < 0.6)
    slots = int(rng.integers(1, 8))
    assert by_step(occupancy(asked, slots)) == one_by_one(asked, slots)


def test_every_token_is_decoded_once_however_many_requests_there_are():
    rng = np.random.default_rng(0)
    responses = np.rint(rng.lognormal(6, 1, 131_072)).astype(np.int64) + 1
    asked = Requests(np.full(len(responses), 100), responses, np.ones(len(responses), bool))
    occupied = occupancy(asked, 256)
    fed = responses - 1
    assert (occupied.steps * occupied.active).sum() == fed.sum()
    keys = (fed * 100 + fed * (fed + 1) // 2).sum()
    assert (occupied.steps * occupied.keys).sum() == pytest.approx(keys, rel=1e-12)
    assert occupied.begun.sum() == len(responses)
    assert occupied.active.max() == 256


def test_a_preempted_request_by_hand():
    """Responses of 5 tokens to prompts of 3, 3 and 1 tokens; room for 10 tokens.

    All begin: they hold 7 tokens, and 10 after a step. The next step needs 13, so the third goes,
    with the 2 tokens that it had. The others hold 8, and 10 after step 1. The second goes, with 3
    tokens. The first ends with step 3. The second is the first to come back, with a prompt of 3 + 3
    tokens; its last token takes step 4. Beside it there is no room for the third, 1 + 2 tokens, and
    a token of each. So the third takes steps 5 and 6.
    """
    asked = requests([3, 3, 1], [5, 5, 5])
    parts, start, done = preempted(asked, 3, 10)
    made = zip(start, parts.prompts, parts.responses, done, strict=True)
    assert sorted(made) == [
        (0, 1, 2, False),
        (0, 3, 3, False),
        (0, 3, 5, True),
        (4, 6, 2, True),
        (5, 3, 3, True),
    ]
    steps = by_step(occupancy(asked, 3, 10))
    assert [active for active, *_ in steps] == [3, 2, 1, 1, 1, 1, 1]
    assert [tokens for _, _, tokens, _ in steps] == [7, 0, 0, 0, 6, 3, 0]


def in_a_cache(requests: Requests, slots: int, room: float) -> list[tuple[int, int]]:
    """Go step by step: return active slots and prompt tokens of each step with a limited cache."""
    queue = [(i, 1) for i in range(len(requests))]  # requests, and the tokens after their prefill
    running: list[list[int]] = []  # request, its tokens, keys that it holds, in order of admission
    steps = []
    while queue or running:
        computed = 0
        while queue and len(running) < slots:
            request, tokens = queue[0]
            owns = tokens > 1 or bool(requests.fresh[request])
            keys = (int(requests.prompts[request]) + tokens - 1) if owns else 0
            if running and sum(r[2] + 1 for r in running) + keys + 1 > room:
                break
            queue.pop(0)
            running.append([request, tokens, keys])
            computed += keys
        active = 0
        for one in running:
            active += one[1] < requests.responses[one[0]]
            one[1], one[2] = one[1] + 1, one[2] + 1
        steps.append((active, computed))
        running = [one for one in running if one[1] < requests.responses[one[0]]]
        while len(running) > 1 and sum(r[2] + 1 for r in running) > room:
            request, tokens, _ = running.pop()
            queue.insert(0, (request, tokens + 1))
    return steps


@pytest.mark.parametrize("seed", range(60))
def test_preemptions_are_those_of_an_engine_that_goes_step_by_step(seed: int):
    rng = np.random.default_rng(seed)
    count, slots = int(rng.integers(1, 30)), int(rng.integers(1, 8))
    asked = Requests(rng.integers(1, 9, count), rng.integers(1, 14, count), rng.random(count) < 0.6)
    room = float((asked.prompts + asked.responses).max() + rng.integers(0, 20))
    parts, _, done = preempted(asked, slots, room)
    assert done.sum() == count and parts.responses.sum() == asked.responses.sum()
    made = [(active, tokens) for active, _, tokens, _ in by_step(occupancy(asked, slots, room))]
    assert made == in_a_cache(asked, slots, room)


def test_a_cache_with_room_for_all_slots_changes_nothing():
    rng = np.random.default_rng(0)
    asked = Requests(rng.integers(1, 9, 50), rng.integers(1, 14, 50), np.ones(50, bool))
    free, limited = occupancy(asked, 6), occupancy(asked, 6, 6 * 22.0)
    assert by_step(free) == by_step(limited)
    _, start, _ = preempted(asked, 6, 6 * 22.0)
    assert sorted(start) == sorted(starts(np.maximum(asked.responses - 1, 1), 6))
