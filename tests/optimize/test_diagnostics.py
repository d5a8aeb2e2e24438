"""An update's metrics, worked out by hand."""

import math

import pytest
import torch

from mugrpo.optimize.batching import MicroBatch
from mugrpo.optimize.diagnostics import TokenStatistics
from tests.cases import table
from tests.faults.harm import fail_at
from tests.updates import hand_batch

PAD = 1e6  # a ratio that must affect no metric


def micro_batch(mask: list[list[bool]], advantages: list[float]) -> MicroBatch:
    mask_BT = torch.tensor(mask)
    return hand_batch(torch.full(mask_BT.shape, -1.0), torch.tensor(advantages), mask_BT)


def add(
    statistics: TokenStatistics,
    batch: MicroBatch,
    ratios: list[list[float]],
    *,
    entropy: float = 0.0,
    **metrics: list[list[bool]],
) -> None:
    logprobs = (torch.tensor(ratios).log() - 1.0).requires_grad_()
    statistics.add(
        batch,
        logprobs,
        torch.full(batch.mask.shape, entropy),
        {name: torch.tensor(marks) for name, marks in metrics.items()},
    )
    statistics.arrive()


def two_responses() -> TokenStatistics:
    """A = +1: ratios 1/2, 2; A = -1: ratios 4, 1/2, 1/2; each in its own micro-batch."""
    statistics = TokenStatistics(["clipped_fraction"])
    first, second = micro_batch([[True, True, False]], [1.0]), micro_batch([[True] * 3], [-1.0])
    clipped = [[False, True, False]], [[False, True, True]]
    add(statistics, first, [[0.5, 2.0, PAD]], entropy=1.0, clipped_fraction=clipped[0])
    add(statistics, second, [[4.0, 0.5, 0.5]], entropy=2.0, clipped_fraction=clipped[1])
    return statistics


def test_statistics_arrive_without_room_to_join_them(monkeypatch):
    expected = two_responses()
    with monkeypatch.context() as patch:
        fail_at(patch, torch, "cat", 1)
        ours = two_responses()
    assert ours.values(5) == expected.values(5)
    assert ours.effective_sample_share() == expected.effective_sample_share()


def test_divergences_entropy_and_total_variation_by_hand():
    values = two_responses().values(update_tokens=5)
    # sum of r - 1: -.5 + 1 + 3 - .5 - .5 = 2.5; the logs cancel (.5 x 2 x 4 x .5 x .5 = 1)
    assert values["kl_behavior"] == pytest.approx(2.5 / 5)
    assert values["tv_token"] == pytest.approx((0.5 + 0.5 + 0.5) / 5)
    assert values["entropy"] == pytest.approx((2 * 1.0 + 3 * 2.0) / 5)
    # in units of log 2: 1, 1, 2, 1, 1
    assert values["logprob_gap/mean"] == pytest.approx(6 / 5 * math.log(2))
    assert values["logprob_gap/max"] == pytest.approx(2 * math.log(2))
    # 6 x .5 = 3 and, in a micro-batch of its own, .5 x .5 = .25: (0 + .75) / 2
    statistics = TokenStatistics([])
    add(statistics, micro_batch([[True, True, False]], [1.0]), [[6.0, 0.5, PAD]])
    add(statistics, micro_batch([[True, True]], [-1.0]), [[0.5, 0.5]])
    assert statistics.values(4)["tv_sequence"] == pytest.approx(0.75 / 2)


def test_kl_of_nearly_equal_policies_is_not_lost_to_rounding():
    # log r = x = 2^-10, exact in fp32: r - 1 - x = x^2 / 2 + x^3 / 6 + .., one digit in fp32
    x = 2.0**-10
    statistics = TokenStatistics([])
    batch = micro_batch([[True, True]], [1.0])
    statistics.add(batch, torch.full((1, 2), -1.0 + x), torch.zeros(1, 2), {})
    statistics.arrive()
    assert statistics.values(2)["kl_behavior"] == pytest.approx(x**2 / 2 + x**3 / 6, rel=1e-6)


def test_ratios_by_advantage_sign_by_hand():
    expected = {
        "ratio/positive/mean": (0.5 + 2.0) / 2,
        "ratio/negative/mean": (4.0 + 0.5 + 0.5) / 3,
    }
    expected |= {f"ratio/positive/{name}": 2.0 for name in ("p99", "max")}
    expected |= {f"ratio/negative/{name}": 4.0 for name in ("p99", "max")}
    values = two_responses().values(update_tokens=5)
    assert {key: values[key] for key in expected} == pytest.approx(expected)


# 99 of 100 do not exceed it; 0.99 x 101 = 99.99: the 100th
@table(("tokens", "p99"), [(100, 99.0), (101, 100.0), (200, 198.0), (3, 3.0), (1, 1.0)])
def test_p99_is_the_smallest_ratio_that_99_percent_do_not_exceed(tokens, p99):
    order = torch.randperm(tokens, generator=torch.Generator().manual_seed(0)) + 1
    statistics = TokenStatistics([])
    add(statistics, micro_batch([[True] * tokens], [-1.0]), [order.float().tolist()])
    assert statistics.values(tokens)["ratio/negative/p99"] == pytest.approx(p99, rel=1e-5)


def share_of(log_ratios: list[list[float]], lengths: list[int], cut: int = 99) -> float:
    """Return the share for these tokens' log ratios, in micro-batches of `cut` responses."""
    statistics = TokenStatistics([])
    for start in range(0, len(log_ratios), cut):
        log_ratio = torch.tensor(log_ratios[start : start + cut])
        mask = (
            torch.arange(log_ratio.shape[1]) < torch.tensor(lengths[start : start + cut])[:, None]
        )
        batch = hand_batch(torch.zeros_like(log_ratio), torch.ones(len(mask)), mask)
        statistics.add(batch, log_ratio, torch.zeros_like(log_ratio), {})
    statistics.arrive()
    return statistics.effective_sample_share()


def test_effective_sample_share_by_hand():
    ln = math.log
    # Ratios of the responses are their tokens' products: .5 x 2 = 1 and 4 x .5 x .5 = 1.
    assert two_responses().effective_sample_share() == pytest.approx(1)
    # w = 2 x 3 = 6, 2, padding aside: (6 + 2)^2 / (2 x (36 + 4)) = 64 / 80
    assert share_of([[ln(2), ln(3)], [ln(2), 9.0]], [2, 1]) == pytest.approx(0.8)
    # w = 1, 1, 2: 16 / (3 x 6)
    assert share_of([[0.0], [0.0], [ln(2)]], [1, 1, 1]) == pytest.approx(16 / 18)
    # A common factor cancels.
    assert share_of([[5.0], [5.0], [5.0 + ln(2)]], [1, 1, 1]) == pytest.approx(16 / 18)


def test_effective_sample_share_does_not_depend_on_the_cut_and_stays_within_its_bounds():
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        log_ratios = torch.randn(9, 4, generator=generator).tolist()
        lengths = torch.randint(1, 5, (9,), generator=generator).tolist()
        whole = share_of(log_ratios, lengths)
        assert 1 / 9 <= whole <= 1
        assert share_of(log_ratios, lengths, cut=2) == pytest.approx(whole, rel=1e-12)
