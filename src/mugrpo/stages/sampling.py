"""The engines that a phase samples with; each refresh gives them the policy's weights."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cache
from itertools import zip_longest
from threading import Event, Lock
from typing import Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from mugrpo.disk.errors import RunStopped
from mugrpo.disk.records import Rollout
from mugrpo.engines import make_engines
from mugrpo.engines.base import Engine
from mugrpo.model.hardware import give_back_if_tight, out_of_memory_explained
from mugrpo.rollouts.sampler import Dialogue, Encode, Sampler
from mugrpo.run.opening import OpenRun
from mugrpo.run.weights import Weights
from mugrpo.stages.logprobs import Compute

_TICK = 0.2  # seconds between checks for a signal

A = TypeVar("A")
T = TypeVar("T")

Check = Callable[[], None]  # raises if the work must stop


def at_once(work: Callable[[A], T], items: Sequence[A]) -> list[T]:
    """Return what `work` returns for each of `items`, in order. Threads work on all at once.

    A single item is worked on in this thread, as torch's settings are a thread's own. Raises what
    the first failing item in order raises, when all have ended.
    """
    if len(items) <= 1:
        return [work(item) for item in items]
    with ThreadPoolExecutor(len(items)) as pool:
        return list(pool.map(work, items))


def samplers_of(
    run: OpenRun,
    engines: Sequence[Engine],
    stage: str,
    size: int,
    update: int,
    *,
    temperature: float | None = None,
    top_p: float = 1.0,
    dialogues: Sequence[Dialogue | None] = (),
    encode: Encode | None = None,
) -> list[Sampler]:
    """Return samplers of `size` responses to each problem, seeded as those of `stage`.

    The engines have the policy after `update` updates. Temperature and prompt ids are those of
    rollouts, unless they are given. `dialogues` has one for each engine; with one that is not None,
    responses have turns.
    """
    return [
        Sampler(
            engine,
            encode or run.prompts,
            dialogue=dialogue,
            seed=run.config.seed,
            stage=stage,
            group_size=size,
            temperature=temperature or run.config.rollouts.temperature,
            top_p=top_p,
            max_new_tokens=run.config.rollouts.max_new_tokens,
            policy_step=update,
        )
        for engine, dialogue in zip_longest(engines, dialogues)
    ]


class Background:
    """A thread that runs `work` until it is done, fails, or must stop.

    `work` gets a function to call now and then. The function raises if the work must stop: when
    `check` raises, or after `close`.
    """

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


class Sampling:
    """The engines of a run. They start when they are first needed and end with `close`.

    `background` is the generation that runs beside updates, if there is one. `make_room` leaves
    the GPUs to engines that share them with the trainer. `compute` returns the trainer's logprobs
    from the ranks, if there are any.
    """

    def __init__(self, run: OpenRun, weights: Weights) -> None:
        self.background: Background | None = None
        self.make_room: Callable[[], None] = lambda: None
        self._run = run
        self._weights = weights
        self.compute: Compute | None = None
        self._engines: list[Engine] = []
        self._dialogues: list[Dialogue | None] = []
        self._used = False  # since they have rested
        self._refreshed: int | None = None  # the update whose weights the engines got last
        self.spent: dict[str, float] = {}  # seconds of that refresh, by its parts

    def start(self) -> list[Engine]:
        """Return the engines. Start them if they are not running."""
        run = self._run
        if not self._engines:
            self._engines = make_engines(
                run.config,
                vocabulary=run.vocabulary,
                policy=self._weights.load() if run.config.engine_in_process else None,
                log=run.folder.log,
                notify=run.progress.say,
                check=run.stop.check,
            )
        return self._engines

    def dialogues(self) -> Sequence[Dialogue | None]:
        """Return what lets the rollouts of each engine have turns, None if they have none."""
        for number in range(len(self._dialogues), len(self.start())):
            self._dialogues.append(self._run.dialogue(number))
        return self._dialogues

    def refresh(self, update: int) -> list[Engine]:
        """Return the engines, sampling from the policy after `update` updates.

        Wait for generation in the background first. A policy in this process gets these weights
        too.
        """
        if self.background:
            self.background.wait()
        # start() first: it loads the policy if an engine samples from it
        engines, lock = self.start(), Lock()
        if self._weights.policy is not None:
            self._weights.at(update)
        self.make_room()
        self._used = True
        spent: dict[str, float] = {}

        # Engines ask at once: the lock lets one write, the cache serves the others.
        @cache
        def folder() -> str:
            began = time.monotonic()
            path = self._weights.hand_over(update)
            spent["write"] = time.monotonic() - began
            return path

        def weights() -> str:
            with lock:
                return folder()

        remedy = self._run.config.engine.loading_remedy
        with out_of_memory_explained("a refresh of the engines", remedy):
            loading = at_once(lambda engine: engine.refresh(update, weights), engines)
        if spent:
            spent["load"] = max(loading)  # engines work side by side
        if self._refreshed != update:
            self._refreshed, self.spent = update, {}
        self.spent |= spent
        return engines

    @property
    def compares_elsewhere(self) -> bool:
        """Whether other processes compute the trainer's logprobs."""
        return self.compute is not None and self._weights.policy is None

    def trainer_logprobs(
        self, update: int, rollouts: Sequence[Rollout]
    ) -> list[NDArray[np.float32]]:
        """Return the trainer's logprobs [T] of each rollout's response after `update` updates."""
        compute = self.compute if self.compares_elsewhere else None
        return (compute or self.own_logprobs)(update, rollouts)

    def own_logprobs(self, update: int, rollouts: Sequence[Rollout]) -> list[NDArray[np.float32]]:
        """Return what `trainer_logprobs` does, computed in this process.

        If it has no model, it loads one, and drops it: the engines may need the memory. Raises
        RunStopped if memory runs out.
        """
        weights, remedy = self._weights, "leave more memory for it beside the engine"
        try:
            with out_of_memory_explained("the trainer's model", remedy):
                return weights.logprobs(update, rollouts)
        finally:
            if weights.policy is None:
                weights.release()

    def rest(self) -> None:
        """Leave the machine to the updates, unless engines generate beside them."""
        if not self.busy():
            if self._used and self._weights.policy is not None:
                give_back_if_tight()
            self._used = False
            at_once(lambda engine: engine.rest(), self._engines)

    def leave(self, *, room: bool) -> None:
        """Leave the machine and all models in this process to ranks, unless engines generate.

        Engines in processes of their own rest. Without `room` for both they end, because the ranks
        may be waiting for what they have reserved.
        """
        if room and not self._run.config.engine_in_process:
            self.rest()
        elif not self.busy():
            self.close()

    def busy(self) -> bool:
        """Return whether rollouts are generated in the background."""
        return self.background is not None and self.background.running()

    def close(self) -> None:
        """Close the engines and release all that they hold. The next use starts them again."""
        while self._dialogues:
            if dialogue := self._dialogues.pop():
                dialogue.close()
        while self._engines:
            self._engines.pop().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
