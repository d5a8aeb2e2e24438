"""The cut into micro-batches and their layout."""

from __future__ import annotations

import random

import numpy as np
import torch

from mugrpo.optimize.batching import Responses, collate, split_by_tokens
from mugrpo.records import FinishReason, Rollout


def test_split_by_hand():
    # Longest first. Budget 12: 2 x 5 fits, 3 x 5 does not; 4 x 3 fits, 5 x 3 does not.
    assert split_by_tokens([3, 5, 2, 5, 3, 2, 1], 12) == [[1, 3], [0, 4, 2, 5], [6]]


def test_a_row_over_the_budget_stands_alone():
    assert split_by_tokens([4, 50, 4, 40], 8) == [[1], [3], [0, 2]]


def test_equal_lengths_keep_their_order():
    assert split_by_tokens([2, 2, 2, 2, 2], 4) == [[0, 1], [2, 3], [4]]


def test_nothing_gives_no_micro_batch():
    assert split_by_tokens([], 8) == []


def test_budget_holds_and_every_row_comes_exactly_once():
    generator = random.Random(0)
    shared = 0
    for _ in range(200):
        lengths = [generator.randint(1, 60) for _ in range(generator.randint(1, 40))]
        budget = generator.randint(1, 300)
        parts = split_by_tokens(lengths, budget)
        assert sorted(row for part in parts for row in part) == list(range(len(lengths)))
        for part in parts:
            assert part
            assert len(part) == 1 or len(part) * max(lengths[i] for i in part) <= budget
            shared += len(part) > 1
    assert shared > 0


def rollout(prompt: list[int], response: list[int], logprobs: list[float]) -> Rollout:
    return Rollout(
        problem_id="p",
        occurrence=0,
        sample=0,
        seed=0,
        prompt_ids=np.array(prompt, np.int32),
        response_ids=np.array(response, np.int32),
        behavior_logprobs=np.array(logprobs, np.float32),
        finish_reason=FinishReason.STOP,
        temperature=1.0,
        policy_step=0,
    )


def test_collate_by_hand():
    """Prompt and response end to end, padding on the right only, rows in the order asked for."""
    rollouts = [
        rollout([11, 12], [21], [-0.5]),
        rollout([99], [98], [-9.0]),
        rollout([13], [22, 23, 24], [-1.0, -2.0, -4.0]),
    ]
    stored = {"proximal_logprobs": [np.array(v, np.float32) for v in ([-3], [-8], [-4, -5, -6])]}
    responses = Responses(
        rollouts,
        torch.tensor([0.25, 9.0, -1.5], dtype=torch.float64),
        torch.tensor([True, False, False]),
        stored,
    )
    batch = collate(responses, [2, 0], pad_id=7, device=torch.device("cpu"))
    assert batch.rows == [2, 0]
    assert batch.ids.tolist() == [[13, 22, 23, 24], [11, 12, 21, 7]]
    assert batch.prompt_lengths.tolist() == [1, 2]
    assert batch.mask.tolist() == [[True, True, True], [True, False, False]]
    assert batch.behavior_logprobs.tolist() == [[-1.0, -2.0, -4.0], [-0.5, 0.0, 0.0]]
    assert batch.advantages.tolist() == [-1.5, 0.25]
    assert batch.varied.tolist() == [False, True]
    assert {name: tensor.tolist() for name, tensor in batch.stored.items()} == {
        "proximal_logprobs": [[-4.0, -5.0, -6.0], [-3.0, 0.0, 0.0]]
    }
    assert batch.stored["proximal_logprobs"].dtype == torch.float32
    assert (batch.ids.dtype, batch.mask.dtype) == (torch.int64, torch.bool)
    assert (batch.behavior_logprobs.dtype, batch.advantages.dtype) == (torch.float32,) * 2
