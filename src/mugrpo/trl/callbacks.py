"""The events of transformers' TrainerCallback that a run has: on_log, on_step_end, on_save."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState

from mugrpo.processes.stopping import StopFlag
from mugrpo.run.opened import OpenRun
from mugrpo.trl.config import plain, warn

_EVENTS = ("on_train_begin", "on_step_end", "on_log", "on_evaluate", "on_save", "on_train_end")


class Callbacks:
    """The callbacks of a trainer, which are told what the run's metrics say."""

    def __init__(self, callbacks: Sequence[Any], args: Any) -> None:
        self._callbacks = [one() if isinstance(one, type) else one for one in callbacks]
        self._args = args
        self.state, self.control = TrainerState(), TrainerControl()
        self._run: OpenRun | None = None
        self._stop = StopFlag()
        self._saved: set[int] = set()
        for callback in self._callbacks:
            unheard = [name for name in _events_of(callback) if name not in _EVENTS]
            if unheard:
                warn([f"{type(callback).__name__}.{name} is never called" for name in unheard])

    def begin(self, run: OpenRun, stop: StopFlag) -> None:
        """Begin with what `run` has already. `stop` is set if a callback wants to end it."""
        self._run, self._stop = run, stop
        if self._callbacks and run.config.distributed.ranks > 1:
            warn(["ranks of their own make the updates, and callbacks are not told of them"])
        self._saved = set(run.folder.checkpoint_updates())
        self.state.max_steps = run.config.schedule.total_updates
        self._count(run.folder.newest_update())
        self.state.num_train_epochs = math.ceil(self._epochs(self.state.max_steps))
        every = self._args.logging_steps
        self.state.logging_steps = max(
            1, int(every if every >= 1 else every * self.state.max_steps)
        )
        self._tell("on_train_begin")

    def end(self) -> None:
        """Tell of the last checkpoint and of the end."""
        self._tell_saved()
        self._tell("on_train_end")

    def on_metrics(self, kind: str, update: int, values: dict[str, Any]) -> None:
        """Tell the callbacks what a line of the metrics says."""
        self._count(update)
        if kind == "update":
            self._tell_saved()
            self._tell("on_step_end")
            due = update % self.state.logging_steps == 0
            if due and plain(self._args.logging_strategy) != "no":
                logs = {**values, "learning_rate": values["lr"]}
                if "behavior_reward" in values:
                    logs["reward"] = values["behavior_reward"]
                self._log(logs)
        elif kind == "evaluation":
            logs = {f"eval_{name}": value for name, value in values.items()}
            self._log(logs)
            self._tell("on_evaluate", metrics=logs)
        if self.control.should_training_stop:
            self._stop.signal_name = self._stop.signal_name or "a callback"

    def _log(self, logs: dict[str, Any]) -> None:
        self.state.log_history.append({**logs, "step": self.state.global_step})
        self._tell("on_log", logs=logs)

    def _tell_saved(self) -> None:
        """Tell of checkpoints that are published since the last look: they are written aside."""
        if self._run is None:
            return
        for update in self._run.folder.checkpoint_updates():
            if update not in self._saved:
                self._saved.add(update)
                now = self.state.global_step
                self._count(update)
                self._tell("on_save")
                self._count(now)

    def _count(self, update: int) -> None:
        self.state.global_step = update
        self.state.epoch = self._epochs(update)

    def _epochs(self, updates: int) -> float:
        """Return how often `updates` go over the problems."""
        assert self._run is not None
        schedule = self._run.config.schedule
        batches = updates / schedule.passes_per_batch
        return batches * schedule.problems_per_update / len(self._run.problems)

    def _tell(self, event: str, **more: Any) -> None:
        for callback in self._callbacks:
            if event in _events_of(callback):
                getattr(callback, event)(self._args, self.state, self.control, **more)


def _events_of(callback: Any) -> list[str]:
    """Return the events that a callback handles itself."""
    names = [name for name in dir(TrainerCallback) if name.startswith("on_")]
    kind = type(callback)
    return [
        name for name in names if getattr(kind, name, None) is not getattr(TrainerCallback, name)
    ]
