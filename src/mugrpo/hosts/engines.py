"""The engines of a run, and what samples from them."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import zip_longest
from threading import Lock
from typing import TypeVar

from mugrpo.engines import make_engines
from mugrpo.engines.base import Engine
from mugrpo.hosts.weights import Weights
from mugrpo.model.memory import make_room, out_of_memory_explained
from mugrpo.rollouts.sampler import Dialogue, Encode, Sampler
from mugrpo.run.opening import OpenRun

A = TypeVar("A")
T = TypeVar("T")


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


class Engines:
    """The engines of a run. They start when they are first needed and end with `close`."""

    def __init__(self, run: OpenRun, weights: Weights) -> None:
        """An engine in this process samples from the policy of `weights`."""
        self._run = run
        self._weights = weights
        self._engines: list[Engine] = []
        self._dialogues: list[Dialogue | None] = []
        self.tried = False  # since they have started; see `canary`
        self._used = False  # since they have slept
        self._refreshed: int | None = None  # the update whose weights they got last
        self.spent: dict[str, float] = {}  # seconds of that refresh, by its parts

    def start(self) -> list[Engine]:
        """Return the engines. Start them if they are not running."""
        run = self._run
        if not self._engines:
            self.tried = False
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
        """Return the engines, with the weights after `update` updates."""
        engines, lock = self.start(), Lock()
        self._used = True
        spent: dict[str, float] = {}
        if self._run.config.engine_in_process:  # what it samples from may be a copy in bf16
            began = time.monotonic()
            self._weights.load().working()
            spent["load"] = time.monotonic() - began

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
        if "write" in spent:
            spent["load"] = max(loading)  # engines work side by side
        if self._refreshed != update:
            self._refreshed, self.spent = update, {}
        self.spent |= spent
        return engines

    def sleep(self) -> None:
        """Leave the machine to the updates."""
        at_once(lambda engine: engine.sleep(), self._engines)
        if self._used and self._weights.policy is not None:
            make_room()  # last, for what an engine in this process has held
        self._used = False

    def close(self) -> None:
        """Close the engines and release all that they hold. The next use starts them again."""
        while self._dialogues:
            if dialogue := self._dialogues.pop():
                dialogue.close()
        while self._engines:
            self._engines.pop().close()
