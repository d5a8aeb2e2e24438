"""How long a run takes at most, by hand."""

import pytest

from mugrpo.config.load import build_config
from mugrpo.model.sizes import Widths
from mugrpo.report.readable import rounded
from mugrpo.run import estimate

SCHEDULE = {"stages": 2, "batches_per_stage": 1, "growth": 1, "problems_per_update": 2}
RAW = {
    "schedule": {**SCHEDULE, "group_size": 4},
    "rollouts": {"max_new_tokens": 10},
    "engine": {"name": "continuous", "slots": 4},
    "evaluation": {"every": 2, "samples": 1},
}


def layers(count: int) -> Widths:
    return Widths(count, *[0] * 5)


def test_longest_seconds_by_hand(monkeypatch: pytest.MonkeyPatch):
    """A million weights, 10^9 operations a second: a row of a step takes 2/300 s.

    Each of two stages has 2 problems x 4 responses, twice as many as slots: two waves of 10 steps
    with 4 rows, 0.53 s. Their prompts, 2 x 5 tokens, take 0.02 s. The two evaluations of 2 problems
    have as many steps as one wave of 2 rows, 0.13 s, and the same prompts. Both updates have
    2 x 5 + 8 x 10 tokens of 6 million operations at half the rate, 1.08 s.
    """
    monkeypatch.setattr(estimate, "_rate", lambda precision: 1e9)
    monkeypatch.setattr(estimate, "parameters", lambda options: (10**6, layers(0)))
    seconds = estimate.longest_seconds(build_config(RAW, "here"), prompt=5.0, held_out=2)
    stage, evaluation, update = 2 * 10 * 4 / 150 + 0.02, 10 * 2 / 150 + 0.02, 90 * 6e6 / 5e8
    assert seconds == pytest.approx(2 * (stage + evaluation + update))


def test_longest_seconds_on_h200s_by_hand(monkeypatch: pytest.MonkeyPatch):
    """Launches of 100 layers bound each step: 10 of 0.02 s for each stage and each evaluation.

    Four engines with 4 slots have 2 rows each. Two ranks update with 41 % of 780 TFLOP/s each.
    """
    monkeypatch.setattr(estimate, "parameters", lambda options: (10**9, layers(100)))
    raw = RAW | {"distributed": {"processes": 2}, "model": {"precision": "bf16"}}
    config = build_config(raw, "here")
    seconds = estimate.longest_seconds(config, prompt=0.0, held_out=2, h200s=4)
    updates = 2 * 80 * 6e9 / (0.41 * 780e12 * 2)
    assert seconds == pytest.approx(4 * 10 * 0.02 + updates, rel=1e-6)


def test_open_slots_are_the_most_that_a_gpu_has(monkeypatch: pytest.MonkeyPatch):
    """2,048 responses of a stage are one wave of 512 steps with 10 layers on a GPU. A CPU decodes
    128 together, and 16 waves."""
    monkeypatch.setattr(estimate, "_rate", lambda precision: 1e30)
    monkeypatch.setattr(estimate, "parameters", lambda options: (1, layers(10)))
    schedule = SCHEDULE | {"stages": 1, "problems_per_update": 256, "group_size": 8}
    raw = {"schedule": schedule, "rollouts": {"max_new_tokens": 512}, "evaluation": {"every": 0}}
    config = build_config(raw, "here")
    assert config.engine.slots == 0
    h200 = estimate.longest_seconds(config, prompt=0.0, held_out=0, h200s=1)
    assert h200 == pytest.approx(512 * 10 * 2e-4, rel=1e-3)
    monkeypatch.setattr(estimate, "device", lambda: "cpu")
    cpu = estimate.longest_seconds(config, prompt=0.0, held_out=0)
    assert cpu == pytest.approx(16 * 512 * 10 * 2e-4, rel=1e-3)


def test_rough_durations():
    found = [rounded(s) for s in (4.2, 77.0, 95.0, 1200.0, 9000.0, 86400 * 12.0)]
    assert found == ["4 seconds", "77 seconds", "1.6 minutes", "20 minutes", "2.5 hours", "12 days"]
