"""What a run writes about itself: metrics.jsonl, its sinks, and signs of trouble in the numbers."""

from collections.abc import Callable, Sequence
from typing import Any

from mugrpo.config.run import RunConfig
from mugrpo.disk.errors import Interrupted
from mugrpo.disk.metrics import MetricsLog, read_metrics
from mugrpo.disk.run_dir import RunDir
from mugrpo.run.progress import Progress
from mugrpo.run.signs import Signs
from mugrpo.run.sinks import Sinks

OnMetrics = Callable[[str, int, dict[str, Any]], None]


class Journal:
    """The metrics of a run. The file opens when it is first needed, at the newest update.

    Only the first of several ranks opens it. While ranks make updates, the run that started them
    closes its journal.
    """

    def __init__(self, folder: RunDir, config: RunConfig, progress: Progress) -> None:
        self._folder, self._config, self._progress = folder, config, progress
        self._listeners: list[OnMetrics] = []
        self._signs: Signs | None = None
        self._opened: tuple[MetricsLog, Sinks] | None = None

    def open(self, listener: OnMetrics | None = None) -> MetricsLog:
        """Return the open metrics file. `listener` is called with each line from here on.

        Raises RunStopped if a line is wrong, UsageError if a sink's package is missing.
        """
        if listener:
            self._listeners.append(listener)
        if self._opened is None:
            update, path = self._folder.newest_update(), self._folder.metrics
            options, document = self._config.sinks, self._config.model_dump(mode="json")
            sinks = Sinks(options, self._folder.root, document, update, self._progress.say)
            self._opened = (log := MetricsLog(path, update, self._tell)), sinks
            if log.removed and not update:
                self._progress.say(f"without a checkpoint, {log.removed:,} updates are made again")
            if self._signs is None:
                self._signs = Signs()
                for line in read_metrics(path):  # they have been said
                    self._signs.see(line["kind"], line["update"], line, say=lambda _: None)
        return self._opened[0]

    def has(self, kind: str, update: int) -> bool:
        """See `MetricsLog.has`."""
        return self.open().has(kind, update)

    def append(self, kind: str, update: int, **values: Any) -> None:
        """See `MetricsLog.append`. Raises Interrupted if the run is to stop at a collapse."""
        self.open().append(kind, update, **values)

    def put(self, kind: str, update: int, **values: Any) -> bool:
        """See `MetricsLog.put`, and `append`."""
        return self.open().put(kind, update, **values)

    @property
    def shown(self) -> bool:
        """Whether a sink shows what this journal gets."""
        self.open()
        return bool(self._opened and self._opened[1])

    def show(self, update: int, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Show a table of rollouts in the sinks."""
        self.open()
        assert self._opened
        self._opened[1].show(update, columns, rows)

    def close(self) -> None:
        """Close the file and the sinks until they are needed again."""
        if self._opened:
            (log, sinks), self._opened = self._opened, None
            log.close()
            sinks.close()

    def _tell(self, kind: str, update: int, values: dict[str, Any]) -> None:
        assert self._opened and self._signs
        self._opened[1].log(kind, update, values)
        self._signs.see(kind, update, values, self._progress.say)
        for listener in self._listeners:
            listener(kind, update, values)
        if self._signs.collapse and self._config.evaluation.stop_on_collapse:
            raise Interrupted(f"{self._signs.collapse}; evaluation.stop_on_collapse stops the run")
