from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from mugrpo.engines.sampling import sample, uniforms

JUST_BELOW_ONE = 1 - 2.0**-53  # the largest uniform there is
WORD = 2**64


def philox_words(key: int, block: int) -> list[int]:
    """Four 64-bit words of Philox-4x64-10 (Salmon et al. 2011) at counter `block`."""
    c0, c1, c2, c3 = block, 0, 0, 0
    k0, k1 = key, 0
    for _ in range(10):
        a, b = 0xD2E7470EE14C6C93 * c0, 0xCA5A826395121157 * c2
        c0, c1, c2, c3 = (b // WORD) ^ c1 ^ k0, b % WORD, (a // WORD) ^ c3 ^ k1, a % WORD
        k0, k1 = (k0 + 0x9E3779B97F4A7C15) % WORD, (k1 + 0xBB67AE8584CAA73B) % WORD
    return [c0, c1, c2, c3]


@pytest.mark.parametrize("seed", [0, 12345, 2**64 - 1])
def test_uniforms_are_the_top_53_bits_of_philox_words_keyed_by_the_seed(seed):
    words = philox_words(seed, 1) + philox_words(seed, 2)  # the counter starts at 1
    expected = [(word >> 11) / 2**53 for word in words]
    assert uniforms([seed], 8)[0].tolist() == expected


def test_uniforms_of_seed_42_never_change():
    golden = [
        0.8201981478608876,
        0.18924562408645496,
        0.8676608148821462,
        0.3945814702827203,
        0.36812845090913937,
    ]
    assert uniforms([42], 5)[0].tolist() == golden


def test_a_seeds_row_does_not_depend_on_the_other_seeds():
    alone = uniforms([7], 20)[0]
    np.testing.assert_array_equal(uniforms([3, 7, 2**63], 20)[1], alone)
    np.testing.assert_array_equal(uniforms([7, 7], 20), np.stack([alone, alone]))


def test_a_longer_row_begins_with_the_shorter_one():
    np.testing.assert_array_equal(uniforms([5, 6], 100)[:, :33], uniforms([5, 6], 33))


def test_uniforms_are_evenly_spread_within_zero_and_one():
    drawn = uniforms(range(200), 100)
    assert drawn.min() >= 0 and drawn.max() < 1
    counts, _ = np.histogram(drawn, bins=20, range=(0, 1))
    assert chisquare(counts).pvalue > 1e-3  # 20 bins of 1000
    positions, _ = np.histogram(drawn[:, 0], bins=4, range=(0, 1))
    assert chisquare(positions).pvalue > 1e-3  # the first position over seeds 0..199


def drawn(logits: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Return the sampled tokens, without logprobs, at temperature 1."""
    return sample(logits, 1.0, uniforms)[0]


def whole_function(logits: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Return the tokens by the whole distribution function in float64, in the plainest way."""
    cumulative = torch.softmax(logits.double(), -1).cumsum(-1)
    return torch.searchsorted(cumulative, uniforms[:, None] * cumulative[:, -1:], right=True)[:, 0]


@pytest.mark.parametrize("vocabulary", [1, 2, 16, 255, 256, 257, 1000, 1024, 5000])
@pytest.mark.parametrize("spread", [0.1, 3.0, 30.0])
def test_blocks_of_the_vocabulary_draw_what_the_whole_function_draws(vocabulary, spread):
    torch.manual_seed(vocabulary)
    logits = spread * torch.randn(400, vocabulary)
    numbers = torch.from_numpy(uniforms(range(400), 1)[:, 0])
    assert (drawn(logits, numbers) != whole_function(logits, numbers)).sum() <= 1  # rounding


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.0])
def test_a_logprob_is_that_of_the_tempered_distribution(temperature):
    torch.manual_seed(1)
    logits = 5 * torch.randn(300, 700)
    tokens, logprobs = sample(logits, temperature, torch.from_numpy(uniforms(range(300), 1)[:, 0]))
    expected = torch.log_softmax(logits.double() / temperature, -1).gather(-1, tokens[:, None])
    torch.testing.assert_close(logprobs.double(), expected[:, 0], rtol=0, atol=1e-5)


def test_a_row_without_a_distribution_has_no_logprob():
    tokens, logprobs = sample(torch.full((1, 300), torch.nan), 1.0, torch.tensor([0.5]).double())
    assert logprobs.isnan().all() and 0 <= tokens.item() < 300


@pytest.mark.parametrize(
    ("uniform", "token"),
    [
        (0.0, 0),
        (0.2499, 0),
        (0.25, 1),  # F(0) = 0.25 does not exceed 0.25
        (0.74, 1),
        (0.75, 2),
        (0.874, 2),
        (0.875, 3),
        (JUST_BELOW_ONE, 3),
    ],
)
def test_the_token_is_where_the_distribution_function_first_exceeds_the_uniform(uniform, token):
    # p = 1/4, 1/2, 1/8, 1/8, so F = 0.25, 0.75, 0.875, 1 without rounding
    logprobs = torch.tensor([[0.25, 0.5, 0.125, 0.125]], dtype=torch.float64).log()
    assert drawn(logprobs, torch.tensor([uniform], dtype=torch.float64)).tolist() == [token]


def test_each_row_is_sampled_from_its_own_distribution():
    logprobs = torch.tensor([[0.9, 0.1], [0.1, 0.9]]).log()
    assert drawn(logprobs, torch.tensor([0.5, 0.5], dtype=torch.float64)).tolist() == [0, 1]


def test_a_token_of_probability_zero_is_never_returned():
    # Zeros at the start, in the middle and at the end, where rounding would land first.
    logprobs = torch.tensor([0.0, 0.3, 0.0, 0.0, 0.7, 0.0, 0.0]).log()
    edges = [0.0, 2.0**-53, 0.3 - 2.0**-50, 0.3, 0.3 + 2.0**-50, JUST_BELOW_ONE]
    numbers = np.concatenate([edges, uniforms(range(100), 100).ravel()])
    rows = logprobs.expand(len(numbers), -1)
    assert set(drawn(rows, torch.from_numpy(numbers)).tolist()) == {1, 4}


def test_the_largest_uniform_stays_in_the_vocabulary_whatever_the_probabilities_sum_to():
    torch.manual_seed(0)
    logits = torch.randn(500, 1000) * 10
    logprobs = torch.log_softmax(logits, -1)  # float32: the sums are 1 give or take 1e-6
    totals = logprobs.double().exp().sum(-1)
    assert totals.min() < 1 < totals.max()
    tokens = drawn(logprobs, torch.full((500,), JUST_BELOW_ONE, dtype=torch.float64))
    assert tokens.max() < 1000
    assert (logprobs.gather(-1, tokens[:, None]).exp() > 0).all()


def test_a_token_too_rare_for_float32_sums_is_still_drawn():
    # 1 - 2^-26 is 1 in float32, so token 1 would never be drawn.
    logprobs = torch.tensor([[1 - 2.0**-26, 2.0**-26]], dtype=torch.float64).log().float()
    uniforms = torch.tensor([1 - 2.0**-25, 1 - 2.0**-27], dtype=torch.float64)
    assert drawn(logprobs.expand(2, -1), uniforms).tolist() == [0, 1]


def sampled_counts(probabilities: list[float], draws: int) -> np.ndarray:
    logprobs = torch.tensor(probabilities).log().expand(draws, -1)
    numbers = torch.from_numpy(uniforms(range(draws // 20), 20).ravel())
    return np.bincount(drawn(logprobs, numbers), minlength=len(probabilities))


def test_sampled_frequencies_are_the_distributions():
    draws = 20_000
    probabilities = [0.02, 0.4, 0.08, 0.25, 0.05, 0.2]
    counts = sampled_counts(probabilities, draws)
    assert chisquare(counts, np.array(probabilities) * draws).pvalue > 1e-3
    wrong = np.array([0.02, 0.4, 0.08, 0.23, 0.07, 0.2])  # the same test must tell these apart
    assert chisquare(counts, wrong * draws).pvalue < 1e-3
