"""Where metrics go besides metrics.jsonl: TensorBoard, trackio, Weights & Biases; each optional.

A sink gets every line that is appended to metrics.jsonl, as values named `kind/key` at an update.
It is a copy for viewing: a resumed run continues in the same place, and a sink that fails is
dropped.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from mugrpo.config.stages import SinkOptions
from mugrpo.disk.errors import UsageError


class Sink(Protocol):
    """A receiver of metrics; `log` takes the numbers of one metrics line."""

    def log(self, update: int, values: dict[str, float]) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    """Event files in `folder`. Events past `update` are purged: the run will write them again."""

    def __init__(self, folder: Path, update: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise _missing("tensorboard") from None
        self._writer = SummaryWriter(str(folder), purge_step=update + 1)

    def log(self, update: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, update)

    def close(self) -> None:
        self._writer.close()


class Project:
    """A run in a trackio or wandb project. Both packages have the same functions."""

    def __init__(self, package: str, project: str, run_dir: Path, config: dict[str, Any]) -> None:
        identity = hashlib.sha256(str(run_dir.absolute()).encode()).hexdigest()[:8]
        name = f"{run_dir.name}-{identity}"
        try:
            self._module = importlib.import_module(package)
        except ImportError:
            raise _missing(package) from None
        own = {"id": name, "dir": str(run_dir)} if package == "wandb" else {}
        self._module.init(project=project, name=name, resume="allow", config=config, **own)

    def log(self, update: int, values: dict[str, float]) -> None:
        self._module.log({"update": update, **values})

    def close(self) -> None:
        self._module.finish()


class Sinks:
    """The sinks that `options` turn on, for a run that continues after `update`.

    Raises UsageError if a sink cannot be opened. If it is not `required`, because the run has begun
    to work, it is dropped instead.
    """

    def __init__(
        self,
        options: SinkOptions,
        run_dir: Path,
        config: dict[str, Any],
        update: int,
        say: Callable[[str], None],
        *,
        required: bool = True,
    ) -> None:
        self._say = say
        self._sinks: dict[str, Sink] = {}
        opens: dict[str, Callable[[], Sink]] = {}
        if options.tensorboard:
            opens["tensorboard"] = partial(TensorBoard, run_dir / "tensorboard", update)
        for package in ("trackio", "wandb"):
            if project := getattr(options, package):
                opens[package] = partial(Project, package, project, run_dir, config)
        for name, open_sink in opens.items():
            try:
                self._sinks[name] = open_sink()
            except Exception as error:
                if not required:
                    self._say_failed(name, error)
                elif isinstance(error, UsageError):
                    raise
                else:
                    raise UsageError(
                        f"sinks.{name} cannot be opened ({error}); mend that, or leave it out"
                    ) from None

    def log(self, kind: str, update: int, values: dict[str, Any]) -> None:
        """Pass the numbers in `values` to every sink. Other values are left out."""
        numbers = {
            f"{kind}/{name}": float(value)
            for name, value in values.items()
            if isinstance(value, int | float)
        }
        for name, sink in list(self._sinks.items()):
            try:
                sink.log(update, numbers)
            except Exception as error:
                self._say_failed(name, error)
                del self._sinks[name]

    def close(self) -> None:
        for name, sink in self._sinks.items():
            try:
                sink.close()
            except Exception as error:
                self._say_failed(name, error)
        self._sinks.clear()

    def _say_failed(self, name: str, error: Exception) -> None:
        self._say(f"{name} failed ({error}) and is dropped; metrics.jsonl has everything")


def _missing(package: str) -> UsageError:
    return UsageError(f"sinks.{package} needs one more package: pip install 'mugrpo[{package}]'")
