import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from mugrpo.config.training import SinkOptions
from mugrpo.disk.errors import UsageError
from mugrpo.disk.metrics import MetricsLog
from mugrpo.run.sinks import FIRST, Sinks
from tests.cases import table
from tests.runs import read_metrics, write_config


class Recorder(ModuleType):
    """A stand-in for wandb that records calls in order."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.calls: list[tuple[str, dict[str, Any]]] = []

    def init(self, **arguments: Any) -> None:
        self.calls.append(("init", arguments))

    def log(self, values: dict[str, float]) -> None:
        self.calls.append(("log", values))

    def Table(self, **cells: Any) -> dict[str, Any]:  # noqa: N802
        return cells

    def finish(self) -> None:
        self.calls.append(("finish", {}))


def test_trackio_gets_what_weights_and_biases_gets(monkeypatch, tmp_path):
    """But for the options that it does not have."""
    calls = {}
    for name in ("wandb", "trackio"):
        monkeypatch.setitem(sys.modules, name, module := Recorder(name))
        sinks = Sinks(SinkOptions(**{name: "p"}), tmp_path, {}, 0, print)
        sinks.log("update", 4, {"loss": 0.5})
        sinks.show(4, ["prompt", "reward"], [("2+2=", 1.0)])
        sinks.close()
        calls[name] = [*module.calls]
    (_, ours), *rest = calls["trackio"]
    (_, theirs), *others = calls["wandb"]
    assert ours.pop("embed") is False and theirs.pop("dir") and theirs.pop("id") == ours["name"]
    assert ours == theirs and rest == others
    table = {"columns": ["prompt", "reward"], "data": [["2+2=", 1.0]]}
    assert rest[1] == ("log", {"update": 4, "rollouts": table})


def test_a_stage_has_a_table_of_its_first_rollouts(tmp_path, command, recorder, monkeypatch):
    words = ["--run-dir", tmp_path / "run", "--sinks.wandb", "p"]
    assert command("train", write_config(tmp_path), *words).status == 0
    tables = [values for _, values in recorder.calls if "rollouts" in values]
    stages = [line for line in read_metrics(tmp_path / "run") if line["kind"] == "refresh"]
    assert [one["update"] for one in tables] == [line["update"] for line in stages]
    for one in tables:
        assert one["rollouts"]["columns"] == ["prompt", "response", "reward"]
        assert len(one["rollouts"]["data"]) == 8
        for prompt, response, reward in one["rollouts"]["data"]:
            assert "=" in prompt and response and reward in (0.0, 1.0)


def test_all_dashboards_begin_with_the_same_twelve_numbers(reference: Path):
    assert sum(map(len, FIRST.values())) == 12
    last = {line["kind"]: line for line in read_metrics(reference)}
    assert all(name in last[kind] for kind, names in FIRST.items() for name in names)


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    module = Recorder("wandb")
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


def sinks_of(recorder: Recorder, run_dir: Path, said: list[str]) -> Sinks:
    return Sinks(SinkOptions(wandb="a-project"), run_dir, {"seed": 3}, 0, said.append)


def fail(*_: Any, **__: Any) -> None:
    raise ConnectionError("no route")


def test_numbers_of_a_metrics_line_arrive_under_their_kind_and_nothing_else(recorder, tmp_path):
    sinks = sinks_of(recorder, tmp_path, [])
    log = MetricsLog(tmp_path / "metrics.jsonl", 0, sinks.log)
    log.append("update", 4, loss=0.5, skipped=0, batch_reward=None)
    log.close()
    sinks.close()
    assert [name for name, _ in recorder.calls] == ["init", "log", "finish"]
    assert recorder.calls[1][1] == {"update": 4, "Main/loss": 0.5, "update/skipped": 0.0}


def test_a_resumed_run_goes_on_under_the_same_name_in_its_project(recorder, tmp_path):
    for _ in range(2):
        sinks_of(recorder, tmp_path, []).close()
    first, second = (arguments for name, arguments in recorder.calls if name == "init")
    assert first == second
    assert first["project"] == "a-project" and first["resume"] == "allow"
    assert first["name"].startswith(f"{tmp_path.name}-") and first["config"] == {"seed": 3}
    other = tmp_path / tmp_path.name
    sinks_of(recorder, other, []).close()
    assert recorder.calls[-2][1]["name"] != first["name"]  # the same last name, another run


def test_a_sink_that_fails_is_reported_once_and_dropped(recorder, tmp_path, monkeypatch):
    said: list[str] = []
    sinks = sinks_of(recorder, tmp_path, said)
    monkeypatch.setattr(recorder, "log", fail)
    for update in (1, 2, 3):
        sinks.log("update", update, {"loss": 1.0})
    (sentence,) = said
    assert sentence.startswith("wandb failed (no route) and is dropped; ")
    assert "WANDB_MODE=offline" in sentence
    other = sinks_of(recorder, tmp_path, said)
    monkeypatch.setattr(recorder, "init", fail)  # nor can it be opened, or closed
    sinks_of(recorder, tmp_path, said).log("update", 1, {"loss": 1.0})
    other._sinks["wandb"].close = fail  # type: ignore[method-assign, assignment]
    other.close()
    assert len(said) == 3 and all(" failed (no route) and is dropped; " in one for one in said)


@table(("package", "option"), [("wandb", "p"), ("torch.utils.tensorboard", True)])
def test_a_missing_package_is_named_with_the_way_to_install_it(
    package, option, tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, package, None)
    name = package.rpartition(".")[2]
    with pytest.raises(UsageError, match=rf"pip install 'mugrpo\[{name}\]'"):
        Sinks(SinkOptions(**{name: option}), tmp_path, {}, 0, print)


def test_tensorboard_shows_the_updates_made_after_a_resume_and_not_those_they_replace(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    # The first process makes updates 1 to 3 and dies with a checkpoint of update 1.
    for start, loss in ((0, 0.5), (1, 0.25)):
        sinks = Sinks(SinkOptions(tensorboard=True), tmp_path, {}, start, print)
        for update in range(start + 1, 4):
            sinks.log("update", update, {"loss": loss})
        sinks.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    found = [(e.step, e.value) for e in events.Scalars("Main/loss")]
    sinks = Sinks(SinkOptions(tensorboard=True), tmp_path, {}, 3, print)
    sinks.show(3, ["prompt", "reward"], [("a|b\nc", 1.0)])
    sinks.close()
    events.Reload()
    (text,) = events.Tensors("rollouts/text_summary")
    assert b"| prompt | reward |\n| --- | --- |\n| a b c | 1.0 |" in text.tensor_proto.string_val[0]
    assert found == [(1, 0.5), (2, 0.25), (3, 0.25)]
