"""A trainer and an engine process on one GPU, which has room for one of them at a time.

No GPU is needed: what moves to another device moves to other memory instead.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

from mugrpo.config.run import ModelOptions
from mugrpo.engines.process import RemoteEngine
from mugrpo.model import policy as policies
from mugrpo.model.policy import Policy, load_policy
from mugrpo.optimize import trainer as trainers
from mugrpo.optimize.experience import Experience
from mugrpo.optimize.trainer import Trainer
from tests.builders import stale
from tests.runs import write_config
from tests.stages.test_engine_processes import assert_same_training
from tests.updates import config_of


@pytest.fixture
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Policy, "on_gpu", True)
    for module in (policies, trainers):
        monkeypatch.setattr(module, "moved", lambda tensor, _: tensor.clone())


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
