"""RMS norms with a backward pass of their own."""

import copy

import pytest
import torch
from torch import nn
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextRMSNormGated

from mugrpo.model.norms import use_short_norms
from mugrpo.model.rows import plain_hidden
from tests.builders import tiny_policy
from tests.cases import table


def test_the_norm_of_3_and_4():
    """The root of the mean square is sqrt(12.5), so n = (0.8485, 1.1314), and for the gradient
    (1, 0) and weights of 1, grad x = ((1, 0) - n 0.8485 / 2) / sqrt(12.5) = (0.1810, -0.1358).
    """
    norm = LlamaRMSNorm(2, eps=0.0)
    use_short_norms(norm)
    x = torch.tensor([[3.0, 4.0]], requires_grad=True)
    normed = norm(x)
    normed.backward(torch.tensor([[1.0, 0.0]]))
    assert normed[0].tolist() == pytest.approx([0.8485, 1.1314], abs=1e-4)
    assert x.grad[0].tolist() == pytest.approx([0.1810, -0.1358], abs=1e-4)
    assert norm.weight.grad.tolist() == pytest.approx([0.8485, 0.0], abs=1e-4)


def test_in_bf16_a_norm_has_the_models_bits_and_its_gradients_are_no_further_from_fp32():
    torch.manual_seed(0)
    theirs = LlamaRMSNorm(64).bfloat16()
    nn.init.normal_(theirs.weight, 1, 0.3)
    ours, exact = copy.deepcopy(theirs), copy.deepcopy(theirs).float()
    use_short_norms(ours)
    inputs = torch.randn(50, 64).bfloat16()
    grad = torch.randn(50, 64).bfloat16()
    outputs, gradients = [], []
    for norm in (theirs, ours, exact):
        x = inputs.detach().to(norm.weight.dtype).requires_grad_()
        outputs.append(norm(x))
        outputs[-1].backward(grad.to(x.dtype))
        gradients.append([x.grad.float(), norm.weight.grad.float()])
    assert torch.equal(outputs[0], outputs[1])
    for a, b, right in zip(*gradients, strict=True):
        assert (b - right).abs().max() <= (a - right).abs().max()


class ShiftedRMSNorm(LlamaRMSNorm):
    """A norm whose weights are added to 1."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        normed = super().forward(hidden_states)
        return normed + normed / self.weight


class CenteredRMSNorm(LlamaRMSNorm):
    """A norm that subtracts the mean."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return super().forward(hidden_states - hidden_states.mean(-1, keepdim=True))


OTHERS = [ShiftedRMSNorm, CenteredRMSNorm, Gemma3RMSNorm, Qwen3NextRMSNormGated]


@table("kind", [LlamaRMSNorm, *OTHERS, nn.RMSNorm, nn.LayerNorm])
def test_only_a_norm_that_computes_the_same_is_replaced(kind):
    norm = kind(8)
    use_short_norms(norm)
    assert (type(norm) is not kind) is (kind is LlamaRMSNorm)


@table("precision", ["fp32", "bf16"])
@table("form", ["llama", "qwen2", "qwen3", "mistral", "gemma3"])
def test_a_model_has_the_gradients_that_it_had(form, precision):
    policy = tiny_policy(form, precision=precision)
    use_short_norms(policy.model)
    ids = torch.arange(24).view(2, 12) % 20 + 1
    rows = (ids, torch.tensor([4, 6]), torch.ones(2, 6, dtype=torch.bool))
    mine = policy.working()
    theirs = copy.deepcopy(policy.model).to(mine.dtype)
    shortened = [m for m in theirs.modules() if type(m).__module__ == use_short_norms.__module__]
    assert bool(shortened) is (form != "gemma3")
    for norm in shortened:
        norm.__class__ = type(norm).__base__
    for model in (mine, theirs):
        hidden = plain_hidden(model, *rows)
        (hidden.float() * torch.linspace(-1, 2, hidden.numel()).view_as(hidden)).sum().backward()
    gradients = {name: p.grad for name, p in policy.model.named_parameters()}
    gaps = [
        (gradients[name] - p.grad).norm().item() / p.grad.norm().item()
        for name, p in theirs.named_parameters()
    ]
    assert max(gaps) < (1e-5 if precision == "fp32" else 0.1)
