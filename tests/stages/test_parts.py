"""A stage that several processes generate and score is that of a run by one process."""

import errno
import fcntl
import json
import os
import signal
from pathlib import Path

import pytest

from mugrpo.disk.publishing import with_checksum
from mugrpo.disk.run_dir import require_atomic
from mugrpo.processes import claims
from mugrpo.stages import ahead
from tests.cases import refusal, table
from tests.faults.harm import refused, stopped
from tests.runs import (
    Command,
    Started,
    assert_same,
    assert_same_but_for_order,
    mugrpo,
    start,
    state,
    write_config,
)
from tests.waiting import until


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return write_config(tmp_path / "config")


def part(phase: str, config: Path, stage: int, share: str, **how: object) -> Started:
    run = ("--run-dir", config.parents[1] / "run")
    return start(phase, config, *run, "--stage", stage, "--part", share, **how)


def all_end(started: list[Started]) -> None:
    for one in started:
        ended = one.end()
        assert (ended.status, ended.err) == (0, ""), ended


def left(run_dir: Path) -> list[str]:
    """Return the names of claims, and of folders of parts that have not ended well."""
    return [path.name for place in ("*.claim-*", "parts") for path in run_dir.rglob(place)]


@pytest.mark.promise("parts")
def test_parts_of_any_number_at_once_give_the_bits_of_train(
    config: Path, tmp_path: Path, reference: Path
):
    """The second stage's parts are scored, and its updates made, while others are generated."""
    run_dir = tmp_path / "run"
    all_end([part("generate", config, 0, share) for share in ("0/2", "1/2", "1/3")])
    all_end([part("score", config, 0, share) for share in ("0/2", "0/2", "1/2")])
    options = (config, "--run-dir", run_dir, "--checkpoint.every", 1)
    assert mugrpo("optimize", *options, "--stage", 0).status == 0
    waiting = start("optimize", *options, "--stage", 1, "--wait", 1)
    all_end([part("generate", config, 1, "0/1")])
    all_end([part("score", config, 1, f"{k}/3") for k in (2, 0, 1)])
    all_end([waiting])
    assert_same_but_for_order(run_dir, reference)
    assert left(run_dir) == []


def test_a_killed_part_is_replaced_by_the_next_one(config: Path, tmp_path: Path):
    killed = part("generate", config, 0, "0/2", at="engine batch", nth=3)  # in its second shard
    assert killed.end().status == -signal.SIGKILL
    assert left(tmp_path / "run")[:1] == ["shard-00002.claim-0"]
    all_end([part("generate", config, 0, share) for share in ("0/2", "1/2")])
    assert state(tmp_path / "run").rollouts == (3, 0)
    assert [path.name for path in tmp_path.rglob("*.claim-*")] == ["shard-00002.claim-0"]
    for phase in ("score", "optimize"):
        assert mugrpo(phase, config, "--run-dir", tmp_path / "run").status == 0
    assert not [*tmp_path.rglob("*.claim-*")]


def _lost_soon() -> None:
    claims.LOST_AFTER = 0.5


def test_a_part_that_stands_still_is_taken_over_and_may_come_back(
    config: Path, tmp_path: Path, reference: Path
):
    """Both have made shard 0: the one that comes back drops its own."""
    gate, rollouts = tmp_path / "gate", tmp_path / "run/stages/000/rollouts"
    how = {"at": "half a rollout shard", "act": f"hold {gate}"}
    still = part("generate", config, 0, "0/3", **how)
    until(gate.with_suffix(".held").exists)
    os.kill(still.pid, signal.SIGSTOP)
    all_end([part("generate", config, 0, "0/3", first=_lost_soon)])
    taken = (rollouts / "shard-00000.json").read_bytes()
    gate.with_suffix(".go").touch()
    os.kill(still.pid, signal.SIGCONT)
    assert still.end().status == 0
    all_end([part("generate", config, 0, f"{k}/3") for k in (1, 2)])
    assert (
        mugrpo("train", config, "--run-dir", tmp_path / "run", "--checkpoint.every", 1).status == 0
    )
    assert_same(tmp_path / "run", reference)
    assert json.loads(taken)["shard"]["part"] == "0/3"
    assert left(tmp_path / "run") == []


def test_a_part_with_other_weights_than_the_first_is_refused(
    config: Path, tmp_path: Path, command: Command
):
    words = (config, "--run-dir", tmp_path / "run", "--stage", 0, "--part")
    assert command("generate", *words, "0/3").status == 0
    record = tmp_path / "run/stages/000/policy.json"
    document = json.loads(record.read_text())
    assert document.pop("sha256") and document["update"] == 0
    record.write_text(json.dumps(with_checksum({**document, "sha256_of_weights": "0"})))
    stopped(command("generate", *words, "1/3"), f"{record} names other weights after update 0")
    assert state(tmp_path / "run").rollouts == (1, 0)


def test_a_part_changes_no_config_and_needs_its_own_shards_alone(
    config: Path, tmp_path: Path, command: Command
):
    run = ("--run-dir", tmp_path / "run", "--stage", 0)
    assert command("generate", config, *run, "--part", "0/3").status == 0
    stored = (tmp_path / "run/config.json").read_bytes()
    words = (config, *run, "--part", "1/3")
    refused(command("score", *words), "part 1/3 of stage 0 has 0 of 1 shards of rollouts; run")
    assert command("score", config, *run, "--part", "0/3").status == 0
    refused(command("generate", *words, "--optimizer.lr", 1), "was started differently")
    refused(command("generate", *words, "--force"), "--part goes without --force")
    refused(command("optimize", config, *run), "stage 0 has 1 of 3 shards of rollouts; run")
    assert (tmp_path / "run/config.json").read_bytes() == stored
    assert state(tmp_path / "run").last_line == ""  # metrics are the business of the lock's holder


def test_a_part_leaves_ranks_and_the_launcher_to_the_lock_s_holder(config: Path, tmp_path: Path):
    """It would remove the orders of others. Under srun it is a part all the same."""
    run = tmp_path / "run"
    options = ("--engine.processes", 1, "--distributed.processes", 2)
    words = ("generate", config, "--run-dir", run, *options, "--stage", 0, "--part", "1/3")
    ended = mugrpo(*words, first=_second_of_two)
    assert (ended.status, ended.err) == (0, ""), ended
    assert state(run).rollouts == (1, 0) and not (run / "ranks").exists()
    refused(mugrpo("train", run, first=_second_of_two), "train is one process; torchrun and srun")


def _second_of_two() -> None:
    os.environ |= {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}


def test_a_part_that_only_waits_starts_no_engine(config: Path, tmp_path: Path):
    gate = tmp_path / "gate"
    how = {"at": "half a rollout shard", "act": f"hold {gate}"}
    first = part("generate", config, 0, "0/3", **how)
    until(gate.with_suffix(".held").exists)
    second = part("generate", config, 0, "0/3", at="canary")  # is killed if it starts an engine
    until(lambda: "waiting for rollouts of" in (second.folder / "out").read_text())
    gate.with_suffix(".go").touch()
    assert [one.end().status for one in (first, second)] == [0, 0]


@table("share", ["3/3", "3", "a/b", "1/0", "1/-3"])
def test_a_part_that_cannot_be_is_refused(config: Path, command: Command, share: str):
    said = f"--part {share}: write K/N with K from 0"
    refused(command("generate", config, "--part", share), said)


def test_updates_stop_if_nobody_makes_what_they_wait_for(
    config: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(ahead, "_SELDOM", 0.1)
    run = ("--run-dir", tmp_path / "run", "--stage", 0)
    assert command("generate", config, *run, "--part", "0/3").status == 0
    assert command("score", config, *run, "--part", "0/3").status == 0
    ended = command("optimize", config, *run, "--wait", 0.01)
    stopped(ended, "stage 0 lacks scores, and nobody is at work on them; run `mugrpo generate")
    assert state(tmp_path / "run").last_line == "update 1"  # which its first shard is for


def test_a_file_system_without_locks_is_refused(
    config: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
):
    def without(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", without)
    ended = command("train", config, "--run-dir", tmp_path / "run")
    refused(ended, f"the file system of {tmp_path / 'run'} has no locks (No locks available)")


@table(
    ("mount", "refuses"),
    [
        ("36 35 0:40 / {} rw - fuse.s3fs s3fs rw", "s3fs"),
        ("36 35 0:40 / {} rw,relatime shared:1 - fuse mountpoint-s3 rw", "mountpoint-s3"),
        ("36 35 0:40 / {}/elsewhere rw - fuse.gcsfuse bucket rw", None),
        ("36 35 0:40 / {} rw - nfs4 server:/runs rw", None),
    ],
)
def test_a_bucket_mounted_as_a_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mount: str, refuses: str | None
):
    lines = f"22 1 8:1 / / rw - ext4 /dev/sda1 rw\n{mount.format(tmp_path)}\n"
    monkeypatch.setattr(Path, "read_text", lambda *_: lines)
    if refuses:
        said = refusal(require_atomic, tmp_path / "run")
        assert f"is in a bucket mounted by {refuses}, where a rename is not atomic" in said
    else:
        require_atomic(tmp_path / "run")
