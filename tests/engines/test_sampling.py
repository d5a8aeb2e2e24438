import numpy as np
import torch
from scipy.stats import chisquare
from transformers import TopPLogitsWarper

from mugrpo.engines.sampling import nucleus, sample, uniforms
from tests.cases import table

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


@table("seed", [0, 12345, 2**64 - 1])
def test_uniforms_are_the_top_53_bits_of_philox_words_keyed_by_the_seed(seed):
    words = philox_words(seed, 1) + philox_words(seed, 2)  # the counter starts at 1
    expected = [(word >> 11) / 2**53 for word in words]
    assert uniforms([seed], 8)[0].tolist() == expected


def drawn(logits: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Return the sampled tokens, without logprobs, at temperature 1."""
    return sample(logits, 1.0, uniforms)[0]


def whole_function(logits: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Return the tokens by the whole distribution function in float64, in the plainest way."""
    cumulative = torch.softmax(logits.double(), -1).cumsum(-1)
    return torch.searchsorted(cumulative, uniforms[:, None] * cumulative[:, -1:], right=True)[:, 0]


@table("vocabulary", [1, 2, 16, 255, 256, 257, 1000, 1024, 5000])
@table("spread", [0.1, 3.0, 30.0])
def test_blocks_of_the_vocabulary_draw_what_the_whole_function_draws(vocabulary, spread):
    torch.manual_seed(vocabulary)
    logits = spread * torch.randn(400, vocabulary)
    numbers = torch.from_numpy(uniforms(range(400), 1)[:, 0])
    assert (drawn(logits, numbers) != whole_function(logits, numbers)).sum() <= 1  # rounding


@table("temperature", [0.3, 1.0, 2.0])
def test_a_logprob_is_that_of_the_tempered_distribution(temperature):
    torch.manual_seed(1)
    logits = 5 * torch.randn(300, 700)
    tokens, logprobs = sample(logits, temperature, torch.from_numpy(uniforms(range(300), 1)[:, 0]))
    expected = torch.log_softmax(logits.double() / temperature, -1).gather(-1, tokens[:, None])
    torch.testing.assert_close(logprobs.double(), expected[:, 0], rtol=0, atol=1e-5)


@table(
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
    """p = 1/4, 1/2, 1/8, 1/8, so F = 0.25, 0.75, 0.875, 1 without rounding."""
    logprobs = torch.tensor([[0.25, 0.5, 0.125, 0.125]], dtype=torch.float64).log()
    assert drawn(logprobs, torch.tensor([uniform], dtype=torch.float64)).tolist() == [token]


def test_a_token_of_probability_zero_is_never_returned_and_a_rare_one_is():
    # Zeros at the start, in the middle and at the end, where rounding would land first.
    logprobs = torch.tensor([0.0, 0.3, 0.0, 0.0, 0.7, 0.0, 0.0]).log()
    edges = [0.0, 2.0**-53, 0.3 - 2.0**-50, 0.3, 0.3 + 2.0**-50, JUST_BELOW_ONE]
    numbers = np.concatenate([edges, uniforms(range(100), 100).ravel()])
    rows = logprobs.expand(len(numbers), -1)
    assert set(drawn(rows, torch.from_numpy(numbers)).tolist()) == {1, 4}
    # 1 - 2^-26 is 1 in float32, so token 1 would never be drawn.
    logprobs = torch.tensor([[1 - 2.0**-26, 2.0**-26]], dtype=torch.float64).log().float()
    near_one = torch.tensor([1 - 2.0**-25, 1 - 2.0**-27], dtype=torch.float64)
    assert drawn(logprobs.expand(2, -1), near_one).tolist() == [0, 1]


def test_the_largest_uniform_stays_in_the_vocabulary_whatever_the_probabilities_sum_to():
    torch.manual_seed(0)
    logits = torch.randn(500, 1000) * 10
    logprobs = torch.log_softmax(logits, -1)  # float32: the sums are 1 give or take 1e-6
    totals = logprobs.double().exp().sum(-1)
    assert totals.min() < 1 < totals.max()
    tokens = drawn(logprobs, torch.full((500,), JUST_BELOW_ONE, dtype=torch.float64))
    assert tokens.max() < 1000
    assert (logprobs.gather(-1, tokens[:, None]).exp() > 0).all()


def test_sampled_frequencies_are_the_distributions():
    draws = 20_000
    probabilities = [0.02, 0.4, 0.08, 0.25, 0.05, 0.2]
    logprobs = torch.tensor(probabilities).log().expand(draws, -1)
    numbers = torch.from_numpy(uniforms(range(draws // 20), 20).ravel())
    counts = np.bincount(drawn(logprobs, numbers), minlength=len(probabilities))
    assert chisquare(counts, np.array(probabilities) * draws).pvalue > 1e-3
    wrong = np.array([0.02, 0.4, 0.08, 0.23, 0.07, 0.2])  # the same test must tell these apart
    assert chisquare(counts, wrong * draws).pvalue < 1e-3


FOUR = [0.15, 0.5, 0.05, 0.3]


@table(
    ("probabilities", "top_p", "kept"),
    [
        (FOUR, 1e-9, [1]),  # at least one token
        (FOUR, 0.5, [1]),  # reached exactly
        (FOUR, 0.51, [1, 3]),
        (FOUR, 0.7, [1, 3]),  # 0.3 crosses 0.7
        (FOUR, 0.8, [1, 3]),  # reached exactly
        (FOUR, 0.81, [0, 1, 3]),
        (FOUR, 0.96, [0, 1, 2, 3]),
        # of equally likely tokens at the edge, those with the lowest ids
        ([0.2, 0.2, 0.2, 0.2, 0.2], 0.5, [0, 1, 2]),
        ([0.1, 0.3, 0.3, 0.3], 0.5, [1, 2]),
        ([0.3, 0.1, 0.3, 0.3], 0.25, [0]),
        ([1 / 4096] * 4096, 0.5, list(range(2048))),  # more tokens than are sorted first
    ],
)
def test_a_nucleus_by_hand(probabilities, top_p, kept):
    """What is kept is divided by its sum: 0.5 / 0.8 and 0.3 / 0.8 of two."""
    expected = torch.zeros(1, len(probabilities))
    expected[0, kept] = torch.tensor(probabilities)[kept] / sum(probabilities[k] for k in kept)
    torch.testing.assert_close(nucleus(torch.tensor([probabilities]), top_p), expected)


def test_tokens_of_a_nucleus_are_drawn_in_the_order_of_their_ids_with_its_logprobs():
    """With 0.625 for token 1 and 0.375 for token 3. Without top-p, 0.14 draws token 0."""
    numbers = torch.tensor([0.0, 0.14, 0.624, 0.626, JUST_BELOW_ONE], dtype=torch.float64)
    logits = torch.tensor([0.15, 0.5, 0.05, 0.3]).log().expand(len(numbers), -1)
    assert drawn(logits, numbers).tolist() == [0, 0, 1, 1, 3]
    tokens, logprobs = sample(logits, 1.0, numbers, 0.7)
    assert tokens.tolist() == [1, 1, 1, 3, 3]
    expected = torch.tensor([0.625, 0.625, 0.625, 0.375, 0.375]).log()
    torch.testing.assert_close(logprobs, expected)


@table("vocabulary", [2, 300, 1024, 5000])
@table("spread", [0.1, 3.0])
@table("top_p", [0.1, 0.5, 0.95])
def test_nuclei_are_those_of_transformers(vocabulary, spread, top_p):
    """Flat and peaked distributions, with nuclei of one token and of thousands."""
    torch.manual_seed(vocabulary)
    logits = spread * torch.randn(50, vocabulary)
    warped = TopPLogitsWarper(top_p)(torch.zeros(50, 1), logits.double())
    expected = torch.softmax(warped, -1)
    actual = nucleus(torch.softmax(logits, -1), top_p).double()
    differ = ((actual > 0) != (expected > 0)).any(-1)
    assert differ.sum() <= 1  # a sum that is top_p but for rounding
    torch.testing.assert_close(actual[~differ], expected[~differ], rtol=1e-5, atol=1e-7)
