"""Runs of every kind that are killed anywhere and resumed end in the bits of uninterrupted ones."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from mugrpo.disk import metrics
from mugrpo.disk.shards import ShardSet, read_logprobs, read_rollouts
from tests.cases import some
from tests.extensions.turns.test_turns_run import write_turns
from tests.runs import (
    ENVIRONMENT,
    ROOT,
    UPDATES,
    Ended,
    State,
    assert_same,
    checkpoints,
    differences,
    final_weights,
    finished,
    killed,
    mugrpo,
    read_metrics,
    shards,
    start_train,
    state,
    write_config,
)
from tests.test_mixture_run import MIXTURE
from tests.waiting import until


def test_every_update_of_the_reference_moves_the_weights(reference: Path):
    updates = [line for line in read_metrics(reference) if line["kind"] == "update"]
    assert [line["update"] for line in updates] == [1, 2, 3, 4, 5, 6]
    assert all(line["grad_norm"] > 0.1 and line["skipped"] == 0 for line in updates)
    assert all(line["kl_behavior"] > 5e-5 for line in updates if line["staleness"])
    assert len({line["lr"] for line in updates}) == 6


@pytest.mark.promise("seed")
def test_two_uninterrupted_runs_are_the_same_and_another_seed_is_not(reference, tmp_path):
    finished(tmp_path / "again")
    assert_same(tmp_path / "again", reference)
    finished(tmp_path / "other", "--seed", 11, "--schedule.stages", 1)
    ours, theirs = (final_weights(run, 3) for run in (tmp_path / "other", reference))
    assert ours.items().isdisjoint(theirs.items())
    one, other = shards(tmp_path / "other"), shards(reference)
    assert one != {name: other[name] for name in one}


class Kind(NamedTuple):
    """Options of a run, a function that writes its config into a folder, and its updates."""

    options: tuple[object, ...] = ()
    write: Callable[[Path], Path] = write_config
    updates: int = UPDATES


KL = ("--reference.name", "kl", "--reference.coefficient", "1.0", "--checkpoint.every", 0)
SURPLUS = ("--sampling.surplus", 2, "--optimizer.lr", "3e-4")
KINDS = {
    "plain": Kind(),
    "lora": Kind(("--lora.rank", 4, "--lora.alpha", 24, "--optimizer.lr", "3e-3")),
    # logprobs of each stage's first policy, of the trainer under the behavior policy, ...
    "kl": Kind((*KL, "--reference.period", 1, "--checkpoint.keep", 1)),
    "truncated": Kind(("--correction.name", "truncated")),
    # ... and of the policy before every second update
    "proximal": Kind(
        (
            *("--objective.name", "decoupled_ppo", "--objective.proximal_period", 2),
            *("--objective.ratio_clip", "[0.99, 1.01]", "--veto.name", "off"),
        )
    ),
    "mixture": Kind(SURPLUS, partial(write_config, text=MIXTURE)),
    "turns": Kind(("--trust",), write_turns),
    "two passes": Kind(("--schedule.batches_per_stage", "1", "--schedule.passes_per_batch", "3")),
}

# Where a kill of the plain run comes, at which pass of the place, and what is on disk then: rollout
# and score shards by stage, checkpoints, the last line of the metrics, what was being written.
PLAIN = [
    (
        "half a rollout shard",
        2,
        State((1, 0), (0, 0), (), "evaluation 0", ("shard-00001.parquet",)),
    ),
    ("half a checkpoint", 2, State((3, 3), (3, 3), (2,), "update 4", ("update-000004",))),
    # from here on left to `make test-all`
    ("half a metrics line", 3, State((3, 0), (3, 0), (2,), "update 2")),
    ("config", 1, State((0, 0), (0, 0), (), "", ("config.json",))),
    ("evaluation sampled", 1, State((0, 0), (0, 0), (), "", ("update-000000",))),
    ("canary", 2, State((0, 0), (0, 0), (), "evaluation 0")),
    ("engine batch", 9, State((3, 1), (3, 0), (2,), "evaluation 3")),
    ("entry of rollouts", 3, State((2, 0), (0, 0), (), "evaluation 0", ("shard-00002.json",))),
    ("rollout shard without entry", 2, State((1, 0), (0, 0), (), "evaluation 0")),
    ("scoring", 15, State((3, 0), (1, 0), (), "evaluation 0")),
    ("half a score shard", 3, State((3, 0), (2, 0), (), "evaluation 0", ("shard-00002.parquet",))),
    ("score shard without entry", 4, State((3, 3), (3, 0), (2,), "evaluation 3")),
    ("gradient", 6, State((3, 3), (3, 3), (2, 4), "update 5")),
    ("optimizer step", 3, State((3, 0), (3, 0), (2,), "update 2")),
    ("metrics line", 5, State((3, 0), (3, 0), (2,), "update 3")),
    ("checkpoint without name", 2, State((3, 3), (3, 3), (2,), "update 4", ("update-000004",))),
    ("evaluation without metrics line", 3, State((3, 3), (3, 3), (2, 4, 6), "update 6")),
]
# Kills of the others. Of "kl" and "proximal" updates 1 and 4 begin a stage, 3 and 6 a second
# proximal period.
OTHERS = [
    ("kl", "half a logprobs shard", 5),
    # from here on left to `make test-all`
    ("proximal", "gradient", 3),
    ("mixture", "rollout shard without entry", 5),  # of the surplus
    ("turns", "gradient", 5),
    ("lora", "half a checkpoint", 2),
    ("lora", "gradient", 6),
    ("kl", "gradient", 5),
    ("truncated", "half a logprobs shard", 2),
    ("proximal", "logprobs shard without entry", 4),
    ("proximal", "gradient", 6),
    ("mixture", "scoring", 30),  # in the surplus
    ("turns", "half a rollout shard", 2),
    ("two passes", "gradient", 6),
]


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory, reference: Path) -> dict[str, Path]:
    """Uninterrupted runs by kind, made when first asked for. Tests only read them."""

    class Runs(dict[str, Path]):
        def __missing__(self, name: str) -> Path:
            run_dir = tmp_path_factory.mktemp("whole") / "run"
            assert ran(name, run_dir).status == 0
            self[name] = run_dir
            return run_dir

    return Runs(plain=reference)


def ran(name: str, run_dir: Path, *options: object, **kill: Any) -> Ended:
    """Run `train` with a kind's config."""
    kind = KINDS[name]
    config = kind.write(run_dir.parent / "config")
    return mugrpo("train", config, "--run-dir", run_dir, *kind.options, *options, **kill)


@pytest.mark.promise("killed")
@pytest.mark.parametrize(("place", "nth", "on_disk"), some(2, PLAIN))
def test_a_run_killed_at_a_place_and_resumed_ends_in_the_same_bits(
    reference: Path, tmp_path: Path, place: str, nth: int, on_disk: State
):
    run_dir = tmp_path / "run"
    killed(run_dir, place, nth)
    assert state(run_dir) == on_disk
    again = finished(run_dir)
    assert_same(run_dir, reference)
    notices = [line for line in again.out.splitlines() if line.startswith("removed unfinished")]
    assert len(notices) == len(on_disk.unfinished)
    newest = max(on_disk.checkpoints, default=0)
    source = f"resuming from {run_dir}/checkpoints/update-{newest:06d}\n"
    assert (source in again.out) == (newest > 0)


@pytest.mark.promise("killed")
@pytest.mark.parametrize(("name", "place", "nth"), some(1, OTHERS))
def test_a_run_of_another_kind_killed_and_resumed_ends_in_the_same_bits(
    whole: dict[str, Path], tmp_path: Path, name: str, place: str, nth: int
):
    run_dir = tmp_path / "run"
    assert ran(name, run_dir, at=place, nth=nth).status == -signal.SIGKILL
    again = ran(name, run_dir)
    assert (again.status, again.err) == (0, "")
    assert differences(run_dir, whole[name], KINDS[name].updates) == []


# What each stores: by stage, {shard: updates that its policy had seen}. Three updates a stage make
# proximal periods of two and one, each with the policy that it begins with.
STORED: list[tuple[str, str, list[dict[int, int]]]] = [
    ("kl", "reference_logprobs", [{0: 0, 1: 0, 2: 0}, {0: 3, 1: 3, 2: 3}]),
    ("proximal", "proximal_logprobs", [{0: 0, 1: 2}, {0: 3, 1: 5}]),
    ("truncated", "trainer_behavior_logprobs", [{0: 0, 1: 0, 2: 0}, {0: 3, 1: 3, 2: 3}]),
]


@pytest.mark.parametrize(("kind", "name", "updates"), some(1, STORED))
def test_logprobs_of_other_policies_are_stored_and_change_the_weights(whole, kind, name, updates):
    lines = metrics.read_metrics(whole[kind] / "metrics.jsonl")
    timed = [line["time/logprobs"] for line in lines if line["kind"] == "update"]
    for stage, expected in enumerate(updates):
        folder = whole[kind] / f"stages/{stage:03d}"
        made, kept = (ShardSet(folder / which, which) for which in ("rollouts", name))
        assert {n: kept.entry(n)["policy_step"] for n in kept.numbers()} == expected
        lengths = [len(row) for n in kept.numbers() for row in read_logprobs(kept, n)]
        tokens = [len(r.response_ids) for n in made.numbers() for r in read_rollouts(made, n)]
        assert lengths == tokens  # the tiny run trains on its rollouts in their order
        if name != "proximal_logprobs":  # those are computed while an update reads
            spent = sum(entry["seconds"] for entry in kept.entries())
            assert timed[3 * stage : 3 * stage + 3] == [spent, 0.0, 0.0] and spent > 0
    assert final_weights(whole[kind]) != final_weights(whole["plain"])


@pytest.mark.long
@pytest.mark.parametrize("name", KINDS)
def test_a_run_killed_after_every_sixth_publish_ends_in_the_same_bits(whole, tmp_path, name):
    """Six, since an evaluation publishes four files and a folder, and starts over if killed. With
    proximal logprobs more is published up to the next checkpoint, unless each update has one."""
    run_dir, statuses = tmp_path / "run", list[int]()
    while not statuses or (statuses[-1] == -signal.SIGKILL and len(statuses) < 30):
        every = ("--checkpoint.every", 1) if name == "proximal" else ()
        statuses.append(ran(name, run_dir, *every, at="after a publish", nth=6).status)
    assert statuses == [-signal.SIGKILL] * (len(statuses) - 1) + [0]
    assert len(statuses) > 4
    assert differences(run_dir, whole[name], KINDS[name].updates) == []


@pytest.mark.long
@pytest.mark.parametrize(
    ("place", "nth"),
    [("half a checkpoint", 2), ("metrics line", 5), ("rollout shard without entry", 4)],
)
def test_a_run_killed_while_a_checkpoint_is_written_ends_in_the_same_bits(
    reference: Path, tmp_path: Path, place: str, nth: int
):
    """A kill leaves the checkpoint before. No shard is older than the checkpoint of its policy."""
    run_dir = tmp_path / "run"
    killed(run_dir, place, nth, beside=True)
    finished(run_dir)
    assert_same(run_dir, reference)


@pytest.mark.long
def test_training_goes_on_while_a_checkpoint_is_written(reference: Path, tmp_path: Path):
    """The checkpoint after update 2 is held back. Update 3, an evaluation and more follow."""
    run_dir, hold = tmp_path / "run", tmp_path / "hold"
    act = f"hold {hold}"
    started = start_train(run_dir, at="checkpoint without name", nth=1, act=act, beside=True)
    until(lambda: Path(f"{hold}.held").exists())
    until(lambda: any(line["update"] == 3 for line in read_metrics(run_dir)))
    assert checkpoints(run_dir) == []
    Path(f"{hold}.go").touch()
    assert started.end().status == 0
    assert_same(run_dir, reference)


@pytest.mark.long
def test_a_run_of_the_installed_command_is_resumed_by_a_fresh_interpreter(reference, tmp_path):
    run_dir = tmp_path / "run"
    words = ["train", str(write_config(tmp_path)), "--run-dir", str(run_dir)]
    environment = {**os.environ, **ENVIRONMENT}
    kill = [sys.executable, "-m", "tests.kill_at", "gradient", "5"]
    done = subprocess.run([*kill, *words], env=environment, cwd=ROOT, capture_output=True)
    assert (done.returncode, done.stderr) == (-signal.SIGKILL, b"SIGKILL at gradient\n")
    assert checkpoints(run_dir) in ([2], [2, 4])  # the last one is written beside updates
    command = Path(sys.executable).with_name("mugrpo")
    done = subprocess.run([command, *words], env=environment, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
    assert_same(run_dir, reference)


@pytest.mark.promise("bf16")
@pytest.mark.long
def test_a_run_in_bf16_is_resumed_to_the_same_bits(tmp_path: Path, reference: Path):
    finished(tmp_path / "whole", "--model.precision", "bf16")
    first = [r for r in read_metrics(tmp_path / "whole") if r.get("staleness") == 0]
    assert len(first) == 2 and all(line["logprob_gap/mean"] < 0.1 for line in first)
    killed(tmp_path / "run", "gradient", 5, "--model.precision", "bf16")
    finished(tmp_path / "run", "--model.precision", "bf16")
    assert_same(tmp_path / "run", tmp_path / "whole")
    assert final_weights(tmp_path / "run") != final_weights(reference)
