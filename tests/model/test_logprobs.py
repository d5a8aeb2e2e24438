from typing import Any, NamedTuple
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch._dynamo.utils import counters
from torch.utils._python_dispatch import TorchDispatchMode

from mugrpo.config.run import ModelOptions
from mugrpo.model import logprobs as module
from mugrpo.model.logprobs import chunked_logprobs, response_logprobs
from mugrpo.model.policy import load_policy
from mugrpo.model.shaping import Shaping
from tests.builders import PROMPTS, encoded, plain_logprobs
from tests.cases import table

N, H, V = 37, 16, 50


class Head(NamedTuple):
    hidden: torch.Tensor  # [N, H]
    weight: torch.Tensor  # [V, H]
    bias: torch.Tensor | None  # [V]
    targets: torch.Tensor  # [N]


def make_head(*, bias: bool = True, hidden_dtype: torch.dtype = torch.float32) -> Head:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(dtype).requires_grad_()

    hidden, weight = normal(N, H, dtype=hidden_dtype), normal(V, H)
    targets = torch.randint(V, (N,), generator=generator)
    return Head(hidden, weight, normal(V) if bias else None, targets)


def dense(head: Head, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the same with torch's own functions, over all logits at once."""
    weight = head.weight.to(head.hidden.dtype)
    bias = None if head.bias is None else head.bias.to(head.hidden.dtype)
    logits = torch.nn.functional.linear(head.hidden, weight, bias).float() / temperature
    distribution = torch.distributions.Categorical(logits=logits)
    return distribution.log_prob(head.targets), distribution.entropy()


def gradients(logprobs: torch.Tensor, head: Head) -> list[torch.Tensor]:
    leaves = [t for t in head[:3] if t is not None]
    weights = torch.linspace(-1, 2, N)  # every token has its own weight
    return list(torch.autograd.grad((logprobs * weights).sum(), leaves))


@table("bias", [True, False])
@table("temperature", [1.0, 0.7, 3.0])
@table("chunk", [1, 7, N, N + 1, 1000])
def test_chunked_equals_dense(chunk, temperature, bias):
    head = make_head(bias=bias)
    expected, expected_entropy = dense(head, temperature)
    logprobs, entropy = chunked_logprobs(*head, temperature=temperature, chunk=chunk)
    torch.testing.assert_close(logprobs, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(entropy, expected_entropy, rtol=1e-5, atol=5e-5)
    torch.testing.assert_close(
        gradients(logprobs, head), gradients(expected, head), rtol=1e-4, atol=1e-5
    )


def test_temperature_divides_the_logits_and_large_ones_do_not_overflow():
    # logits 2 and 0 at temperature 2: p = e / (e + 1) = 0.731059, log p = -0.313262,
    # entropy = -(0.731059 log 0.731059 + 0.268941 log 0.268941) = 0.582203
    hidden, weight = torch.tensor([[1.0]]), torch.tensor([[2.0], [0.0]])
    target = torch.tensor([0])
    logprobs, entropy = chunked_logprobs(hidden, weight, None, target, temperature=2.0, chunk=1)
    assert logprobs.item() == pytest.approx(-0.313262, abs=1e-6)
    assert entropy.item() == pytest.approx(0.582203, abs=1e-6)
    hidden, weight = torch.tensor([[1000.0]]), torch.tensor([[1.0], [0.0]], requires_grad=True)
    target = torch.tensor([1])
    logprobs, entropy = chunked_logprobs(hidden, weight, None, target, temperature=1.0, chunk=1)
    assert (logprobs.item(), entropy.item()) == (-1000.0, 0.0)
    logprobs.sum().backward()
    assert weight.grad.flatten().tolist() == [-1000.0, 1000.0]  # (onehot - p) x hidden


@table("chunk", [5, N])
def test_bf16_hidden_states_with_an_fp32_head_are_computed_as_dense(chunk):
    head = make_head(hidden_dtype=torch.bfloat16)
    expected, expected_entropy = dense(head, 1.0)
    logprobs, entropy = chunked_logprobs(*head, temperature=1.0, chunk=chunk)
    assert logprobs.dtype == entropy.dtype == torch.float32
    torch.testing.assert_close(logprobs, expected, rtol=1e-5, atol=1e-5)  # the same bf16 logits
    torch.testing.assert_close(entropy, expected_entropy, rtol=1e-5, atol=5e-5)
    for ours, theirs in zip(gradients(logprobs, head), gradients(expected, head), strict=True):
        assert ours.dtype == theirs.dtype
        # bf16 keeps 8 bits, so sums over chunks round differently
        torch.testing.assert_close(ours.float(), theirs.float(), rtol=0.02, atol=0.05)


def test_the_gradient_of_a_head_in_bf16_is_rounded_once_and_not_for_each_chunk():
    """As ranks hold it. A sum of 300 chunks in bf16 would be wrong by a percent."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(300, H, generator=generator).to(torch.bfloat16)
    weight = torch.randn(V, H, generator=generator).to(torch.bfloat16).requires_grad_()
    targets = torch.zeros(300, dtype=torch.long)
    wanted, found = (
        torch.autograd.grad(
            chunked_logprobs(hidden, weight, None, targets, temperature=1.0, chunk=chunk)[0].sum(),
            weight,
        )[0]
        for chunk in (300, 1)
    )
    assert found.dtype == torch.bfloat16
    error = (found.float() - wanted.float()).norm() / wanted.float().norm()
    assert error < 2**-8  # the rounding of both


@table("rest", [1e-4, 1e-3, 0.1])
@table("chunk", [1, 3])
def test_the_gradient_of_a_nearly_certain_token_keeps_its_digits(rest, chunk):
    """Logits of 40 and 40 + log(rest / (1 - rest)): d logprob / d logits = (rest, -rest). fp32
    numbers near 40 are 4e-6 apart, 4 % of 1e-4; near 1 they are 6e-8 apart."""
    logits = torch.tensor([40.0, 40.0 + float(np.log(rest / (1 - rest)))])
    hidden = torch.ones(3, 1, requires_grad=True)
    weight = logits[:, None].clone().requires_grad_()
    exact = torch.softmax(logits.double(), 0)[1].item()
    logprobs, _ = chunked_logprobs(
        hidden, weight, None, torch.zeros(3, dtype=torch.int64), temperature=1.0, chunk=chunk
    )
    (gradient,) = torch.autograd.grad(logprobs.sum(), weight)
    assert gradient[:, 0].tolist() == pytest.approx([3 * exact, -3 * exact], rel=2e-3)
    assert logprobs[0].item() == pytest.approx(float(np.log1p(-exact)), rel=2e-3)


def test_logits_of_the_last_chunk_are_computed_once_and_a_second_backward_pass_is_the_same(
    monkeypatch,
):
    """Three chunks: three products forward, two backward, and three in another backward pass."""
    counted = Mock(side_effect=module._logits)
    monkeypatch.setattr(module, "_logits", counted)
    head = make_head()
    logprobs, _ = chunked_logprobs(*head, temperature=0.7, chunk=-(-N // 3))
    counts, passes = [counted.call_count], []
    for _ in range(2):
        passes.append(torch.autograd.grad(logprobs.sum(), head.weight, retain_graph=True)[0])
        counts.append(counted.call_count)
    assert counts == [3, 5, 8]
    assert torch.equal(*passes)


class LargestTensor(TorchDispatchMode):
    """Records the most elements that any operator's result has."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, list | tuple) else [result]:
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.numel())
        return result


def test_no_tensor_of_all_logits_is_ever_made():
    # N x V = 64 x 1000 = 64000 logits; a chunk has 4 x 1000, the head itself 1000 x 8
    hidden = torch.randn(64, 8, requires_grad=True)
    weight = torch.randn(1000, 8, requires_grad=True)
    head = Head(hidden, weight, None, torch.arange(64))
    with LargestTensor() as largest:
        logprobs, _ = chunked_logprobs(*head, temperature=1.0, chunk=4)
        logprobs.sum().backward()
    assert largest.elements == 8000
    with LargestTensor() as largest:
        dense(head, 1.0)[0].sum().backward()
    assert largest.elements == 64_000  # so the measure detects such a tensor


def ragged_batch(policy) -> tuple[Any, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return (prompt, response) pairs, padded ids [B, L], prompt lengths [B] and mask [B, T]."""
    rng = np.random.default_rng(1)
    lengths = [9, 1, 4, 12, 7, 2]
    pairs = [
        (encoded(policy, prompt), rng.integers(2, 16, length))
        for prompt, length in zip(PROMPTS, lengths, strict=True)
    ]
    ids = torch.full((len(pairs), 40), policy.pad_id)
    mask = torch.zeros(len(pairs), 12, dtype=torch.bool)
    for row, (prompt, response) in enumerate(pairs):
        line = torch.from_numpy(np.concatenate([prompt, response]).astype(np.int64))
        ids[row, : len(line)] = line
        mask[row, : len(response)] = True
    return pairs, ids, torch.tensor([len(prompt) for prompt, _ in pairs]), mask


@table("temperature", [0.7, 1.0])
def test_response_logprobs_are_the_plain_models_on_a_ragged_batch(any_policy, temperature):
    pairs, *batch = ragged_batch(any_policy)
    mask = batch[-1]
    logprobs, entropy = response_logprobs(
        any_policy.model, *batch, temperature=temperature, chunk=8
    )
    assert logprobs.shape == entropy.shape == mask.shape
    assert (logprobs[~mask] == 0).all() and (entropy[~mask] == 0).all()
    for row, (prompt, response) in enumerate(pairs):
        expected = plain_logprobs(any_policy, prompt, response, temperature)
        torch.testing.assert_close(logprobs[row, : len(response)], expected, rtol=0, atol=2e-5)


def test_gradients_of_response_logprobs_are_the_plain_models(any_policy):
    pairs, *batch = ragged_batch(any_policy)
    parameters = list(any_policy.model.parameters())
    logprobs, _ = response_logprobs(any_policy.model, *batch, temperature=0.7, chunk=8)
    expected = sum(plain_logprobs(any_policy, *pair, 0.7).sum() for pair in pairs)
    ours = torch.autograd.grad(logprobs.sum(), parameters)
    theirs = torch.autograd.grad(expected, parameters)
    scale = max(g.abs().max() for g in theirs)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a / scale, b / scale, rtol=1e-3, atol=1e-5)


def test_in_bf16_logprobs_are_those_of_the_models_own_head_in_both_passes():
    policy = load_policy(ModelOptions(precision="bf16"))
    pairs, *batch = ragged_batch(policy)
    with torch.no_grad():
        logprobs, _ = response_logprobs(policy.working(), *batch, temperature=1.0, chunk=8)
        logits = policy.working()(input_ids=batch[0], use_cache=False).logits.float()
    gaps = []
    for row, (prompt, response) in enumerate(pairs):
        distribution = torch.log_softmax(logits[row, len(prompt) - 1 :][: len(response)], -1)
        expected = distribution.gather(-1, torch.from_numpy(response)[:, None])[:, 0]
        gaps.append((logprobs[row, : len(response)] - expected).abs())
    assert torch.cat(gaps).mean() < 2e-3  # an fp32 head differs from a bf16 one by 0.012
    # d logprob / d logits is onehot - softmax and sums to 0. Logits of size 40 round by up to
    # 0.125 in bf16: the softmax of other logits under the same normalizer would sum to 1 +- 0.1.
    generator = torch.Generator().manual_seed(1)
    head = make_head()
    for target in head.targets[:10]:
        hidden = 10 * torch.randn(1, H, generator=generator).bfloat16()
        logprobs, _ = chunked_logprobs(
            hidden, head.weight, head.bias, target[None], temperature=1.0, chunk=8
        )
        (grad,) = torch.autograd.grad(logprobs.sum(), head.bias)
        assert abs(grad.sum().item()) < 0.005


@pytest.mark.long  # it compiles
@pytest.mark.parametrize("shaping", [Shaping(), Shaping(2.0, 30.0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_compiled_passes_over_logits_compute_the_same(shaping, dtype):
    head = make_head(hidden_dtype=dtype)
    how = {"temperature": 0.7, "chunk": 16, "shaping": shaping}
    torch._dynamo.reset()
    counters.clear()
    (plain, entropy), (ours, our_entropy) = (
        chunked_logprobs(*head, **how, compiled=compiled) for compiled in (False, True)
    )
    torch.testing.assert_close(ours, plain, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(our_entropy, entropy, rtol=1e-5, atol=1e-5)
    for grad, expected in zip(gradients(ours, head), gradients(plain, head), strict=True):
        assert (grad - expected).norm() <= 1e-4 * expected.norm()
    assert counters["stats"]["unique_graphs"] >= 2
