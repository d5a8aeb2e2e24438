"""Whether git brings what lies in a folder, and when it last brought something."""

from __future__ import annotations

import math
from contextlib import suppress
from pathlib import Path

_OWN = ("commit:", "commit (initial)", "commit (amend)")  # a commit of a merge brings something


def last_arrival(folder: Path) -> float | None:
    """Return when git last brought something to `folder`, or inf if nobody knows.

    Return None if the folder is not the top of a clone: a work tree of a repository that has a
    remote, or has fetched or been cloned from somewhere.
    """
    if (git := _git_folder(folder)) is None:
        return None
    common = git / (_text(git / "commondir").strip() or ".")  # of a `git worktree`
    lines = _text(git / "logs" / "HEAD").splitlines()
    cloned = bool(lines) and _done(lines[0]).startswith("clone:")
    fetched = any((place / "FETCH_HEAD").exists() for place in (git, common))
    if not (cloned or fetched or "[remote" in _text(common / "config")):
        return None
    arrivals = [line for line in lines if not _done(line).startswith(_OWN)]
    arrivals = arrivals or lines[:1]  # git forgets old lines: what it brought came before the rest
    return _time(arrivals[-1]) if arrivals else math.inf


def _git_folder(folder: Path) -> Path | None:
    """Return the git folder of the work tree `folder`, or None. A file .git names it elsewhere."""
    git = folder / ".git"
    if git.is_dir():
        return git
    place = _text(git).removeprefix("gitdir:").strip() if git.is_file() else ""
    return folder / place if place else None


def _text(file: Path) -> str:
    with suppress(OSError):
        return file.read_text(errors="replace")
    return ""


def _done(line: str) -> str:
    """Return what a line of git's log says was done."""
    return line.partition("\t")[2]


def _time(line: str) -> float:
    """Return the time of a line of git's log, or infinity if it has none."""
    try:
        return float(line.partition("\t")[0].split()[-2])
    except (IndexError, ValueError):
        return math.inf
