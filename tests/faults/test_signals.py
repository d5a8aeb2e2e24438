"""SIGTERM and Ctrl-C."""

from pathlib import Path

import pytest

from tests.cases import some
from tests.faults.harm import contents, resume_words, stopped
from tests.runs import State, assert_same, mugrpo, state, train


@pytest.mark.promise("stopped")
@pytest.mark.parametrize(
    ("place", "nth", "name", "on_disk"),
    some(
        1,
        [
            ("engine batch", 4, "SIGTERM", State((1, 0), (0, 0), (), "evaluation 0")),
            ("engine batch", 9, "SIGINT", State((3, 1), (3, 0), (2, 3), "evaluation 3")),
            ("scoring", 15, "SIGTERM", State((3, 0), (1, 0), (), "evaluation 0")),
            # The current update is finished and saved, although no checkpoint is due after it.
            ("gradient", 1, "SIGTERM", State((3, 0), (3, 0), (1,), "update 1")),
            ("gradient", 1, "SIGTERM+SIGTERM", State((3, 0), (3, 0), (1,), "update 1")),  # Slurm
            ("gradient", 5, "SIGINT", State((3, 3), (3, 3), (2, 4, 5), "update 5")),
            ("half a checkpoint", 2, "SIGTERM", State((3, 3), (3, 3), (2, 4), "update 4")),
            ("evaluation sampled", 2, "SIGINT", State((3, 0), (3, 0), (2, 3), "update 3")),
        ],
    ),
)
def test_a_signal_ends_a_run_cleanly_and_the_command_it_prints_resumes_it(
    reference: Path, tmp_path: Path, place: str, nth: int, name: str, on_disk: State
):
    run_dir = tmp_path / "a run"
    ended = train(run_dir, at=place, nth=nth, act=name)
    stopped(ended, f"mugrpo: stopped by {name.partition('+')[0]}. ")
    assert state(run_dir) == on_disk
    again = mugrpo(*resume_words(ended))
    assert (again.status, again.err) == (0, "")
    assert "unlocking" not in again.out and "unfinished" not in again.out
    assert_same(run_dir, reference)


@pytest.mark.long
def test_an_interrupted_evaluation_leaves_the_one_before_and_names_the_command_to_repeat_it(
    run_dir: Path,
):
    before = contents(run_dir / "evaluations" / "update-000004")
    words = ["evaluate", str(run_dir), "--update", "4"]
    ended = mugrpo(*words, at="evaluation sampled", act="SIGINT")
    stopped(ended, "stopped by SIGINT")
    assert contents(run_dir / "evaluations" / "update-000004").items() >= before.items()
    assert resume_words(ended) == words
