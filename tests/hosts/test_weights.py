"""What a run's weights give beside the policy that trains."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from mugrpo.config.load import build_config
from mugrpo.disk.records import FinishReason
from mugrpo.engines.base import Completion
from mugrpo.hosts.weights import Weights
from mugrpo.processes.ranks import ALONE
from tests.builders import rollout

RANDOM = np.random.default_rng(5)
ROLLOUTS = [
    rollout(
        f"{number // 2}",
        number,
        np.array([2, 3 + number // 2, 5], np.int32),
        Completion(RANDOM.integers(0, 16, length), np.zeros(length), FinishReason.STOP),
    )
    for number, length in enumerate((1, 9, 30, 4))
]


@pytest.mark.parametrize(
    ("options", "numbers"),
    [
        ({"model": {"precision": "fp32"}}, 4),
        ({"model": {"precision": "bf16"}}, 2),
        ({"model": {"precision": "bf16"}, "lora": {"rank": 4}}, 2),
    ],
)
def test_a_policy_beside_the_one_that_trains_has_its_logprobs_and_no_weights_to_train(
    options: dict[str, Any], numbers: int, tmp_path: Path
):
    """It has 2 bytes a weight in bf16, and fp32's 4 of what an adapter adds."""
    run = SimpleNamespace(
        config=build_config(options, "test"),
        progress=SimpleNamespace(say=lambda _: None),
        ranks=ALONE,
        folder=None,
        check=lambda: None,
    )
    trains, alone = (Weights(cast(Any, run)) for _ in range(2))
    moved = trains.load()
    with torch.no_grad():
        for weight in moved.model.parameters():
            if weight.requires_grad:
                weight += 0.02 * torch.randn_like(weight)
    moved.weights_changed()
    moved.save(tmp_path)
    moved.update = 2
    for weights in (trains, alone):
        weights.path = lambda _: str(tmp_path)  # type: ignore[method-assign]
    expected = alone.logprobs(3, ROLLOUTS)  # in this process it is the only one
    found = trains.logprobs(3, ROLLOUTS)
    assert [t.tolist() for t in found] == [t.tolist() for t in expected]
    frozen = trains._frozen
    assert frozen is not None and frozen is not moved and frozen.update == 3
    sizes = {p.element_size() for n, p in frozen.model.named_parameters() if "lora" not in n}
    assert sizes == {numbers}
