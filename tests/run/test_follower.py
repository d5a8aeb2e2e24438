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

from mugrpo.disk.errors import RunStopped, UsageError
from mugrpo.disk.publishing import with_sum, without_sum
from mugrpo.run import follower as module
from mugrpo.run.follower import Bar, Follower, RunState, Sign, plain
from tests.report.synthetic import evaluation, refresh, update, write_config, write_metrics
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


def publish(root: Path, stage: int, rollouts: int) -> None:
    """Write a manifest that lists so many rollouts, in one shard."""
    folder = root / f"stages/{stage:03d}/rollouts"
    folder.mkdir(parents=True, exist_ok=True)
    entry = {"rows": rollouts, "bytes": 1, "sha256": "", "groups": 1}
    manifest = with_sum({"kind": "rollouts", "shards": {"0": entry}})
    (folder / "manifest.json").write_text(json.dumps(manifest))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A run whose first stage is over."""
    write_config(tmp_path)
    document = without_sum(json.loads((tmp_path / "config.json").read_text()))
    document["config"] |= {"evaluation": {"every": 4}, "rewards": {"failure_limit": 0.1}}
    (tmp_path / "config.json").write_text(json.dumps(with_sum(document)))
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
    assert state.stage == "stage 1 (of 0 to 1)"
    assert state.bars == (Bar("rollouts", 256, 512), Bar("updates", 0, 4), Bar("all", 4, 8))
    assert state.title == f"{root}  mu-grpo, chain"
    assert state.status == f"pid {os.getpid()} on host {HERE} since 2026-11-24; last file 7.0 s ago"
    assert state.used == 5 + 13 + 12 + 5 + 7
    # 4 updates of 3 s with 10 s of evaluations for four of them, and half a stage's 13 s
    assert state.left == 4 * (12 + 10) / 4 + 6.5
    assert state.results == ("accuracy 0.750 (0.700 to 0.800) after update 4", "reward 0.25")


def test_the_time_left_is_unknown_before_an_update_and_a_rollout_were_made(root: Path):
    for lines in ([], STAGE_0[:1], STAGE_0[:2]):
        write_metrics(root, lines)
        assert Follower(root).state().left is None
    write_metrics(root, STAGE_0[:3])  # 7 updates of 3 + 5 s, the rollouts of two stages
    assert Follower(root).state().left == 7 * (3 + 5) + 13 + 13


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
    assert (killed.left, killed.used) == (None, 35.0)
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
    document = without_sum(json.loads((root / "config.json").read_text()))
    (root / "config.json").write_text(json.dumps(with_sum(document)))
    write_metrics(root, [update(1, stage=0, **{"ratio/negative/max": 30.0})])
    assert signs(root)["largest ratio, A < 0"] == Sign("largest ratio, A < 0", 30.0, 20.0)


def test_a_file_that_grows_or_is_replaced_is_followed(root: Path):
    follower, path = Follower(root), root / "metrics.jsonl"
    assert follower.state().bars[-1].done == 4
    line = json.dumps(with_sum(update(5, stage=1))).encode() + b"\n"
    with open(path, "ab", buffering=0) as file:
        file.write(line[:9])
        state = follower.state()
        assert state.bars[-1].done == 4 and state.notes == ()
        file.write(line[9:])
    assert follower.state().bars[-1].done == 5
    assert follower.state().bars[-1].done == 5  # and not twice
    (root / "new").write_text("".join(json.dumps(with_sum(line)) + "\n" for line in STAGE_0[:4]))
    os.replace(root / "new", path)  # as a resumed run cuts it
    assert follower.state().bars[-1].done == 2


def test_what_cannot_be_read_is_noted(root: Path):
    write_metrics(root, STAGE_0, torn="7\n")
    (root / "stages/001/rollouts").mkdir(parents=True)
    (root / "stages/001/rollouts/manifest.json").write_text("{")
    state = Follower(root).state()
    assert state.bars[-1].done == 4
    assert state.notes[0] == f"{root / 'metrics.jsonl'} has 1 unreadable lines"
    assert "manifest.json is damaged" in state.notes[1]


@pytest.mark.parametrize(
    ("text", "word"), [(None, "is not a run"), ("", "is damaged"), ("7", "is not the config.json")]
)
def test_a_folder_without_a_config_is_refused(tmp_path: Path, text: str | None, word: str):
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises((UsageError, RunStopped), match=word):
        Follower(tmp_path)


def test_a_run_is_followed_while_it_trains_and_after_it_is_killed(tmp_path: Path):
    """It is held in its fifth update: 3 + 2 of 6, with 24 rollouts in each stage."""
    root, gate = tmp_path / "run", tmp_path / "gate"
    started = start_train(root, at="gradient", nth=5, act=f"hold {gate}")
    until(lambda: (tmp_path / "gate.held").exists())
    follower = Follower(root)
    state = follower.state()
    assert state.running and state.status.startswith(f"pid {started.pid} on host {HERE} since ")
    assert state.bars == (Bar("rollouts", 24, 24), Bar("updates", 1, 3), Bar("all", 4, 6))
    assert state.left is not None and state.notes == () and len(state.signs) == 7
    started.process.kill()
    started.end()
    assert follower.state().status.startswith(f"killed (pid {started.pid} on host {HERE}")


def test_the_text_fits_its_width_and_cannot_command_a_terminal():
    state = RunState(
        title="\x1b[2J",
        status="pid 7 on host a since 2026-11-24 10:00:00",
        running=True,
        stage="stage 1 (of 0 to 3)",
        bars=(Bar("rollouts", 512, 512), Bar("all", 24, 240)),
        used=245.0,
        left=730.0,
        results=("accuracy 0.750", "entropy 0.5"),
        signs=(Sign("largest ratio, A < 0", 312.0, 100.0),),
        notes=(),
    )
    assert plain(state, 40).splitlines() == [
        "run      \\x1b[2J",
        "status   pid 7 on host a since",
        "         2026-11-24 10:00:00",
        "stage    stage 1 (of 0 to 3)",
        "rollouts ━━━━━━━━━━━━━━━━━━━━━━━ 512/512",
        "all      ━━                       24/240",
        "time     4:05 used, about 12:10 left",
        "results  accuracy 0.750, entropy 0.5",
        "warning signs: now, limit (! beyond it)",
        "! largest ratio, A < 0       312 > 100",
    ]
