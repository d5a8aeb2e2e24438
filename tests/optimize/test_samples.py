"""The rollouts of an update that are kept for people to read."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from mugrpo.config.run import ModelOptions
from mugrpo.model.policy import load_policy
from mugrpo.optimize.batching import MicroBatch
from mugrpo.optimize.experience import Experience
from mugrpo.optimize.samples import Recorder
from mugrpo.optimize.trainer import Trainer
from tests.cases import table
from tests.updates import config_of, hand_batch

# The session's experience has 4 groups of 4 with rewards 1000, 1100, 0000, 0111. The first rows of
# their groups with a positive advantage are 0, 4 and 13, with a negative one 1, 6 and 12.
POSITIVE, NEGATIVE = [0, 4, 13], [1, 6, 12]


def chosen(recorder: Recorder, experience: Experience, count: int) -> list[dict[str, Any]]:
    tokenizer = load_policy(ModelOptions()).tokenizer
    return recorder.chosen(experience.rollouts, experience.scores, count, tokenizer)


def rows(samples: list[dict[str, Any]]) -> list[int]:
    """Return the samples' rows in the session's experience: problem p1's third sample is row 6."""
    return [4 * int(s["problem_id"][1:]) + s["sample"] for s in samples]


@pytest.fixture(scope="module")
def seen(experience: Experience) -> Recorder:
    """A recorder of one update of the embedded model."""
    recorder = Recorder()
    Trainer(load_policy(ModelOptions()), config_of()).step(experience, recorder)
    return recorder


@table(
    ("count", "expected"),
    [
        (1, [0]),
        (2, [1, 4]),  # rows of other groups come before row 0, which is of the same group as row 1
        (3, [1, 4, 13]),  # one of three is negative
        (4, [0, 1, 6, 13]),
        (5, [0, 1, 4, 6, 13]),
        (6, sorted(POSITIVE + NEGATIVE)),
        (100, sorted(POSITIVE + NEGATIVE)),
    ],
)
def test_half_have_a_negative_advantage_and_each_is_the_first_of_its_group(
    seen, experience, count, expected
):
    samples = chosen(seen, experience, count)
    assert rows(samples) == expected
    negative = [s["advantage"] < 0 for s in samples]
    assert negative == [row in NEGATIVE for row in expected]


def batch(rows: list[int], advantages: list[float], lengths: list[int]) -> MicroBatch:
    width = max(lengths)
    mask = torch.tensor([[place < length for place in range(width)] for length in lengths])
    micro_batch = hand_batch(torch.zeros(mask.shape), torch.tensor(advantages), mask)
    return replace(micro_batch, places=rows)


def test_marks_and_logprobs_are_those_of_the_responses_own_tokens(experience):
    """Two batches by hand, of unequal lengths; what stands in the padding belongs to no token."""
    recorder = Recorder()
    first = torch.tensor([[-0.5, -1.5, -2.5], [-3.5, -99.0, -99.0]], requires_grad=True)
    clipped = torch.tensor([[True, False, True], [False, True, True]])
    vetoed = torch.tensor([[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]])
    metrics = {"clipped_fraction": clipped, "vetoed_fraction": vetoed}
    entropy = torch.tensor([[0.5, 0.25, 1.5], [2.5, 99.0, 99.0]])
    recorder.record(batch([4, 1], [0.75, -0.25], [3, 1]), first, entropy, metrics)
    second = torch.tensor([[-4.5, -5.5]], dtype=torch.bfloat16)
    nothing = torch.zeros(1, 2)
    recorder.record(batch([0], [1.5], [2]), second, nothing, dict.fromkeys(metrics, nothing))
    kept = dict(zip([0, 1, 4], chosen(recorder, experience, 3), strict=True))
    assert [kept[row]["advantage"] for row in (0, 1, 4)] == [1.5, -0.25, 0.75]
    logprobs = [kept[row]["logprobs"] for row in (0, 1, 4)]
    assert logprobs == [[-4.5, -5.5], [-3.5], [-0.5, -1.5, -2.5]]
    assert (kept[4]["entropies"], kept[1]["entropies"]) == ([0.5, 0.25, 1.5], [2.5])
    assert kept[4]["marks"] == {"clipped": [0, 2], "vetoed": []}
    assert kept[1]["marks"] == {"clipped": [], "vetoed": [0]}
    assert kept[0]["marks"] == {"clipped": [], "vetoed": []}


def test_the_first_sample_of_a_group_has_all_of_its_responses(seen, experience):
    samples = chosen(seen, experience, 6)
    names = [sample["problem_id"] for sample in samples]
    for place, sample in enumerate(samples):
        rows = [n for n, r in enumerate(experience.rollouts) if r.problem_id == names[place]]
        first = names.index(names[place]) == place
        assert [one["sample"] for one in sample["group"]] == [0, 1, 2, 3] * first
        rewards = [experience.scores[row].reward for row in rows]
        assert [one["reward"] for one in sample["group"]] == rewards * first
        signs = [one["advantage"] > 0 for one in sample["group"]]
        assert signs == [reward == 1.0 for reward in rewards] * first
    assert samples[0]["group"][samples[0]["sample"]]["text"] == samples[0]["text"]
