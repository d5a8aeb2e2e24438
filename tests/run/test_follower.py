"""The state of a run from its files: runs made by hand with numbers worked out by hand, and a
real one while it trains."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from mugrpo.disk.errors import UsageError
from mugrpo.disk.publishing import with_sum
from mugrpo.run import follower as module
from mugrpo.run.follower import Follower
from mugrpo.run.state import Bar, Sign
from tests.report.synthetic import (
    evaluation,
    refresh,
    update,
    write_config,
    write_metrics,
)
from tests.runs import start_train
from tests.waiting import until

HERE = socket.gethostname()
ROLLOUTS = 512  # of a stage: 4 batches of 16 problems x 8 responses

# The first of two stages of four updates: 5 s, then 2 + 10 + 1 s, then 4 x 3 s, then 5 s.
STAGE_0 = [
    evaluation(0, 0.25, **{"time/evaluate": 5.0}),
    refresh(
        0,
        0,
        rollouts=ROLLOUTS,
        behavior_reward=0.25,
        **{"time/refresh": 2.0, "time/generate": 10.0, "time/score": 1.0},
    ),
    *(update(n, stage=0, **{"time/update": 2.5, "time/read": 0.5}) for n in (1, 2, 3, 4)),
    evaluation(4, 0.75, accuracy_low=0.7, accuracy_high=0.8, **{"time/evaluate": 5.0}),
]


def hold(root: Path, holder: str = f"pid {os.getpid()} on host {HERE} since 2026-11-24") -> None:
    """Write the lock of a process that works on the run."""
    (root / "lock").write_text(f"{holder}\n")


def publish(root: Path, stage: int, **rows: int) -> None:
    """Write manifests that list this many rows of each kind, in one shard."""
    for kind, count in rows.items():
        folder = root / f"stages/{stage:03d}/{kind}"
        folder.mkdir(parents=True, exist_ok=True)
        entry = {"rows": count, "bytes": 1, "sha256": "", "groups": [1] if kind == "plan" else 1}
        shards = {"kind": kind, "shards": {"0": entry} if count else {}}
        (folder / "manifest.json").write_text(json.dumps(with_sum(shards)))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A run whose first stage is over."""
    write_config(tmp_path)
    document = json.loads((tmp_path / "config.json").read_text())
    document["config"] |= {"evaluation": {"every": 4}, "rewards": {"failure_limit": 0.1}}
    (tmp_path / "config.json").write_text(json.dumps(document))
    write_metrics(tmp_path, STAGE_0)
    hold(tmp_path)
    return tmp_path


def test_bars_times_and_metrics_are_those_worked_out_by_hand(
    root: Path, monkeypatch: pytest.MonkeyPatch
):
    """Half of the second stage is generated, and nothing was written for 7 s."""
    publish(root, 1, rollouts=256)
    for path in (root, *root.rglob("*")):
        os.utime(path, (0, 993.0 if path.name != "lock" else 900.0))
    monkeypatch.setattr(module.time, "time", lambda: 1000.0)
    state = Follower(root).state()
    assert (state.place, state.phases) == ("stage 1 (of 0 to 1)", ("generate",))
    assert state.bars == (Bar("rollouts", 256, 512), Bar("updates", 0, 4), Bar("all", 4, 8))
    assert state.title == f"{root}  mu-grpo, chain"
    assert state.status == f"pid {os.getpid()} on host {HERE} since 2026-11-24; last file 7.0 s ago"
    assert state.used == 5 + 13 + 12 + 5 + 7
    # 4 updates of 3 s, half a stage's 11 s of rollouts, the last evaluation
    assert state.left == 4 * 3 + 5.5 + 5
    assert state.metrics == (
        ("accuracy", "0.750 (0.700 to 0.800) after update 4"),
        ("reward", "0.25"),
    )


def test_the_time_left_is_unknown_before_everything_was_done_once(root: Path):
    for lines in ([], STAGE_0[:1], STAGE_0[:2]):
        write_metrics(root, lines)
        assert Follower(root).state().left is None
    write_metrics(root, STAGE_0[:3])  # 7 updates, the other stage with its refresh, 2 evaluations
    assert Follower(root).state().left == 7 * 3 + 11 + 2 + 512 / 512 * 11 + 2 * 5


@pytest.mark.parametrize(
    ("rows", "unfinished", "phases"),
    [
        ({}, None, ("refresh", "generate")),  # which of them does not show
        ({"rollouts": 128}, None, ("generate",)),
        ({"rollouts": 512}, None, ("score",)),
        ({"rollouts": 512, "scores": 256}, None, ("score",)),
        ({"rollouts": 512, "scores": 512}, None, ("generate",)),  # dynamic sampling: more groups
        ({"rollouts": 512, "scores": 512, "plan": 512}, None, ("optimize",)),
        ({"rollouts": 256, "scores": 128, "plan": 512}, None, ("generate", "optimize")),  # overlap
        ({}, "evaluations/update-000004.tmp.12", ("evaluate",)),
        (
            {"rollouts": 512, "scores": 512, "plan": 512},
            "evaluations/update-4.tmp.1",
            ("evaluate",),
        ),
        ({"rollouts": 128}, "checkpoints/update-000004.tmp.12", ("generate", "checkpoint")),
    ],
)
def test_phases_follow_from_what_is_published(
    root: Path, rows: dict[str, int], unfinished: str | None, phases: tuple[str, ...]
):
    publish(root, 1, **rows)
    if unfinished:
        (root / unfinished).mkdir(parents=True)
    assert Follower(root).state().phases == phases


def ended_process() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def test_how_a_run_ended_is_told(root: Path):
    dead, again = ended_process(), f"`mugrpo train {root}` goes on"
    holder = f"pid {dead} on host {HERE} since noon"
    hold(root, holder)
    killed = Follower(root).state()
    assert (killed.status, killed.running) == (f"killed ({holder}); {again}", False)
    assert (killed.phases, killed.left, killed.used) == ((), None, 35.0)
    hold(root, f"pid {dead} on host another.{HERE} since noon")  # nobody here can know
    assert Follower(root).state().running
    hold(root, "")
    assert Follower(root).state().status == f"stopped; {again}"
    write_metrics(root, [*STAGE_0, *(update(n, stage=1) for n in (5, 6, 7, 8))])
    finished = Follower(root).state()
    assert (finished.status, finished.running) == ("finished", False)
    hold(root)  # it evaluates, or another command works on it
    assert Follower(root).state().running


def signs(root: Path) -> dict[str, Sign]:
    return {sign.name: sign for sign in Follower(root).state().signs}


def test_warning_signs_have_the_values_worked_out_by_hand(root: Path):
    counts = {"right": 300, "truncated": 128, "error": 60, "unfinished": 4, "skipped": 0}
    lines: list[dict[str, Any]] = [
        evaluation(0, 0.6),
        update(1, stage=0, entropy=2.0, **{"ratio/negative/max": 999.0}),
        update(4, stage=0, entropy=1.0, skipped=1),
        evaluation(4, 0.75),
        refresh(
            4,
            1,
            rollouts=ROLLOUTS,
            zero_variance_share=0.95,
            **{f"status/{status}": count for status, count in counts.items()},
        ),
        update(5, stage=1, entropy=0.5, **{"ratio/negative/max": 150.0}),
        update(6, stage=1, entropy=0.03, **{"ratio/negative/max": 7.0}),
        evaluation(6, 0.5),
    ]
    write_metrics(root, lines)
    expected = [
        Sign("largest ratio, A < 0", 150.0, 100.0),  # of this stage
        Sign("fall of accuracy", 0.25, 0.05),
        Sign("entropy / the first", 0.015, 0.02, below=True),
        Sign("groups without gradient", 0.95, 0.9),
        Sign("truncated responses", 0.25, 0.1),
        Sign("failures of rewards", 0.125, 0.1),  # the config's limit
        Sign("updates not applied", 1, 0),
    ]
    assert list(signs(root).values()) == expected
    assert all(sign.warns for sign in expected)
    write_metrics(root, [evaluation(0, 0.5), update(1, entropy=2.0), evaluation(1, 0.46875)])
    healthy = signs(root)
    assert list(healthy) == ["fall of accuracy", "entropy / the first", "updates not applied"]
    assert not any(sign.warns for sign in healthy.values())


def test_the_limit_of_a_stage_that_ends_by_its_ratio_is_that_of_the_sign(root: Path):
    document = json.loads((root / "config.json").read_text())
    document["config"]["stage_until"] = {"name": "negative_ratio", "limit": 20.0}
    (root / "config.json").write_text(json.dumps(document))
    write_metrics(root, [update(1, stage=0, **{"ratio/negative/max": 30.0})])
    assert signs(root)["largest ratio, A < 0"] == Sign("largest ratio, A < 0", 30.0, 20.0)


def test_a_stage_that_ended_early_moves_the_next_ones(root: Path):
    """Of 8 updates the first stage made 3, so 4 follow, then 1."""
    ended = {"kind": "stage_end", "update": 3, "stage": 0}
    write_metrics(root, [update(1), update(2), update(3), ended])
    state = Follower(root).state()
    assert (state.place, state.bars[1]) == ("stage 1 (of 0 to 2)", Bar("updates", 0, 4))


def test_only_what_was_added_is_read_and_half_a_line_waits(
    root: Path, monkeypatch: pytest.MonkeyPatch
):
    read: list[bytes] = []
    loads = json.loads
    monkeypatch.setattr(module.json, "loads", lambda text: read.append(text) or loads(text))
    follower, path = Follower(root), root / "metrics.jsonl"
    follower.state()
    read.clear()
    line = json.dumps(update(5, stage=1)).encode() + b"\n"
    with open(path, "ab", buffering=0) as file:
        file.write(line[:9])
        state = follower.state()
        assert state.bars[-1].done == 4 and state.notes == () and line[:9] not in read
        file.write(line[9:])
    assert follower.state().bars[-1].done == 5
    assert follower.state().bars[-1].done == 5  # and not twice
    assert [text for text in read if isinstance(text, bytes)] == [line]


def test_a_file_that_a_resumed_run_has_cut_is_read_again(root: Path):
    follower = Follower(root)
    assert follower.state().bars[-1].done == 4
    (root / "new").write_text("".join(json.dumps(line) + "\n" for line in STAGE_0[:4]))
    os.replace(root / "new", root / "metrics.jsonl")
    state = follower.state()
    assert (state.bars[-1].done, state.metrics[0][1]) == (2, "0.250 after update 0")


@pytest.mark.parametrize(
    "line", ["7", "{}", '{"kind": "update"}', '{"kind": [], "update": 1e999}', "[" * 9999, "\\x1b"]
)
def test_lines_that_are_none_are_counted_and_change_nothing(root: Path, line: str):
    expected = Follower(root).state().bars
    write_metrics(root, STAGE_0, torn=f"{line}\n")
    state = Follower(root).state()
    assert state.bars == expected
    assert state.notes == (f"{root / 'metrics.jsonl'} has 1 unreadable lines",)


def test_a_manifest_that_cannot_be_read_is_noted_and_shows_no_number(root: Path):
    publish(root, 1, rollouts=256)
    (root / "stages/001/rollouts/manifest.json").write_text("{")
    state = Follower(root).state()
    assert [bar.name for bar in state.bars] == ["updates", "all"] and state.phases == ()
    assert "manifest.json is unreadable" in state.notes[0]


@pytest.mark.parametrize("text", [None, "", "{", "7", '{"config": {"schedule": {"stages": 0}}}'])
def test_a_folder_without_a_config_is_refused(tmp_path: Path, text: str | None):
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(UsageError, match="is not a run"):
        Follower(tmp_path)


def test_a_run_is_followed_while_it_trains_and_after_it_is_killed(tmp_path: Path):
    """It is held in its fifth update: 3 + 2 of 6, with 24 rollouts in each stage."""
    root, gate = tmp_path / "run", tmp_path / "gate"
    started = start_train(root, at="gradient", nth=5, act=f"hold {gate}")
    until(lambda: (tmp_path / "gate.held").exists())
    follower = Follower(root)
    state = follower.state()
    assert state.running and state.status.startswith(f"pid {started.pid} on host {HERE} since ")
    assert (state.place, state.phases) == ("stage 1 (of 0 to 1)", ("optimize",))
    assert state.bars == (Bar("rollouts", 24, 24), Bar("updates", 1, 3), Bar("all", 4, 6))
    assert state.used is not None and state.left is not None and state.notes == ()
    assert [name for name, _ in state.metrics[:2]] == ["accuracy", "reward"]
    assert len(state.signs) == 7
    started.process.kill()
    started.end()
    assert follower.state().status.startswith(f"killed (pid {started.pid} on host {HERE}")
