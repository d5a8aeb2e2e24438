"""The paths of a run, and its lock. Other modules should take paths from here.

    RUN/
      config.json                         the run's id, resolved config and provenance
      origin.json                         only if the run trains on another run's rollouts
      lock                                the process that holds the run
      metrics.jsonl                       one flat object per event
      stages/000/policy.json              the weights that parts generate the stage with
      stages/000/rollouts/shard-00000.parquet, shard-00000.json (its entry)
      stages/000/rollouts/shard-00000.claim-0    a process that is at work on the shard
      stages/000/scores/shard-00000.parquet, shard-00000.json
      stages/000/reference_logprobs/...   and other logprobs that an objective needs
      checkpoints/update-000064/          after 64 updates: model, optimizer, state
      evaluations/update-000064/          rollouts and scores of the held-out problems
      benchmarks/gsm8k/update-000064/     the same of a benchmark suite, and its result.json
      samples/update-000064.json          a few rollouts of an update (or evaluation-000064.json)
      nonfinite/update-000017.json        the loss and groups of an update that was not applied
      handover/update-000064/             weights for engines in other processes, from this one
      logs/engine-0.log, rewards.log      output of such a process
      logs/ranks/                         output of the ranks
      ranks/order.json, done.json         what the ranks are to do, and what they have done
      ranks/models/update-000064/         weights for engines, from the ranks
      parts/HOST-PID-MACHINE/              logs and engines' weights of a part of a stage
      bakeoff/stage-000/METHOD/           runs that train other methods on the stage's rollouts

A path that exists is complete (see `publishing`). A shard without its entry does not exist.
"""

import fcntl
import json
import os
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import IO, Any, Protocol

from mugrpo.disk.errors import Locked, RunStopped, UsageError
from mugrpo.disk.publishing import (
    failpoint,
    full_disk_explained,
    read_checked,
    remove_unfinished,
    writer,
)

FORMAT = 4
_BUCKETS = frozenset(
    ("s3fs", "goofys", "gcsfuse", "mountpoint-s3", "mount-s3", "rclone", "blobfuse", "blobfuse2")
)
_LINKS_OUT = ("wandb",)  # to its own logs


class Pending(Protocol):
    """A checkpoint that is being written beside other work."""

    update: int
    folder: Path  # where it is written, before it is published

    def ready(self) -> None:
        """Wait until the model's files are complete. Raises what ended the writing, if it failed.

        The optimizer's state may follow later.
        """

    def published(self, *, wait: bool) -> bool:
        """Return whether the checkpoint is published. Raises what ended the writing."""


@dataclass(frozen=True)
class Handover:
    """A model that ranks have written for engines. A checkpoint may hold it, too."""

    update: int
    folder: Path


class RunDir:
    """The paths of the run at `root`.

    `pending` is a checkpoint that this run is still writing, `handover` what ranks have written for
    engines. Updates of both count as made.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.own = root  # where this process keeps logs and engines' weights
        self.config = root / "config.json"
        self.metrics = root / "metrics.jsonl"
        self.checkpoints = root / "checkpoints"
        self.benchmarks = root / "benchmarks"  # results of suites
        self.ranks = root / "ranks"  # where the run and its ranks exchange orders and answers
        self.stop_request = self.ranks / "stop"  # exists while the ranks are asked to stop
        self.rank_logs = root / "logs" / "ranks"
        # of a run on another run's rollouts, see extensions/lab/bakeoff.py
        self.origin = root / "origin.json"
        self.pending: Pending | None = None
        self.handover: Handover | None = None
        self._changing = Lock()
        self._lock = root / "lock"

    def stage(self, stage: int) -> Path:
        return self.root / "stages" / f"{stage:03d}"

    def policy(self, stage: int) -> Path:
        """Return the file that names the weights a stage is generated with in parts."""
        return self.stage(stage) / "policy.json"

    def shards(self, stage: int, kind: str) -> Path:
        """Return a stage's folder of "rollouts", "scores", or logprobs by name."""
        return self.stage(stage) / kind

    def checkpoint(self, update: int) -> Path:
        return self.checkpoints / f"update-{update:06d}"

    def handover_folder(self, update: int) -> Path:
        return self.own / "handover" / f"update-{update:06d}"

    def log(self, name: str) -> Path:
        """Return the log file of the process called `name`."""
        return self.own / "logs" / f"{name}.log"

    def checkpoint_updates(self) -> list[int]:
        """Return the updates with a published checkpoint, ascending. The folders' names decide."""
        names = [p.name for p in self.checkpoints.glob("update-*") if p.is_dir()]
        updates = [int(name[7:]) for name in names if name[7:].isdigit()]
        # not "update-7", which no run writes
        return sorted(u for u in updates if self.checkpoint(u).name in names)

    def newest_update(self) -> int:
        """Return the number of updates made, even if only the ranks' memory holds the last ones."""
        return max(self.saved_update(), self.handover.update if self.handover else 0)

    def saved_update(self) -> int:
        """Return the update of the newest checkpoint that is published or being written, or 0."""
        pending = [self.pending.update] if self.pending else []
        return max([*self.checkpoint_updates(), *pending], default=0)

    def settle(self, *, wait: bool = True) -> None:
        """Wait until no checkpoint is pending, or without `wait`, only look.

        Raises what ended the writing, if it failed.
        """
        pending, done = self.pending, True
        if pending is None:
            return
        try:
            done = pending.published(wait=wait)
        finally:
            with self._changing:  # generation may wait in another thread than training
                if done and self.pending is pending:
                    self.pending = None

    def is_temporary(self, update: int) -> bool:
        """Return whether a checkpoint is only there until there is a newer one."""
        return bool(self._stages(update).get("temporary"))

    def config_at(self, update: int) -> dict[str, Any] | None:
        """Return the config.json that a checkpoint was written with, or None if it has none."""
        return self._stages(update).get("config")

    def _stages(self, update: int) -> dict[str, Any]:
        """Return a checkpoint's stages.json, or {} if it cannot be read."""
        try:
            return dict(json.loads((self.checkpoint(update) / "stages.json").read_bytes()))
        except (OSError, ValueError, TypeError, RecursionError):
            return {}

    def stages(self) -> list[int]:
        """Return the numbers of the stages that have a folder."""
        names = [p.name for p in (self.root / "stages").glob("*") if p.is_dir()]
        return sorted(int(name) for name in names if name.isdigit())

    def evaluation(self, update: int) -> Path:
        return self.root / "evaluations" / f"update-{update:06d}"

    def samples(self, update: int, kind: str = "update") -> Path:
        """Return the file of a few rollouts of an update, or of an "evaluation"."""
        return self.root / "samples" / f"{kind}-{update:06d}.json"

    def nonfinite(self, update: int) -> Path:
        return self.root / "nonfinite" / f"update-{update:06d}.json"

    def read_config(self) -> dict[str, Any] | None:
        """Return the stored config.json, or None if this is not a run yet.

        Raises UsageError if the folder holds something else, a format that this version does not
        know, or a link that leads out of it; RunStopped if the file is not as the run wrote it.
        """
        if self.root.exists() and not self.root.is_dir():
            raise UsageError(f"{self.root} is not a directory; name another --run-dir")
        if not os.path.lexists(self.config):
            self._refuse_strangers()
            return None
        refuse_links_out(self.root)
        stored = read_checked(self.config)
        if stored.get("format") != FORMAT:
            raise UsageError(
                f"{self.root} has run format {stored.get('format')}, but this version of mugrpo "
                f"reads format {FORMAT}; use the version that wrote it, or name another --run-dir"
            )
        return stored

    def _refuse_strangers(self) -> None:
        """Raise an error if the folder without a config.json has what a new run has not."""
        if self.checkpoint_updates():
            raise RunStopped(
                f"{self.config} is missing; `mugrpo repair {self.root}` restores it from a "
                "checkpoint"
            )
        own = ("lock", "config.json")  # a killed process may have left it unfinished
        for path in sorted(self.root.glob("*")):
            if path.name.partition(".tmp.")[0] not in own:
                raise UsageError(
                    f"{self.root} is not a run (it has no config.json) but holds {path.name}; "
                    "name an empty or new directory with --run-dir"
                )

    def is_untouched(self) -> bool:
        """Return whether the run has no results yet. Its config may change until it has some."""
        names = ("stages", "checkpoints", "evaluations", "benchmarks")
        folders = (self.root / name for name in names)
        found = any(path.is_file() for folder in folders for path in folder.rglob("*"))
        return not found and not (self.root / "parts").exists()

    def evaluation_folders(self) -> list[Path]:
        folders = (self.root / "evaluations").glob("update-*")
        return sorted(folder for folder in folders if folder.name[7:].isdigit())

    def held(self) -> bool:
        """Return whether a process has the lock. It may be writing."""
        try:
            with open(self._lock, "rb", opener=_not_a_link) as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def holder(self) -> str:
        """Return which process has the lock, as it says itself, or ""."""
        return self._lock.read_text(errors="replace").strip() if self.held() else ""

    def go_apart(self) -> None:
        """Keep what is this process's alone apart, as processes on other machines work here, too.

        Raises UsageError if the file system cannot be shared in this way.
        """
        require_atomic(self.root)
        self.own = self.root / "parts" / f"{socket.gethostname()}-{writer()}"
        self.own.mkdir(parents=True, exist_ok=True)

    def leave(self) -> None:
        """Remove what this process has kept apart. After an error it stays, to be looked at."""
        shutil.rmtree(self.own, ignore_errors=True)
        with suppress(OSError):  # others are at work
            self.own.parent.rmdir()

    @property
    def apart(self) -> bool:
        """Whether this process does a part of a stage, while others may change the run."""
        return self.own != self.root

    @contextmanager
    def locked(self) -> Iterator[list[str]]:
        """Lock the run for this process; yield notices of what an earlier crash left behind.

        The kernel frees the lock when a process dies, so a stale lock never blocks. Raises
        Locked, naming the holder, if another process has the lock, and UsageError if the lock is a
        link, or if the file system has no locks or no atomic rename.
        (The lock is an flock: on NFS it is only as good as the server's.)
        """
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            require_atomic(self.root)
            file = open(self._lock, "a+b", buffering=0, opener=_not_a_link)  # noqa: SIM115
        except OSError as error:
            raise UsageError(
                f"{self.root} cannot be written to ({error.filename}: {error.strerror}); fix "
                "that, or name another --run-dir"
            ) from None
        with file:
            file.seek(0)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Locked(
                    f"{self.root} is locked by {_text(file) or 'another process'}; wait "
                    "for that process, end it, or use another --run-dir"
                ) from None
            except OSError as error:
                raise UsageError(
                    f"the file system of {self.root} has no locks ({error.strerror}), so two "
                    "commands could damage a run; put runs on one that has (NFS 4, Lustre mounted "
                    "with -o flock, a local disk)"
                ) from None
            crashed = _text(file)
            file.truncate(0)
            since = time.strftime("%Y-%m-%d %H:%M:%S")
            holder = f"pid {os.getpid()} on host {socket.gethostname()} since {since}\n"
            with full_disk_explained(self._lock):
                file.write(holder.encode())
            failpoint("removal of unfinished")
            notices = (
                [f"the last process here ({crashed}) ended without unlocking"] if crashed else []
            )
            notices += [f"removed unfinished {path}" for path in remove_unfinished(self.root)]
            try:
                yield notices
            finally:
                file.truncate(0)


def require_atomic(folder: Path) -> None:
    """Raise UsageError if a rename in `folder` is known not to be atomic.

    Buckets that are mounted as folders copy and delete instead, and none can be told to refuse.
    """
    with suppress(OSError):  # not Linux
        mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        of_folder = folder.resolve()
        above = [m for m in mounts if of_folder.is_relative_to(m[4].replace("\\040", " "))]
        mount = max(above, key=lambda m: len(m[4]), default=[])
        kinds = {word.removeprefix("fuse.") for word in mount[mount.index("-") + 1 :][:2]}
        if kinds & _BUCKETS:
            raise UsageError(
                f"{folder} is in a bucket mounted by {min(kinds & _BUCKETS)}, where a rename is "
                "not atomic; keep runs on a file system, and copy them to the bucket"
            )


def _not_a_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def _text(file: IO[bytes]) -> str:
    return file.read().decode(errors="replace").strip()


def refuse_links_out(run: Path) -> None:
    """Raise UsageError if the folder `run` has a link out of it, which a command could write to."""
    root = run.resolve()
    for folder, folders, files in os.walk(root):
        for path in (Path(folder, name) for name in (*folders, *files)):
            if path.is_symlink() and not path.resolve().is_relative_to(root):
                raise UsageError(
                    f"{path} is a link out of the run; put what it leads to in its place, or "
                    "remove it"
                )
        if Path(folder) == root:
            folders[:] = [name for name in folders if name not in _LINKS_OUT]
