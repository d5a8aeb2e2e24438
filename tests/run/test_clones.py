"""What git brings is told from one's own work by real repositories."""

from __future__ import annotations

import math
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from mugrpo.run.clones import last_arrival

Git = Callable[..., None]
NAMES = ("NAME", "EMAIL")


@pytest.fixture
def git(tmp_path: Path) -> Git:
    """Return a function that calls git in a folder at a time, in seconds since 1970."""

    def call(folder: str, *words: str, at: int = 1_000_000_000) -> None:
        who = {f"GIT_{role}_{key}": "x" for role in ("AUTHOR", "COMMITTER") for key in NAMES}
        dates = {f"GIT_{role}_DATE": f"{at} +0000" for role in ("AUTHOR", "COMMITTER")}
        command = ["git", "-c", "init.defaultBranch=main", "-c", "protocol.file.allow=always"]
        (tmp_path / folder).mkdir(exist_ok=True)
        outside = {key: text for key, text in os.environ.items() if not key.startswith("GIT_")}
        environment = {**outside, **who, **dates, "GIT_CONFIG_GLOBAL": os.devnull}
        subprocess.run(
            [*command, *words], cwd=tmp_path / folder, env=environment, check=True, timeout=60
        )

    return call


@pytest.fixture
def theirs(git: Git, tmp_path: Path) -> Path:
    """A repository with a commit."""
    git("theirs", "init", "-q")
    commit(git, "theirs", "a")
    return tmp_path / "theirs"


def commit(git: Git, folder: str, name: str, at: int = 1_000_000_000) -> None:
    git(folder, "commit", "-q", "--allow-empty", "-m", name, at=at)


def test_a_repository_that_nothing_came_to_is_no_clone(theirs: Path, git: Git):
    git("theirs", "branch", "other")
    git("theirs", "checkout", "-q", "other")
    assert last_arrival(theirs) is None
    assert last_arrival(theirs.parent) is None


def test_every_way_to_get_one_is_a_clone(theirs: Path, git: Git, tmp_path: Path):
    """A work tree and a submodule have a file .git, and a fetched repository has no remote."""
    git("clone", "clone", "-q", "../theirs", ".", at=2_000_000_000)
    git("clone", "worktree", "add", "-q", "../tree", at=2_000_000_001)
    git("mine", "init", "-q")
    git("mine", "submodule", "--quiet", "add", "../theirs", "part", at=2_000_000_002)
    git("fetched", "init", "-q")
    git("fetched", "fetch", "-q", "../theirs", at=2_000_000_003)
    git("fetched", "checkout", "-q", "FETCH_HEAD", at=2_000_000_004)
    git("fetched", "worktree", "add", "-q", "../other", at=2_000_000_005)
    places = ("clone", "tree", "mine/part", "fetched", "other")
    assert [last_arrival(tmp_path / place) for place in places] == [
        2_000_000_000,
        2_000_000_001,
        2_000_000_002,
        2_000_000_004,
        2_000_000_005,
    ]
    assert last_arrival(tmp_path / "mine") is None


def test_a_pull_and_a_merge_bring_something_and_a_commit_does_not(
    theirs: Path, git: Git, tmp_path: Path
):
    git("clone", "clone", "-q", "../theirs", ".", at=2_000_000_000)
    commit(git, "clone", "mine", at=2_000_000_010)
    assert last_arrival(tmp_path / "clone") == 2_000_000_000
    commit(git, "theirs", "b")
    git("clone", "pull", "-q", "--no-rebase", "--no-edit", at=2_000_000_020)
    assert last_arrival(tmp_path / "clone") == 2_000_000_020
    commit(git, "theirs", "c")
    git("clone", "pull", "-q", "--no-rebase", "--no-commit", "--no-ff", at=2_000_000_030)
    git("clone", "commit", "-q", "--no-edit", at=2_000_000_040)  # "commit (merge): ..."
    commit(git, "clone", "mine too", at=2_000_000_050)
    assert last_arrival(tmp_path / "clone") == 2_000_000_040


def test_what_git_has_forgotten_came_before_the_rest_of_its_log(
    theirs: Path, git: Git, tmp_path: Path
):
    git("clone", "clone", "-q", "../theirs", ".", at=1_000_000_000)
    commit(git, "clone", "mine", at=1_500_000_000)
    log = tmp_path / "clone/.git/logs/HEAD"
    log.write_text(log.read_text().partition("\n")[2])
    assert last_arrival(tmp_path / "clone") == 1_500_000_000
    git("clone", "reflog", "expire", "--expire=all", "--all")
    assert last_arrival(tmp_path / "clone") == math.inf
    log.unlink()
    assert last_arrival(tmp_path / "clone") == math.inf
