"""Runs with engines in processes of their own give the same bits, also beside a trainer's GPU."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from mugrpo.config.run import ModelOptions, RunConfig
from mugrpo.disk.run_dir import RunDir
from mugrpo.engines.process import RemoteEngine
from mugrpo.hosts.weights import hand_over
from mugrpo.model import policy as policies
from mugrpo.model.policy import Policy, load_policy
from mugrpo.optimize import trainer as trainers
from mugrpo.optimize.experience import Experience
from mugrpo.optimize.trainer import Trainer
from mugrpo.rollouts.side_by_side import pieces_of
from tests.builders import stale
from tests.cases import table
from tests.runs import (
    Command,
    differences,
    finished,
    read_metrics,
    start_train,
    state,
    write_config,
)
from tests.updates import config_of
from tests.waiting import engines_of, until

TWO = ("--engine.processes", "2")


def assert_same_training(run_dir: Path, reference: Path) -> None:
    """Check that two runs agree in every bit, other than that evaluations may differ by rounding.
    Each engine samples a part of an evaluation, so the batches are not those of a single engine."""
    differing = [d for d in differences(run_dir, reference) if "evaluation" not in d]
    assert not differing, differing
    ours, theirs = (
        [line for line in read_metrics(folder) if line["kind"] == "evaluation"]
        for folder in (run_dir, reference)
    )
    for line, expected in zip(ours, theirs, strict=True):
        assert line.pop("entropy") == pytest.approx(expected.pop("entropy"), rel=1e-5)
        assert line == expected


@pytest.mark.long
@pytest.mark.promise("engines")
def test_two_engines_give_the_same_bits(tmp_path: Path, reference: Path):
    run_dir = tmp_path / "run"
    finished(run_dir, *TWO)
    assert_same_training(run_dir, reference)
    logs = {log.name for log in (run_dir / "logs").iterdir()}
    assert logs == {"engine-0.log", "engine-1.log"}


@pytest.mark.promise("dead engine")
@pytest.mark.long
def test_a_run_whose_engine_is_killed_ends_in_the_same_bits(tmp_path: Path, reference: Path):
    """The engine is killed as soon as it is seen, while it starts or works."""
    run_dir = tmp_path / "run"
    started = start_train(run_dir, *TWO)
    os.kill(until(lambda: engines_of(started.pid))[0], signal.SIGKILL)
    ended = started.end()
    assert ended.status == 0 and ended.err == "", ended
    assert "ended with SIGKILL" in ended.out and "Restarting it (1/2)" in ended.out
    assert_same_training(run_dir, reference)


@pytest.mark.long
def test_generation_in_separate_engines_makes_no_trainer_and_reads_weights_for_the_canary_only(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
):
    loads, trainers, load = list[Any](), list[Any](), policies.load_model
    monkeypatch.setattr(policies, "load_model", lambda *how: (loads.append(1), load(*how))[1])
    monkeypatch.setattr(Trainer, "__init__", lambda *_, **__: trainers.append(1))
    config = write_config(tmp_path)
    ended = command("generate", config, "--run-dir", tmp_path / "run", "--engine.processes", 1)
    assert ended.status == 0, ended
    assert state(tmp_path / "run").rollouts == (3, 0)
    assert (loads, trainers) == ([1], [])


@pytest.fixture
def at_four(tmp_path: Path, reference: Path) -> tuple[RunDir, Policy, Path]:
    """A run with checkpoints of another, a policy of update 4, and that checkpoint's weights."""
    (copy := tmp_path / "run").mkdir()
    (copy / "checkpoints").symlink_to(reference / "checkpoints")
    kept, policy = reference / "checkpoints" / "update-000004", load_policy(ModelOptions())
    policy.load_weights(kept, 4)
    return RunDir(copy), policy, kept / "model.safetensors"


def test_only_the_model_is_handed_over(at_four):
    """An engine may load every .safetensors file it sees, so it must not see the optimizer's. The
    model is a link to the checkpoint's, or is written if there is no checkpoint."""
    run, policy, kept = at_four
    folder = Path(hand_over(run, RunConfig(), policy, 4))
    names = sorted(path.name for path in folder.iterdir())
    assert "model.safetensors" in names and "tokenizer.json" in names
    assert not any(name.startswith(("optimizer", "trainer", "stages", "sha256")) for name in names)
    assert (folder / "model.safetensors").resolve() == kept.resolve()
    policy.update = 7  # no checkpoint has it
    written = Path(hand_over(run, RunConfig(), policy, policy.update))
    assert not folder.exists() and not (written / "model.safetensors").is_symlink()
    assert (written / "model.safetensors").read_bytes() == kept.read_bytes()
    assert json.loads((written / "config.json").read_text())["model_type"] == "llama"
    policy.update = 0
    assert hand_over(run, RunConfig(), policy, policy.update).endswith("chain_model")


def test_vllm_in_bf16_gets_rounded_weights(at_four):
    """The process has the weights, so they are written, although a checkpoint has them in fp32."""
    run, policy, kept = at_four
    config = RunConfig.model_validate({"engine": {"name": "vllm"}, "model": {"precision": "bf16"}})
    folder = Path(hand_over(run, config, policy, 4))
    ours, theirs = load_file(folder / "model.safetensors"), load_file(kept)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name].bfloat16()) for name in ours)


@table(
    ("stage_groups", "shard_groups", "engines", "pieces"),
    [
        (6, 2, 1, 1),  # three shards
        (6, 2, 3, 1),
        (6, 2, 4, 2),
        (7, 2, 4, 1),  # four shards, the last one of one group
        (6, 6, 2, 2),
        (64, 64, 8, 8),
    ],
)
def test_shards_are_cut_only_if_there_are_fewer_than_engines(
    stage_groups: int, shard_groups: int, engines: int, pieces: int
):
    assert pieces_of(stage_groups, shard_groups, engines) == pieces


@pytest.fixture
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Policy, "on_gpu", True)
    for module in (policies, trainers):
        monkeypatch.setattr(module, "moved", lambda tensor, *_: tensor.clone())


@pytest.mark.long
def test_the_trainer_sleeps_before_an_engine_takes_the_gpu_and_the_engine_before_updates(
    one_gpu, tmp_path, reference, command, monkeypatch
):
    """At each refresh and each update. The run has the bits of one in which nothing sleeps."""
    made: list[Any] = []
    awake: set[RemoteEngine] = set()
    seen: list[str] = []

    def noting(owner: type, name: str, note: Any) -> None:
        plain = getattr(owner, name)

        def noted(self: Any, *rest: Any, **options: Any) -> Any:
            note(self)
            return plain(self, *rest, **options)

        monkeypatch.setattr(owner, name, noted)

    def refreshes(engine: RemoteEngine) -> None:
        seen.append("refresh")
        assert all(trainer.policy.asleep and trainer._moments_asleep for trainer in made)
        awake.add(engine)

    def steps(_: Trainer) -> None:
        seen.append("update")
        assert not awake

    noting(Trainer, "__init__", made.append)
    noting(RemoteEngine, "refresh", refreshes)
    noting(RemoteEngine, "sleep", awake.discard)
    noting(Trainer, "step", steps)
    ended = command(
        "train", write_config(tmp_path), "--run-dir", tmp_path / "run", "--engine.processes", 1
    )
    assert ended.status == 0, ended
    # Stages begin with an evaluation (after 0 and 3 updates) and a generation; one is the last.
    assert seen == [*["refresh"] * 2, *["update"] * 3] * 2 + ["refresh"]
    assert len(made) == 1
    assert_same_training(tmp_path / "run", reference)


def test_what_sleeps_is_what_a_checkpoint_writes_and_later_updates_leave_it(
    one_gpu: None, experience: Experience, tmp_path: Path
):
    config = config_of(engine={"processes": 1})
    trainer = Trainer(load_policy(ModelOptions()), config)
    trainer.step(stale(experience))
    trainer.sleep()
    snapshot = trainer.snapshot()
    asleep = {p.data_ptr() for p in trainer.policy.model.parameters()}
    asleep |= {t.data_ptr() for s in trainer.optimizer.state.values() for t in s.values()}
    written = {t.data_ptr() for t in (*snapshot.weights.tensors.values(),)}
    written |= {t.data_ptr() for n, t in snapshot.moments.items() if not n.startswith("rng")}
    assert written == asleep
    before = {name: tensor.clone() for name, tensor in snapshot.weights.tensors.items()}
    trainer.step(stale(experience))
    assert all(torch.equal(before[n], t) for n, t in snapshot.weights.tensors.items())
    after = trainer.snapshot().weights.tensors  # awake: copied
    assert not any(torch.equal(before[n], t) for n, t in after.items())
