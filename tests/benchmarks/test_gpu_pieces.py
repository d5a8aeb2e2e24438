"""The pieces of benchmarks/gpu.sh at tiny sizes on a CPU, and the calls made to a GPU."""

from __future__ import annotations

import json
from argparse import Namespace
from dataclasses import replace

import pytest
import torch
from transformers import LlamaConfig

import gpu
from device import clocked, forget_peak, peak_gib
from generation import OURS, PEER, peer_model
from gpu import PLAIN, QWEN, SHARED, SMOLLM2, TINY, TINY_SHAPE, Model, mfu, update_flop
from mugrpo.config.run import ModelOptions
from mugrpo.tools.plan.counts import Group, Shape
from side_by_side import machine

SMALL = [replace(model, shape=TINY_SHAPE) for model in (SMOLLM2, QWEN)]
OPTIONS = Namespace(tiny=True, repetitions=2)


def always() -> bool:
    return True


@pytest.mark.parametrize(("model", "millions"), [(SMOLLM2, 134.5), (QWEN, 1543.5)])
def test_models_are_of_the_named_shapes(model, millions):
    assert Shape.of(model.config()) == model.shape
    assert model.shape.parameters / 1e6 == pytest.approx(millions, rel=1e-3)


@pytest.mark.parametrize("model", SMALL)
def test_both_sides_of_generation_sample_every_token_asked_for(model):
    row = gpu.generation(model, TINY, OPTIONS, always)
    tokens = TINY.prompts * TINY.group_size * TINY.new_tokens
    assert list(row.found) == [OURS, PEER]
    for side in row.found.values():
        assert [measured.work for measured in side] == [tokens, tokens]
    assert row.details["engine_notices"] == []  # no other engine stepped in
    assert row.details["problems"] == TINY.prompts


def test_the_peer_has_the_same_weights_in_the_precision_of_the_arithmetic():
    policy = SMALL[0].policy(ModelOptions(precision="bf16"))
    peer = peer_model(policy)
    pairs = zip(policy.model.parameters(), peer.parameters(), strict=True)
    assert all(torch.equal(ours.bfloat16(), theirs) for ours, theirs in pairs)
    assert {p.dtype for p in policy.model.parameters()} == {torch.float32}
    assert peer.lm_head.weight is peer.get_input_embeddings().weight
    assert {buffer.dtype for buffer in peer.buffers()} == {torch.float32}


@pytest.mark.parametrize("model", SMALL)
def test_sharing_prompts_is_the_same_update(model):
    row = gpu.update(model, replace(TINY, precision="fp32"), OPTIONS, always)
    for shared, plain in zip(row.found[SHARED], row.found[PLAIN], strict=True):
        assert shared.notes["loss"] == pytest.approx(plain.notes["loss"], rel=1e-5)
        assert shared.work == plain.work == row.details["response_tokens"]
        assert shared.notes["shared_prompt_share"] > 0 == plain.notes["shared_prompt_share"]
        assert shared.notes["computed_tokens"] < plain.notes["computed_tokens"]
        assert shared.notes["skipped"] == plain.notes["skipped"] == 0
    notes = row.found[SHARED][0]
    counted = row.details["counted_tflop"][SHARED] / row.details["ceiling_tflops"]
    assert notes.notes["mfu"] == pytest.approx(counted / notes.seconds)
    if not torch.cuda.is_available():
        assert notes.notes["peak_gib"] is None  # unknown on a CPU, which is not 0


def test_mfu_by_hand():
    shape = Shape(
        hidden=4, layers=1, heads=2, kv_heads=1, head_dim=3, intermediate=5, vocab=7, tied=True
    )
    # 132 parameters in linear layers, 28 in the head. A prompt of 3 with responses of 1 and 4:
    # shared, 6 tokens pass, with 6 x 7 / 2 pairs of 4 x 2 x 3 operations and 4 logits. The
    # backward pass is twice the forward pass.
    groups = [Group(3, [1, 4])]
    forward = 2 * 132 * 6 + 24 * 21 + 2 * 28 * 4
    assert forward == 2312
    assert update_flop(shape, groups, shared=True) == 3 * forward
    # On their own, 3 and 6 tokens pass, with 6 and 21 pairs and 1 and 4 logits.
    assert update_flop(shape, groups, shared=False) == 3 * (2 * 132 * 9 + 24 * 27 + 2 * 28 * 5)
    # 6936 operations in 2 s, of 13872 that are possible.
    assert mfu(3 * forward, 2.0, 6936.0) == 0.5


def test_rollouts_are_random_groups_with_one_right_response():
    groups = gpu.random_groups(3, TINY)
    experience = gpu.random_experience(TINY_SHAPE, groups)
    low, high = TINY.lengths
    for number, group in enumerate(groups):
        rows = slice(number * TINY.group_size, (number + 1) * TINY.group_size)
        assert [len(r.response_ids) for r in experience.rollouts[rows]] == group.responses
        assert {len(r.prompt_ids) for r in experience.rollouts[rows]} == {group.prompt}
        assert [score.reward for score in experience.scores[rows]] == [1.0, 0.0, 0.0, 0.0]
        assert all(low <= length <= high for length in (group.prompt, *group.responses))
    assert len({r.prompt_ids.tobytes() for r in experience.rollouts}) == 3


def test_the_command_writes_a_file_per_piece_and_one_table(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(gpu, "PIECES", gpu.PIECES[:2])
    given = ["--tiny", "--repetitions", "1", "--output", str(tmp_path)]
    documents = gpu.main(given)
    names = ["gpu_generation_smollm2_135m", "gpu_update_smollm2_135m"]
    assert [json.loads((tmp_path / f"{n}.json").read_text()) for n in names] == documents
    printed = capsys.readouterr().out
    table = printed[printed.index("| | side") :]
    assert all(f"| {side} |" in table for side in (OURS, PEER, SHARED, PLAIN))
    assert "out of time" not in table and "failed" not in table


def test_pieces_that_the_time_does_not_allow_are_named(tmp_path, capsys):
    assert gpu.main(["--tiny", "--seconds", "0", "--output", str(tmp_path)]) == []
    printed = capsys.readouterr().out
    assert printed.count("skipped, out of time: ") == len(gpu.PIECES)
    assert "skipped, out of time: update, Qwen2.5-1.5B" in printed


def test_repetitions_end_with_the_time():
    row = gpu.update(SMALL[0], TINY, Namespace(tiny=True, repetitions=3), lambda: False)
    assert {len(side) for side in row.found.values()} == {1}


def test_a_piece_that_fails_does_not_keep_the_others_from_running(tmp_path, capsys, monkeypatch):
    def broken(*_):
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(gpu, "PIECES", ((broken, QWEN), gpu.PIECES[1]))
    with pytest.raises(SystemExit):
        gpu.main(["--tiny", "--repetitions", "1", "--output", str(tmp_path)])
    assert [path.stem for path in tmp_path.iterdir()] == ["gpu_update_smollm2_135m"]
    captured = capsys.readouterr()
    assert "failed: broken, Qwen2.5-1.5B" in captured.out
    assert "no such kernel" in captured.err


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
    assert Model("Qwen2.5-1.5B", LlamaConfig, TINY_SHAPE).key == "qwen2_5_1_5b"
