"""The steps of benchmarks/gpu.sh at tiny sizes on a CPU, and the calls made to a GPU."""

from __future__ import annotations

import os
import time
import zipfile
from argparse import Namespace
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

import gpu
import gpu_steps
import gpu_wheels
from device import clocked, forget_peak, peak_gib
from generation import OURS, PEER, peer_model
from gpu import LARGE, MEDIUM, SMALL, STEPS, Step
from gpu_steps import CHECKPOINTING, MASKS, PLAIN, SHARED, VARLEN, WAYS
from gpu_work import (
    TINY,
    Model,
    mfu,
    random_experience,
    random_groups,
    run_config,
    stand_in,
    update_flop,
)
from mugrpo.extensions.lab.plan.counts import Group, Shape
from side_by_side import Measured, Row, machine
from tests.model.test_varlen import reference

OPTIONS = Namespace(tiny=True, repetitions=2)
EXACT = replace(TINY, precision="fp32")


def always() -> bool:
    return True


@pytest.mark.parametrize(("model", "billions"), [(SMALL, 0.494), (MEDIUM, 1.777), (LARGE, 7.615)])
def test_models_are_of_the_recipes_forms(model, billions):
    assert model.shape(tiny=False).parameters / 1e9 == pytest.approx(billions, rel=2e-3)
    assert model.shape(tiny=True).parameters < 1e6


def test_both_sides_of_generation_sample_every_token_asked_for():
    row = gpu_steps.generation(SMALL, TINY, OPTIONS, always)
    tokens = TINY.prompts * TINY.group_size * TINY.new_tokens
    assert list(row.found) == [OURS, PEER]
    for side in row.found.values():
        assert [measured.work for measured in side] == [tokens, tokens]
    assert row.details["engine_notices"] == []  # no other engine stepped in
    assert row.details["problems"] == TINY.prompts


def test_the_peer_has_the_same_weights_in_the_precision_of_the_arithmetic():
    policy = SMALL.policy(run_config(TINY, SMALL), tiny=True)
    peer = peer_model(policy)
    pairs = zip(policy.model.parameters(), peer.parameters(), strict=True)
    assert all(torch.equal(ours.bfloat16(), theirs) for ours, theirs in pairs)
    assert {p.dtype for p in policy.model.parameters()} == {torch.float32}
    assert {buffer.dtype for buffer in peer.buffers()} == {torch.float32}


@pytest.mark.long
@pytest.mark.parametrize("model", [MEDIUM, LARGE])
def test_all_sides_make_the_same_update_and_each_repetition_another(model):
    row = gpu_steps.update(model, EXACT, OPTIONS, always)
    assert set(row.found) == {s + c for s in (SHARED, PLAIN) for c in ("", CHECKPOINTING)}
    notes = [[m.notes for m in side] for side in row.found.values()]
    for repetition in zip(*notes, strict=True):
        for name in ("loss", "grad_norm"):
            values = [note[name] for note in repetition]
            assert values == pytest.approx([values[0]] * 4, rel=1e-4)
        assert {note["skipped"] for note in repetition} == {0}
    first, second = row.found[SHARED]
    assert first.work != second.work  # other lengths
    shared, plain = row.found[SHARED][0].notes, row.found[PLAIN][0].notes
    assert shared["shared_prompt_share"] > 0 == plain["shared_prompt_share"]
    assert shared["computed_tokens"] < plain["computed_tokens"]
    rate = row.details["ceiling_tflops"]
    assert shared["mfu"] == pytest.approx(shared["counted_tflop"] / rate / first.seconds)
    assert all(row.details["kernels"][side] for side in row.found)
    if not torch.cuda.is_available():
        assert shared["peak_gib"] is None  # unknown on a CPU, which is not 0


def test_varlen_and_masks_make_the_same_update():
    row = gpu_steps.update_by_attention(MEDIUM, EXACT, OPTIONS, always)
    assert set(row.found) == {f"{by}, {rows}" for by in (VARLEN, MASKS) for rows in (SHARED, PLAIN)}
    for repetition in zip(*row.found.values(), strict=True):
        norms = [measured.notes["grad_norm"] for measured in repetition]
        assert norms == pytest.approx([norms[0]] * 4, rel=1e-4)


def test_attention_alone_is_compared_with_masks_in_fp32():
    row = gpu_steps.attention(MEDIUM, TINY, OPTIONS, always)
    for side in (VARLEN, MASKS):
        errors = row.found[side][0].notes["error"]
        assert errors.keys() == {"output", "query", "key", "value"}
        assert max(errors.values()) < 1e-5


def test_the_stand_in_is_what_tests_take_for_the_kernel():
    generator = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(n, h, 8, generator=generator) for n, h in ((5, 4), (9, 2), (9, 2))
    )
    starts_q, starts_k = (torch.tensor(s, dtype=torch.int32) for s in ([0, 3, 5], [0, 3, 9]))
    given = (query, key, value, starts_q, starts_k, 3, 6)
    how = {"scale": 0.3, "window_size": (-1, 0), "enable_gqa": True}
    torch.testing.assert_close(stand_in(*given, **how), reference(*given, **how))


def test_adamw_is_measured_in_three_ways():
    row = gpu_steps.adamw(MEDIUM, TINY, OPTIONS, always)
    assert list(row.found) == list(WAYS) == ["fused", "foreach", "single"]
    assert row.details["parameters"] == MEDIUM.shape(tiny=True).parameters + 32 * 5 + 2 * 64
    one = row.found["fused"][0]
    assert one.notes["gb_per_second"] == pytest.approx(28 * one.work / one.seconds / 1e9)


def test_mfu_by_hand():
    shape = Shape(
        hidden=4, layers=1, heads=2, kv_heads=1, head_dim=3, intermediate=5, vocab=7, tied=True
    )
    # 132 parameters in linear layers, 28 in the head. A prompt of 3 with responses of 1 and 4:
    # shared, 6 tokens pass, with 6 x 7 / 2 pairs of 4 x 2 x 3 operations and 4 logits. The
    # backward pass is twice the forward pass.
    groups = [Group(3, [1, 4])]
    products, pairs = 2 * 132 * 6 + 2 * 28 * 4, 24 * 21
    assert products + pairs == 2312
    assert update_flop(shape, groups, shared=True) == 3 * 2312
    # Under an adapter, products lack the one that is the weights' gradient; attention has none.
    assert update_flop(shape, groups, shared=True, adapter=True) == 2 * products + 3 * pairs
    # On their own, 3 and 6 tokens pass, with 6 and 21 pairs and 1 and 4 logits.
    assert update_flop(shape, groups, shared=False) == 3 * (2 * 132 * 9 + 24 * 27 + 2 * 28 * 5)
    # 6936 operations in 2 s, of 13872 that are possible.
    assert mfu(3 * 2312, 2.0, 6936.0) == 0.5


def test_rollouts_are_random_groups_with_one_right_response():
    groups = random_groups(3, TINY)
    experience = random_experience(4096, groups)
    low, high = TINY.lengths
    for number, group in enumerate(groups):
        rows = slice(number * TINY.group_size, (number + 1) * TINY.group_size)
        assert [len(r.response_ids) for r in experience.rollouts[rows]] == group.responses
        assert {len(r.prompt_ids) for r in experience.rollouts[rows]} == {group.prompt}
        assert [score.reward for score in experience.scores[rows]] == [1.0, 0.0, 0.0, 0.0]
        assert all(low <= length <= high for length in (group.prompt, *group.responses))
    assert len({r.prompt_ids.tobytes() for r in experience.rollouts}) == 3
    assert random_groups(3, TINY, seed=1) != groups


def row_of(model: Model, *_: object) -> Row:
    return Row(f"gpu_{model.key}", model.name, "1/s", {"side": [Measured(2.0)]}, [], {}, True)


def broken(*_: object) -> Row:
    raise RuntimeError("no such kernel")


def test_a_step_that_fails_or_hangs_does_not_keep_the_others_from_running(
    tmp_path, capfd, monkeypatch
):
    hangs = Step(lambda *_: time.sleep(60), SMALL, 0.2)  # type: ignore[arg-type]
    crashes = Step(lambda *_: os._exit(9), SMALL, 9.0)  # type: ignore[arg-type]
    steps = (Step(broken, MEDIUM, 9.0), hangs, crashes, Step(row_of, LARGE, 9.0))
    monkeypatch.setattr(gpu, "STEPS", steps)
    with pytest.raises(SystemExit):
        gpu.main(["--tiny", "--output", str(tmp_path)])
    assert [path.stem for path in tmp_path.iterdir()] == ["gpu_qwen2_5_7b"]
    captured = capfd.readouterr()
    assert "failed: broken, R1-Distill-Qwen-1.5B (exit status 1)" in captured.out
    assert "failed: <lambda>, Qwen2.5-0.5B (killed after 0 s)" in captured.out
    assert "failed: <lambda>, Qwen2.5-0.5B (exit status 9)" in captured.out
    assert "no such kernel" in captured.err
    assert "| Qwen2.5-7B | side | 2 (2 to 2) | 0.5 (0.5 to 0.5) |" in captured.out


def test_steps_that_the_time_does_not_allow_are_named(tmp_path, capfd):
    assert gpu.main(["--tiny", "--seconds", "0", "--output", str(tmp_path)]) == []
    printed = capfd.readouterr().out
    assert printed.count("skipped, out of time: ") == len(STEPS)
    assert "skipped, out of time: update, Qwen2.5-7B" in printed


def test_all_steps_fit_ten_minutes():
    assert sum(step.seconds for step in STEPS) <= 540


@pytest.mark.long
def test_repetitions_end_with_the_time():
    times = iter([True, True, True])  # for the warm-up of all sides but the first
    row = gpu_steps.adamw(MEDIUM, TINY, Namespace(tiny=True, repetitions=3), lambda: False)
    assert {len(side) for side in row.found.values()} == {1}
    left = partial(next, times, False)
    row = gpu_steps.update(SMALL, TINY, Namespace(tiny=True, repetitions=3), left)
    assert {len(side) for side in row.found.values()} == {1}


def test_timing_waits_for_the_gpu_and_its_peak_memory_is_read(monkeypatch):
    events = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: events.append("waited"))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda _: events.append("forgot"))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: 3 * 2**30)
    cuda = torch.device("cuda")
    forget_peak(cuda)
    value, seconds = clocked(lambda: events.append("worked"), cuda)
    assert events == ["forgot", "waited", "worked", "waited"]
    assert value is None and seconds >= 0 and peak_gib(cuda) == 3.0


def test_the_machine_names_its_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "gpu" not in machine()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    assert machine()["gpu"] == "NVIDIA H200"


def test_without_a_gpu_only_tiny_runs(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="torch sees no GPU"):
        gpu.main([])


def test_names_of_files():
    assert Model("Qwen2.5-1.5B", "form").key == "qwen2_5_1_5b"


def test_wheels_are_pinned_and_may_not_exceed_what_can_be_carried(tmp_path, capsys, monkeypatch):
    pins = gpu_wheels.pinned((gpu_wheels.ROOT / "constraints.txt").read_text())
    for names in gpu_wheels.NEEDED.values():
        assert all(gpu_wheels.plain(name) in pins for name in names)
    wheel, code = tmp_path / "a.whl", tmp_path / "b.py"
    wheel.write_bytes(bytes(60))
    code.write_bytes(bytes(40))
    monkeypatch.setattr(gpu_wheels, "MOST", 100)
    gpu_wheels.check_size([wheel], [code])
    assert capsys.readouterr().out.startswith("1 wheels of 0.0 MiB")
    monkeypatch.setattr(gpu_wheels, "MOST", 99)
    with pytest.raises(SystemExit, match="more than the 0 MiB that can be carried"):
        gpu_wheels.check_size([wheel], [code])


def test_only_what_a_machine_lacks_is_unpacked(tmp_path, monkeypatch):
    needed = {"json": ("json",), "absent_module": ("absent-module", "its_need")}
    monkeypatch.setattr(gpu_wheels, "NEEDED", needed)
    wheels, site = tmp_path / "wheels", tmp_path / "site"
    wheels.mkdir()
    with zipfile.ZipFile(wheels / "absent_module-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("absent_module.py", "")
    with pytest.raises(SystemExit, match="this Python lacks its_need"):
        gpu_wheels.unpack(wheels, site)
    with zipfile.ZipFile(wheels / "its_need-2.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("its_need/__init__.py", "")
    assert gpu_wheels.unpack(wheels, site) == ["absent_module"]
    assert sorted(path.name for path in Path(site).iterdir()) == ["absent_module.py", "its_need"]
