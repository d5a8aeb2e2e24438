"""The layout of micro-batches."""

from dataclasses import replace

import numpy as np
import torch

from mugrpo.disk.records import FinishReason, Rollout
from mugrpo.engines.base import Completion
from mugrpo.optimize.batching import collate, cost
from mugrpo.optimize.cut import Layout
from mugrpo.optimize.experience import Responses
from tests import builders


def rollout(prompt: list[int], response: list[int], logprobs: list[float]) -> Rollout:
    ids, drawn = np.array(response, np.int32), np.array(logprobs, np.float32)
    completion = Completion(ids, drawn, FinishReason.STOP)
    return builders.rollout("p", 0, np.array(prompt, np.int32), completion)


def test_collate_by_hand():
    """Prompt and response end to end, padding on the right only, rows in the requested order."""
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
        torch.tensor([True, True, False]),
        stored,
    )
    batch = collate(responses, [2, 0], pad_id=7, device=torch.device("cpu"), share=False)
    assert batch.places == [2, 0]
    assert batch.ids.tolist() == [[13, 22, 23, 24], [11, 12, 21, 7]]
    assert batch.prompt_lengths.tolist() == [1, 2]
    assert batch.mask.tolist() == [[True, True, True], [True, False, False]]
    assert batch.prompts is None
    assert batch.behavior_logprobs.tolist() == [[-1.0, -2.0, -4.0], [-0.5, 0.0, 0.0]]
    assert batch.advantages.tolist() == [-1.5, 0.25]
    assert batch.varied.tolist() == [False, True]
    assert {name: tensor.tolist() for name, tensor in batch.stored.items()} == {
        "proximal_logprobs": [[-4.0, -5.0, -6.0], [-3.0, 0.0, 0.0]]
    }
    assert batch.stored["proximal_logprobs"].dtype == torch.float32
    assert (batch.ids.dtype, batch.mask.dtype) == (np.int64, torch.bool)
    assert batch.chosen.tolist() == batch.mask.tolist()
    assert (batch.behavior_logprobs.dtype, batch.advantages.dtype) == (torch.float32,) * 2


def test_the_loss_sees_sampled_tokens_and_the_model_sees_all():
    """Of responses of six and two tokens, an environment said the third, the fourth and none. The
    prompts and responses have 2 + 6 and 1 + 2 tokens, alone and together."""
    turns = rollout([11, 12], [1, 2, 3, 4, 5, 6], [-1.0, -2.0, 0.0, 0.0, -5.0, -6.0])
    turns = replace(
        turns,
        loss_mask=np.array([True, True, False, False, True, True]),
        turns=np.array([0, 4], np.int32),
    )
    rollouts = [turns, rollout([13], [8, 9], [-8.0, -9.0])]
    stored = {"proximal_logprobs": [np.arange(n, dtype=np.float32) for n in (6, 2)]}
    nothing = torch.zeros(2)
    responses = Responses(rollouts, nothing, nothing.bool(), nothing.bool(), stored)
    batch = collate(responses, [0, 1], pad_id=7, device=torch.device("cpu"), share=False)
    assert batch.ids.tolist() == [[11, 12, 1, 2, 3, 4, 5, 6], [13, 8, 9, 7, 7, 7, 7, 7]]
    assert batch.mask.tolist() == [[True] * 4, [True, True, False, False]]
    assert batch.steps is not None and batch.steps.tolist() == [[0, 1, 4, 5], [0, 1, 0, 0]]
    assert batch.behavior_logprobs.tolist() == [[-1, -2, -5, -6], [-8, -9, 0, 0]]
    assert batch.stored["proximal_logprobs"].tolist() == [[0, 1, 4, 5], [0, 1, 0, 0]]
    costs = cost([batch])
    assert costs["computed_tokens"] == 11 and costs["shared_prompt_share"] == 0


def test_rows_with_one_prompt_get_its_number_if_sharing_is_cheaper():
    a, b = list(range(50)), list(range(60))
    rollouts = [rollout(prompt, [1, 2], [-1.0, -1.0]) for prompt in (a, b, a, a, b)]
    nothing = torch.zeros(5)
    responses = Responses(rollouts, nothing, nothing.bool(), nothing.bool())
    common = {"pad_id": 7, "device": torch.device("cpu")}
    batch = collate(responses, [1, 3, 4, 0], **common, share=True)
    assert batch.prompts is not None and batch.prompts.tolist() == [0, 1, 0, 1]
    assert batch.layout == Layout(True, 50 + 60 + 4, 50 + 60 + 4, 4 * 60)
    assert collate(responses, [1, 3, 4, 0], **common, share=False).prompts is None
    assert collate(responses, [1, 0], **common, share=True).prompts is None  # nothing to share
