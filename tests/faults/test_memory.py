"""Memory that runs out in generation or in training."""

from __future__ import annotations

import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from mugrpo.config.optimizer import OptimizerOptions
from mugrpo.config.run import ModelOptions
from mugrpo.disk.errors import RunStopped
from mugrpo.engines.continuous import ContinuousEngine
from mugrpo.engines.hf import HFEngine
from mugrpo.model.memory import out_of_memory
from mugrpo.model.policy import Policy, load_policy
from mugrpo.optimize import gradient
from mugrpo.optimize.budget import MicroBatchTooLarge, TokenBudget, computing
from mugrpo.optimize.experience import Experience
from mugrpo.optimize.forward import rollout_logprobs
from mugrpo.optimize.trainer import Trainer
from tests.builders import stale
from tests.faults.harm import resume_words, stopped
from tests.runs import (
    CONFIG,
    ENVIRONMENT,
    Command,
    State,
    assert_same,
    checkpoints,
    read_metrics,
    shards,
    state,
    write_config,
)
from tests.updates import assert_same_gradients, config_of, hand_batch, step

pytest_plugins = ["tests.run_fixtures"]

CUDA = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")
CPU = RuntimeError(
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you "
    "tried to allocate 1600000000 bytes. Error code 12 (Cannot allocate memory)"
)
BUDGET = 250  # the 12 responses with a gradient, of 12 to 64 tokens, make two micro-batches or more


def fail_at(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, *calls: int, error: Exception = CPU
) -> list[int]:
    """Raise `error` at the given `calls` of `owner.name`, counted from 1.

    Return a list whose only element is the number of calls so far.
    """
    original, count = getattr(owner, name), [0]

    def failing(*args: Any, **options: Any) -> Any:
        count[0] += 1
        if count[0] in calls:
            raise error
        return original(*args, **options)

    monkeypatch.setattr(owner, name, failing)
    return count


def same_but_for_time(a: dict[str, Any], b: dict[str, Any]) -> bool:
    left, right = ({k: v for k, v in m.items() if not k.startswith("time/")} for m in (a, b))
    return left == right


# ---- which errors mean that memory ran out ----


@pytest.mark.parametrize(
    "allocate",
    [
        lambda: torch.empty(1 << 50),
        lambda: np.ones(1 << 50),
        lambda: bytearray(1 << 60),
    ],
)
def test_errors_of_allocations_that_are_too_large_are_recognized(
    allocate: Callable[[], object],
):
    with pytest.raises((RuntimeError, MemoryError)) as caught:
        allocate()
    assert out_of_memory(caught.value), caught.value


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (CUDA, True),
        (CPU, True),
        (RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8 b"), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"), True),
        (RuntimeError("std::bad_alloc"), True),
        (MemoryError(), True),
        (RuntimeError("CUDA error: device-side assert triggered"), False),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)"), False),
        (ValueError("a word problem: the computer is out of memory"), False),
        (OSError(12, "Cannot allocate memory"), False),
        (RunStopped("memory ran out in generation"), False),
    ],
)
def test_out_of_memory_errors_are_told_apart_from_others(error: Exception, expected: bool):
    assert out_of_memory(error) is expected


def test_an_error_of_another_kind_passes_through_a_micro_batch_unchanged():
    batch = hand_batch(torch.zeros(2, 3), torch.ones(2), torch.ones(2, 3, dtype=torch.bool))
    with pytest.raises(ZeroDivisionError), computing(batch):
        1 / 0  # noqa: B018
    with pytest.raises(MicroBatchTooLarge) as caught, computing(batch):
        raise CUDA
    assert (caught.value.responses, caught.value.tokens) == (2, 8)  # two rows of four columns


# ---- the budget ----


def work_that_fits(limit: int, cost: int, asked: list[int]) -> Callable[[int], str]:
    """Return work that takes min(budget, `cost`) tokens and fails above `limit`.

    It appends each budget that it is given to `asked`.
    """

    def work(budget: int) -> str:
        asked.append(budget)
        if min(budget, cost) > limit:
            raise MicroBatchTooLarge(2, min(budget, cost))
        return "done"

    return work


def test_the_budget_is_halved_until_the_work_fits_and_stays_there():
    asked: list[int] = []
    told: list[str] = []
    budget = TokenBudget(OptimizerOptions(micro_batch_tokens=1000), told.append)
    assert not budget.lowered
    assert budget.fitted(work_that_fits(300, 5000, asked)) == "done"
    assert asked == [1000, 500, 250] and budget.lowered and budget.tokens == 250
    assert told == [
        f"memory ran out in a micro-batch of 2 responses ({now:,} tokens); lowering "
        f"micro_batch_tokens from {now} to {half} and computing it again; the gradient differs "
        "only by rounding"
        for now, half in ((1000, 500), (500, 250))
    ]
    assert budget.fitted(work_that_fits(300, 5000, asked)) == "done"
    assert asked == [1000, 500, 250, 250] and len(told) == 2


def test_a_micro_batch_below_the_budget_is_halved_itself():
    """Half of a budget of 100,000 would still hold the micro-batch of 700."""
    asked: list[int] = []
    budget = TokenBudget(OptimizerOptions(micro_batch_tokens=100_000))
    budget.fitted(work_that_fits(400, 700, asked))
    assert asked == [100_000, 350]


def test_memory_of_a_failed_attempt_is_freed_before_the_retry():
    class Activations:
        pass

    kept: list[weakref.ref[Activations]] = []

    def work(budget: int) -> None:
        assert [ref for ref in kept if ref() is not None] == []
        activations = Activations()
        circle = [activations]
        circle.append(circle)  # type: ignore[arg-type]
        kept.append(weakref.ref(activations))
        if len(kept) < 3:
            raise MicroBatchTooLarge(2, budget) from CPU

    TokenBudget(OptimizerOptions()).fitted(work)
    assert len(kept) == 3


def test_a_single_response_that_is_too_large_stops_the_run_with_what_would_help():
    budget = TokenBudget(OptimizerOptions(micro_batch_tokens=64))

    def work(budget: int) -> None:
        raise MicroBatchTooLarge(3 if budget == 64 else 1, 60)

    with pytest.raises(RunStopped) as caught:
        budget.fitted(work)
    assert str(caught.value) == (
        "memory ran out in a micro-batch of a single response (60 tokens), which a lower "
        "--optimizer.micro_batch_tokens (now 30) cannot split; lower "
        "--optimizer.logprob_chunk_tokens (now 1024) or --rollouts.max_new_tokens, or turn on "
        "--model.gradient_checkpointing (with --force)"
    )


# ---- an update ----


def in_forward(nth: int) -> Callable[[pytest.MonkeyPatch, Policy], object]:
    return lambda patch, _policy: fail_at(patch, gradient, "batch_logprobs", nth)


def in_backward(nth: int) -> Callable[[pytest.MonkeyPatch, Policy], object]:
    """Fail in the `nth` backward pass, after some parameters have got their gradients."""

    def arm(patch: pytest.MonkeyPatch, policy: Policy) -> list[int]:
        passes = [0]
        weights = dict(policy.model.named_parameters())
        late = weights["model.layers.0.self_attn.q_proj.weight"]

        def hook(_gradient: torch.Tensor) -> None:
            passes[0] += 1
            if passes[0] == nth:
                left = [name for name, p in weights.items() if p.grad is not None]
                assert "model.norm.weight" in left
                assert (late.grad is None) == (nth == 1)
                raise CUDA

        late.register_hook(hook)
        return passes

    return arm


PLACES = {
    "the first forward pass": in_forward(1),
    "the second forward pass": in_forward(2),
    "the first backward pass": in_backward(1),
    "the second backward pass": in_backward(2),
}


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("preset", ["mu-grpo", "m2po"])
@pytest.mark.parametrize("place", PLACES)
def test_an_update_that_ran_out_of_memory_has_the_gradient_of_one_that_did_not(
    experience: Experience, monkeypatch: pytest.MonkeyPatch, place: str, preset: str, share: bool
):
    """Bit for bit that of an update with the lower budget, up to rounding that of the first budget.

    M2PO's forward passes begin with its pre-pass over all micro-batches, so it is the pre-pass
    that fails there.
    """
    experience, policy = stale(experience), load_policy(ModelOptions())

    def config_with(budget: int) -> Any:
        return config_of(
            preset=preset, optimizer={"micro_batch_tokens": budget, "share_prompts": share}
        )

    with monkeypatch.context() as patch:
        PLACES[place](patch, policy)
        metrics, gradients = step(experience, config_with(BUDGET), policy)
    lowered = metrics.pop("micro_batch_tokens")
    assert BUDGET / 5 < lowered <= BUDGET / 2
    smaller, exactly = step(experience, config_with(lowered))
    assert same_but_for_time(metrics, smaller)
    assert all(torch.equal(gradient, exactly[name]) for name, gradient in gradients.items())
    whole, nearly = step(experience, config_with(BUDGET))
    assert_same_gradients(gradients, nearly)
    for key in ("loss", "grad_norm", "entropy", "kl_behavior", "ratio/negative/p99"):
        assert metrics[key] == pytest.approx(whole[key], rel=1e-4)
    assert not same_but_for_time(metrics, whole)  # cut into other micro-batches


def test_an_update_with_enough_memory_reports_no_budget(experience: Experience):
    metrics, _ = step(experience, config_of(optimizer={"micro_batch_tokens": BUDGET}))
    assert "micro_batch_tokens" not in metrics


def test_the_lower_budget_stays_and_memory_may_run_out_again(
    experience: Experience, monkeypatch: pytest.MonkeyPatch
):
    """The first update fails whole and halved but works in quarters, in which the second starts.

    At 4096 tokens all 12 responses are one micro-batch. A failing attempt ends in its first
    forward pass.
    """
    told: list[str] = []
    config = config_of()
    trainer = Trainer(
        load_policy(ModelOptions()), config, TokenBudget(config.optimizer, told.append)
    )
    calls = fail_at(monkeypatch, gradient, "batch_logprobs", 1, 2, error=CUDA)
    first = trainer.step(experience)
    parts = calls[0] - 2
    second = trainer.step(experience)
    assert len(told) == 2 and " of 12 responses (" in told[0]
    assert parts > 2 and calls[0] - 2 == 2 * parts
    assert first["micro_batch_tokens"] == second["micro_batch_tokens"] == trainer.budget.tokens
    assert trainer.update == 2


def test_a_watch_sees_every_response_once(experience: Experience, monkeypatch: pytest.MonkeyPatch):
    def seen_with(budget: int, *fails: int) -> dict[int, torch.Tensor]:
        rows: list[int] = []
        logprobs: dict[int, torch.Tensor] = {}

        def watch(batch: Any, logprobs_BT: torch.Tensor, metrics: dict[str, Any]) -> None:
            assert not logprobs_BT.requires_grad and "clipped_fraction" in metrics
            rows.extend(batch.places)
            for row, values, mask in zip(batch.places, logprobs_BT, batch.mask, strict=True):
                logprobs[row] = values[mask]

        config = config_of(optimizer={"micro_batch_tokens": budget})
        with monkeypatch.context() as patch:
            fail_at(patch, gradient, "batch_logprobs", *fails)
            Trainer(load_policy(ModelOptions()), config).step(experience, watch)
        assert sorted(rows) == [*range(8), *range(12, 16)]
        return logprobs

    disturbed, whole = seen_with(BUDGET, 2), seen_with(BUDGET)
    for row, logprobs_T in disturbed.items():
        torch.testing.assert_close(logprobs_T, whole[row], rtol=1e-4, atol=1e-5)


def test_an_error_of_another_kind_in_an_update_is_raised_as_it_is(
    experience: Experience, monkeypatch: pytest.MonkeyPatch
):
    error = RuntimeError("CUDA error: an illegal memory access was encountered")
    calls = fail_at(monkeypatch, gradient, "batch_logprobs", 1, error=error)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        step(experience, config_of())
    assert calls == [1]


# ---- logprobs alone ----


@pytest.mark.parametrize("nth", [1, 2])
def test_logprobs_of_another_policy_are_computed_again_in_smaller_micro_batches(
    experience: Experience, embedded_policy: Policy, monkeypatch: pytest.MonkeyPatch, nth: int
):
    told: list[str] = []
    config = config_of(optimizer={"micro_batch_tokens": BUDGET})
    budget = TokenBudget(config.optimizer, told.append)
    expected = rollout_logprobs(embedded_policy, experience.rollouts, config)
    with monkeypatch.context() as patch:
        fail_at(patch, sys.modules[rollout_logprobs.__module__], "batch_logprobs", nth)
        found = rollout_logprobs(embedded_policy, experience.rollouts, config, budget)
    assert len(told) == 1 and budget.tokens <= BUDGET / 2
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


# ---- memory that really runs out ----

LIMITED = """
import resource, sys
import torch
from tests.builders import sampled_experience
from tests.updates import assert_same_gradients, config_of, step
from mugrpo.config.run import ModelOptions
from mugrpo.optimize.experience import Experience
from mugrpo.model.policy import load_policy

torch.set_num_threads(1)
once = sampled_experience(load_policy(ModelOptions()))
experience = Experience(once.rollouts * COPIES, once.scores * COPIES)
config = lambda tokens: config_of(optimizer={"micro_batch_tokens": tokens})
_, expected = step(experience, config(2048))
policy = load_policy(ModelOptions())
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + SPARE
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
metrics, gradients = step(experience, config(1_000_000), policy)
assert_same_gradients(gradients, expected)
print(metrics["micro_batch_tokens"], metrics["computed_tokens"])
"""


@pytest.mark.long
def test_an_update_too_large_for_memory_is_computed_in_smaller_parts():
    """768 responses do not fit in one micro-batch in an address space with 100 MB to spare.

    That is so whatever the heap still holds of the update before.
    """
    script = LIMITED.replace("COPIES", "64").replace("SPARE", "100_000_000")
    ended = subprocess.run(
        [sys.executable, "-c", script], env={**ENVIRONMENT}, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    tokens, computed = map(int, ended.stdout.split())
    assert 500 < tokens < computed


# ---- a run ----

LOWER = "lower --optimizer.micro_batch_tokens (now 4096, with --force)"
OFF = ("--optimizer.halve_on_out_of_memory", "false")


def updates(run_dir: Path) -> dict[int, dict[str, Any]]:
    return {line["update"]: line for line in read_metrics(run_dir) if line["kind"] == "update"}


def assert_close_to(run_dir: Path, reference: Path) -> None:
    """Check that two runs have the same model after the last update, up to rounding."""
    ours, theirs = (
        load_file(folder / "checkpoints" / "update-000006" / "model.safetensors")
        for folder in (run_dir, reference)
    )
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, theirs[name], rtol=1e-3, atol=1e-5, msg=name)


def test_a_run_goes_on_in_smaller_micro_batches_and_says_so(
    run_dir: Path, command: Command, monkeypatch: pytest.MonkeyPatch, reference: Path
):
    """Memory runs out in the fifth update. The sixth has the lower budget from the start."""
    before = shards(run_dir)
    fail_at(monkeypatch, gradient, "batch_logprobs", 1, error=CUDA)
    ended = command("train", run_dir)
    assert ended.status == 0 and ended.err == ""
    assert ended.out.count("memory ran out in a micro-batch of ") == 1
    budgets = {update: line.get("micro_batch_tokens") for update, line in updates(run_dir).items()}
    lowered = budgets[5]
    assert f"lowering micro_batch_tokens from 4096 to {lowered} and computing it again" in ended.out
    assert budgets == {1: None, 2: None, 3: None, 4: None, 5: lowered, 6: lowered}
    assert (
        f"memory      2 updates with micro_batch_tokens lowered, down to {lowered}\n" in ended.out
    )
    assert before.items() < shards(run_dir).items()
    assert_close_to(run_dir, reference)


def test_without_halving_a_run_stops_and_goes_on_with_the_lower_budget(
    run_dir: Path, command: Command, monkeypatch: pytest.MonkeyPatch, reference: Path
):
    before = shards(run_dir)
    with monkeypatch.context() as patch:
        fail_at(patch, gradient, "batch_logprobs", 1)
        ended = command("train", run_dir, *OFF)
    stopped(ended, LOWER, "or turn on --optimizer.halve_on_out_of_memory")
    assert checkpoints(run_dir) == [2, 3, 4] and max(updates(run_dir)) == 4
    assert shards(run_dir) == before
    lower = (*resume_words(ended), "--optimizer.micro_batch_tokens", 60, "--force")
    assert command(*lower).status == 0
    assert before.items() < shards(run_dir).items()
    assert updates(run_dir)[5]["computed_tokens"] > updates(reference)[5]["computed_tokens"]
    assert_close_to(run_dir, reference)


@pytest.mark.parametrize(
    ("owner", "name", "parts"),
    [
        (gradient, "batch_logprobs", (LOWER,)),
        (torch.optim.AdamW, "step", ("memory ran out in the optimizer's step; weights, grad",)),
    ],
)
def test_a_run_that_ran_out_of_memory_resumes_to_the_same_bits_with_more(
    run_dir: Path,
    command: Command,
    monkeypatch: pytest.MonkeyPatch,
    reference: Path,
    owner: Any,
    name: str,
    parts: tuple[str, ...],
):
    with monkeypatch.context() as patch:
        fail_at(patch, owner, name, 2)
        stopped(command("train", run_dir, *OFF), *parts)
    assert checkpoints(run_dir) == [2, 3, 4]
    assert command("train", run_dir).status == 0
    assert_same(run_dir, reference)


@pytest.mark.parametrize(
    ("nth", "left"),
    [
        (1, State((0, 0), (0, 0), (), "")),  # the evaluation before the first update
        (2, State((0, 0), (0, 0), (), "evaluation 0")),  # the canary
        (4, State((1, 0), (0, 0), (), "evaluation 0")),  # the second shard
    ],
)
@pytest.mark.parametrize(
    ("engine", "option"), [(HFEngine, "batch_size"), (ContinuousEngine, "slots")]
)
def test_generation_that_runs_out_of_memory_names_the_engines_option_and_keeps_shards(
    tmp_path: Path,
    command: Command,
    monkeypatch: pytest.MonkeyPatch,
    nth: int,
    left: State,
    engine: type,
    option: str,
):
    """The error comes after the first completions of the engine's `nth` call."""
    name = {"batch_size": "hf", "slots": "continuous"}[option]
    text = CONFIG.replace('name = "hf"\nbatch_size', f'name = "{name}"\n{option}')
    run_dir, generate, calls = tmp_path / "run", engine.generate, [0]

    def failing(*args: Any, **options: Any) -> Any:
        calls[0] += 1
        for decoded in generate(*args, **options):
            yield decoded
            if calls[0] == nth:
                raise CUDA

    with monkeypatch.context() as patch:
        patch.setattr(engine, "generate", failing)
        ended = command("train", write_config(tmp_path, text), "--run-dir", run_dir)
    stopped(ended, f"memory ran out in generation; lower --engine.{option} (now 4, with --force)")
    assert state(run_dir) == left
    kept = shards(run_dir)
    lower = (f"--engine.{option}", 2, "--force", "--schedule.stages", 1)
    assert command(*resume_words(ended), *lower).status == 0
    assert kept.items() <= shards(run_dir).items() and checkpoints(run_dir) == [2, 3]
