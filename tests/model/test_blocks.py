"""Compiled blocks compute the same, and compile nothing anew for other shapes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma3Config

from mugrpo.config.load import load_config
from mugrpo.model.blocks import blocks_of, compile_blocks, uncompiled
from mugrpo.model.logprobs import response_logprobs
from mugrpo.optimize import forward
from tests.builders import tiny_policy
from tests.cases import table
from tests.model.test_shared_prompts import RAGGED, difference, gradients, rows

LONGER = [(prompt + 7, [length + 5 for length in lengths]) for prompt, lengths in RAGGED]
FEWER = RAGGED[:2]


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Counting:
    """A backend that runs graphs as they are, and counts them and their calls."""

    graphs = calls = 0

    def __call__(self, graph: Any, _: Any) -> Any:
        self.graphs += 1

        def run(*inputs: Any) -> Any:
            self.calls += 1
            return graph.forward(*inputs)

        return run


@table("share", [True, False])
@table("checkpointing", [True, False])
def test_gradients_are_the_same_and_other_shapes_compile_nothing(share, checkpointing):
    """A checkpointed block is compiled within its checkpoint: its backward pass calls it again."""
    plain = tiny_policy("llama")
    policy = tiny_policy("llama", gradient_checkpointing=checkpointing)
    backend, counts = Counting(), []
    compile_blocks(policy.model, backend)
    for case in (RAGGED, FEWER, LONGER, RAGGED[1:], RAGGED):
        *row, prompts = rows(case)
        given = (*row, prompts if share else None)
        found, expected = (
            response_logprobs(p.model, *given, temperature=0.7, chunk=16)[0]
            for p in (policy, plain)
        )
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
        calls, backend.calls = backend.calls, 0
        assert difference(gradients(policy, found), gradients(plain, expected)) < 1e-5
        assert calls > 0 and backend.calls == (calls if checkpointing else 0)
        counts.append(backend.graphs)
        backend.calls = 0
    assert 0 < counts[1] == counts[-1]  # a size of the first may be taken for a constant


@pytest.mark.long
def test_inductors_code_has_the_same_gradients():
    plain, policy = tiny_policy("llama"), tiny_policy("llama", compile=True)
    *row, prompts = rows(RAGGED)
    found, expected = (
        response_logprobs(p.working(), *row, prompts, temperature=0.7, chunk=16)[0]
        for p in (policy, plain)
    )
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert difference(gradients(policy, found), gradients(plain, expected)) < 1e-5


def test_whether_prompts_can_be_shared_is_tested_on_the_blocks_as_they_are(monkeypatch):
    """The last digits of compiled code may hide that they can."""
    policy, seen = tiny_policy("llama", compile=True), []

    def test(model: Any) -> bool:
        seen.extend("forward" in vars(block) for block in blocks_of(model))
        return True

    monkeypatch.setattr(forward, "can_share_prompts", test)
    assert forward.shares_prompts(policy, load_config(None))
    assert seen == [False, False]
    assert all("forward" in vars(block) for block in blocks_of(policy.model))


@table("precision", ["fp32", "bf16"])
def test_an_engine_gets_the_blocks_as_they_are(precision):
    policy = tiny_policy("llama", compile=True, precision=precision)
    working = policy.working()
    assert all("forward" in vars(block) for block in blocks_of(working))
    with policy.evaluating() as model:
        assert not any("forward" in vars(block) for block in blocks_of(model))
    assert all("forward" in vars(block) for block in blocks_of(working))
    never = tiny_policy("llama").model
    with uncompiled(never):
        pass
    assert not any("forward" in vars(block) for block in blocks_of(never))


def test_the_blocks_of_a_model_that_reads_images_are_those_of_its_decoder():
    """Its vision layers have more parameters here."""
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 4}
    text = {**sizes, "vocab_size": 24, "hidden_size": 32, "intermediate_size": 48, "head_dim": 8}
    vision = {**sizes, "hidden_size": 64, "intermediate_size": 96, "image_size": 28}
    config = Gemma3Config(text_config=text, vision_config=vision)
    found = blocks_of(AutoModelForCausalLM.from_config(config))
    assert [type(block).__name__ for block in found] == ["Gemma3DecoderLayer"] * 2
