"""Generating a stage before its updates, or beside them: in this process, or in others.

Beside them, the engines have processes or machines of their own, and a thread publishes and scores
what they generate. Updates wait for the shards that they read, in the same order and from the same
policy as otherwise, so the weights are bit-identical.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from itertools import chain
from threading import Event

from mugrpo.disk.errors import RunStopped
from mugrpo.hosts.host import Host
from mugrpo.processes.claims import claims_in
from mugrpo.run.opening import OpenRun
from mugrpo.run.stage import Stage
from mugrpo.stages.generate import generate, publish_shards, refreshed_for
from mugrpo.stages.score import score

_TICK = 0.2  # seconds between checks for a signal
_SELDOM = 5.0  # seconds between looks at who is at work

Check = Callable[[], None]  # raises if the work must stop


class Others:
    """Processes that make a stage's shards while this one makes updates; see `Generation`."""

    uses_engines = False

    def __init__(self, run: OpenRun, stage: Stage, wait: float) -> None:
        """Wait `wait` seconds if nobody is at work."""
        self._run, self._stage, self._wait = run, stage, wait
        self._until = time.monotonic() + wait
        self._looked = -math.inf
        self._left = self._hope = True

    def running(self) -> bool:
        """See `Generation`. Raises RunStopped if nobody is at work, nor comes in time."""
        if self.failed():
            number, folder = self._stage.number, self._run.folder.root
            raise RunStopped(
                f"stage {number} lacks scores, and nobody is at work on them; run `mugrpo generate "
                f"{folder} --stage {number}` and `mugrpo score {folder} --stage {number}`"
            )
        return self._left

    def failed(self) -> bool:
        """See `Generation`."""
        if time.monotonic() - self._looked > _SELDOM:
            folders = [self._stage.shards(kind).folder for kind in ("rollouts", "scores")]
            at_work = any(not claim.lost() for one in folders for claim in claims_in(one))
            self._looked = time.monotonic()
            if at_work:  # one that has ended is followed by the next, or by its scores
                self._until = max(self._until, self._looked + max(self._wait, _SELDOM))
            self._left = bool(self._stage.unscored())
            self._hope = self._looked < self._until or not self._left
        return not self._hope

    def wait(self) -> None:
        """See `Generation`."""
        while self.running():
            self._run.check()
            time.sleep(_TICK)


class Background:
    """A thread that runs `work` until it is done, fails, or must stop.

    `work` gets a function to call now and then. The function raises if the work must stop: when
    `check` raises, or after `close`.
    """

    uses_engines = True

    def __init__(self, work: Callable[[Check], None], check: Check) -> None:
        """Start the thread. `check` raises if the run must stop."""
        self._check = check
        self._abandoned = Event()
        self._pool = ThreadPoolExecutor(1, "background")
        self._future: Future[None] = self._pool.submit(work, self._keep_on)

    def running(self) -> bool:
        """Return whether the work is unfinished. Raises the error that ended it, if any."""
        if not self._future.done():
            return True
        self._future.result()
        return False

    def failed(self) -> bool:
        """Return whether the work has ended with an error."""
        return self._future.done() and self._future.exception() is not None

    def wait(self) -> None:
        """Wait until the work is finished. Raises its error, or what `check` raises."""
        while self.running():
            self._check()
            wait([self._future], _TICK)

    def close(self) -> None:
        """Stop the work at its next check, and wait until it has ended."""
        self._abandoned.set()
        self._pool.shutdown()

    def _keep_on(self) -> None:
        self._check()
        if self._abandoned.is_set():
            raise RunStopped("this work is no longer needed")


@contextmanager
def generating(run: OpenRun, stage: Stage, host: Host) -> Iterator[Background | None]:
    """Generate and score the stage: before the block, or with overlap in the background of it.

    At the end of the block, wait for the rest. An error on either side stops both.
    """
    if not run.config.overlap:
        generate(run, stage, host)
        score(run, stage)
        yield None
        return
    # now: the canary needs the trainer, and so do the updates
    refreshed = refreshed_for(run, stage, host) if stage.lacking() else None
    if refreshed and len(stage.drawn) == 1:
        run.progress.say(
            "overlap has no effect: the stage is one shard, which all updates wait for; lower "
            "--rollouts.shard_rollouts in a new run"
        )
    # opened before the thread begins, which publishes what updates then see
    rollouts, scores = stage.shards("rollouts"), stage.shards("scores")

    def work(check: Check) -> None:
        arriving: Iterable[int] = ()
        if refreshed:
            arriving = publish_shards(run, stage, lambda: refreshed, lambda _: check())
        scorer = run.scorer(run.problems, stage.number)
        waiting = [shard for shard in stage.unscored() if shard in rollouts]
        for shard in chain(waiting, arriving):
            scorer.make_shard(rollouts, scores, shard)
        for shard in stage.unscored():  # which others have generated
            scorer.make_shard(rollouts, scores, shard)

    background = Background(work, run.stop.check)
    try:
        yield background
        background.wait()
    finally:
        background.close()
