"""Updates as compiled code: when it is used, and that gradients stay what they were.

What is compiled for a CPU here is compiled for a GPU by the same calls.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters
from transformers import AutoModelForCausalLM

from card.work import (
    MEDIUM,
    model_config,
    random_experience,
    random_groups,
    random_policy,
    run_config,
    stand_in,
)
from mugrpo.config.run import ModelOptions
from mugrpo.model.norms import use_short_norms
from mugrpo.model.policy import Policy
from mugrpo.model.self_test import compiled_fault
from mugrpo.optimize import compiling
from mugrpo.optimize.compiling import choose_compiled, compiled, try_compiled
from mugrpo.optimize.experience import Experience
from mugrpo.optimize.forward import logprobs_function, rollout_logprobs
from mugrpo.optimize.fsdp import blocks_of
from mugrpo.optimize.trainer import Trainer
from tests.builders import chain_tokenizer, tiny_config, tiny_policy
from tests.cases import table
from tests.model.test_shared_prompts import RAGGED, gradients, reference, rows


def nothing_compiled() -> None:
    torch._dynamo.reset()
    counters.clear()


def passed(policy: Policy) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return logprobs [B, T] of ragged rows that share prompts, and all gradients."""
    how = {"temperature": 0.7, "chunk": 16, "kernel": policy.kernel, "compiled": policy.compiled}
    with compiled(policy):
        logprobs, _ = logprobs_function(policy)(*rows(RAGGED), **how)
        return logprobs.detach(), [g.clone() for g in gradients(policy, logprobs)]


def apart(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> float:
    """Return the norm of the difference, relative to the norm of `theirs`."""
    differences = torch.cat([(a - b).flatten() for a, b in zip(ours, theirs, strict=True)])
    return (differences.norm() / torch.cat([b.flatten() for b in theirs]).norm()).item()


@contextmanager
def scaled(policy: Policy, factor: float, *, backward: bool) -> Iterator[None]:
    """Within it, the last block's output, or only its gradient, is `factor` times as large."""

    def hook(module: Any, arguments: Any, output: Any) -> Any:
        states = output[0] if isinstance(output, tuple) else output
        rest = (states * (1 - factor)).detach() if backward else 0.0
        states = states * factor + rest
        return (states, *output[1:]) if isinstance(output, tuple) else states

    handle = blocks_of(policy.working())[-1].register_forward_hook(hook)
    yield
    handle.remove()


@contextmanager
def without_a_compiler(policy: Policy) -> Iterator[None]:
    raise RuntimeError("no C compiler")
    yield


def fault_of(policy: Policy, running: Any) -> str | None:
    half = policy.precision == "bf16"
    computed = logprobs_function(policy)

    def compute(*rows: Any, compiled: bool = False, **how: Any) -> Any:
        return computed(*rows, **how)  # nothing is compiled here

    return compiled_fault(
        policy.model, compute, running, kernel=policy.kernel, share=True, half=half
    )


@table("precision", ["fp32", "bf16"])
@table("kernel", [reference, None])
def test_code_that_computes_something_else_is_detected(precision, kernel):
    policy = tiny_policy("llama", precision=precision)
    policy.kernel = kernel
    first, *_ = policy.model.parameters()
    first.grad = torch.ones_like(first)
    for way, fault in (
        (lambda: scaled(policy, 1.0, backward=False), None),
        (lambda: scaled(policy, 1.0, backward=True), None),
        (lambda: scaled(policy, 1.1, backward=True), "gives this model other gradients"),
        (lambda: without_a_compiler(policy), "fails (no C compiler)"),
    ):
        assert fault_of(policy, way) == fault
        assert first.grad.eq(1).all()


def test_a_bias_whose_gradient_is_nothing_but_rounding_is_no_fault():
    policy = tiny_policy("qwen2", precision="bf16")
    assert fault_of(policy, lambda: scaled(policy, 1.02, backward=True)) is None


def test_on_a_cpu_nothing_is_compiled():
    policy, said = tiny_policy("llama"), []
    choose_compiled(policy, said.append)
    with compiled(policy):
        assert {block._compiled_call_impl for block in blocks_of(policy.working())} == {None}
    assert not policy.compiled and not said


def test_a_fault_is_said_with_its_remedy(monkeypatch):
    policy, said = tiny_policy("llama"), []
    policy.device = torch.device("cuda")
    monkeypatch.setattr(compiling, "_running", without_a_compiler)
    choose_compiled(policy, said.append)
    assert not said  # it is too small
    monkeypatch.setattr(compiling, "_WORTH", 0)
    choose_compiled(policy, said.append)
    assert not policy.compiled
    assert said == [
        "updates run without compiled code, which takes longer: it fails (no C compiler); "
        "torch.compile needs a C compiler and Python's headers, such as Debian's gcc and "
        "python3-dev"
    ]


@pytest.mark.long  # it compiles
@pytest.mark.parametrize("form", ["llama", "qwen2", "gemma3", "gpt2"])
@pytest.mark.parametrize("kernel", [reference, None])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_compiled_gradients_are_as_near_to_those_in_fp32_as_eager_ones(form, kernel, checkpointing):
    nothing_compiled()
    exact = passed(tiny_policy(form))[1]
    policy = tiny_policy(form, precision="bf16", gradient_checkpointing=checkpointing)
    policy.kernel = kernel
    eager_logprobs, eager = passed(policy)
    assert try_compiled(policy) is None and policy.compiled
    made = counters["stats"]["unique_graphs"]
    assert made >= 6  # two of a block and two of the head, at least, and some of these twice
    logprobs, ours = passed(policy)
    noise = apart(eager, exact)
    assert 1e-3 < noise < 0.2
    other = form == "gpt2"  # of which something is still rounded otherwise; the rest has its bits
    assert apart(ours, exact) < 1.25 * noise and apart(ours, eager) < (noise if other else 1e-3)
    assert (logprobs - eager_logprobs).abs().max() < (0.1 if other else 1e-3)
    policy.compiled = False
    assert all(map(torch.equal, passed(policy)[1], eager))  # outside, as it was


@pytest.mark.long
def test_on_policy_ratios_are_one():
    """Logprobs are stored by eager blocks, and compared with those of compiled ones."""
    nothing_compiled()
    policy = random_policy(model_config(MEDIUM, tiny=True), config := run_config())
    trainer = Trainer(policy, config)
    policy.kernel = stand_in
    assert try_compiled(policy) is None
    drawn = random_experience(policy.vocab_size, random_groups(2, 20, 40, seed=3))
    stored = rollout_logprobs(policy, drawn.rollouts, config)
    pairs = zip(drawn.rollouts, stored, strict=True)
    rollouts = [replace(rollout, behavior_logprobs=logprobs) for rollout, logprobs in pairs]
    metrics = trainer.step(Experience(rollouts, drawn.scores))
    ratios = [value for name, value in metrics.items() if name.startswith("ratio/")]
    assert len(ratios) == 10 and ratios == pytest.approx([1.0] * 10, abs=1e-3)
    assert metrics["effective_sample_share"] == pytest.approx(1, abs=1e-3)


@pytest.mark.long
@pytest.mark.parametrize("checkpointing", [False, True])
def test_layers_micro_batches_and_copies_share_graphs(checkpointing):
    """A model sleeps while engines generate, and its copy in bf16 is another one afterwards."""
    made = []
    for layers in (2, 5):
        nothing_compiled()
        config = tiny_config("llama")
        config.num_hidden_layers = layers
        options = ModelOptions(precision="bf16", gradient_checkpointing=checkpointing)
        model = AutoModelForCausalLM.from_config(config)
        use_short_norms(model)  # as `load_policy` does
        policy = Policy(model, chain_tokenizer(), options)
        assert try_compiled(policy) is None
        passed(policy)
        made.append(counters["stats"]["unique_graphs"])
        before = policy.working()
        policy.move(torch.device("cpu"))
        assert policy.working() is not before
        passed(policy)
        assert counters["stats"]["unique_graphs"] == made[-1]
    assert made[0] == made[1]


@pytest.mark.long
@pytest.mark.parametrize("variable", ["TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE"])
def test_torchs_own_variables_turn_it_off(variable):
    code = (
        "from torch._dynamo.utils import counters\n"
        "from mugrpo.optimize.compiling import try_compiled\n"
        "from tests.builders import tiny_policy\n"
        "assert try_compiled(tiny_policy('llama')) is None\n"
        "assert not counters['stats'], counters\n"
    )
    subprocess.run([sys.executable, "-c", code], env={**os.environ, variable: "1"}, check=True)
