import re
from shutil import disk_usage

import pytest

from mugrpo.config.load import build_config
from mugrpo.config.run import RunConfig
from mugrpo.disk.errors import UsageError
from mugrpo.disk.run_dir import RunDir
from mugrpo.model.hardware import with_precision
from mugrpo.run.machine import Machine, fitting
from mugrpo.run.memory import (
    GIB,
    engine_weights,
    fitting_tokens,
    held,
    left_for_updates,
    require_gpu,
    require_memory,
    require_room,
)
from tests.runs import ROOT

HALF_A_BILLION = {
    "path": str(ROOT / "configs" / "recipes" / "forms" / "qwen2.5-0.5b"),
    "precision": "fp32",
}


def test_weights_gradients_and_moments_that_do_not_fit_are_refused(monkeypatch, tmp_path):
    """494 million parameters take 16 bytes each, 12 to save: 12.9 GiB. Under an adapter, 4."""

    def room(**options: object) -> list[str]:
        config = build_config({"model": HALF_A_BILLION, **options}, "test")
        return [*require_room(config, RunDir(tmp_path))]

    monkeypatch.setattr("mugrpo.run.memory.host_memory", lambda: 12 * GIB)
    with pytest.raises(
        UsageError, match=r"take 12\.9 GiB of memory, which has 12\.0: .*lora\.rank"
    ):
        room()
    room(lora={"rank": 8})
    monkeypatch.setattr("mugrpo.run.memory.host_memory", lambda: 13 * GIB)
    room()


@pytest.mark.parametrize(
    ("checkpoint", "warned"),
    [
        ({}, "warning: 6 checkpoints take 27.6 GiB more, and 24.0 are free"),
        ({"keep": 2}, ""),  # a third is written before one goes
        ({"keep": 4}, ""),
        ({"every": 16}, ""),  # of 24 updates, after 16 and 24
        ({"every": 3}, "warning: 8 checkpoints take 38.6 GiB more"),
    ],
)
def test_checkpoints_without_room_are_told_beforehand(monkeypatch, tmp_path, checkpoint, warned):
    """Each takes 12 bytes for each of 494 million parameters: 5.5 GiB. One is there already."""
    monkeypatch.setattr("mugrpo.run.memory.host_memory", lambda: 64 * GIB)
    usage = disk_usage(tmp_path)._replace(free=24 * GIB)
    monkeypatch.setattr("mugrpo.run.memory.shutil.disk_usage", lambda _: usage)
    (tmp_path / "checkpoints/update-000004").mkdir(parents=True)
    schedule = {"stages": 6, "batches_per_stage": 4, "growth": 1}
    raw = {"model": HALF_A_BILLION, "checkpoint": checkpoint, "schedule": schedule}
    found = [*require_room(build_config(raw, "test"), RunDir(tmp_path))]
    assert len(found) == bool(warned) and all(one.startswith(warned) for one in found)


# 7.616 billion weights: 18 bytes each are 127.7 GiB, 6 are 42.6 and 2 are 14.2.
SEVEN_BILLION = {
    "model": {"path": str(ROOT / "configs" / "recipes" / "forms" / "qwen2.5-7b")},
    "engine": {"name": "vllm", "processes": 4, "tensor_parallel": 2},
    "distributed": {"processes": 8},
}
LOCAL = {"overlap": True, "checkpoint": {"every": 0}, "distributed": {"processes": 16}}
RAY = {"backend": {"name": "ray"}}
BESIDE = RAY | {"overlap": True, "checkpoint": {"every": 0}}
OWN = {"engine": {"name": "continuous", "processes": 8}}


def seven_billion(changed: dict[str, object]) -> RunConfig:
    return with_precision(build_config(SEVEN_BILLION | changed, "test"), elsewhere=True)


def ranks(count: int) -> dict[str, object]:
    return {"distributed": {"processes": count}}


@pytest.mark.parametrize(
    ("changed", "machine", "found"),
    [
        ({}, (8, 80, 1), "8 on 1 of 1 node; 4 x 2 GPUs, in turn; 16.0 of 80.0; 7.1 of 68.0"),
        (ranks(2), (8, 80, 1), "2 on 1 of 1 node; 4 x 2 GPUs, in turn; 63.8 of 80.0; 7.1 of 68.0"),
        (ranks(16), (8, 80, 2), "16 on 2 of 2 nodes; 4 x 2 GPUs, in turn; 8.0 of 80; 7.1 of 68"),
        (OWN, (8, 80, 1), "8 on 1 of 1 node; 8 x 1 GPUs, in turn; 16.0 of 65.8; 14.2 of 80.0"),
        (BESIDE | ranks(16), (8, 80, 4), "16 on 2 of 4; 4 x 2 GPUs, beside; 8.0 of 80; 7.1 of 68"),
        (  # an adapter's base has 2 bytes a weight; nothing of it moves
            {"lora": {"rank": 8}} | ranks(1) | {"engine": {"name": "hf"}},
            (1, 80, 1),
            "1 on 1 of 1 node; none, in turn; 14.2 of 80.0; 14.2 of 80.0",
        ),
    ],
)
def test_what_a_described_machine_has_room_for(changed, machine, found):
    lines = [*fitting(seven_billion(changed), Machine(*machine))]
    assert [line.split()[0] for line in lines] == ["ranks", "engines", "updates", "generation"]
    for line, part in zip(lines, found.split("; "), strict=True):
        words = part.split(", ")
        assert line[12:].startswith(words[0]) and words[-1] in line


def test_a_cluster_is_told_the_micro_batches_that_a_run_on_it_has():
    """On Ray, a run begins where it sees no GPU, and decides as on a CPU."""

    def said(changed: dict[str, object]) -> str:
        return [*fitting(seven_billion(changed), Machine(8, 80, 4))][2]

    assert "micro-batches of 6,144 tokens" in said({})
    assert "micro-batches of 4,096 tokens" in said(RAY)
    assert "of 9,000 tokens" in said(RAY | {"optimizer": {"micro_batch_tokens": 9000}})


@pytest.mark.parametrize(
    ("changed", "machine", "refused"),
    [
        (ranks(1), (8, 80, 1), "127.7 GiB of each rank's GPU, where 80.0 .*processes 2$"),
        (RAY | ranks(2), (8, 12, 4), "63.8 GiB .* where 12.0 .*processes 16$"),  # 11 are enough
        ({}, (8, 10, 1), "16.0 GiB .* where 10.0 .*use more GPUs, .*--lora.rank 16"),
        # without a cluster, engines are on the first node
        (
            LOCAL,
            (8, 80, 2),
            "0 engines of 2 GPUs .* node of the run beside 16 ranks, not 4: use more",
        ),
        (RAY | ranks(20), (8, 80, 4), "20 ranks do not get a GPU each .*processes 16$"),
        (BESIDE | ranks(32), (8, 80, 4), "0 engines of 2 GPUs .* 32 ranks, not 4: .*processes 24$"),
        (BESIDE | ranks(7), (8, 80, 1), "0 engines of 2 GPUs .* 7 ranks, not 4: use more GPUs"),
        (OWN, (8, 28, 1), "16.0 GiB .* where 13.8 are free beside an engine that stays: use more"),
        (OWN, (8, 14, 1), "14.2 GiB of each of its GPUs, where it has 14.0: .*tensor_parallel"),
    ],
)
def test_a_described_machine_without_room_is_refused_with_the_remedy(changed, machine, refused):
    with pytest.raises(UsageError, match=refused):
        [*fitting(seven_billion(changed), Machine(*machine))]


HALF, SMALL = "qwen2.5-0.5b", "r1-distill-qwen-1.5b"  # the second has 1.777 billion weights


@pytest.mark.parametrize(
    ("form", "changed", "gib", "tokens"),
    [
        # 73.0 GB are 85 %; less 8.9 of weights and moments and 3.7 of the head, 1,587 kB a token
        (HALF, {}, 80, 16_384),
        (HALF, {}, 24, 5120),  # 21.9 GB: 5,899 tokens
        (HALF, {}, 12, 1024),  # no room at all
        (SMALL, {}, 80, 10_240),  # less 32.0 and 4.0 GB, 3,311 kB a token: 11,171 tokens
        (SMALL, {"model": {"gradient_checkpointing": True}}, 80, 16_384),  # 314 kB a token
        (SMALL, {"distributed": {"processes": 2}}, 80, 15_360),  # less 16.0 GB: 16,003 tokens
        (SMALL, {"engine": {"name": "vllm", "rest": "stay"}}, 80, 1024),  # 15 % are left
        (SMALL, {"engine": {"name": "vllm"}}, 80, 10_240),
        (SMALL, {}, 70, 8192),  # 8,412 tokens
        (SMALL, {"engine": {"processes": 1}}, 70, 7168),  # it keeps 3.6 GB: 7,500 tokens
        (SMALL, {"lora": {"rank": 8}}, 80, 16_384),
        (SMALL, {"reference": {"name": "kl"}}, 80, 9216),  # a second model, 3.6 GB: 10,098 tokens
    ],
)
def test_the_tokens_of_a_micro_batch_that_a_gpu_has_room_for(form, changed, gib, tokens):
    path = str(ROOT / "configs" / "recipes" / "forms" / form)
    model = {"path": path, "precision": "bf16"} | changed.get("model", {})
    config = build_config(changed | {"model": model}, "test")
    assert fitting_tokens(config, gib * GIB, config.distributed.processes) == tokens


@pytest.mark.parametrize(
    ("changed", "refused"),
    [
        ({}, ""),
        # 32.0 GB of weights, gradients and moments, 4.0 of the head, 3.4 of 1,024 tokens
        (
            {"gib": 36},
            r"of 1,024 tokens take 36.7 GiB .* each GPU.*36.0: turn on .*checkpointing",
        ),
        # 24.9 GB of weights and moments; each slot 712 x 28,672 B and 20 x 151,936 B: 23.5 MB
        ({"engine": {"slots": 2048}}, r"takes 67.9 GiB .* 2,048 slots with 712 .*slots 1686, or"),
        ({"engine": {"slots": 1686}}, ""),
        ({"engine": {"name": "vllm", "slots": 2048}}, ""),  # it has what it is given
        (  # even one slot is too much
            {"lora": {"rank": 8}, "rollouts": {"max_new_tokens": 3_000_000}},
            r"of 1 slot with 3,000,200 .*; use a smaller model, or lower --rollouts.max",
        ),
        # a second model, which is not trained, has 3.6 GB more
        (
            {"gib": 38, "reference": {"name": "kl"}},
            r"moments, a second model and .* of 1,024 tokens take 40.0",
        ),
        ({"gib": 41, "reference": {"name": "kl"}}, ""),
        ({"rollouts": {"max_new_tokens": 16_000}, "engine": {"slots": 16}}, "warning"),
        (
            {
                "rollouts": {"max_new_tokens": 16_000},
                "engine": {"slots": 16},
                "model": {"gradient_checkpointing": True},
            },
            "",
        ),
    ],
)
def test_a_gpu_needs_room_for_a_small_micro_batch_and_for_the_slots_of_the_engine(changed, refused):
    changed = dict(changed)
    gib = changed.pop("gib", 60)
    path = str(ROOT / "configs" / "recipes" / "forms" / SMALL)
    model = {"path": path, "precision": "bf16"} | changed.get("model", {})
    config = build_config(changed | {"model": model}, "test")
    if refused and refused != "warning":
        with pytest.raises(UsageError, match=refused):
            [*require_gpu(config, gib * GIB, 200)]
        return
    found = [*require_gpu(config, gib * GIB, 200)]
    assert len(found) == (refused == "warning")
    for sentence in found:
        assert "a response of 16,200 tokens" in sentence and "gradient_checkpointing" in sentence


KL = {"reference": {"name": "kl"}}


@pytest.mark.parametrize(
    ("changed", "gib", "found"),
    [
        # 8.9 GB of weights, gradients and moments, 5.9 of the copy: 13.8 GiB
        ({}, 13.7, "take 13.8 GiB of memory, which has 13.7: use a smaller model"),
        # the former, 3.7 of the head and 3.3 of 2,048 tokens: 14.7 GiB
        (
            {},
            14,
            r"2,048 tokens takes about 15 GiB of memory, where 14 are: .* kill the run; lower",
        ),
        ({}, 14.8, ""),
        (KL, 14.6, "take 14.7 GiB of memory, which has 14.6"),  # 1 GB of a second model
        (KL, 15, "2,048 tokens takes about 16 GiB of memory, where 15 are"),
        # 32 rows of 20 + 12 tokens: 1.6 GB, 13.2 GiB
        ({"rollouts": {"max_new_tokens": 12}}, 13.85, ""),
        ({"lora": {"rank": 8}}, 8, ""),
    ],
)
def test_a_machine_without_a_gpu_needs_room_for_what_is_kept_and_for_an_update(changed, gib, found):
    path = str(ROOT / "configs" / "recipes" / "forms" / HALF)
    raw = {
        "model": {"path": path, "precision": "bf16"},
        "optimizer": {"micro_batch_tokens": 2048},
        "schedule": {"problems_per_update": 4, "group_size": 8},
    }
    config = build_config(raw | changed, "test")
    if " has " in found:
        with pytest.raises(UsageError, match=found):
            [*require_memory(config, gib * GIB, 20)]
        return
    told = [*require_memory(config, gib * GIB, 20)]
    assert len(told) == bool(found) and all(re.search(found, sentence) for sentence in told)


def test_engines_that_have_a_gpu_together_leave_less_to_updates_and_to_each_other():
    """Each of four keeps 3.6 GB of weights. Of 60 GiB it has 15, for slots of 23.5 MB beside."""
    path = str(ROOT / "configs" / "recipes" / "forms" / SMALL)
    raw = {"model": {"path": path, "precision": "bf16"}, "engine": {"processes": 4}}
    config = build_config(raw, "test")
    weights = 2 * 1_777_088_000
    assert left_for_updates(config, 80 * GIB, 1) == 80 * GIB - weights
    assert left_for_updates(config, 80 * GIB, 4) == 80 * GIB - 4 * weights
    assert fitting_tokens(config, 70 * GIB, 1) == 7168
    assert fitting_tokens(config, 70 * GIB, 1, 4) == 4096
    many = build_config(raw | {"engine": {"processes": 4, "slots": 600}}, "test")
    assert [*require_gpu(many, 60 * GIB, 200)] == []
    with pytest.raises(
        UsageError, match=r"takes 16.4 GiB .* has 15.0 for it: .*--engine.slots 535"
    ):
        [*require_gpu(many, 60 * GIB, 200, 4)]


def test_an_engine_in_4_bits_keeps_as_little_as_the_trainers_model():
    path = str(ROOT / "configs" / "recipes" / "forms" / SMALL)
    model = {"path": path, "precision": "bf16"}
    raw = {"model": model, "engine": {"processes": 1}, "lora": {"rank": 8, "quantize": "nf4"}}
    config = build_config(raw, "test")
    small = held(config, 1_777_088_000)[0]
    assert small < 1.2 * 1_777_088_000
    assert left_for_updates(config, 80 * GIB) == 80 * GIB - small
    assert engine_weights(config) == small


def test_training_and_check_refuse_an_engine_without_room_in_the_same_words():
    config = build_config(
        {"model": SEVEN_BILLION["model"], "distributed": {"processes": 8}}, "test"
    )
    config, said = with_precision(config, elsewhere=True), []
    for tried in (
        require_gpu(config, 40 * GIB, 200),
        fitting(config, Machine(8, 40, 1), 200),
    ):
        with pytest.raises(UsageError, match=r"an engine's weights take 42.6 GiB") as refused:
            list(tried)
        said.append(str(refused.value))
    assert said[0] == said[1]


def test_what_helps_a_generation_that_runs_out_of_memory_is_a_number():
    assert build_config({}, "test").engine.memory_remedy.startswith(
        "set --engine.slots 64 or fewer"
    )
    few = build_config({"engine": {"slots": 8}}, "test").engine
    assert few.memory_remedy == "lower --engine.slots (now 8, with --force)"
